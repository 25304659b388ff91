"""An authoritative DNS server: answers from a table, records every question.

The table has names and, for each, a list of turns; each question for an IPv4
address takes the next turn and the last one stays. A turn is a list of addresses
of both families. Nobody may keep an answer."""

import ipaddress
import socketserver
import struct

A, AAAA = 1, 28
TTL = 0
NO_SUCH_NAME = 3
TYPES = {1: "A", 28: "AAAA", 12: "PTR", 33: "SRV", 16: "TXT", 65: "HTTPS", 5: "CNAME"}


class Zone:
    def __init__(self, names, records):
        self.turns = {name: list(turns) for name, turns in names.items()}
        self.records = records

    def answer(self, message, transport):
        if len(message) < 12:
            return None
        name, kind, end = question(message)
        shown = TYPES.get(kind, str(kind))
        self.records.add("dns", name=name, type=shown, transport=transport)
        turns = self.turns.get(name)
        addresses = []
        if turns is not None:
            of_kind = {A: 4, AAAA: 6}.get(kind)
            turn = turns[0]
            if kind == A and len(turns) > 1:
                turns.pop(0)
            parsed = map(ipaddress.ip_address, turn)
            addresses = [a for a in parsed if a.version == of_kind]
        flags = 0x8400 | struct.unpack("!H", message[2:4])[0] & 0x0100
        if turns is None:
            flags |= NO_SUCH_NAME
        head = message[:2] + struct.pack("!HHHHH", flags, 1, len(addresses), 0, 0)
        body = b"".join(
            struct.pack("!HHHIH", 0xC00C, kind, 1, TTL, len(address.packed))
            + address.packed
            for address in addresses
        )
        return head + message[12:end] + body


def question(message):
    labels, at = [], 12
    while message[at]:
        length = message[at]
        labels.append(message[at + 1 : at + 1 + length].decode("latin-1"))
        at += 1 + length
    kind = struct.unpack("!H", message[at + 1 : at + 3])[0]
    return ".".join(labels).lower(), kind, at + 5


def start(address, names, records):
    zone = Zone(names, records)

    class Datagram(socketserver.BaseRequestHandler):
        def handle(self):
            message, socket = self.request
            answer = zone.answer(message, "udp")
            if answer:
                socket.sendto(answer, self.client_address)

    class Stream(socketserver.StreamRequestHandler):
        def handle(self):
            while len(length := self.rfile.read(2)) == 2:
                message = self.rfile.read(struct.unpack("!H", length)[0])
                answer = zone.answer(message, "tcp")
                if answer is None:
                    return
                self.wfile.write(struct.pack("!H", len(answer)) + answer)

    serve(socketserver.ThreadingUDPServer, address, Datagram)
    serve(socketserver.ThreadingTCPServer, address, Stream)


def serve(server, address, handler):
    from streams import run

    class Server(server):
        allow_reuse_address = True
        daemon_threads = True

    run(Server((address, 53), handler))
