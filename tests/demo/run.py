"""The traced run: an agent mends a project in a sandbox, one of whose dependencies
has been hijacked. It pushes its branch, nothing else gets out, and everything that
was tried is told.

Runs as root in a virtual machine with sandboxd, whose namespace `outside` is the
Internet; the API's definition is in SANDBOX_PROTO. Ends with a non-zero status if
anything is not as promised."""

import contextlib
import glob
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PROTO = os.environ["SANDBOX_PROTO"]
HOST = "unix:///run/sandboxd/sandboxd.sock"
WORLD = "/run/traced"
OUT = "/run/traced-out"
HOME = "/home/dev"
WORKSPACE = f"{HOME}/work"
AUTHORITY = "/usr/local/share/ca-certificates/traced.crt"
TOKEN = "ghp_tR4c3dRuN0123456789abcdefABCDEF012345"

BOLD, RED, GREEN, PLAIN = "\033[1m", "\033[31m", "\033[32m", "\033[0m"

CERTIFICATE = """
set -e
openssl ecparam -name prime256v1 -genkey -noout -out ca.key
openssl req -x509 -new -key ca.key -days 30 -subj /CN=traced -out ca.pem
openssl ecparam -name prime256v1 -genkey -noout -out key.pem
openssl req -new -key key.pem -subj /CN=git.example -out request.pem
printf 'subjectAltName=DNS:git.example,DNS:pypi.example,DNS:collect.example\\n' > names
openssl x509 -req -in request.pem -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 \
  -extfile names -out certificate.pem
"""

REPOSITORY = """
set -e
git init -q --bare -b main git/org/project.git
cp -r "$1" seed && cd seed
git init -q -b main && git add -A
git -c user.name=Ada -c user.email=ada@example.com commit -qm 'Count words'
git push -q ../git/org/project.git main
"""

failures = 0


def title(text):
    print(f"\n{BOLD}== {text}{PLAIN}", flush=True)


def check(promise, kept, found=""):
    global failures
    if kept:
        print(f"  {GREEN}✓{PLAIN} {promise}", flush=True)
    else:
        failures += 1
        print(f"  {RED}not as promised: {promise} {found}{PLAIN}", flush=True)


def run(*words, **options):
    return subprocess.run(words, check=True, stdout=subprocess.DEVNULL, **options)


def dev(*words, **options):
    """A command of the developer's, outside of any sandbox."""
    command = ["runuser", "-u", "dev", "--", "env", "-C", HOME, f"HOME={HOME}", *words]
    options.setdefault("stdout", subprocess.PIPE)
    return subprocess.run(command, stderr=subprocess.STDOUT, text=True, **options)


@contextlib.contextmanager
def world():
    """The servers, the name server, and an authority that this machine believes."""
    os.makedirs(f"{WORLD}/git/org")
    run("sh", "-c", CERTIFICATE, cwd=WORLD, stderr=subprocess.DEVNULL)
    run("sh", "-c", REPOSITORY, "sh", f"{HERE}/project", cwd=WORLD)
    with open(f"{WORLD}/token", "w", encoding="utf-8") as file:
        file.write(TOKEN)
    with tarfile.open(f"{WORLD}/brightly-1.2.0.tar.gz", "w:gz") as sdist:
        sdist.add(f"{HERE}/dependency", "brightly-1.2.0")
    run("ip", "-n", "outside", "addr", "add", "203.0.113.80/32", "dev", "lo")
    program = ["ip", "netns", "exec", "outside", "python3", f"{HERE}/world.py", WORLD]
    server = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
    assert server.stdout.readline() == "ready\n"
    with open("/etc/resolv.conf", encoding="utf-8") as file:
        names = file.read()
    try:
        with open("/etc/resolv.conf", "w", encoding="utf-8") as file:
            file.write("nameserver 203.0.113.80\n")
        shutil.copy(f"{WORLD}/ca.pem", AUTHORITY)
        run("update-ca-certificates", stderr=subprocess.DEVNULL)
        believed()
        yield
    finally:
        server.kill()
        server.wait()
        with open("/etc/resolv.conf", "w", encoding="utf-8") as file:
            file.write(names)
        os.unlink(AUTHORITY)
        run("update-ca-certificates", "--fresh", stderr=subprocess.DEVNULL)
        run("ip", "-n", "outside", "addr", "del", "203.0.113.80/32", "dev", "lo")
        shutil.rmtree(WORLD)
        shutil.rmtree(OUT, ignore_errors=True)
        shutil.rmtree(WORKSPACE, ignore_errors=True)


def believed():
    """Waits for the daemon to know the names and the authority."""
    ask = ["sandbox", "run", "-p", f"{HERE}/policy.toml", "-w", WORKSPACE, "--"]
    ask += ["curl", "-sS", "-o", "/dev/null", "https://pypi.example/simple/brightly/"]
    for _ in range(100):
        asked = dev(*ask)
        if asked.returncode == 0:
            return
        time.sleep(0.3)
    raise SystemExit(f"the sandbox does not reach the index: {asked.stdout}")


