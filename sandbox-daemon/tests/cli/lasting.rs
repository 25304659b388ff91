//! The verbs about sandboxes and commands that outlive a call.

use std::{io::Write as _, process::Stdio};

use sandbox_daemon::proto::{self, start::Sandbox as Where};
use serde_json::Value;

use super::{code, fake::Fake, stderr, stdout, utf8};

fn ids(fake: &Fake) -> Vec<String> {
    let there = fake.there.lock().unwrap();
    there.sandboxes.iter().map(|it| it.id.clone()).collect()
}

fn last_start(fake: &Fake) -> proto::Start {
    fake.there.lock().unwrap().starts.last().unwrap().clone()
}

#[test]
fn create_prints_an_id_or_all_of_the_sandbox() {
    let fake = Fake::start();
    let output = fake.context.output(&["create"]);
    assert_eq!(
        (code(&output), stdout(&output), stderr(&output)),
        (0, "000000000001\n", "")
    );
    let create = [
        "create",
        "--name",
        "web",
        "--idle-timeout",
        "30m",
        "-o",
        "json",
    ];
    let output = fake.context.output(&create);
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["id"], "000000000002");
    assert_eq!(value["name"], "web");
    assert_eq!(value["workspace"], utf8(&fake.context.path()));
    let there = fake.there.lock().unwrap();
    let spec = there.sandboxes[2].spec.as_ref().unwrap();
    assert_eq!(spec.idle_timeout.unwrap().seconds, 1800);
    assert_eq!(there.sandboxes[1].spec.as_ref().unwrap().idle_timeout, None);
}

#[test]
fn exec_runs_where_it_is_told_and_has_the_commands_status() {
    let fake = Fake::start();
    fake.context.output(&["create", "--name", "web"]);
    std::fs::create_dir(fake.context.path().join("sub")).unwrap();
    for name in ["web", "000000000001", "00"] {
        let output = fake.context.output(&["exec", name, "--", "exit", "7"]);
        assert_eq!((code(&output), stdout(&output)), (7, "out\n"), "{name}");
    }
    let start = last_start(&fake);
    assert_eq!(start.sandbox, Some(Where::SandboxId("000000000001".into())));
    assert_eq!(start.cwd, utf8(&fake.context.path()));
    assert_eq!(start.timeout, None);

    let exec = [
        "exec",
        "-w",
        "sub",
        "-e",
        "A=b",
        "--timeout",
        "90s",
        "web",
        "exit",
        "0",
    ];
    assert_eq!(code(&fake.context.output(&exec)), 0);
    let start = last_start(&fake);
    assert_eq!(start.cwd, utf8(&fake.context.path().join("sub")));
    assert_eq!(start.timeout.unwrap().seconds, 90);
    assert_eq!(start.env_set.len(), 1);

    // Outside of the workspace it starts at its top.
    let mut outside = fake.context.client(&["exec", "web", "exit", "0"]);
    assert!(outside.current_dir("/").status().unwrap().success());
    assert!(last_start(&fake).cwd.is_empty());

    let output = fake.context.output(&["exec", "nothing", "exit", "0"]);
    assert_eq!(code(&output), 125);
    assert_eq!(
        stderr(&output),
        "sandbox: there is no exec or sandbox `nothing`\nhint: see `sandbox ps`\n"
    );
    assert_eq!(code(&fake.context.output(&["exec", "web", "missing"])), 127);
    assert_eq!(code(&fake.context.output(&["exec", "web"])), 125);
}

#[test]
fn rm_removes_what_is_named_or_all() {
    let fake = Fake::start();
    for name in ["one", "two", "three"] {
        fake.context.output(&["create", "--name", name]);
    }
    let output = fake.context.output(&["rm", "one", "nothing"]);
    assert_eq!(code(&output), 3);
    assert_eq!(ids(&fake).len(), 4, "nothing is removed by half");
    let output = fake.context.output(&["rm", "0000"]);
    assert_eq!(code(&output), 2);
    assert_eq!(
        stderr(&output),
        "sandbox: `0000` may be any of these:\n  sandbox 000000000001  one\n  \
         sandbox 000000000002  two\n  sandbox 000000000003  three\n\
         hint: give more of its id\n"
    );
    let output = fake.context.output(&["rm", "one", "000000000002"]);
    assert_eq!(
        (code(&output), stdout(&output), stderr(&output)),
        (0, "", "")
    );
    assert_eq!(ids(&fake), ["SBX", "000000000003"]);
    assert_eq!(code(&fake.context.output(&["rm"])), 2);
    assert_eq!(code(&fake.context.output(&["rm", "--all", "SBX"])), 2);
    assert_eq!(code(&fake.context.output(&["rm", "--all"])), 0);
    assert!(ids(&fake).is_empty());
}

