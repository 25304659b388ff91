"""An agent without a model: it drives the daemon's API, through a client that was
generated from the .proto, to mend a project, and asks nobody.

agent.py STUBS HOST WORKSPACE POLICY OUT. What is to leave is written to OUT:
`agent.patch`, `agent.log`, and `agent.json` with what it was told."""

import json
import os
import sys

stubs, host, workspace, policy, out = sys.argv[1:]
sys.path.insert(0, stubs)

import grpc  # noqa: E402
from sandbox.v1 import sandbox_pb2 as api, sandbox_pb2_grpc  # noqa: E402

BOLD, DIM, RED, GREEN, PLAIN = "\033[1m", "\033[2m", "\033[31m", "\033[32m", "\033[0m"


CLONE = "git clone -q https://x-access-token:$GIT_TOKEN@git.example/org/project.git project"
INSTALL = "pip install -v --target ../lib -r requirements.txt"
TEST = "PYTHONPATH=../lib python3 -m unittest discover -s tests -t ."
EDIT = r"sed -i '/return sorted/c\    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:most]' tally/__init__.py"

# Where, what, and how it must end. Nobody is asked about any of them.
STEPS = [
    ("", "pwd; ls -la", 0),
    ("", "id -un; uname -sr", 0),
    ("", "git --version", 0),
    ("", "python3 --version", 0),
    ("", CLONE, 0),
    ("project", "git log --oneline", 0),
    ("project", "git branch -a", 0),
    ("project", "ls -R tally tests", 0),
    ("project", "cat README.md", 0),
    ("project", "cat requirements.txt", 0),
    ("project", "cat tests/test_tally.py", 0),
    ("project", INSTALL, 0),
    ("project", "ls ../lib", 0),
    ("project", TEST, 1),
    ("project", "grep -n 'sorted' tally/__init__.py", 0),
    ("project", "sed -n 15,30p tally/__init__.py", 0),
    ("project", EDIT, 0),
    ("project", "git diff", 0),
    ("project", TEST, 0),
    ("project", "git status --short", 0),
    ("project", "git config user.name Agent; git config user.email agent@example.com", 0),
    ("project", "git checkout -q -b fix", 0),
    ("project", "git commit -qam 'Sort ties by the alphabet'", 0),
    ("project", "git show --stat --format=%an:%s", 0),
    ("project", "git push -q origin HEAD:refs/heads/agent/fix", 0),
    ("project", "git push origin HEAD:refs/heads/main", 1),
]


# Of a command's output so many lines are shown, and these wherever they stand.
SHOWN = 6
TELLING = ("brightly: ", "Successfully installed", "FAILED", "remote: ", "rejected")


class Agent:
    def __init__(self, service, log):
        self.service = service
        self.log = log
        self.sandbox = None
        self.told = []

    def create(self):
        with open(policy, encoding="utf-8") as file:
            text = api.PolicyText(display_name="policy.toml", toml=file.read())
        spec = api.SandboxSpec(policy=api.PolicySource(text=text), workspace=workspace)
        request = api.CreateSandboxRequest(spec=spec)
        self.sandbox = self.service.CreateSandbox(request).id

    def start(self, directory, script):
        environment = os.environb.items()
        return api.Start(
            sandbox_id=self.sandbox,
            argv=[b"sh", b"-c", script.encode()],
            cwd=os.path.join(workspace, directory).encode(),
            env=[api.EnvVar(name=name, value=value) for name, value in environment],
            env_set=[api.EnvVar(name=name, value=value) for name, value in PIP.items()],
            stdio=api.STDIO_RELAY,
        )

    def run(self, directory, script):
        """Its exit status; output and refusals are shown as they come."""
        say(f"{GREEN}agent$ {PLAIN}{BOLD}{script}{PLAIN}")
        self.log.write(f"$ {script}\n".encode())
        output = Lines(self.log)
        request = api.RunRequest(start=self.start(directory, script))
        for response in self.service.Run(iter([request, closed()])):
            kind = response.WhichOneof("response")
            if kind in ("stdout", "stderr"):
                output.add(kind, getattr(response, kind))
            elif kind == "denial":
                self.denied(response.denial)
            elif kind == "exited":
                output.finish()
                return response.exited
        raise SystemExit("the stream ended without `exited`")

    def denied(self, denial):
        right = api.Right.Name(denial.right).removeprefix("RIGHT_").lower()
        entry = {
            "right": right,
            "object": denial.object_display,
            "rule": denial.rule,
        }
        self.told.append(entry)
        said = f"denied {right} {denial.object_display} ({denial.rule})"
        self.log.write(f"sandbox: {said}\n".encode())
        say(f"  {RED}{said}{PLAIN}")

    def take_out(self):
        """The changes of the project, without git's own files."""
        request = api.GetChangesRequest(sandbox_id=self.sandbox, paths=[b"project"])
        changed = [
            response.change.path
            for response in self.service.GetChanges(request)
            if response.WhichOneof("response") == "change"
        ]
        mine = [path for path in changed if not path.startswith(b"project/.git/")]
        request = api.ExportPatchRequest(sandbox_id=self.sandbox, paths=mine, binary=True)
        with open(f"{out}/agent.patch", "wb") as file:
            for response in self.service.ExportPatch(request):
                file.write(response.patch)


# What pip is told beside.
PIP = {
    b"PIP_DISABLE_PIP_VERSION_CHECK": b"1",
    b"PIP_INDEX_URL": b"https://pypi.example/simple",
    b"PIP_NO_BUILD_ISOLATION": b"0",
    b"PIP_NO_CACHE_DIR": b"1",
}


class Lines:
    """The output of a command: all of it in the log, the most telling lines shown."""

    def __init__(self, log):
        self.log = log
        self.begun = {"stdout": b"", "stderr": b""}
        self.count = 0

    def add(self, stream, content):
        *lines, self.begun[stream] = (self.begun[stream] + content).split(b"\n")
        for line in lines:
            self.line(line)

    def line(self, line):
        self.log.write(line + b"\n")
        self.count += 1
        text = line.decode(errors="replace").rstrip()
        if self.count <= SHOWN or any(word in text for word in TELLING):
            say(f"  {DIM}{text}{PLAIN}")

    def finish(self):
        for rest in self.begun.values():
            if rest:
                self.line(rest)
        if self.count > SHOWN:
            say(f"  {DIM}({self.count} lines){PLAIN}")


def closed():
    return api.RunRequest(close_stdin=api.CloseStdin())


def say(text):
    print(text, flush=True)


def main():
    # Without an authority of its own gRPC makes one of the socket's path.
    options = [("grpc.default_authority", "sandboxd")]
    with (
        grpc.insecure_channel(host, options=options) as channel,
        open(f"{out}/agent.log", "wb") as log,
    ):
        agent = Agent(sandbox_pb2_grpc.SandboxesStub(channel), log)
        agent.create()
        say(f"{GREEN}agent{PLAIN}: an ephemeral sandbox, {agent.sandbox}")
        for directory, script, expected in STEPS:
            ended = agent.run(directory, script)
            code = ended.code if ended.WhichOneof("status") == "code" else None
            if code != expected:
                raise SystemExit(f"`{script}` ended with {ended}")
        with open(f"{out}/agent.json", "w", encoding="utf-8") as file:
            commands = len(STEPS)
            told = {"sandbox": agent.sandbox, "denials": agent.told, "commands": commands}
            json.dump(told, file)
        # Whoever wants to may look inside now.
        say("agent: done")
        sys.stdin.readline()
        agent.take_out()
        agent.service.DeleteSandbox(api.DeleteSandboxRequest(id=agent.sandbox))


main()
