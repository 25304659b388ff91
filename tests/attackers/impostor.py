"""In a network of its own: takes the proxy's port there, says so by `ready`, waits
until it is told to go on, and connects where the proxy would be. Arguments: the port, a directory
that has `go` when it may go on. Writes what it got to `told` there."""

import errno
import os
import socket
import subprocess
import sys
import threading
import time

port, directory = int(sys.argv[1]), sys.argv[2]
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
listener = socket.create_server(("127.0.0.1", port), backlog=16)
reached = []


def serve():
    while True:
        client, _ = listener.accept()
        reached.append(client)
        client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")


threading.Thread(target=serve, daemon=True).start()


def attempt(address):
    try:
        socket.create_connection(address, 5).close()
        return "connected"
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))


before = attempt(("127.0.0.1", port))
time.sleep(0.1)
count = len(reached)
open(f"{directory}/ready", "w").close()
while not os.path.exists(f"{directory}/go"):
    time.sleep(0.02)
after = attempt(("198.18.0.1", 3128))
time.sleep(0.1)
with open(f"{directory}/being-told", "w", encoding="utf-8") as file:
    file.write(f"{before} {count}, {after} {len(reached) - count}\n")
os.rename(f"{directory}/being-told", f"{directory}/told")
