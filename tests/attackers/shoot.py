"""Sends bytes that no client would send, and tells what came of it.

Its only argument is a file, a list in JSON; each member is a connection of its own,
and all are made at the same time. Prints a list of what each got and how it
ended, in JSON too."""

import base64
import concurrent.futures
import errno
import json
import socket
import sys
import time

PROXY = ("198.18.0.1", 3128)
# Of silence before the first answer, and after some of it.
PATIENCE, QUIET = 4, 1


def shoot(shot):
    got = bytearray()
    try:
        return got, exchange(shot, got)
    except socket.gaierror as error:
        return got, "no name" if error.errno == socket.EAI_NONAME else str(error)
    except ConnectionResetError:
        return got, "reset"
    except BrokenPipeError:
        return got, "reset"
    except OSError as error:
        return got, errno.errorcode.get(error.errno, str(error))


def exchange(shot, got):
    host, port = shot["to"]
    if shot.get("datagrams"):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        stream = socket.socket(family, socket.SOCK_DGRAM)
    else:
        stream = socket.create_connection(PROXY if shot["tunnel"] else (host, port), 10)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if shot["tunnel"]:
            stream.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\n\r\n".encode())
            if not head(stream, got).startswith(b"HTTP/1.1 200 "):
                return "no tunnel"
            got.clear()
    for part in shot["parts"]:
        if shot.get("datagrams"):
            stream.sendto(base64.b64decode(part), (host, port))
        else:
            stream.sendall(base64.b64decode(part))
        time.sleep(shot["pause"] / 1000)
    if shot["half"]:
        stream.shutdown(socket.SHUT_WR)
    stream.settimeout(PATIENCE)
    try:
        while chunk := stream.recv(65536):
            got += chunk
            stream.settimeout(QUIET)
            if shot.get("datagrams"):
                return "answered"
    except TimeoutError:
        return "silence"
    return "closed"


def head(stream, got):
    while b"\r\n\r\n" not in got:
        byte = stream.recv(1)
        if not byte:
            break
        got += byte
    if b"HTTP/1.1 200 " not in got:
        stream.settimeout(QUIET)
        try:
            while chunk := stream.recv(65536):
                got += chunk
        except TimeoutError:
            pass
    return got


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        shots = json.load(file)
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        results = pool.map(shoot, shots)
    told = [{"got": base64.b64encode(g).decode(), "end": e} for g, e in results]
    print(json.dumps(told))


main()
