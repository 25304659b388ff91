"""What the package registries serve: one package, `leaf`, in each one's form.

Used, it says `leaf works`, but each ecosystem's own in its own words."""

import base64
import gzip
import hashlib
import io
import json
import os
import subprocess
import tarfile
import zipfile

SAYS = "leaf works"


def tar_gz(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return out.getvalue()


def zip_of(files):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return out.getvalue()


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def npm(host):
    manifest = {"name": "leaf", "version": "1.0.0", "main": "index.js"}
    tarball = tar_gz(
        {
            "package/package.json": json.dumps(manifest),
            "package/index.js": f"module.exports = '{SAYS}';\n",
        }
    )
    integrity = base64.b64encode(hashlib.sha512(tarball).digest()).decode()
    dist = {
        "tarball": f"https://{host}/leaf/-/leaf-1.0.0.tgz",
        "integrity": f"sha512-{integrity}",
        "shasum": hashlib.sha1(tarball).hexdigest(),
    }
    packument = {
        "name": "leaf",
        "dist-tags": {"latest": "1.0.0"},
        "versions": {"1.0.0": {**manifest, "dist": dist}},
    }
    return {
        "/leaf": json.dumps(packument).encode(),
        "/leaf/-/leaf-1.0.0.tgz": tarball,
    }


def pypi():
    info = "leaf-1.0.0.dist-info"
    wheel = zip_of(
        {
            "leaf.py": f"SAYS = '{SAYS}'\n",
            f"{info}/METADATA": "Metadata-Version: 2.1\nName: leaf\nVersion: 1.0.0\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\n"
            "Root-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/RECORD": f"leaf.py,,\n{info}/METADATA,,\n"
            f"{info}/WHEEL,,\n{info}/RECORD,,\n",
        }
    )
    name = "leaf-1.0.0-py3-none-any.whl"
    link = f'<a href="/files/{name}#sha256={sha256(wheel)}">{name}</a>'
    index = f"<!DOCTYPE html><html><body>{link}</body></html>"
    return {"/simple/leaf/": index.encode(), f"/files/{name}": wheel}


def crates(host, locked):
    manifest = '[package]\nname = "leaf"\nversion = "1.0.0"\nedition = "2021"\n'
    crate = tar_gz(
        {
            "leaf-1.0.0/Cargo.toml": manifest,
            "leaf-1.0.0/src/lib.rs": f'pub const SAYS: &str = "{SAYS}";\n',
        }
    )
    line = {
        "name": "leaf",
        "vers": "1.0.0",
        "deps": [],
        "cksum": sha256(crate),
        "features": {},
        "yanked": False,
    }
    config = {"dl": f"https://{host}/dl/{{crate}}-{{version}}", "auth-required": locked}
    return {
        "/index/config.json": json.dumps(config).encode(),
        "/index/le/af/leaf": json.dumps(line).encode() + b"\n",
        "/dl/leaf-1.0.0": crate,
    }


def go():
    module = "go.example/leaf"
    at = f"/{module}/@v"
    manifest = f"module {module}\n\ngo 1.19\n"
    archive = zip_of(
        {
            f"{module}@v1.0.0/go.mod": manifest,
            f"{module}@v1.0.0/leaf.go": f'package leaf\n\nconst Says = "{SAYS}"\n',
        }
    )
    info = json.dumps({"Version": "v1.0.0", "Time": "2024-01-01T00:00:00Z"}).encode()
    return {
        f"{at}/list": b"v1.0.0\n",
        f"/{module}/@latest": info,
        f"{at}/v1.0.0.info": info,
        f"{at}/v1.0.0.mod": manifest.encode(),
        f"{at}/v1.0.0.zip": archive,
    }


def apt(root):
    tree = f"{root}/deb"
    os.makedirs(f"{tree}/DEBIAN")
    os.makedirs(f"{tree}/usr/share/leaf")
    control = (
        "Package: leaf\nVersion: 1.0.0\nArchitecture: all\n"
        "Maintainer: nobody <nobody@apt.example>\nDescription: a leaf\n"
    )
    with open(f"{tree}/DEBIAN/control", "w", encoding="utf-8") as file:
        file.write(control)
    with open(f"{tree}/usr/share/leaf/says", "w", encoding="utf-8") as file:
        file.write(SAYS + "\n")
    command = ["dpkg-deb", "--root-owner-group", "--build", tree, f"{root}/leaf.deb"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with open(f"{root}/leaf.deb", "rb") as file:
        deb = file.read()
    index = (
        f"{control}Filename: ./leaf_1.0.0_all.deb\n"
        f"Size: {len(deb)}\nSHA256: {sha256(deb)}\n\n"
    ).encode()
    packed = gzip.compress(index)
    release = "Suite: stable\nDate: Mon, 01 Jan 2024 00:00:00 UTC\nSHA256:\n" + "".join(
        f" {sha256(content)} {len(content)} {name}\n"
        for name, content in (("Packages", index), ("Packages.gz", packed))
    )
    return {
        "/debian/./Release": release.encode(),
        "/debian/./Packages": index,
        "/debian/./Packages.gz": packed,
        "/debian/./leaf_1.0.0_all.deb": deb,
        "/debian/Release": release.encode(),
        "/debian/Packages": index,
        "/debian/Packages.gz": packed,
        "/debian/leaf_1.0.0_all.deb": deb,
    }


def git(root):
    """A bare repository with one commit, which anybody may push to."""
    bare = f"{root}/git/leaf.git"
    seed = f"{root}/git/seed"
    who = ["-c", "user.name=Nobody", "-c", "user.email=nobody@git.example"]

    def run(*words):
        subprocess.run(["git", *words], check=True, stdout=subprocess.DEVNULL)

    run("init", "--quiet", "--bare", "--initial-branch=main", bare)
    run("-C", bare, "config", "http.receivepack", "true")
    run("init", "--quiet", "--initial-branch=main", seed)
    with open(f"{seed}/says", "w", encoding="utf-8") as file:
        file.write(SAYS + "\n")
    run("-C", seed, "add", "says")
    run("-C", seed, *who, "commit", "--quiet", "-m", "Add what it says")
    run("-C", seed, "push", "--quiet", bare, "main")


def make(root):
    git(root)
    return {
        "npm.example": npm("npm.example"),
        "npm.locked.example": npm("npm.locked.example"),
        "registry.npmjs.org": npm("registry.npmjs.org"),
        "pypi.example": pypi(),
        "crates.example": crates("crates.example", locked=False),
        "crates.locked.example": crates("crates.locked.example", locked=True),
        "go.example": go(),
        "apt.example": apt(root),
    }
