//! Limits on memory, processors and processes, and what is said of them: by real
//! programs, as the developer and as root; and that nothing survives.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use sandbox_daemon::proto::{
    CloseStdin, KillExecRequest, Limits, SandboxSpec, UpdateSandboxRequest, exited::Reason,
    run_request::Request,
};

use crate::{
    client::{self, Run},
    disk::{self, Disk},
    ground::{self, POLICY, WORK},
    host::{self, DEV, ROOT, text},
};

crate::trials![
    memory_beyond_the_limit_is_137_and_one_line,
    one_exec_dies_as_a_whole_and_another_goes_on,
    the_limit_on_memory_holds_for_two_execs_together,
    a_share_of_a_processor_is_all_that_a_sandbox_gets,
    refused_processes_are_counted_and_explained,
    the_limit_on_processes_holds_for_two_execs_together,
    what_ignores_the_end_of_its_time_is_124,
    limits_of_a_policy_hold_and_can_be_changed,
    output_that_a_policy_limits_is_counted,
    what_was_taken_is_told,
    four_thousand_processes_end_with_their_exec,
    what_cannot_be_killed_is_named_and_waited_for,
];

/// Takes so many MiB, says so, and keeps them until the end of stdin.
const HOLD: &str =
    "import sys; x = bytearray(int(sys.argv[1]) << 20); print('up', flush=True); sys.stdin.read()";

/// `sandbox run` in the workspace.
fn sandbox(uid: u32, arguments: &[&str]) -> Output {
    let argv = [&["sandbox", "run"], arguments].concat();
    host::run_with(uid, WORK, &argv, "")
}

fn limited(limits: Limits) -> SandboxSpec {
    SandboxSpec {
        limits: Some(limits),
        ..ground::spec(DEV)
    }
}

fn memory(mebibytes: u64) -> Limits {
    Limits {
        memory: mebibytes << 20,
        ..Limits::default()
    }
}

fn pids(pids: u32) -> Limits {
    Limits {
        pids,
        ..Limits::default()
    }
}

/// The directory of a sandbox's cgroup.
fn cgroup(sandbox: &str) -> PathBuf {
    Path::new(host::SLICE).join(sandbox)
}

fn read(directory: &Path, file: &str) -> String {
    let path = directory.join(file);
    let text =
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.trim_end().to_owned()
}

async fn memory_beyond_the_limit_is_137_and_one_line() {
    for uid in [DEV, ROOT] {
        ground::make(uid);
        let hog = ["--", "python3", "-c", HOLD, "150"];
        let output = sandbox(uid, &[&["-m", "64m"], &hog[..]].concat());
        assert_eq!(output.status.code(), Some(137), "{output:?}");
        assert_eq!(text(&output.stdout), "");
        let line = text(&output.stderr);
        assert!(
            line.starts_with("sandbox: killed: memory limit 64 MiB reached (peak 6")
                && line.ends_with(" MiB)\n")
                && line.lines().count() == 1,
            "{line}"
        );
        let mut client = client::root().await;
        let spec = SandboxSpec {
            limits: Some(memory(64)),
            ..ground::spec(uid)
        };
        let ran = client::run(&mut client, client::start(spec, &hog[1..])).await;
        assert_eq!(ran.signal(), Some(9), "{ran:?}");
        assert_eq!(ran.exited.reason(), Reason::Memory);
        let peak = ran.exited.usage.unwrap().peak_memory.unwrap();
        assert!((60 << 20..=64 << 20).contains(&peak), "{peak}");
        // The controls: without the limit, and with one that it keeps.
        for limit in [&[][..], &["-m", "400MiB"]] {
            let output = sandbox(uid, &[limit, &hog[..]].concat());
            assert_eq!(output.status.code(), Some(0), "{output:?}");
            assert_eq!(text(&output.stdout), "up\n");
            assert_eq!(text(&output.stderr), "");
        }
    }
}

