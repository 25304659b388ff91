"""Gets and posts with the library that is named, as its documentation shows; with
`TOKEN`, if there is one."""

import asyncio
import os
import sys

library, base = sys.argv[1:]
headers = {}
if token := os.environ.get("TOKEN"):
    headers["Authorization"] = f"Bearer {token}"


def requests():
    import requests

    with requests.Session() as session:
        session.headers.update(headers)
        session.get(f"{base}/got").raise_for_status()
        return session.post(f"{base}/posted", data="body").json()


def httpx():
    import httpx

    with httpx.Client(headers=headers) as client:
        client.get(f"{base}/got").raise_for_status()
        return client.post(f"{base}/posted", content="body").json()


def aiohttp():
    import aiohttp

    async def main():
        # It reads the proxy variables only when it is told to.
        async with aiohttp.ClientSession(trust_env=True, headers=headers) as session:
            async with session.get(f"{base}/got") as response:
                response.raise_for_status()
            async with session.post(f"{base}/posted", data="body") as response:
                return await response.json()

    return asyncio.run(main())


def urllib():
    import json
    import urllib.request

    def request(path, body=None):
        return urllib.request.Request(f"{base}/{path}", body, headers)

    urllib.request.urlopen(request("got")).read()
    return json.load(urllib.request.urlopen(request("posted", b"body")))


answer = globals()[library]()
print(answer["method"], base + answer["path"], answer["body"])
