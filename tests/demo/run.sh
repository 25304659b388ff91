#!/bin/bash
# The demo: a project whose dependency has been hijacked runs its tests in a
# sandbox. They pass, the hijacker gets nothing, and everything it tried is told.
#
# Needs sandboxd, at SANDBOX_HOST if that is set, and the directory of the API's
# definition in SANDBOX_PROTO. Ends with a non-zero status if anything is not as
# promised.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
: "${SANDBOX_PROTO:?is the directory that holds sandbox/v1/sandbox.proto}"

# In the virtual machine this is root; the project is the developer's.
if ((EUID == 0)) && [[ $SANDBOX_PROTO == /mnt/put/* ]]; then
	exec runuser -u dev -- env HOME=/home/dev USER=dev SANDBOX_DEMO_QUIET=1 \
		SANDBOX_PROTO="$SANDBOX_PROTO" ${SANDBOX_HOST:+SANDBOX_HOST="$SANDBOX_HOST"} \
		bash "${BASH_SOURCE[0]}"
fi
cd "$HOME"
host=${SANDBOX_HOST:-unix:///run/sandboxd/sandboxd.sock}
# Where nobody else works, every file can be compared.
quiet=${SANDBOX_DEMO_QUIET-}

failures=0
title() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
good() { printf '  %s\n' "$*"; }
bad() {
	printf '  \033[31mnot as promised: %s\033[0m\n' "$*"
	failures=$((failures + 1))
}

for tool in git make python3 sandbox; do
	command -v "$tool" >/dev/null || {
		echo "demo: \`$tool\` is missing" >&2
		exit 1
	}
done
if ! python3 -c 'import grpc, grpc_tools' 2>/dev/null; then
	echo "demo: python3 has no gRPC" >&2
	echo >&2
	echo "hint: install python3-grpcio and python3-grpc-tools" >&2
	exit 1
fi

scratch=$(mktemp -d)
project=$(mktemp -d "$HOME/sandbox-demo.XXXXXX")
watcher=
cleanup() {
	[[ -z $watcher ]] || kill "$watcher" 2>/dev/null || true
	rm -rf "$scratch" "$project"
}
trap cleanup EXIT

title 'A project, and the client of a watcher'
cp -r "$here/project/." "$project"
git -C "$project" init -q
git -C "$project" add -A
git -C "$project" -c user.name=Demo -c user.email=demo@example.com commit -qm 'Count words'
good "$project: $(git -C "$project" ls-files | wc -l) files in git, $(git -C "$project" status --porcelain | wc -l) changes"
python3 -m grpc_tools.protoc -I "$SANDBOX_PROTO" --python_out="$scratch" \
	--grpc_python_out="$scratch" sandbox/v1/sandbox.proto
good "a Python client, generated from $SANDBOX_PROTO/sandbox/v1/sandbox.proto"

# What must be refused: right, object, rule, errno. What is not there at all is
# no refusal.
expect() { printf '%s\t%s\t%s\t%s\n' "$@" >>"$scratch/expected"; }
: >"$scratch/expected"
[[ ! -e ~/.ssh/id_ed25519 ]] || expect read "$HOME/.ssh/id_ed25519" credentials 2
[[ ! -e ~/.aws ]] || expect read "$HOME/.aws" credentials 2
expect write "$HOME/.bashrc" startup 13
expect connect 203.0.113.1:443 'network none' 1
expect connect 203.0.113.1:53 'network none' 1
count=$(wc -l <"$scratch/expected")

python3 "$here/watch.py" "$scratch" "$host" "$count" >"$scratch/watched" &
watcher=$!
for ((i = 0; i < 600; i++)); do
	grep -q '^watching' "$scratch/watched" && break
	kill -0 "$watcher" 2>/dev/null || break
	sleep 0.1
done
grep -q '^watching' "$scratch/watched" || {
	echo 'demo: the watcher does not watch' >&2
	exit 1
}
good 'it watches'

files() { # what lies outside the project
	if [[ $quiet ]]; then
		find "$HOME" /tmp /var/tmp /dev/shm \( -path "$project" -o -path "$scratch" \) -prune -o \
			-type d -printf '%p/ %m\n' -o -printf '%p %m %s %T@\n' 2>/dev/null | sort
	else
		cksum ~/.bashrc ~/.ssh/* ~/.aws/* 2>/dev/null || true
	fi
}
cgroups() { find /sys/fs/cgroup -path '*/sandboxd*.slice/*' -type d 2>/dev/null | sort; }
files >"$scratch/files"
cgroups >"$scratch/cgroups"
cat /proc/self/mounts >"$scratch/mounts"

title 'sandbox run -- make test'
status=0
(cd "$project" && sandbox run --denials always --json 3 -- make test) \
	3>"$scratch/denials" >"$scratch/output" 2>&1 || status=$?
sed 's/^/  /' "$scratch/output"
if ((status == 0)) && grep -q '^OK$' "$scratch/output"; then
	good 'the tests pass, whatever the install script tried'
else
	bad "\`make test\` ended with status $status"
fi

title 'What the hijacked install script got'
got() { # got WHAT ANSWER
	if grep -qxF "brightly: $1: $2" "$scratch/output"; then
		good "$1: $2"
	else
		bad "$1: $(sed -n "s|^brightly: $1: ||p" "$scratch/output"), not $2"
	fi
}
got 'read ~/.ssh/id_ed25519' 'No such file or directory'
got 'list ~/.aws' 'No such file or directory'
got 'append to ~/.bashrc' 'Permission denied'
got 'connect to 203.0.113.1:443' 'Operation not permitted'
got 'send UDP to 203.0.113.1:53' 'Operation not permitted'

title 'Who was told'
for ((i = 0; i < 600; i++)); do
	kill -0 "$watcher" 2>/dev/null || break
	sleep 0.1
done
sandbox=$(sed -n 's/.*"type":"started".*"sandbox_id":"\([^"]*\)".*/\1/p' "$scratch/denials")
sandbox events --sandbox "$sandbox" -o json >"$scratch/events"
python3 "$here/compare.py" "$scratch/expected" "$sandbox" \
	"the caller, through --json=$scratch/denials" \
	"sandbox events=$scratch/events" \
	"the Python client=$scratch/watched" || failures=$((failures + 1))
sandbox events --sandbox "$sandbox" | sed 's/^/    /'

title 'What is left of it'
if [[ -z $(git -C "$project" status --porcelain) ]]; then
	good 'git status: clean'
else
	bad "git status: $(git -C "$project" status --porcelain)"
fi
if processes=$(pgrep -f 'sleep 86399[.]25'); then
	bad "a process: $processes"
else
	good 'no process, though the script left one'
fi
same() { # same WHAT NAME COMMAND...
	if "${@:3}" | diff "$scratch/$2" - >"$scratch/difference"; then
		good "$1"
	else
		bad "$(cat "$scratch/difference")"
	fi
}
same 'no cgroup' cgroups cgroups
same 'no mount' mounts cat /proc/self/mounts
same 'no file outside the project' files files

title 'The demo'
if ((failures > 0)); then
	bad "$failures of the above"
	exit 1
fi
good 'everything is as promised'
