"""Waits for a server's first words, as clients of databases and mail do."""

import socket
import sys

with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as connection:
    stream = connection.makefile("rwb")
    print(stream.readline().decode(), end="")
    stream.write(b"hello\n")
    stream.flush()
    print(stream.readline().decode(), end="")