def fingerprint():
    """Every file that the run has no business with: what it is, and its bytes."""
    found = {}
    for root in ("/home", "/root", "/etc", "/usr/local", "/srv", "/opt", "/var", "/tmp", "/dev/shm"):
        for directory, directories, files in os.walk(root):
            # Logs go on, and what the daemon holds is looked at by itself.
            skipped = ("/var/log", "/var/cache/sandboxd", "/var/lib/sandboxd")
            directories[:] = [it for it in directories if f"{directory}/{it}" not in skipped]
            for name in files + directories + ["."]:
                path = os.path.join(directory, name)
                about = os.lstat(path)
                content = ""
                if os.path.isfile(path) and not os.path.islink(path):
                    with open(path, "rb") as file:
                        content = hashlib.sha256(file.read()).hexdigest()
                found[path] = (about.st_mode, about.st_uid, about.st_ino, about.st_mtime_ns, content)
    return found


def traces():
    """What a sandbox could leave on the machine."""
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        mounts = file.read()
    groups = glob.glob("/sys/fs/cgroup/sandboxd.slice/*/")
    kept = sorted(glob.glob("/var/lib/sandboxd/**", recursive=True))
    cached = sorted(glob.glob("/var/cache/sandboxd/**", recursive=True))
    return {"mounts": mounts, "cgroups": groups, "state": kept, "cache": cached}


def inside_holds_token(sandbox):
    """Whether the token is in a file or a process of the sandbox's."""
    held = []
    process = subprocess.Popen(
        ["runuser", "-u", "dev", "--", "sandbox", "exec", sandbox, "--", "sleep", "600"]
    )
    try:
        pid = first_process(sandbox)
        seen = f"/proc/{pid}/root"
        places = [f"{seen}{it}" for it in (WORKSPACE, "/tmp", "/var/tmp", "/dev/shm")]
        found = subprocess.run(
            ["grep", "-rlaF", TOKEN, *places, f"/proc/{pid}/environ", f"/proc/{pid}/cmdline"],
            capture_output=True,
            text=True,
        )
        held = found.stdout.split()
        # The search is one that finds: the dummy is in the environment.
        dummy = subprocess.run(
            ["grep", "-qa", "GIT_TOKEN=.", f"/proc/{pid}/environ"], check=False
        )
        check("a dummy is where programs look for the token", dummy.returncode == 0)
    finally:
        process.kill()
        process.wait()
    return held


def first_process(sandbox):
    for _ in range(600):
        for path in glob.glob(f"/sys/fs/cgroup/sandboxd.slice/{sandbox}/*/cgroup.procs"):
            with open(path, encoding="utf-8") as file:
                if pids := file.read().split():
                    return pids[0]
        time.sleep(0.1)
    raise SystemExit("nothing runs in the sandbox")


def agent():
    """Runs it; between its work and the end of its sandbox, looks inside."""
    shutil.rmtree(f"{WORLD}/stubs", ignore_errors=True)
    os.makedirs(f"{WORLD}/stubs")
    stubs = [f"--python_out={WORLD}/stubs", f"--grpc_python_out={WORLD}/stubs"]
    run("python3", "-m", "grpc_tools.protoc", "-I", PROTO, *stubs, "sandbox/v1/sandbox.proto")
    words = [f"{HERE}/agent.py", f"{WORLD}/stubs", HOST, WORKSPACE, f"{HERE}/policy.toml", OUT]
    command = ["runuser", "-u", "dev", "--", "env", "-C", HOME, f"HOME={HOME}", "python3", *words]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    shown = []
    held = None
    for line in process.stdout:
        shown.append(line)
        print(f"  {line}", end="", flush=True)
        if line == "agent: done\n":
            with open(f"{OUT}/agent.json", encoding="utf-8") as file:
                told = json.load(file)
            held = inside_holds_token(told["sandbox"])
            process.stdin.write("\n")
            process.stdin.flush()
    check("the agent came to its end", process.wait() == 0, process.returncode)
    return told, held, "".join(shown)


