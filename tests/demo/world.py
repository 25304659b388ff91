"""The Internet of the traced run, in a network namespace: a name server, git's
own server behind a token, a package index, and somebody who collects.

world.py DIRECTORY: certificate, repositories, packages and the token lie there;
what is asked is written to `records.jsonl` before it is answered. Says `ready`
when everything listens."""

import base64
import http.server
import json
import os
import socket
import ssl
import struct
import subprocess
import sys
import threading

ADDRESS = "203.0.113.80"
DIRECTORY = sys.argv[1]


def at(name):
    return os.path.join(DIRECTORY, name)


def read(name):
    with open(at(name), "rb") as file:
        return file.read()


class Records:
    """What was asked, in order."""

    def __init__(self):
        self.lock = threading.Lock()
        self.file = open(at("records.jsonl"), "a", encoding="utf-8")

    def add(self, **fields):
        with self.lock:
            self.file.write(json.dumps(fields) + "\n")
            self.file.flush()


RECORDS = Records()


def names():
    """Answers that every name of `.example` is this host."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((ADDRESS, 53))
    while True:
        query, client = server.recvfrom(4096)
        end = query.index(b"\0", 12) + 5
        known = query[12 : end - 4].endswith(b"\x07example\0")
        answers = known and query[end - 4 : end - 2] == b"\0\x01"
        flags = 0x8180 if known else 0x8183
        answer = query[:2] + struct.pack(">HHHHH", flags, 1, int(answers), 0, 0)
        answer += query[12:end]
        if answers:
            answer += b"\xc0\x0c\0\x01\0\x01" + struct.pack(">IH", 60, 4)
            answer += socket.inet_aton(ADDRESS)
        server.sendto(answer, client)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def log_message(self, *_):
        pass

    def any_method(self):
        host = self.headers["Host"].partition(":")[0]
        body = self.body()
        RECORDS.add(
            host=host,
            method=self.command,
            path=self.path,
            authorization=self.headers["Authorization"],
            body=body.decode("latin-1") if host == "collect.example" else len(body),
        )
        sites = {"git.example": self.git, "pypi.example": self.index}
        sites.get(host, self.collect)(body)

    do_GET = do_POST = any_method

    def body(self):
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            return b"".join(iter(self.chunk, b""))
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def chunk(self):
        piece = self.rfile.read(int(self.rfile.readline(), 16))
        self.rfile.readline()
        return piece

    def give(self, content, status="200 OK", **headers):
        code, _, words = status.partition(" ")
        self.send_response(int(code), words)
        self.send_header("Content-Length", str(len(content)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content)
        self.wfile.flush()

    def collect(self, _):
        self.give(b"thank you\n")

    def index(self, _):
        sdist = "brightly-1.2.0.tar.gz"
        if self.path == f"/{sdist}":
            return self.give(read(sdist))
        if self.path == "/simple/brightly/":
            link = f'<!DOCTYPE html><a href="/{sdist}">{sdist}</a>\n'
            return self.give(link.encode(), Content_Type="text/html")
        self.give(b"no such package\n", "404 Not Found")

    def git(self, body):
        basic = b"x-access-token:" + read("token").strip()
        wanted = f"Basic {base64.b64encode(basic).decode()}"
        if self.headers["Authorization"] != wanted:
            realm = 'Basic realm="git.example"'
            return self.give(b"who are you?\n", "401 Unauthorized", WWW_Authenticate=realm)
        path, _, query = self.path.partition("?")
        environment = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": at("git"),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "REMOTE_USER": "agent",
            "REQUEST_METHOD": self.command,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
        }
        program = ["git", "-c", "safe.directory=*", "http-backend"]
        answer = subprocess.run(program, input=body, capture_output=True, env=environment)
        head, _, content = answer.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        status = headers.pop("Status", "200 OK")
        kind = headers.get("Content-Type", "text/plain")
        self.give(content, status, Content_Type=kind, Cache_Control="no-cache")


def main():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(at("certificate.pem"), at("key.pem"))
    server = http.server.ThreadingHTTPServer((ADDRESS, 443), Handler)
    # The handshake is made by the first read, in the client's thread.
    server.socket = context.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    threading.Thread(target=names, daemon=True).start()
    print("ready", flush=True)
    server.serve_forever()


main()
