"""The servers of the tests' Internet, in one process.

Started in network and mount namespaces of its own with a directory as its only
argument: `zone.json` there says which names and addresses exist, `tls/` has the
certificate. Says `here` when its namespaces exist, is told by a line that the
wire is plugged in, says `ready` when everything listens, and ends with its
standard input. What the servers see is in `records.jsonl`, a line each, written
before the answer is."""

import base64
import json
import os
import subprocess
import sys
import threading

import names
import packages
import streams
import tokens
import web

WIRE = "world"


class Records:
    """What the servers saw, in order."""

    def __init__(self, path):
        self.lock = threading.Lock()
        self.file = open(path, "a", encoding="utf-8")

    def add(self, kind, **fields):
        for key, value in fields.items():
            if isinstance(value, bytes):
                fields[key] = base64.b64encode(value).decode()
        with self.lock:
            self.file.write(json.dumps({"kind": kind, **fields}) + "\n")
            self.file.flush()


def ip(*words):
    subprocess.run(["ip", *words], check=True)


def plug_in(addresses):
    ip("link", "set", "lo", "up")
    ip("link", "set", WIRE, "up")
    for address in addresses:
        if ":" in address:
            ip("addr", "add", f"{address}/64", "dev", WIRE, "nodad")
        else:
            prefix = 24 if address.startswith("203.0.113.") else 32
            ip("addr", "add", f"{address}/{prefix}", "dev", WIRE)


def child(*words, **options):
    """A program that dies with this one."""
    subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *words], **options)


def sshd(root, address):
    # Its directory for separated privileges, in this mount namespace only.
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
    os.mkdir("/run/sshd", 0o755)
    with open(f"{root}/ssh/sshd_config", "w", encoding="utf-8") as config:
        config.write(
            f"ListenAddress {address}\n"
            f"HostKey {root}/ssh/host\n"
            f"AuthorizedKeysFile {root}/ssh/user.pub\n"
            "PidFile none\nStrictModes no\nUsePAM no\n"
            "PermitRootLogin prohibit-password\n"
        )
    log = open(f"{root}/ssh/log", "ab")
    # It starts itself anew for each connection, and so wants a full path.
    child("/usr/sbin/sshd", "-D", "-e", "-f", f"{root}/ssh/sshd_config", stderr=log)


def node(name, root, address):
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    server = subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", "node", script, address, root],
        stdout=subprocess.PIPE,
    )
    if server.stdout.readline() != b"ready\n":
        raise SystemExit(f"{name} did not start")


def main():
    root = sys.argv[1]
    os.environ["HOME"] = root
    with open(f"{root}/zone.json", encoding="utf-8") as file:
        zone = json.load(file)
    print("here", flush=True)
    sys.stdin.readline()
    plug_in(zone["addresses"])
    records = Records(f"{root}/records.jsonl")
    at = zone["servers"]
    tokens.path = f"{root}/tokens"
    names.start(at["dns"], zone["names"], records)
    context = web.start(zone["web"], root, packages.make(root), records)
    streams.start_greeting(at["db"], 5432, records)
    for port in (80, 443, 853, 8080):
        streams.start_capture(at["raw"], port, records)
    for port in (443, 8443):
        streams.start_capture(at["tap"], port, records, context)
    streams.start_capture(at["waiting"], 443, records, context, waits=True)
    web.start_old(at["old"], records)
    sshd(root, at["ssh"])
    node("http2.js", root, at["http2"])
    node("repositories.js", root, at["repositories"])
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)


main()
