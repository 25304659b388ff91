"""A process that carries bytes between whoever connects to it and an address,
and a child that uses it to ask for `CONNECT HOST:80` and then for a path.
Arguments: the relay's target (address and port), host, path. Prints what came
back; with another process's relay, `via PORT HOST PATH`."""

import os
import socket
import sys
import threading


def pump(source, sink):
    try:
        while chunk := source.recv(65536):
            sink.sendall(chunk)
    except OSError:
        pass
    try:
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def serve(listener, target):
    while True:
        client, _ = listener.accept()
        host = socket.create_connection(target)
        threading.Thread(target=pump, args=(client, host), daemon=True).start()
        threading.Thread(target=pump, args=(host, client), daemon=True).start()


def ask(port, host, path):
    stream = socket.create_connection(("127.0.0.1", port), 10)
    stream.settimeout(10)
    stream.sendall(f"CONNECT {host}:80 HTTP/1.1\r\n\r\n".encode())
    answer = stream.recv(65536)
    if answer.startswith(b"HTTP/1.1 200 "):
        stream.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        answer += stream.recv(65536)
    print(answer.decode(), flush=True)


def main():
    if sys.argv[1] == "via":
        try:
            return ask(int(sys.argv[2]), *sys.argv[3:])
        except OSError as error:
            return print(error.strerror)
    address, port, host, path = sys.argv[1:]
    listener = socket.create_server(("127.0.0.1", 0))
    here = listener.getsockname()[1]
    if host == "-":
        print(here, flush=True)
        return serve(listener, (address, int(port)))
    if os.fork() == 0:
        listener.close()
        ask(here, host, path)
        os._exit(0)
    threading.Thread(target=serve, args=(listener, (address, int(port))), daemon=True).start()
    os.wait()


main()