async fn one_exec_dies_as_a_whole_and_another_goes_on() {
    ground::make(DEV);
    let mut client = client::root().await;
    let sandbox = client::create(&mut client, limited(memory(100))).await;
    let start = |argv: &[&str]| client::start_in(&sandbox.id, argv);
    let mut other = Run::start(&mut client, start(&["cat"])).await.unwrap();
    other.write("before\n").await;
    assert_eq!(other.line().await, "before");
    // It is not the shell that takes the memory, and it would go on.
    let script = format!("sleep 1000 & python3 -c \"{HOLD}\" 200; echo went on; kill $!");
    let ran = client::run(&mut client, start(&["sh", "-c", &script])).await;
    assert_eq!(ran.signal(), Some(9), "{ran:?}");
    assert_eq!(ran.exited.reason(), Reason::Memory);
    assert_eq!(text(&ran.stdout), "");
    other.write("after\n").await;
    assert_eq!(other.line().await, "after");
    other.send(Request::CloseStdin(CloseStdin {})).await;
    let ran = other.end().await;
    assert_eq!(ran.code(), Some(0));
    assert_eq!(ran.exited.reason(), Reason::Exited);
    client::delete(&mut client, &sandbox.id).await;
}

async fn the_limit_on_memory_holds_for_two_execs_together() {
    ground::make(DEV);
    let mut client = client::root().await;
    let sandbox = client::create(&mut client, limited(memory(120))).await;
    let start = || client::start_in(&sandbox.id, &["python3", "-c", HOLD, "80"]);
    let mut first = Run::start(&mut client, start()).await.unwrap();
    // Alone it keeps to the limit.
    assert_eq!(first.line().await, "up");
    assert_eq!(read(&cgroup(&sandbox.id), "memory.swap.max"), "0");
    let killed = || {
        let events = read(&cgroup(&sandbox.id), "memory.events");
        !events.lines().any(|line| line == "oom_kill 0")
    };
    assert!(!killed());
    let second = Run::start(&mut client, start()).await.unwrap();
    host::wait_until("together they are killed", killed).await;
    for run in [&first, &second] {
        // One of them has ended.
        let _ = run
            .requests
            .send(client::message(Request::CloseStdin(CloseStdin {})))
            .await;
    }
    let reasons = [first.end().await, second.end().await].map(|ran| ran.exited.reason());
    let killed = reasons.iter().filter(|reason| **reason == Reason::Memory);
    assert_eq!(killed.count(), 1, "{reasons:?}");
    assert!(reasons.contains(&Reason::Exited), "{reasons:?}");
    client::delete(&mut client, &sandbox.id).await;
}

async fn a_share_of_a_processor_is_all_that_a_sandbox_gets() {
    ground::make(DEV);
    let mut client = client::root().await;
    let busy = "i=0; while [ $i -lt 60000 ]; do i=$((i + 1)); done; echo up; read line";
    for (cpu_millis, max) in [(250, "25000 100000"), (0, "max 100000")] {
        let limits = Limits {
            cpu_millis,
            ..Limits::default()
        };
        let start = client::start(limited(limits), &["sh", "-c", busy]);
        let mut run = Run::start(&mut client, start).await.unwrap();
        assert_eq!(run.line().await, "up");
        let cgroup = cgroup(&run.started.sandbox_id);
        assert_eq!(read(&cgroup, "cpu.max"), max);
        let counts = read(&cgroup, "cpu.stat");
        let throttled = counts
            .lines()
            .find_map(|line| line.strip_prefix("nr_throttled "))
            .unwrap();
        assert_eq!(throttled != "0", cpu_millis != 0, "{counts}");
        run.write("\n").await;
        let ran = run.end().await;
        assert_eq!(ran.code(), Some(0));
        assert!(ran.exited.usage.unwrap().cpu_time.is_some());
    }
}

/// Forks 40 times and says what came of it.
const FORK: &str = "
import errno, os, time
children, errors = [], []
for _ in range(40):
    try:
        pid = os.fork()
        if pid == 0:
            time.sleep(1000)
        children.append(pid)
    except OSError as error:
        errors.append(error.errno)
print(len(children), len(errors), set(errors) <= {errno.EAGAIN}, flush=True)
for pid in children:
    os.kill(pid, 9)
";

