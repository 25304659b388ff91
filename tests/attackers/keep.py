"""Two requests to one host on one connection. Arguments: host, path, a
directory: when the first is answered there is `asked`, the second follows when
there is `go`. Prints both answers' first lines and rules."""

import http.client
import os
import sys
import time

host, path, directory = sys.argv[1:]
connection = http.client.HTTPConnection(host, timeout=10)
connection.connect()
socket = connection.sock


def ask():
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    print(answer.status, answer.headers.get("x-sandbox-denied"), flush=True)


ask()
open(f"{directory}/asked", "w").close()
while not os.path.exists(f"{directory}/go"):
    time.sleep(0.02)
ask()
print("the same connection" if connection.sock in (socket, None) else "another")