#[test]
fn a_detached_command_has_an_id_that_every_verb_takes() {
    let fake = Fake::start();
    let output = fake.context.output(&["run", "-d", "--", "sleep", "1000"]);
    assert_eq!(
        (code(&output), stdout(&output), stderr(&output)),
        (0, "e00000000002\n", "")
    );
    let start = last_start(&fake);
    assert_eq!(start.sandbox, Some(Where::SandboxId("000000000001".into())));
    assert!(start.detach && start.no_stdin);
    assert_eq!(start.stdio(), proto::Stdio::Relay);
    for id in ["e00000000002", "e", "000000000001"] {
        assert_eq!(code(&fake.context.output(&["wait", id])), 3, "{id}");
        assert_eq!(code(&fake.context.output(&["logs", id])), 0, "{id}");
        let attach = ["attach", "--no-stdin", id];
        let output = fake
            .context
            .client(&attach)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn();
        output.unwrap().kill().unwrap();
    }
    let ps = fake.context.output(&["ps"]);
    assert!(stdout(&ps).contains("detached"), "{}", stdout(&ps));
    assert_eq!(code(&fake.context.output(&["rm", "e00000000002"])), 0);
    assert_eq!(ids(&fake), ["SBX"]);

    // What cannot be started leaves no sandbox.
    let output = fake.context.output(&["run", "-d", "missing"]);
    assert_eq!(code(&output), 127);
    assert_eq!(ids(&fake), ["SBX"]);
    let output = fake.context.output(&["wait", "SBX"]);
    assert_eq!(code(&output), 125);
    assert!(stderr(&output).contains("nothing was detached in sandbox `SBX`"));
    assert_eq!(code(&fake.context.output(&["logs", "SBX"])), 3);
}

#[test]
fn a_detached_command_may_have_a_terminal_or_an_open_stdin() {
    let fake = Fake::start();
    fake.context.output(&["run", "-dt", "bash"]);
    let start = last_start(&fake);
    assert_eq!(start.stdio(), proto::Stdio::Pty);
    assert!(!start.no_stdin);
    let size = start.window_size.unwrap();
    assert_eq!((size.rows, size.columns), (24, 80));
    fake.context.output(&["run", "-di", "cat"]);
    let start = last_start(&fake);
    assert_eq!(
        (start.stdio(), start.no_stdin),
        (proto::Stdio::Relay, false)
    );
    assert_eq!(code(&fake.context.output(&["run", "-t", "bash"])), 125);
    assert_eq!(code(&fake.context.output(&["exec", "-d", "SBX", "x"])), 0);
    assert!(last_start(&fake).detach);
}

#[test]
fn a_kept_sandbox_is_there_afterwards_and_is_told() {
    let fake = Fake::start();
    let run = ["run", "--keep", "--name", "web", "exit", "3"];
    let output = fake.context.output(&run);
    assert_eq!((code(&output), stdout(&output)), (3, "out\n"));
    assert_eq!(
        stderr(&output),
        "err\nsandbox: kept `000000000001`; `sandbox exec 000000000001 -- COMMAND` goes on \
         in it, `sandbox rm 000000000001` removes it\n"
    );
    assert_eq!(ids(&fake), ["SBX", "000000000001"]);
    let output = fake.context.output(&["run", "--keep", "missing"]);
    assert_eq!(code(&output), 127);
    assert!(!stderr(&output).contains("kept"), "{}", stderr(&output));
    assert_eq!(ids(&fake).len(), 2);
    assert_eq!(
        code(&fake.context.output(&["run", "--keep", "-d", "true"])),
        125
    );
}

#[test]
fn logs_keep_the_streams_apart_and_say_what_is_missing() {
    let fake = Fake::start();
    fake.context.output(&["run", "-d", "x"]);
    let output = fake.context.output(&["logs", "e"]);
    assert_eq!(stdout(&output), "one\ntwo\nthree\n");
    assert_eq!(
        stderr(&output),
        "sandbox: 7 bytes of older output are not kept any more\noops\n"
    );
    let output = fake.context.output(&["logs", "-f", "--timestamps", "e"]);
    assert_eq!(
        stdout(&output),
        "1970-01-01T00:00:00Z one\n1970-01-01T00:00:00Z two\n1970-01-01T00:00:00Z three\n\
         1970-01-01T00:00:03Z four\n"
    );
    for (tail, lines) in [
        ("0", "four\n"),
        ("1", "ree\nfour\n"),
        ("3", "two\nthree\nfour\n"),
        ("99", "one\ntwo\nthree\nfour\n"),
    ] {
        let output = fake.context.output(&["logs", "-f", "--tail", tail, "e"]);
        assert_eq!(stdout(&output), lines, "{tail}");
    }
}

#[test]
fn attach_passes_input_on_to_the_end_and_has_the_commands_status() {
    let fake = Fake::start();
    fake.context.output(&["run", "-di", "x"]);
    let mut client = fake
        .context
        .client(&["attach", "e"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    client.stdin.take().unwrap().write_all(b"hello\n").unwrap();
    let output = client.wait_with_output().unwrap();
    assert_eq!(
        (code(&output), stdout(&output)),
        (5, "attached 0x0\nhello\n")
    );
}
