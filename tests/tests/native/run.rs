//! `Run` over the daemon's socket: streams, ends, and what is left behind.

use std::time::Duration;

use sandbox_daemon::proto::{
    self, CloseStdin, KillExecRequest, PolicySource, SandboxSpec, Stdio, WindowSize,
    exited::{Reason, Status as Ended},
    policy_source::Source,
    run_request::Request,
    run_response::Response,
    start::Sandbox as Where,
};
use tonic::Code;

use crate::daemon::{Daemon, reason, start};

#[tokio::test]
async fn a_command_runs_and_leaves_nothing() {
    let daemon = Daemon::start().await;
    let run = daemon.run(&["/bin/echo", "hello"]).await.unwrap();
    let transcript = run.finish().await;
    // Already now, not at some time later.
    assert!(daemon.cgroups().is_empty() && daemon.told.installed().is_empty());
    assert_eq!(transcript.stdout, b"hello\n");
    assert_eq!(transcript.exited.status, Some(Ended::Code(0)));
    assert_eq!(transcript.exited.reason(), Reason::Exited);
    daemon.stop().await;
}

#[tokio::test]
async fn statuses_and_streams_are_kept_apart() {
    let daemon = Daemon::start().await;
    let script = "echo out; echo err >&2; exit 7";
    let transcript = daemon
        .run(&["sh", "-c", script])
        .await
        .unwrap()
        .finish()
        .await;
    assert_eq!(transcript.exited.status, Some(Ended::Code(7)));
    assert_eq!(transcript.stdout, b"out\n");
    assert_eq!(transcript.stderr, b"err\n");
    let transcript = daemon
        .run(&["sh", "-c", "kill -TERM $$"])
        .await
        .unwrap()
        .finish()
        .await;
    assert_eq!(transcript.exited.status, Some(Ended::Signal(15)));
    assert_eq!(transcript.exited.reason(), Reason::Exited);
}

#[tokio::test]
async fn stdin_is_relayed_to_its_end() {
    let daemon = Daemon::start().await;
    let run = daemon.run(&["wc", "-c"]).await.unwrap();
    for _ in 0..40 {
        run.send(Request::Stdin(vec![b'x'; 50_000].into())).await;
    }
    run.send(Request::CloseStdin(CloseStdin {})).await;
    assert_eq!(run.finish().await.stdout, b"2000000\n");
}

#[tokio::test]
async fn a_stdin_that_nobody_reads_does_not_hold_up_the_end() {
    let daemon = Daemon::start().await;
    let run = daemon.run(&["true"]).await.unwrap();
    run.send(Request::Stdin(vec![b'x'; 500_000].into())).await;
    assert_eq!(run.finish().await.exited.status, Some(Ended::Code(0)));
}

#[tokio::test]
async fn no_output_is_dropped() {
    let daemon = Daemon::start().await;
    let script = "head -c 5000000 /dev/zero; head -c 3000000 /dev/zero >&2";
    let transcript = daemon
        .run(&["sh", "-c", script])
        .await
        .unwrap()
        .finish()
        .await;
    assert_eq!(
        (transcript.stdout.len(), transcript.stderr.len()),
        (5_000_000, 3_000_000)
    );
}

#[tokio::test]
async fn a_client_that_goes_away_takes_everything_with_it() {
    let daemon = Daemon::start().await;
    let script = "setsid sleep 1000 & echo up; sleep 1000";
    let mut run = daemon.run(&["sh", "-c", script]).await.unwrap();
    run.wait_for("up").await;
    assert_eq!(daemon.cgroups().len(), 1);
    drop(run);
    assert!(daemon.is_clean().await);
}

#[tokio::test]
async fn what_a_command_leaves_behind_is_neither_waited_for_nor_spared() {
    let daemon = Daemon::start().await;
    let script = "sleep 1000 & setsid sleep 1000 & echo done";
    let transcript = daemon
        .run(&["sh", "-c", script])
        .await
        .unwrap()
        .finish()
        .await;
    assert_eq!(transcript.stdout, b"done\n");
    assert!(daemon.cgroups().is_empty());
}

