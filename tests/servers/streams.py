"""Servers of plain bytes: one that speaks first, one that keeps what it gets."""

import itertools
import socket
import socketserver
import threading


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 1024

    def handle_error(self, request, client_address):
        # A client that goes away is not a fault here.
        pass


def run(server):
    threading.Thread(target=server.serve_forever, daemon=True).start()


def start_greeting(address, port, records):
    """Greets, then gives every line back, as databases and mail servers do."""

    class Greeting(socketserver.StreamRequestHandler):
        def handle(self):
            records.add("greeting", peer=self.client_address[0])
            self.wfile.write(b"220 ready\n")
            for line in self.rfile:
                records.add("line", bytes=line)
                self.wfile.write(b"250 " + line)

    run(Server((address, port), Greeting))


def is_whole(request):
    """Whether these are all the bytes of one request."""
    head, end, body = request.partition(b"\r\n\r\n")
    if not end:
        return False
    head = head.lower()
    if b"transfer-encoding: chunked" in head:
        return b"\r\n0\r\n" in b"\r\n" + body and body.endswith(b"\r\n\r\n")
    length = head.partition(b"content-length:")[2].split()
    return len(body) >= int(length[0] if length else 0)


def start_capture(address, port, records, context=None, waits=False):
    """Records each connection's bytes as they come, where there is a context those
    inside TLS; answers each head that looks like one of HTTP with the same small
    answer, and understands nothing. One that waits answers the first request alone,
    once all of it is there."""
    numbers = itertools.count()
    kind = f"{port}" if context is None else f"tls-{port}"

    class Capture(socketserver.BaseRequestHandler):
        def setup(self):
            if context:
                self.request = context.wrap_socket(self.request, server_side=True)

        def handle(self):
            connection = f"{kind}-{next(numbers)}"
            records.add("raw-open", port=port, connection=connection)
            seen = b""
            try:
                while chunk := self.request.recv(65536):
                    records.add("raw", connection=connection, bytes=chunk)
                    seen += chunk
                    if waits:
                        answers = is_whole(seen)
                    else:
                        answers = seen.count(b"\r\n\r\n")
                        seen = seen[-3:]
                    for _ in range(answers):
                        self.request.sendall(
                            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
                        )
            except OSError:
                pass
            records.add("raw-close", connection=connection)
            try:
                self.request.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    run(Server((address, port), Capture))
