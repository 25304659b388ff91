//! The verbs that only ask the daemon.

use std::{io::Write as _, process::Stdio};

use serde_json::Value;

use super::{code, fake::Fake, stderr, stdout, utf8};

#[test]
fn kill_takes_an_exec_or_a_sandbox() {
    let fake = Fake::start();
    assert_eq!(code(&fake.context.output(&["kill", "EXE"])), 0);
    assert_eq!(code(&fake.context.output(&["kill", "SBX"])), 0);
    let output = fake.context.output(&["kill", "nothing"]);
    assert_eq!(code(&output), 3);
    assert_eq!(
        stderr(&output),
        "sandbox: there is no exec or sandbox `nothing`\nhint: see `sandbox ps`\n"
    );
    let output = fake.context.output(&["kill", "theirs"]);
    assert_eq!(code(&output), 4);
    assert_eq!(stderr(&output), "sandbox: it is not yours\n");
}

#[test]
fn ps_lists_as_a_table_or_as_json() {
    let fake = Fake::start();
    let output = fake.context.output(&["ps"]);
    assert!(stdout(&output).starts_with("SANDBOX  NAME  UID  POLICY"));
    assert_eq!(stdout(&output).lines().count(), 2);
    let output = fake.context.output(&["ps", "-o", "json"]);
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(list[0]["id"], "SBX");
}

#[test]
fn network_shows_traffic_and_says_what_it_means() {
    let fake = Fake::start();
    let output = fake.context.output(&["network", "SBX"]);
    assert_eq!(
        stdout(&output),
        "HOST                  DECISION  RULE              REQUESTS  SENT  RECEIVED\n\
         registry.example:443  allowed   registry.example  3         0 B   0 B\n"
    );
    assert!(stderr(&output).contains("never used: `pypi.org`"));
    assert!(stderr(&output).contains("hint: nothing was refused so far"));
    let output = fake.context.output(&["network", "SBX", "-o", "json"]);
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["traffic"][0]["requests"], 3);
    assert_eq!(code(&fake.context.output(&["network", "nothing"])), 3);
}

#[test]
fn events_are_data_on_stdout() {
    let fake = Fake::start();
    let output = fake.context.output(&["events"]);
    assert_eq!(code(&output), 0);
    assert!(stdout(&output).contains("SBX denied read /x (rule credentials) by python3[4211]"));
    assert!(
        stdout(&output)
            .contains("SBX used github: POST api.github.com:443 /repos/o/r/pulls by gh[4212]\n")
    );
    let output = fake.context.output(&["events", "-o", "json"]);
    let lines: Vec<Value> = stdout(&output)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines[0]["type"], "watching");
    assert_eq!(lines[1]["type"], "denial");
    assert_eq!(lines[2]["type"], "credential_use");
    assert_eq!(lines[2]["path"], "/repos/o/r/pulls");
}

#[test]
fn enroll_tells_until_the_end_or_returns_at_once() {
    let fake = Fake::start();
    let pid = std::process::id().to_string();
    let output = fake.context.output(&["enroll", &pid]);
    assert_eq!(code(&output), 0);
    assert_eq!(stdout(&output), "SBX EXE\n");
    assert_eq!(
        stderr(&output),
        "sandbox: enrolled one process; it is killed when this command ends\n\
         sandbox: denied read /x (rule credentials) by python3[4211]\n\
         sandbox: ended; 1 refused\n"
    );
    let output = fake.context.output(&["enroll", "--stay", &pid]);
    assert_eq!(code(&output), 0);
    assert!(stderr(&output).contains("it stays"));
}

#[test]
fn versions_that_differ_are_a_finding_of_doctor() {
    let fake = Fake::start();
    let output = fake.context.output(&["version"]);
    assert_eq!(code(&output), 0);
    assert!(stdout(&output).contains("daemon  9.9.9\n"));
    let output = fake.context.output(&["doctor"]);
    assert_eq!(code(&output), 1);
    assert!(stdout(&output).contains("✗ versions agree"));
    assert!(stdout(&output).contains("✗ hooks loaded"));
}

#[test]
fn a_host_on_the_command_line_beats_the_environment() {
    let fake = Fake::start();
    let output = fake
        .context
        .client(&["ps", "--host", &fake.context.host])
        .env("SANDBOX_HOST", "unix:///does/not/exist")
        .output()
        .unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(utf8(&fake.context.path()).starts_with('/'));
}

#[test]
fn a_secret_comes_from_stdin_or_a_file_without_its_line_break() {
    let fake = Fake::start();
    let mut set = fake.context.client(&["secret", "set", "github"]);
    let mut client = set.stdin(Stdio::piped()).spawn().unwrap();
    client.stdin.take().unwrap().write_all(b"one\n").unwrap();
    assert!(client.wait().unwrap().success());
    fake.context.write("token", "two\n");
    let set = ["secret", "set", "npm", "--file", "token", "--user", "1234"];
    let output = fake.context.output(&set);
    assert_eq!(
        (code(&output), stdout(&output), stderr(&output)),
        (0, "", "")
    );
    let kept = fake.secrets.lock().unwrap().clone();
    assert_eq!(
        kept,
        [
            ("github".to_owned(), b"one".to_vec(), None),
            ("npm".to_owned(), b"two".to_vec(), Some(1234)),
        ]
    );

    fake.context.write("two-lines", "hunter\n2\n");
    let output = fake
        .context
        .output(&["secret", "set", "npm", "--file", "two-lines"]);
    assert_eq!(code(&output), 1);
    assert_eq!(
        stderr(&output),
        "sandbox: the value must be 1 to 16384 bytes of visible ASCII, without a space at its \
         ends and without line breaks\n\
         hint: where the value is right, something was added to it, such as a byte order \
         mark\n"
    );
    let output = fake
        .context
        .output(&["secret", "set", "npm", "--file", "none"]);
    assert!(stderr(&output).contains("cannot use the file `none`"));
    assert_eq!(fake.secrets.lock().unwrap().len(), 2);
}

#[test]
fn secrets_are_listed_and_removed_by_name() {
    let fake = Fake::start();
    let output = fake.context.output(&["secret", "list"]);
    assert_eq!(
        stdout(&output),
        "NAME    SET\ngithub  2023-11-14T22:13:20Z\n"
    );
    let output = fake.context.output(&["secret", "list", "-o", "json"]);
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(list[0]["name"], "github");
    assert!(list[0]["set_time"].as_str().unwrap().starts_with("2023"));
    let output = fake.context.output(&["secret", "rm", "github", "npm"]);
    assert_eq!((code(&output), stderr(&output)), (0, ""));
    let output = fake.context.output(&["secret", "rm", "nothing", "npm"]);
    assert_eq!(code(&output), 3);
    assert_eq!(code(&fake.context.output(&["secret", "rm"])), 2);
}