#[tokio::test]
async fn a_signal_reaches_the_command() {
    let daemon = Daemon::start().await;
    let script = "trap 'echo caught; exit 3' USR1; echo up; while :; do sleep 0.01; done";
    let mut run = daemon.run(&["sh", "-c", script]).await.unwrap();
    run.wait_for("up").await;
    run.send(Request::Signal(10)).await;
    let transcript = run.finish().await;
    assert_eq!(transcript.stdout, b"caught\n");
    assert_eq!(transcript.exited.status, Some(Ended::Code(3)));
}

#[tokio::test]
async fn closed_output_is_noticed_by_the_command() {
    let daemon = Daemon::start().await;
    let run = daemon.run(&["yes"]).await.unwrap();
    run.send(Request::CloseOutput(proto::Output::Stdout.into()))
        .await;
    assert_eq!(run.finish().await.exited.status, Some(Ended::Signal(13)));
}

#[tokio::test]
async fn a_terminal_is_one_and_has_its_size() {
    let daemon = Daemon::start().await;
    let mut terminal = start(&["sh", "-c", "test -t 0 -a -t 1 -a -t 2 && stty size; cat"]);
    terminal.stdio = Stdio::Pty.into();
    terminal.window_size = Some(WindowSize {
        rows: 40,
        columns: 100,
    });
    let mut run = daemon.run_with(terminal).await.unwrap();
    run.wait_for("40 100").await;
    run.send(Request::Stdin(b"typed\n".as_slice().into())).await;
    // The terminal's echo, and then what `cat` makes of it: only then is it there
    // to be interrupted.
    run.wait_for("typed\r\ntyped").await;
    // Ctrl-C, which the terminal turns into a signal.
    run.send(Request::Stdin(b"\x03".as_slice().into())).await;
    assert_eq!(run.finish().await.exited.status, Some(Ended::Signal(2)));
}

#[tokio::test]
async fn the_callers_own_descriptors_are_used_for_stdio_inherit() {
    let daemon = Daemon::start().await;
    let mut inherit = start(&["sh", "-c", "readlink /proc/self/fd/2 > /proc/self/fd/2"]);
    inherit.stdio = Stdio::Inherit.into();
    inherit.argv[2] = format!(
        "test \"$(readlink /proc/self/fd/2)\" = '{}'",
        std::fs::read_link("/proc/self/fd/2").unwrap().display()
    )
    .into_bytes()
    .into();
    inherit.caller_start_time = sandbox_daemon::sys::start_time(std::process::id()).unwrap();
    let transcript = daemon
        .run_with(inherit.clone())
        .await
        .unwrap()
        .finish()
        .await;
    assert_eq!(transcript.exited.status, Some(Ended::Code(0)));
    inherit.caller_start_time += 1;
    let refused = daemon.run_with(inherit).await.err().unwrap();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(daemon.is_clean().await);
}

#[tokio::test]
async fn failures_before_the_start_are_statuses_and_leave_nothing() {
    let daemon = Daemon::start().await;
    let missing = daemon.run(&["no-such-command"]).await.err().unwrap();
    assert_eq!(
        (missing.code(), reason(&missing).as_str()),
        (Code::NotFound, "COMMAND_NOT_FOUND")
    );
    let directory = daemon.run(&["/etc"]).await.err().unwrap();
    assert_eq!(reason(&directory), "NOT_EXECUTABLE");
    let mut elsewhere = start(&["true"]);
    elsewhere.cwd = b"/nonexistent".as_slice().into();
    let elsewhere = daemon.run_with(elsewhere).await.err().unwrap();
    assert_eq!(reason(&elsewhere), "WORKING_DIRECTORY_INVALID");
    let mut named = start(&["true"]);
    named.sandbox = Some(Where::Inline(SandboxSpec {
        policy: Some(PolicySource {
            source: Some(Source::Name("nonsense".into())),
            ..PolicySource::default()
        }),
        ..SandboxSpec::default()
    }));
    let named = daemon.run_with(named).await.err().unwrap();
    assert_eq!(
        (named.code(), reason(&named).as_str()),
        (Code::NotFound, "POLICY_NOT_FOUND")
    );
    let mut workspace = start(&["true"]);
    workspace.sandbox = Some(Where::Inline(SandboxSpec {
        workspace: "/nonexistent".into(),
        ..SandboxSpec::default()
    }));
    let workspace = daemon.run_with(workspace).await.err().unwrap();
    assert_eq!(reason(&workspace), "WORKSPACE_INVALID");
    assert!(daemon.is_clean().await);
    daemon.told.refuse();
    let refused = daemon.run(&["true"]).await.err().unwrap();
    assert_eq!(reason(&refused), "POLICY_NOT_ENFORCED");
    assert!(
        refused.message().contains("the map is full"),
        "{}",
        refused.message()
    );
    assert!(daemon.is_clean().await);
}