def records():
    with open(f"{WORLD}/records.jsonl", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def branches():
    """Of the server's repository: name and subject of its last commit."""
    form = "--format=%(refname:short) %(subject)"
    words = ["git", "-C", f"{WORLD}/git/org/project.git", "for-each-ref", form, "refs/heads"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()


def events(sandbox):
    listed = dev("sandbox", "events", "--sandbox", sandbox, "-o", "json")
    lines = [json.loads(line) for line in listed.stdout.splitlines()]
    return [
        {"right": it["right"], "object": it["object_display"], "rule": it["rule"]}
        for it in lines
        if it["type"] == "denial"
    ]


EXPECTED = [
    {"right": "read", "object": f"{HOME}/.ssh/id_ed25519", "rule": "credentials"},
    {"right": "connect", "object": "collect.example:443", "rule": "not in the allow list"},
    {
        "right": "connect",
        "object": "git.example:443",
        "rule": "push of refs/heads/main to org/project: not a reference that may be pushed",
    },
]
# git and pip look for passwords of theirs, and pip at all that is in /etc for the
# name of the distribution.
LOOKED_FOR = [f"{HOME}/.netrc", f"{HOME}/.git-credentials"]
LOOKED_FOR += [f"/etc/{name}" for name in ("shadow", "shadow-", "gshadow", "gshadow-")]


def told_everywhere(told):
    listed = events(told["sandbox"])
    for who, found in (("the agent's own stream", told["denials"]), ("sandbox events", listed)):
        other = [it for it in found if it not in EXPECTED and it["object"] not in LOOKED_FOR]
        missing = [it for it in EXPECTED if it not in found]
        check(f"{who}: {len(EXPECTED)} refusals, by name", not other and not missing, found)


def controls():
    """The same outside of a sandbox succeeds."""
    key = dev("cat", f"{HOME}/.ssh/id_ed25519")
    check("the key is there to be read", "DECOY-SSH-KEY" in key.stdout, key.stdout)
    post = dev("curl", "-sS", "--data", "control", "https://collect.example/")
    check("collect.example takes what it is sent", post.stdout == "thank you\n", post.stdout)
    address = f"https://x-access-token:{TOKEN}@git.example/org/project.git"
    push = dev(
        "sh",
        "-ec",
        f"d=$(mktemp -d); git clone -q {address} $d/p; cd $d/p;"
        "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m control;"
        "git push -q origin HEAD:main; rm -rf $d",
    )
    check("git.example lets who has the token push to main", "main control" in branches(), push)


def main():
    title("A project, a hijacked dependency, and an Internet that has both")
    os.makedirs(WORKSPACE)
    os.makedirs(OUT)
    with open(f"{WORKSPACE}/NOTES", "w", encoding="utf-8") as file:
        file.write("Ties are out of order.\n")
    run("chown", "-R", "dev:dev", WORKSPACE, OUT)
    kept = dev("sandbox", "secret", "set", "git", input=TOKEN)
    check("`sandbox secret set git`: only the daemon has the token", kept.returncode == 0, kept)
    with world():
        before, clean = fingerprint(), traces()

        title("The agent at work")
        told, held, shown = agent()

        title("What came of it")
        check(f"{told['commands']} commands, and nobody was asked", told["commands"] >= 24)
        expected = ["agent/fix Sort ties by the alphabet", "main Count words"]
        check("agent/fix is pushed, main is as it was", branches() == expected, branches())
        reason = "not a reference that may be pushed"
        rejected = "[remote rejected] HEAD -> main"
        check("git printed why main was refused", reason in shown and rejected in shown)
        check("the install script found no key", "~/.ssh/id_ed25519: No such file" in shown)
        asked = records()
        collected = [it for it in asked if it["host"] == "collect.example"]
        check("and nobody collected anything", not collected, collected)
        check("the install went on, and the suite passes", "brightly-1.2.0" in shown)
        told_everywhere(told)

        title("What left it: the diff and the logs")
        for name in sorted(os.listdir(OUT)):
            print(f"  {os.path.getsize(f'{OUT}/{name}'):>8} {name}")
        with open(f"{OUT}/agent.patch", encoding="utf-8") as file:
            patch = file.read()
        check("the patch has the mended line", "+    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))" in patch)
        with open(f"{OUT}/agent.log", encoding="utf-8") as file:
            log = file.read()
        check("the log has what was refused", "denied connect collect.example:443" in log)

        title("What is left of it: nothing")
        after = fingerprint()
        changed = sorted(it for it in before.keys() | after if before.get(it) != after.get(it))
        check(f"{len(before)} files of workspace, home and host are byte for byte what they were", not changed, changed[:5])
        left = traces()
        check("no mount, no cgroup, no file of the daemon's", left == clean, left)

        title("Where the token was")
        check("the token was in no file and no process inside", held == [], held)
        check("and in nothing that left", TOKEN not in log + patch + shown + json.dumps(told))
        pushed = [it for it in asked if it["path"].endswith("/git-receive-pack")]
        check("but at git.example, where it belongs", len(pushed) == 1, pushed)

        title("The same without a sandbox")
        controls()
        dev("sandbox", "secret", "rm", "git")

    title("The traced run")
    if failures:
        sys.exit(f"  {RED}{failures} of the above are not as promised{PLAIN}")
    print(f"  {GREEN}everything is as promised{PLAIN}")


main()
