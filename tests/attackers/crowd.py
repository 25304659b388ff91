"""Many connections from several processes, which then do as they are told.
Arguments: how (`idle`, `half`, `slow`), how many processes, how many
connections each, a directory: `there-N` says that process N has its
connections, and `go` ends it. Prints, for each process, how many of its
connections still answered (`idle`) or were open."""

import os
import resource
import socket
import sys
import time

how, processes, each, directory = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
WHOLE = b"GET http://echo.example/crowd HTTP/1.1\r\nHost: echo.example\r\n\r\n"


def work(number):
    streams = []
    for _ in range(each):
        stream = socket.create_connection(("198.18.0.1", 3128), 30)
        if how != "idle":
            stream.sendall(WHOLE[:40])
        if how == "half":
            stream.shutdown(socket.SHUT_WR)
        streams.append(stream)
    open(f"{directory}/there-{number}", "w").close()
    sent = 40
    while not os.path.exists(f"{directory}/go"):
        if how == "slow" and sent < len(WHOLE) - 4:
            for stream in streams:
                stream.sendall(WHOLE[sent : sent + 1])
            sent += 1
        time.sleep(0.05)
    well = 0
    for stream in streams[:: max(1, each // 20)]:
        stream.settimeout(20)
        if how == "idle":
            stream.sendall(WHOLE)
        elif how == "slow":
            stream.sendall(WHOLE[sent:])
        well += stream.recv(65536).startswith(b"HTTP/1.1 200 ")
    os.write(1, f"{well}\n".encode())


for number in range(processes):
    if os.fork() == 0:
        work(number)
        os._exit(0)
for _ in range(processes):
    os.wait()