#[tokio::test]
async fn an_exec_is_killed_by_its_id() {
    let daemon = Daemon::start().await;
    let mut run = daemon.run(&["sleep", "1000"]).await.unwrap();
    let exec_id = run.started().await.exec_id;
    let mut client = daemon.client.clone();
    client.kill_exec(KillExecRequest { exec_id }).await.unwrap();
    assert_eq!(run.finish().await.exited.reason(), Reason::Killed);
    let request = KillExecRequest {
        exec_id: "nonsense".into(),
    };
    let unknown = client.kill_exec(request).await.unwrap_err();
    assert_eq!(reason(&unknown), "EXEC_NOT_FOUND");
}

#[tokio::test]
async fn a_deadline_ends_the_command() {
    let daemon = Daemon::start().await;
    let (requests, queued) = tokio::sync::mpsc::channel(1);
    let first = proto::RunRequest {
        request: Some(Request::Start(start(&["sleep", "1000"]))),
    };
    requests.send(first).await.unwrap();
    let mut request = tonic::Request::new(tokio_stream::wrappers::ReceiverStream::new(queued));
    request.set_timeout(Duration::from_secs(1));
    let responses = daemon
        .client
        .clone()
        .run(request)
        .await
        .unwrap()
        .into_inner();
    let run = crate::daemon::Run {
        requests: Some(requests),
        responses,
    };
    let exited = run.finish().await.exited;
    assert_eq!(
        (exited.status, exited.reason()),
        (Some(Ended::Signal(9)), Reason::Timeout)
    );
}

#[tokio::test]
async fn the_environment_is_what_the_policy_lets_in() {
    let daemon = Daemon::start().await;
    let variable = |name: &str, value: &str| proto::EnvVar {
        name: name.as_bytes().to_vec().into(),
        value: value.as_bytes().to_vec().into(),
    };
    let mut env = start(&["env"]);
    env.env = vec![
        variable("PATH", "/usr/bin:/bin"),
        variable("GITHUB_TOKEN", "secret"),
    ];
    env.env_set = vec![variable("ASKED", "for")];
    let mut run = daemon.run_with(env).await.unwrap();
    assert_eq!(run.started().await.withheld_env, ["GITHUB_TOKEN"]);
    let stdout = run.finish().await.stdout;
    let lines: Vec<_> = std::str::from_utf8(&stdout).unwrap().lines().collect();
    for expected in [
        "PATH=/usr/bin:/bin",
        "ASKED=for",
        "HOME=/root",
        "USER=root",
        "SANDBOX=1",
    ] {
        assert!(lines.contains(&expected), "{expected} is not in {lines:?}");
    }
    assert!(!lines.iter().any(|line| line.contains("secret")));
}

#[tokio::test]
async fn a_stream_ends_after_exited_also_for_a_reader_that_stops_for_a_while() {
    let daemon = Daemon::start().await;
    let mut run = daemon
        .run(&["sh", "-c", "head -c 20000000 /dev/zero"])
        .await
        .unwrap();
    run.started().await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let mut bytes = 0;
    while let Some(response) = run.next().await {
        match response {
            Response::Stdout(chunk) => bytes += chunk.len(),
            Response::Exited(_) => break,
            _ => {}
        }
    }
    assert_eq!(bytes, 20_000_000);
    assert!(run.next().await.is_none());
}
