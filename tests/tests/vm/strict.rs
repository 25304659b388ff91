//! The strict policy: the usual tools start and come to what they come to
//! outside, and of the machine nothing exists but what they need.

use std::fs;

use sandbox_daemon::proto::{PolicySource, Start};

use crate::{
    client,
    expect::{Case, attack, compare},
    ground::{self, WORK},
    host::{self, DEV, ROOT},
    work::{self, Job},
};

crate::trials![
    git_works_under_the_strict_policy,
    python_works_under_the_strict_policy,
    node_works_under_the_strict_policy,
    a_compiler_works_under_the_strict_policy,
    nothing_else_exists_under_the_strict_policy,
];

/// A repository with a merge, cloned and packed.
const GIT: &str = r"
export GIT_AUTHOR_DATE='2024-01-01T00:00:00Z' GIT_COMMITTER_DATE='2024-01-01T00:00:00Z'
git init -q one
cd one
echo a >a; git add a; git commit -q -m a
git switch -q -c side; echo b >b; git add b; git commit -q -m b
git switch -q main; echo c >c; git add c; git commit -q -m c
git merge -q -m d side
git log --format='%H %an %s'
git gc -q
git fsck --strict
git clone -q . ../two
git -C ../two status --short --branch
cd ..
rm -r two one
";

const PYTHON: &str = r#"
cat >work.py <<'END'
import asyncio, json, pathlib, sqlite3, ssl, subprocess, sys, tempfile
from concurrent.futures import ProcessPoolExecutor

def square(number):
    return number * number

async def talk():
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", "echo from a child", stdout=subprocess.PIPE)
    return (await process.communicate())[0].decode().strip()

if __name__ == "__main__":
    with ProcessPoolExecutor(2) as pool:
        print(list(pool.map(square, range(5))))
    print(asyncio.run(talk()))
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory, "file")
        path.write_text(json.dumps({"a": 1}))
        print(path.read_text())
    base = sqlite3.connect("base.db")
    base.execute("create table t (x)")
    base.execute("insert into t values (7)")
    base.commit()
    print(base.execute("select x from t").fetchall())
    print(ssl.create_default_context().verify_mode)
END
python3 work.py
python3 -m py_compile work.py
ls
"#;

const NODE: &str = r#"
cat >work.mjs <<'END'
import { Worker, isMainThread, parentPort } from "node:worker_threads";
import { execFileSync } from "node:child_process";
import fs from "node:fs";
import os from "node:os";
if (isMainThread) {
  const worker = new Worker(new URL(import.meta.url));
  worker.on("message", (sum) => {
    const directory = fs.mkdtempSync(os.tmpdir() + "/work-");
    fs.writeFileSync(directory + "/sum", String(sum));
    fs.writeFileSync("sum", fs.readFileSync(directory + "/sum"));
    fs.rmSync(directory, { recursive: true });
    console.log(execFileSync("cat", ["sum"], { encoding: "utf8" }));
  });
} else {
  parentPort.postMessage([1, 2, 3].reduce((a, b) => a + b));
}
END
node work.mjs
ls
"#;

const COMPILER: &str = r#"
printf '#include <stdio.h>\nint main(void) { return puts("built") < 0; }\n' >main.c
printf 'main: main.c\n\tgcc -O1 -o $@ $<\n' >Makefile
make
./main
ls
"#;

async fn git_works_under_the_strict_policy() {
    let job = Job::new("git", GIT);
    work::compare(&job, strict(work::SCRIPT)).await;
}

async fn python_works_under_the_strict_policy() {
    let job = Job {
        volatile: &["__pycache__"],
        ..Job::new("python", PYTHON)
    };
    work::compare(&job, strict(work::SCRIPT)).await;
}

async fn node_works_under_the_strict_policy() {
    let job = Job::new("node", NODE);
    work::compare(&job, strict(work::SCRIPT)).await;
}

async fn a_compiler_works_under_the_strict_policy() {
    let job = Job::new("a_compiler", COMPILER);
    work::compare(&job, strict(work::SCRIPT)).await;
}

/// The policy, and the program that is run, which is no part of the system.
fn strict(program: &str) -> PolicySource {
    PolicySource {
        extra_read: vec![program.into()],
        ..client::named("strict")
    }
}

async fn nothing_else_exists_under_the_strict_policy() {
    for uid in [DEV, ROOT] {
        ground::make(uid);
        let cases = existing(uid);
        let steps: Vec<&[&str]> = cases.iter().map(|case| case.step.as_slice()).collect();
        let policy = strict(host::this_program());
        let start = Start {
            cwd: WORK.into(),
            ..client::start(client::spec(uid, policy, WORK), &client::attacker(&steps))
        };
        let ran = client::run(&mut client::root().await, start).await;
        compare(uid, &cases, &ran);
        for step in steps {
            let answer = host::attack(uid, WORK, step);
            assert!(answer.starts_with("ok"), "as uid {uid}: {step:?}: {answer}");
        }
    }
}

/// What there is and what there is not, for a user.
fn existing(uid: u32) -> Vec<Case> {
    let other = "not allowed";
    let (home, config, startup, key) = if uid == ROOT {
        ("/root", "/root/.gitconfig", "/root/.bashrc", "/root/.netrc")
    } else {
        (
            "/home/dev",
            "/home/dev/.gitconfig",
            "/home/dev/.bashrc",
            "/home/dev/.netrc",
        )
    };
    vec![
        attack(&["read", "file"]).finds("content of work/file"),
        attack(&["append", "file"]),
        attack(&["read", config]).finds("[user]"),
        attack(&["read", "/etc/hostname"]).finds("sandbox-vm"),
        attack(&["stat", "/etc/passwd"]).finds(&length("/etc/passwd")),
        attack(&["list", "/"]).hidden("open", "/", other),
        attack(&["list", home]).hidden("open", home, other),
        attack(&["read", startup]).hidden("open", startup, "startup"),
        attack(&["read", key]).hidden("open", key, "credentials"),
        attack(&["list", "/var/log"]).hidden("open", "/var/log", other),
        attack(&["list", "/run"]).hidden("open", "/run", other),
        attack(&["list", "/srv/ground/plain"]).hidden("open", "plain", other),
        attack(&["read", "/srv/ground/plain/file"]).hidden("open", "plain/file", other),
        attack(&["read", "/srv/ground/secret/key"]).hidden("open", "secret/key", other),
        attack(&["read", ".env"]).hidden("open", "work/.env", "dotenv"),
        attack(&["stat", startup]).hidden("stat", startup, "startup"),
    ]
}

fn length(path: &str) -> String {
    fs::metadata(path).unwrap().len().to_string()
}