async fn refused_processes_are_counted_and_explained() {
    ground::make(DEV);
    let fork = ["python3", "-c", FORK];
    let output = sandbox(DEV, &[&["--pids-limit", "20", "--"], &fork[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(text(&output.stdout), "19 21 True\n");
    assert_eq!(
        text(&output.stderr),
        "sandbox: 21 processes were not started: the limit of 20 (pids) was reached\n"
    );
    let mut client = client::root().await;
    let ran = client::run(&mut client, client::start(limited(pids(20)), &fork)).await;
    let usage = ran.exited.usage.unwrap();
    assert_eq!(usage.refused_forks, 21);
    assert_eq!(usage.peak_pids, Some(20));
    // The control.
    let output = sandbox(DEV, &[&["--"], &fork[..]].concat());
    assert_eq!(text(&output.stdout), "40 0 True\n");
    assert_eq!(text(&output.stderr), "");
}

async fn the_limit_on_processes_holds_for_two_execs_together() {
    ground::make(DEV);
    let mut client = client::root().await;
    let sandbox = client::create(&mut client, limited(pids(20))).await;
    let wait = "import os, time
for _ in range(9):
    if os.fork() == 0:
        time.sleep(1000)
print('up', flush=True)
input()";
    let start = client::start_in(&sandbox.id, &["python3", "-c", wait]);
    let mut first = Run::start(&mut client, start).await.unwrap();
    assert_eq!(first.line().await, "up");
    let start = client::start_in(&sandbox.id, &["python3", "-c", FORK]);
    let ran = client::run(&mut client, start).await;
    assert_eq!(text(&ran.stdout), "9 31 True\n");
    assert_eq!(ran.exited.usage.unwrap().refused_forks, 31);
    first.write("\n").await;
    assert_eq!(first.end().await.code(), Some(0));
    client::delete(&mut client, &sandbox.id).await;
}

async fn what_ignores_the_end_of_its_time_is_124() {
    ground::make(DEV);
    let script = "trap '' TERM; setsid sleep 1000 & echo up; while :; do sleep 1; done";
    let output = sandbox(DEV, &["--timeout", "2s", "--", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(124), "{output:?}");
    assert_eq!(text(&output.stdout), "up\n");
    assert_eq!(
        text(&output.stderr),
        "sandbox: killed: timeout of 2 s reached\n"
    );
    // Also what ends well when it is told.
    let script = "trap 'exit 0' TERM; while :; do sleep 0.1; done";
    let output = sandbox(DEV, &["--timeout", "2s", "--", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(124), "{output:?}");
    let output = sandbox(DEV, &["--timeout", "5m", "--", "sh", "-c", "exit 7"]);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert_eq!(text(&output.stderr), "");
}

async fn limits_of_a_policy_hold_and_can_be_changed() {
    ground::make(DEV);
    let mut client = client::root().await;
    let with = |limits: &str| client::policy(&format!("{POLICY}\n[limits]\n{limits}\n"));
    let spec = client::spec(
        DEV,
        with("memory = \"100MiB\"\npids = 30\ncpus = 0.5"),
        WORK,
    );
    let sandbox = client::create(&mut client, spec).await;
    let start = client::start_in(&sandbox.id, &["cat"]);
    let run = Run::start(&mut client, start).await.unwrap();
    let own = cgroup(&sandbox.id);
    let exec = own.join(&run.started.exec_id);
    let values = || {
        let of = |files: [&str; 4]| files.map(|file| read(&own, file)).join(", ");
        let of_exec = ["memory.max", "pids.max"].map(|file| read(&exec, file));
        let own = of(["memory.max", "memory.swap.max", "pids.max", "cpu.max"]);
        format!("{own}; {}", of_exec.join(", "))
    };
    let first = "104857600, 0, 30, 50000 100000; 104857600, 30";
    assert_eq!(values(), first);
    assert_eq!(read(&exec, "memory.oom.group"), "1");
    let mut update = async |limits: &str| {
        let request = UpdateSandboxRequest {
            id: sandbox.id.clone(),
            policy: Some(with(limits)),
            ..UpdateSandboxRequest::default()
        };
        client.update_sandbox(request).await.map(drop)
    };
    // All of it or nothing.
    update("pids = 5\nmemory = 1").await.unwrap_err();
    assert_eq!(values(), first);
    update("pids = 5").await.unwrap();
    assert_eq!(values(), "max, max, 5, max 100000; max, 5");
    update("memory = \"50MiB\"").await.unwrap();
    assert_eq!(values(), "52428800, 0, max, max 100000; 52428800, max");
    let mut client = client::root().await;
    client::delete(&mut client, &sandbox.id).await;
    assert_eq!(run.end().await.exited.reason(), Reason::Killed);
}

async fn output_that_a_policy_limits_is_counted() {
    ground::make(DEV);
    let policy = format!("{POLICY}\n[limits]\noutput = \"10kB\"\n");
    fs::write(format!("{}/limited.toml", ground::GROUND), policy).unwrap();
    // Into pipes, which the command would be given itself.
    let output = sandbox(DEV, &["-p", "../limited.toml", "--", "yes"]);
    assert_eq!(output.status.code(), Some(137), "{:?}", output.status);
    assert_eq!(output.stdout.len(), 10_000);
    assert_eq!(
        text(&output.stderr),
        "sandbox: killed: output limit 9.8 KiB reached\n"
    );
    let output = sandbox(DEV, &["-p", "../limited.toml", "--", "cat"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

async fn what_was_taken_is_told() {
    ground::make(DEV);
    let mut client = client::root().await;
    let script = "dd if=/dev/zero of=data bs=1M count=8 conv=fsync 2>/dev/null & sleep 0.2 & wait";
    let start = client::start(ground::spec(DEV), &["sh", "-c", script]);
    let usage = client::run(&mut client, start).await.exited.usage.unwrap();
    assert!(usage.peak_memory.unwrap() > 1 << 20, "{usage:?}");
    let time = usage.cpu_time.unwrap();
    assert!(time.seconds > 0 || time.nanos > 1_000_000, "{usage:?}");
    assert!(usage.written_bytes.unwrap() >= 8 << 20, "{usage:?}");
    assert!(usage.read_bytes.is_some(), "{usage:?}");
    assert!(usage.peak_pids.unwrap() >= 3, "{usage:?}");
    assert_eq!(usage.refused_forks, 0);
}

async fn four_thousand_processes_end_with_their_exec() {
    ground::make(DEV);
    let mut client = client::root().await;
    // None of them waits for another, and each is in a session of its own.
    let bomb = "import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(4000):
    if os.fork() == 0:
        os.setsid()
        time.sleep(100000)
print('up', flush=True)
time.sleep(100000)";
    let start = client::start(ground::spec(DEV), &["python3", "-c", bomb]);
    let mut run = Run::start(&mut client, start).await.unwrap();
    assert_eq!(run.line().await, "up");
    let own = cgroup(&run.started.sandbox_id);
    let exec = own.join(&run.started.exec_id);
    assert!(read(&exec, "cgroup.procs").lines().count() > 4000);
    let exec_id = run.started.exec_id.clone();
    client.kill_exec(KillExecRequest { exec_id }).await.unwrap();
    assert!(!exec.exists());
    let ran = run.end().await;
    assert_eq!(ran.exited.reason(), Reason::Killed);
    assert!(!own.exists());
}

/// A file system that writes wait for until this is dropped.
struct Frozen(&'static str);

impl Frozen {
    fn new(at: &'static str) -> Self {
        disk::run(Command::new("fsfreeze").args(["-f", at]));
        Self(at)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        disk::run(Command::new("fsfreeze").args(["-u", self.0]));
    }
}

async fn what_cannot_be_killed_is_named_and_waited_for() {
    const AT: &str = "/srv/frozen";
    let disk = Disk::make("ext4", &["-q"]).mounted(AT);
    disk.file("file", DEV);
    let policy = "version = 1\n[files]\nread = [\"/\"]\nwrite = [\"${workspace}\", \"@devices\"]\n";
    let mut client = client::root().await;
    let script = "echo up; read line; echo more >> file; echo wrote";
    let spec = client::spec(DEV, client::policy(policy), AT);
    let start = client::start(spec, &["sh", "-c", script]);
    let mut run = Run::start(&mut client, start).await.unwrap();
    assert_eq!(run.line().await, "up");
    let frozen = Frozen::new(AT);
    run.write("\n").await;
    let pid = run.started.pid;
    host::wait_until("it waits for the file system", || {
        let line = fs::read_to_string(format!("/proc/{pid}/stat"));
        line.is_ok_and(|line| line.rsplit_once(") ").unwrap().1.starts_with('D'))
    })
    .await;
    let exec_id = run.started.exec_id.clone();
    let mut killer = client.clone();
    let killing = async move { killer.kill_exec(KillExecRequest { exec_id }).await };
    let killing = tokio::spawn(killing);
    assert_eq!(run.unkillable().await, [pid]);
    assert!(host::alive(pid) && !killing.is_finished());
    let log = fs::read_to_string("/var/log/sandboxd.log").unwrap();
    assert!(
        log.contains(&format!("pids=[{pid}]")) && log.contains("cannot end"),
        "{log}"
    );
    drop(frozen);
    let ran = run.end().await;
    assert_eq!(ran.signal(), Some(9), "{ran:?}");
    assert_eq!(ran.exited.reason(), Reason::Killed);
    assert_eq!(ran.unkillable, [[pid]]);
    killing.await.unwrap().unwrap();
    assert!(!host::alive(pid));
}
