"""HTTP/1.1 with and without TLS: what a name serves is decided by its Host."""

import base64
import hashlib
import http.server
import json
import os
import ssl
import subprocess
import urllib.parse

import tokens
from streams import Server, run

WEBSOCKET = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # An answer in two small writes would wait for the client's delayed
    # acknowledgement.
    disable_nagle_algorithm = True
    wbufsize = -1

    def log_message(self, *_):
        pass

    def any_method(self):
        host = (self.headers.get("host") or "").rsplit(":", 1)[0].lower()
        body = self.body()
        self.known = tokens.known(self.path, self.headers.items())
        self.server.records.add(
            "http",
            known=self.known,
            connection=f"{self.client_address[0]}:{self.client_address[1]}",
            host=host,
            method=self.command,
            path=self.path,
            headers=self.headers.items(),
            body=body,
            tls=self.server.tls,
            sni=getattr(self.connection, "asked_for", None),
            at=self.connection.getsockname()[0],
        )
        site = self.server.sites.get(host, echo)
        site(self, body)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_OPTIONS = do_PATCH = any_method

    def body(self):
        if "chunked" in (self.headers.get("transfer-encoding") or "").lower():
            body = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            return body
        return self.rfile.read(int(self.headers.get("content-length") or 0))

    def give(self, content, kind="application/octet-stream", status=200, **headers):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
        self.wfile.flush()

    def give_json(self, value):
        self.give(json.dumps(value).encode() + b"\n", "application/json")


def echo(request, body):
    """Tells what came. `/redirect?URL` sends elsewhere, `/bytes/N` gives many."""
    path, _, query = request.path.partition("?")
    if path == "/redirect":
        return request.give(b"", status=302, Location=urllib.parse.unquote(query))
    if path.startswith("/bytes/"):
        return request.give(b"x" * int(path.removeprefix("/bytes/")))
    request.give_json(
        {
            "method": request.command,
            "path": request.path,
            "headers": request.headers.items(),
            "body": body.decode("latin-1"),
            "tls": request.server.tls,
        }
    )


def locked(site):
    """The same, for whoever has a token. `/public` is for everybody."""

    def door(request, body):
        if request.known or request.path == "/public":
            return site(request, body)
        # What makes git ask for a password, and go on with it.
        realm = {"WWW-Authenticate": 'Basic realm="locked"'}
        request.give(b"who are you?\n", "text/plain", 401, **realm)

    return door


def files(tree):
    """A site of files: path to content."""

    def site(request, _):
        path = urllib.parse.unquote(request.path.partition("?")[0])
        content = tree.get(path)
        if content is None:
            return request.give(b"no such file\n", "text/plain", 404)
        kind = "application/octet-stream"
        if path.endswith("/"):
            kind = "text/html"
        elif content.startswith(b"{"):
            kind = "application/json"
        request.give(content, kind)

    return site


def git(root):
    """git's own server of its smart protocol, a CGI program."""

    def site(request, body):
        path, _, query = request.path.partition("?")
        result = subprocess.run(
            ["git", "http-backend"],
            input=body,
            stdout=subprocess.PIPE,
            env={
                "PATH": os.environ["PATH"],
                "GIT_PROJECT_ROOT": root,
                "GIT_HTTP_EXPORT_ALL": "1",
                "GIT_PROTOCOL": request.headers.get("git-protocol", ""),
                "REMOTE_USER": "somebody",
                "REMOTE_ADDR": request.client_address[0],
                "REQUEST_METHOD": request.command,
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "CONTENT_TYPE": request.headers.get("content-type", ""),
                "CONTENT_LENGTH": str(len(body)),
                "HTTP_CONTENT_ENCODING": request.headers.get("content-encoding", ""),
            },
            check=True,
        )
        head, _, content = result.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        status = int(headers.pop("Status", "200").split()[0])
        kind = headers.pop("Content-Type", "text/plain")
        headers.pop("Content-Length", None)
        request.give(content, kind, status, **headers)

    return site


