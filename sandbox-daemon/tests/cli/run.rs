//! `sandbox run` against a daemon that answers as asked.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::fd::OwnedFd,
    process::{Child, Command, Stdio},
    time::Duration,
};

use nix::{
    pty::openpty,
    sys::{
        signal::{Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};
use sandbox_daemon::proto::exited;
use serde_json::{Value, json};

use super::{code, fake::Fake, stderr, stdout};

/// With a terminal as stderr, the kind is relay: the test sees the streams.
fn relayed(command: &mut Command) -> OwnedFd {
    let pty = openpty(None, None).unwrap();
    command.stdin(pty.slave);
    pty.master
}

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(child.id().try_into().unwrap());
    kill(pid, signal).unwrap();
}

#[test]
fn output_status_and_denials_are_the_commands() {
    let fake = Fake::start();
    let output = fake
        .context
        .output(&["run", "--denials=always", "exit", "7"]);
    assert_eq!(code(&output), 7);
    assert_eq!(stdout(&output), "out\n");
    assert_eq!(
        stderr(&output),
        "err\n\
         sandbox: denied read /home/dev/.ssh/id_ed25519 (rule credentials) by python3[4211] (3 times)\n\
         sandbox: denied read /a\\xff (rule credentials) by python3[4211]\n"
    );
}

#[test]
fn denials_are_not_told_unless_on_a_terminal() {
    let fake = Fake::start();
    for denials in ["auto", "never"] {
        let output = fake.context.output(&["run", "--denials", denials, "exit"]);
        assert_eq!(code(&output), 0);
        assert_eq!(stderr(&output), "err\n");
    }
}

#[test]
fn ten_denials_are_told_and_the_rest_counted() {
    let fake = Fake::start();
    let output = fake
        .context
        .output(&["run", "--denials=always", "many", "24"]);
    let lines: Vec<&str> = stderr(&output).lines().collect();
    assert_eq!(lines.len(), 12);
    assert_eq!(
        lines[10],
        "sandbox: 14 more; see `sandbox events --sandbox SBX`"
    );
    assert!(lines[11].contains("7 refused without a record"));
}

#[test]
fn a_signal_is_128_and_its_number() {
    let fake = Fake::start();
    assert_eq!(code(&fake.context.output(&["run", "signal", "9"])), 137);
    assert_eq!(code(&fake.context.output(&["run", "signal", "15"])), 143);
}

#[test]
fn a_limit_that_was_reached_has_its_status_and_its_line() {
    let fake = Fake::start();
    for (reason, status, line) in [
        (exited::Reason::Timeout, 124, "timeout of 10 s reached"),
        (
            exited::Reason::SandboxTimeout,
            124,
            "sandbox timeout of 2 h reached",
        ),
        (
            exited::Reason::Memory,
            137,
            "memory limit 64 MiB reached (peak 64 MiB)",
        ),
        (
            exited::Reason::MachineMemory,
            137,
            "the machine ran out of memory (peak 64 MiB)",
        ),
        (exited::Reason::Output, 137, "output limit 1 MiB reached"),
    ] {
        let reason = (reason as i32).to_string();
        let output = fake.context.output(&[
            "run",
            "--timeout",
            "10s",
            "--sandbox-timeout=2h",
            "-m64m",
            "--pids-limit=5",
            "--output-limit=1MiB",
            "reached",
            &reason,
        ]);
        assert_eq!(code(&output), status);
        assert_eq!(
            stderr(&output),
            format!(
                "sandbox: killed: {line}\n\
                 sandbox: 12 processes were not started: the limit of 5 (pids) was reached\n"
            )
        );
    }
    let output = fake.context.output(&["run", "-m", "1x", "true"]);
    assert_eq!(code(&output), 125);
    assert!(
        stderr(&output).contains("unknown unit `x` of a size"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn what_is_to_be_counted_is_relayed() {
    let fake = Fake::start();
    for (arguments, kind) in [
        (["run", "show"].as_slice(), "Inherit"),
        (&["run", "--output-limit", "1MiB", "show"], "Relay"),
        // Which the daemon says where it is the policy's.
        (&["run", "counted"], "Relay"),
    ] {
        let output = fake.context.output(arguments);
        assert_eq!(stdout(&output), format!("{kind} apart=false 0x0\n"));
        assert_eq!(code(&output), 0);
    }
}

#[test]
fn what_did_not_start_has_its_own_status() {
    let fake = Fake::start();
    for (command, status) in [("missing", 127), ("text-file", 126)] {
        let output = fake.context.output(&["run", command]);
        assert_eq!(code(&output), status);
        assert_eq!(stderr(&output), "sandbox: cannot start `it`: because\n");
    }
    let output = fake.context.output(&["run", "wrong-policy"]);
    assert_eq!(code(&output), 125);
    assert_eq!(
        stderr(&output),
        "error: unknown key `raed`\n --> p.toml:3:1\n"
    );
}

#[test]
fn a_daemon_that_goes_away_is_125() {
    let fake = Fake::start();
    let output = fake.context.output(&["run", "die"]);
    assert_eq!(code(&output), 125);
    assert!(
        stderr(&output).starts_with("sandbox: lost the connection to the daemon\n"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn json_has_every_event_as_a_line() {
    let fake = Fake::start();
    let read = |words: &str| -> Vec<Value> {
        let script = format!("exec \"$0\" run --json 3 {words} 3>&1 >/dev/null 2>&1");
        let output = Command::new("sh")
            .args(["-c", &script, env!("CARGO_BIN_EXE_sandbox")])
            .env("SANDBOX_HOST", &fake.context.host)
            .current_dir(fake.context.path())
            .output()
            .unwrap();
        let lines = stdout(&output).lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    let events = read("exit 7");
    let kinds: Vec<_> = events.iter().map(|event| &event["type"]).collect();
    assert_eq!(
        kinds,
        [
            "started",
            "denial",
            "denial",
            "denial",
            "credential_use",
            "exited"
        ]
    );
    assert_eq!(events[0]["withheld_env"], json!(["GITHUB_TOKEN"]));
    assert_eq!(events[1]["path"], "/home/dev/.ssh/id_ed25519");
    assert_eq!(events[3]["path_base64"], "L2H/");
    assert_eq!(events[3]["object_display"], "/a\\xff");
    assert_eq!(events[4]["credential"], "github");
    assert_eq!(events[5]["code"], 7);

    let events = read("missing");
    assert_eq!(events.len(), 1);
    assert_eq!(events[0]["type"], "failed");
    assert_eq!(events[0]["reason"], "COMMAND_NOT_FOUND");
}

#[test]
fn verbose_names_sandbox_policy_and_what_was_withheld() {
    let fake = Fake::start();
    let output = fake.context.output(&["run", "-v", "signal", "1"]);
    assert_eq!(
        stderr(&output),
        "sandbox: `SBX` with policy `default` (sha256 0123456789ab)\n\
         sandbox: withheld GITHUB_TOKEN\n"
    );
}

#[test]
fn without_any_terminal_the_descriptors_are_inherited() {
    let fake = Fake::start();
    let output = fake.context.output(&["run", "show"]);
    assert_eq!(stdout(&output), "Inherit apart=false 0x0\n");
}

#[test]
fn stdin_and_its_end_are_relayed() {
    let fake = Fake::start();
    let pty = openpty(None, None).unwrap();
    let mut child = fake
        .context
        .client(&["run", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(pty.slave)
        .spawn()
        .unwrap();
    let text = "all of it\n".repeat(50_000);
    let mut stdin = child.stdin.take().unwrap();
    let sent = text.clone();
    let writer = std::thread::spawn(move || stdin.write_all(sent.as_bytes()).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert_eq!(code(&output), 0);
    assert!(stdout(&output) == text, "{} bytes", output.stdout.len());
}

#[test]
fn signals_are_passed_on() {
    let fake = Fake::start();
    let mut command = fake.context.client(&["run", "cat"]);
    let master = relayed(&mut command);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    drop(command);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    nix::unistd::write(&master, b"ready\n").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    for (sent, number) in [
        (Signal::SIGHUP, 1),
        (Signal::SIGQUIT, 3),
        (Signal::SIGUSR1, 10),
        (Signal::SIGUSR2, 12),
        (Signal::SIGTERM, 15),
    ] {
        signal(&child, sent);
        assert_eq!(lines.next().unwrap().unwrap(), format!("signal {number}"));
    }
    // The end of what is typed.
    nix::unistd::write(&master, b"\x04").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn stopping_the_client_stops_the_command_too() {
    let fake = Fake::start();
    let mut command = fake.context.client(&["run", "cat"]);
    let master = relayed(&mut command);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    nix::unistd::write(&master, b"ready\n").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    let pid = Pid::from_raw(child.id().try_into().unwrap());
    signal(&child, Signal::SIGTSTP);
    let stopped = waitpid(pid, Some(WaitPidFlag::WUNTRACED)).unwrap();
    assert_eq!(stopped, WaitStatus::Stopped(pid, Signal::SIGSTOP));
    signal(&child, Signal::SIGCONT);
    assert_eq!(lines.next().unwrap().unwrap(), "signal 19");
    assert_eq!(lines.next().unwrap().unwrap(), "signal 18");
    nix::unistd::write(&master, b"\x04").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn the_second_interrupt_closes_the_stream() {
    let fake = Fake::start();
    let mut command = fake.context.client(&["run", "hang"]);
    let _master = relayed(&mut command);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = [0; 6];
    let stdout = child.stdout.as_mut().unwrap();
    stdout.read_exact(&mut ready).unwrap();
    signal(&child, Signal::SIGINT);
    // The same signal twice at once is one signal.
    std::thread::sleep(Duration::from_millis(200));
    assert!(child.try_wait().unwrap().is_none(), "the first one waits");
    signal(&child, Signal::SIGINT);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let closed = fake.closed.recv_timeout(Duration::from_secs(30));
    assert_eq!(closed, Ok("hang"));
}

#[test]
fn a_client_that_is_killed_closes_the_stream() {
    let fake = Fake::start();
    let mut command = fake.context.client(&["run", "hang"]);
    let _master = relayed(&mut command);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = [0; 6];
    let stdout = child.stdout.as_mut().unwrap();
    stdout.read_exact(&mut ready).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let closed = fake.closed.recv_timeout(Duration::from_secs(30));
    assert_eq!(closed, Ok("hang"));
}

#[test]
fn a_reader_that_has_seen_enough_ends_the_writer() {
    let fake = Fake::start();
    let mut command = fake.context.client(&["run", "yes"]);
    let _master = relayed(&mut command);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 2];
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut first).unwrap();
    drop(stdout);
    assert_eq!(child.wait().unwrap().code(), Some(128 + 13));
}
