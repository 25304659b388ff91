//! What needs no daemon.

use super::{TestContext, code, stderr, stdout};

#[test]
fn without_a_daemon_run_is_125_with_one_line_and_the_remedy() {
    let context = TestContext::offline();
    let output = context.output(&["run", "--", "true"]);
    assert_eq!(code(&output), 125);
    let socket = context.host.strip_prefix("unix://").unwrap();
    assert_eq!(
        stderr(&output),
        format!(
            "sandbox: cannot reach the daemon at `{socket}`: no such file\n\
             hint: start it with `systemctl start sandboxd`, or `sandboxd --foreground` as root\n"
        )
    );
    assert_eq!(stdout(&output), "");
}

#[test]
fn without_a_daemon_the_other_verbs_are_1() {
    let context = TestContext::offline();
    for verb in [&["ps"][..], &["events"], &["kill", "x"], &["version"]] {
        let output = context.output(verb);
        assert_eq!(code(&output), 1, "{verb:?}");
        assert!(stderr(&output).contains("cannot reach the daemon"));
    }
}

#[test]
fn a_socket_without_a_listener_is_told_apart() {
    let context = TestContext::offline();
    let socket = context.path().join("none.sock");
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let output = context.output(&["run", "true"]);
    assert_eq!(code(&output), 125);
    assert!(stderr(&output).contains("nobody listens there"));
}

#[test]
fn wrong_options_of_run_are_125_and_of_others_2() {
    let context = TestContext::offline();
    for (arguments, status) in [
        (&["run"][..], 125),
        (&["run", "--polcy", "x", "true"], 125),
        (&["--host", "tcp://x", "run", "true"], 125),
        (&["run", "--denials", "x", "true"], 125),
        (&["ps", "--bogus"], 2),
        (&["enroll", "run"], 2),
        (&["frobnicate"], 2),
        (&["enroll", "zero"], 2),
        (&[], 2),
    ] {
        let output = context.output(arguments);
        assert_eq!(code(&output), status, "{arguments:?}");
        assert_eq!(stdout(&output), "");
    }
    let output = context.output(&["run", "--polcy", "x", "true"]);
    assert!(stderr(&output).contains("--policy"), "{}", stderr(&output));
}

#[test]
fn what_the_caller_got_wrong_is_said_before_the_daemon_is_asked() {
    let context = TestContext::offline();
    context.write("wrong.bin.toml", "");
    for (arguments, message) in [
        (
            &["run", "-p", "./none.toml", "true"][..],
            "sandbox: cannot read the policy `./none.toml`: No such file or directory (os error 2)\n\
             hint: an installed policy is named without `/` and `.toml`; see `sandbox policy list`\n",
        ),
        (
            &["run", "-w", "none", "true"],
            "sandbox: cannot use the workspace `none`: No such file or directory (os error 2)\n\
             hint: name the directory to work on with `-w DIR`\n",
        ),
        (
            &["run", "-w", "wrong.bin.toml", "true"],
            "sandbox: cannot use the workspace `wrong.bin.toml`: not a directory\n\
             hint: name the directory to work on with `-w DIR`\n",
        ),
        (
            &["run", "-e", "NOT_THERE", "true"],
            "sandbox: cannot pass `NOT_THERE`: it is not set\n\
             hint: give it a value: `-e NOT_THERE=VALUE`\n",
        ),
        (
            &["run", "--json", "97", "true"],
            "sandbox: cannot write to file descriptor 97: Bad file descriptor (os error 9)\n\
             hint: open it in the shell, as in `97>events.jsonl`\n",
        ),
    ] {
        let output = context.output(arguments);
        assert_eq!(code(&output), 125, "{arguments:?}");
        assert_eq!(stderr(&output), message, "{arguments:?}");
    }
    let output = context.output(&["enroll", "4194305"]);
    assert_eq!(code(&output), 3);
    assert_eq!(stderr(&output), "sandbox: there is no process 4194305\n");
}

#[test]
fn help_of_run_names_every_option_and_status() {
    let context = TestContext::offline();
    let output = context.output(&["run", "--help"]);
    assert_eq!(code(&output), 0);
    for word in [
        "--policy",
        "--workspace",
        "--env",
        "--ro",
        "--rw",
        "--denials",
        "--json",
        "--verbose",
        "--host",
        "125",
        "126",
        "127",
    ] {
        assert!(stdout(&output).contains(word), "{word}");
    }
    let output = context.output(&["--help"]);
    for verb in [
        "run", "enroll", "events", "ps", "kill", "policy", "secret", "doctor", "version",
    ] {
        assert!(stdout(&output).contains(verb), "{verb}");
    }
}

#[test]
fn the_clients_version_is_told_without_a_daemon() {
    let context = TestContext::offline();
    let output = context.output(&["version", "-o", "json"]);
    let versions: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(versions["client"], env!("CARGO_PKG_VERSION"));
    assert!(versions["daemon"].is_null());
    assert_eq!(code(&context.output(&["--version"])), 0);
}

#[test]
fn doctor_without_a_daemon_is_a_failure_with_a_remedy() {
    let context = TestContext::offline();
    let output = context.output(&["doctor"]);
    assert_eq!(code(&output), 1);
    assert!(
        stdout(&output).contains("✗ daemon reachable"),
        "{}",
        stdout(&output)
    );
    assert!(stdout(&output).contains("hint: start it with `systemctl start sandboxd`"));
    let output = context.output(&["doctor", "--no-daemon"]);
    assert!(!stdout(&output).contains("daemon reachable"));
    let output = context.output(&["doctor", "-o", "json"]);
    let checks: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let daemon = checks
        .as_array()
        .unwrap()
        .iter()
        .find(|check| check["name"] == "daemon reachable")
        .unwrap();
    assert_eq!(daemon["state"], "missing");
}

#[test]
fn a_secret_on_the_command_line_is_refused_and_not_repeated() {
    let context = TestContext::offline();
    let output = context.output(&["secret", "set", "github", "hunter2"]);
    assert_eq!(code(&output), 2);
    assert_eq!(
        stderr(&output),
        "sandbox: the value of a secret is not taken as an argument\n\
         hint: other users and the shell's history see arguments: give it on stdin, or \
         with `--file`, and replace this one where it is from\n"
    );
    let output = context.output(&["secret", "set", "github=hunter2"]);
    assert_eq!(code(&output), 2);
    assert_eq!(
        stderr(&output),
        "sandbox: the name of a secret must be 1 to 64 letters, digits, `-`, `_` and `.`, and \
         not begin with a `.`\n\
         hint: the name is what a policy's `secret` says; the value comes apart\n"
    );
    let output = context.output(&["secret", "set", "--help"]);
    assert!(!stdout(&output).contains("[VALUE]"), "{}", stdout(&output));
    for word in ["--file", "--user", "stdin", "NAME"] {
        assert!(stdout(&output).contains(word), "{word}");
    }
}