def websocket(request, body):
    """Gives every message back until the client closes."""
    key = request.headers.get("sec-websocket-key")
    if key is None:
        return echo(request, body)
    accept = base64.b64encode(hashlib.sha1(key.encode() + WEBSOCKET).digest())
    request.send_response(101)
    request.send_header("Upgrade", "websocket")
    request.send_header("Connection", "Upgrade")
    request.send_header("Sec-WebSocket-Accept", accept.decode())
    request.end_headers()
    request.wfile.flush()
    request.close_connection = True
    while frame := read_frame(request.rfile):
        kind, payload = frame
        request.server.records.add("websocket", opcode=kind, bytes=payload)
        request.wfile.write(bytes([0x80 | kind, len(payload)]) + payload)
        request.wfile.flush()
        if kind == 8:
            return


def read_frame(stream):
    """A short, whole frame; no test sends others."""
    head = stream.read(2)
    if len(head) < 2:
        return None
    length = head[1] & 0x7F
    mask = stream.read(4)
    payload = stream.read(length)
    return head[0] & 0x0F, bytes(b ^ mask[i % 4] for i, b in enumerate(payload))


class WebServer(Server, http.server.HTTPServer):
    def __init__(self, address, handler, records, sites=(), context=None):
        self.records = records
        self.sites = dict(sites)
        self.context = context
        self.tls = context is not None
        super().__init__(address, handler)

    def server_bind(self):
        # HTTPServer asks the resolver for its own name, and there is none.
        Server.server_bind(self)

    def get_request(self):
        connection, address = self.socket.accept()
        if self.context:
            # The handshake is made by the first read, in the client's thread.
            connection = self.context.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        return connection, address


class SixWebServer(WebServer):
    import socket

    address_family = socket.AF_INET6


def tls_context(root, records):
    """One certificate for all names, but for those that show a bad one."""

    def context_of(certificate):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        path = f"{root}/tls/{certificate}"
        context.load_cert_chain(f"{path}.pem", f"{path}.key")
        context.set_alpn_protocols(["http/1.1"])
        return context

    context = context_of("server")
    bad = {
        f"{name}.example": context_of(name)
        for name in ("expired", "selfsigned", "wronghost")
    }

    def seen(connection, name, _):
        connection.asked_for = name
        records.add("tls", sni=name)
        if name in bad:
            connection.context = bad[name]

    context.sni_callback = seen
    return context


def start(addresses, root, packages, records):
    context = tls_context(root, records)
    sites = {name: files(tree) for name, tree in packages.items()}
    sites |= {"git.example": git(f"{root}/git"), "ws.example": websocket}
    doors = {
        "api.anthropic.com": echo,
        "api.example": websocket,
        "api.github.com": echo,
        "crates.locked.example": sites["crates.locked.example"],
        "git.locked.example": sites["git.example"],
        "go.locked.example": sites["go.example"],
        "npm.locked.example": sites["npm.locked.example"],
        "pypi.locked.example": sites["pypi.example"],
        "registry.npmjs.org": sites["registry.npmjs.org"],
    }
    sites |= {name: locked(site) for name, site in doors.items()}
    for address in addresses:
        server = SixWebServer if ":" in address else WebServer
        run(server((address, 80), Handler, records, sites))
        for port in (443, 8443):
            run(server((address, port), Handler, records, sites, context))
    return context


def start_old(address, records):
    """HTTP/1.0: no keep-alive, and the end of an answer is the connection's."""

    class Old(Handler):
        protocol_version = "HTTP/1.0"

        def any_method(self):
            records.add("http", host="old", method=self.command, path=self.path)
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.end_headers()
            self.wfile.write(f"old {self.command} {self.path}\n".encode())
            self.wfile.flush()

        do_GET = do_HEAD = do_POST = any_method

    run(WebServer((address, 80), Old, records))
