"""Requests over TLS on one connection, with `TOKEN`. Arguments: host, path, how
many, a directory: each waits until there is `go-N`, and when it is answered there is
`done-N`. Prints each answer's status and rule."""

import http.client
import os
import sys
import time

host, path, count, directory = sys.argv[1:]
connection = http.client.HTTPSConnection(host, timeout=10)
socket = None
for number in range(int(count)):
    while not os.path.exists(f"{directory}/go-{number}"):
        time.sleep(0.02)
    headers = {"Authorization": f"Bearer {os.environ['TOKEN']}"}
    connection.request("GET", path, headers=headers)
    if socket not in (None, connection.sock):
        print("another connection")
    socket = connection.sock
    answer = connection.getresponse()
    answer.read()
    print(answer.status, answer.headers.get("x-sandbox-denied"), flush=True)
    open(f"{directory}/done-{number}", "w").close()
