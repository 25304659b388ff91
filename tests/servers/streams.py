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


def start_capture(address, port, records, context=None):
    """Records each connection's bytes as they come, where there is a context those
    inside TLS; answers each head that looks like one of HTTP with the same small
    answer, and understands nothing."""
    numbers = itertools.count()
    kind = f"{port}" if context is None else f"tls-{port}"

    class Capture(socketserver.BaseRequestHandler):
        def setup(self):
            if context:
                self.request = context.wrap_socket(self.request, server_side=True)

        def handle(self):
            connection = f"{kind}-{next(numbers)}"
            records.add("raw-open", port=port, connection=connection)
            tail = b""
            try:
                while chunk := self.request.recv(65536):
                    records.add("raw", connection=connection, bytes=chunk)
                    seen = tail + chunk
                    heads = seen.count(b"\r\n\r\n")
                    tail = seen[-3:]
                    for _ in range(heads):
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
