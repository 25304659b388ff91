"""A process that has a dummy, and leaves it in as many places as it can: in requests,
its environment and a child's, files, dumps of memory, and what it prints. So does it
with what is in `PLANTED`. Its only argument is a directory: it has done so when there
is `there`, and ends when there is `go`."""

import ctypes
import http.client
import os
import resource
import shutil
import signal
import subprocess
import sys
import time

directory = sys.argv[1]
token, planted = os.environ["TOKEN"], os.environ["PLANTED"]


def ask(host):
    connection = http.client.HTTPSConnection(host, timeout=10)
    connection.request("GET", "/linger", headers={"Authorization": f"Bearer {token}"})
    answer = connection.getresponse()
    print(answer.status, answer.getheaders(), answer.read(), flush=True)
    return connection


def dump(pid, path):
    """All that the process has in memory, as a debugger writes it."""
    with open(f"/proc/{pid}/maps") as maps, open(path, "wb") as out:
        with open(f"/proc/{pid}/mem", "rb", 0) as memory:
            for line in maps:
                area, rights = line.split()[:2]
                begin, end = (int(it, 16) for it in area.split("-"))
                if rights[0] != "r" or "[v" in line:
                    continue
                try:
                    memory.seek(begin)
                    out.write(memory.read(end - begin))
                except OSError:
                    pass


kept = [ask("tap.example"), ask("tap.example")]
subprocess.run(
    ["curl", "-sS", "--http2", "-H", f"Authorization: Bearer {token}"]
    + ["https://api2.example/linger"],
    check=True,
)
said = f"{token} {planted}\n"
for place in (".", "/tmp", "/var/tmp", "/dev/shm", os.environ["XDG_CACHE_HOME"]):
    os.makedirs(place, exist_ok=True)
    with open(f"{place}/left", "w") as file:
        file.write(said)
with open("environment", "w") as file:
    file.write(repr(dict(os.environ)))
shutil.copytree(os.path.dirname(os.environ["SSL_CERT_FILE"]), "trusted")
child = subprocess.Popen(["sleep", "1000", ], executable="/bin/sleep")
dump(child.pid, "dump-of-child")
dump(os.getpid(), "dump-of-own")
# The kernel's own dump too, where it writes one into a process's directory.
_, most = resource.getrlimit(resource.RLIMIT_CORE)
resource.setrlimit(resource.RLIMIT_CORE, (most, most))
child.send_signal(signal.SIGABRT)
child.wait()
another = subprocess.Popen(["sleep", "1000"])
print(said, end="", flush=True)
open(f"{directory}/there", "w").close()
while not os.path.exists(f"{directory}/go"):
    time.sleep(0.02)
another.kill()
