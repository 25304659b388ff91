"""Sends bytes that no client would send, and tells what came of it.

Its arguments are a file, a list in JSON, of which each member is a connection of
its own, and an authority that is believed beside those of the environment. All are
made at the same time. Prints a list of what each got and how it ended, in JSON too.

In what is sent, `@TOKEN@` is that variable's value, `@TOKEN[A:B]@` a part of it,
and `@BASE64<...>@`, `@PERCENT<...>@`, `@GZIP<...>@` and `@CHUNK<...>@`, from the
inside out, what is between as that."""

import base64
import concurrent.futures
import errno
import gzip
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import time

PROXY = ("198.18.0.1", 3128)
# Of silence before the first answer, and after some of it.
PATIENCE, QUIET = 4, 1


def filled(text):
    token = os.environ.get("TOKEN", "").encode()

    def part(match):
        begin, end = (int(it) if it else None for it in match.groups())
        return token[begin:end]

    text = re.sub(rb"@TOKEN(?:\[(\d*):(\d*)\])?@", part, text)
    for name, form in (
        (b"BASE64", base64.b64encode),
        (b"PERCENT", lambda it: b"".join(b"%%%02x" % byte for byte in it)),
        (b"GZIP", gzip.compress),
        (b"CHUNK", lambda it: b"%x\r\n%s\r\n" % (len(it), it)),
    ):
        text = re.sub(
            rb"@" + name + rb"<(.*?)>@", lambda it: form(it[1]), text, flags=re.DOTALL
        )
    return text


def secured(stream, shot, got):
    """TLS from here on, as the server says that it is, whether that is true or not."""
    context = ssl.create_default_context()
    context.load_verify_locations(sys.argv[2])
    context.check_hostname = False
    if not shot["verify"]:
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1"])
    stream = context.wrap_socket(stream, server_hostname=shot["sni"])
    told = subprocess.run(
        ["openssl", "x509", "-inform", "DER", "-noout", "-issuer"],
        input=stream.getpeercert(True),
        stdout=subprocess.PIPE,
        check=True,
    )
    got.issuer = told.stdout.decode().strip()
    return stream


class Got(bytearray):
    issuer = ""


def shoot(shot):
    got = Got()
    try:
        return got, exchange(shot, got)
    except ssl.SSLError as error:
        return got, f"tls {error.reason}"
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
    if shot.get("tls"):
        stream = secured(stream, shot, got)
    for part in shot["parts"]:
        part = filled(base64.b64decode(part))
        if shot.get("datagrams"):
            stream.sendto(part, (host, port))
        else:
            stream.sendall(part)
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
    told = [
        {"got": base64.b64encode(got).decode(), "end": end, "issuer": got.issuer}
        for got, end in results
    ]
    print(json.dumps(told))


main()
