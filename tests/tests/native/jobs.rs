//! Execs that outlive the call that started them.

use std::{fs, time::Duration};

use sandbox_daemon::{
    proto::{
        self, AttachRequest, AttachStart, CloseStdin, CreateSandboxRequest, DeleteSandboxRequest,
        Exited, GetLogsRequest, GetSandboxRequest, KillExecRequest, Output, SandboxSpec, Start,
        Stdio, WaitExecRequest, WatchEventsRequest, WindowSize,
        attach_request::Request,
        exited::{Reason, Status as Ended},
        get_logs_response::Response as Told,
        run_response::Response,
        start::Sandbox as Where,
        watch_events_response::Response as Watched,
    },
    sandbox::{Caller, SandboxError},
};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use crate::daemon::{Daemon, reason, record, start, wait_until_async};

async fn create(daemon: &Daemon) -> String {
    let request = CreateSandboxRequest {
        spec: Some(SandboxSpec::default()),
        request_id: String::new(),
    };
    let made = daemon.client.clone().create_sandbox(request).await;
    made.unwrap().into_inner().id
}

fn detached(sandbox: &str, argv: &[&str]) -> Start {
    Start {
        sandbox: Some(Where::SandboxId(sandbox.into())),
        detach: true,
        ..start(argv)
    }
}

/// Starts one, and its call ends.
async fn detach(daemon: &Daemon, start: Start) -> String {
    let mut run = daemon.run_with(start).await.unwrap();
    let started = run.started().await;
    assert!(run.next().await.is_none(), "its call has ended");
    started.exec_id
}

async fn wait(daemon: &Daemon, exec: &str) -> Result<Exited, Status> {
    let request = WaitExecRequest {
        exec_id: exec.into(),
    };
    let mut client = daemon.client.clone();
    Ok(client.wait_exec(request).await?.into_inner())
}

/// What one has written.
#[derive(Debug, Default)]
struct Logs {
    stdout: String,
    stderr: String,
    dropped: u64,
    exited: Option<Exited>,
}

async fn logs(daemon: &Daemon, exec: &str, follow: bool) -> Result<Logs, Status> {
    let request = GetLogsRequest {
        exec_id: exec.into(),
        follow,
    };
    let mut stream = daemon.client.clone().get_logs(request).await?.into_inner();
    let mut logs = Logs::default();
    while let Some(response) = stream.message().await? {
        assert!(logs.exited.is_none(), "{response:?} after the end");
        match response.response.unwrap() {
            Told::Chunk(chunk) => {
                assert!(chunk.time.unwrap().seconds > 1_700_000_000);
                let text = std::str::from_utf8(&chunk.data).unwrap();
                match chunk.output() {
                    Output::Stderr => logs.stderr += text,
                    _ => logs.stdout += text,
                }
            }
            Told::Dropped(bytes) => logs.dropped += bytes,
            Told::Exited(exited) => logs.exited = Some(exited),
        }
    }
    Ok(logs)
}

/// One that is attached.
struct Attached {
    requests: mpsc::Sender<AttachRequest>,
    responses: Streaming<proto::RunResponse>,
    seen: String,
}

impl Attached {
    async fn new(daemon: &Daemon, start: AttachStart) -> Result<Self, Status> {
        let (requests, queued) = mpsc::channel(64);
        let first = AttachRequest {
            request: Some(Request::Start(start)),
        };
        requests.send(first).await.unwrap();
        let mut client = daemon.client.clone();
        let responses = client.attach(ReceiverStream::new(queued)).await?;
        let mut attached = Self {
            requests,
            responses: responses.into_inner(),
            seen: String::new(),
        };
        match attached.next().await? {
            Some(Response::Started(_)) => Ok(attached),
            other => panic!("not started: {other:?}"),
        }
    }

    async fn to(daemon: &Daemon, exec: &str) -> Self {
        let start = AttachStart {
            exec_id: exec.into(),
            ..AttachStart::default()
        };
        Self::new(daemon, start).await.unwrap()
    }

    async fn next(&mut self) -> Result<Option<Response>, Status> {
        let message = self.responses.message().await?;
        Ok(message.map(|it| it.response.unwrap()))
    }

    async fn send(&self, request: Request) {
        let request = AttachRequest {
            request: Some(request),
        };
        self.requests.send(request).await.unwrap();
    }

    async fn type_in(&self, text: &str) {
        let bytes = text.as_bytes().to_vec();
        self.send(Request::Stdin(bytes.into())).await;
    }

    async fn wait_for(&mut self, text: &str) {
        while !self.seen.contains(text) {
            match self.next().await.unwrap() {
                Some(Response::Stdout(bytes) | Response::Stderr(bytes)) => {
                    self.seen += std::str::from_utf8(&bytes).unwrap();
                }
                other => panic!("{text} did not come: {other:?} after {}", self.seen),
            }
        }
    }

    async fn exited(&mut self) -> Exited {
        loop {
            match self.next().await.unwrap() {
                Some(Response::Exited(exited)) => return exited,
                Some(_) => {}
                None => panic!("it ends without `exited`"),
            }
        }
    }
}

async fn execs(daemon: &Daemon, sandbox: &str) -> Vec<proto::Exec> {
    let request = GetSandboxRequest { id: sandbox.into() };
    let found = daemon.client.clone().get_sandbox(request).await;
    found.unwrap().into_inner().execs
}

#[tokio::test]
async fn a_detached_command_outlives_its_call_and_is_read_after_its_end() {
    let daemon = Daemon::start().await;
    let sandbox = create(&daemon).await;
    let script = "echo out; echo err >&2; read -r x; echo \"read $?\"; exit 3";
    let mut start = detached(&sandbox, &["sh", "-c", script]);
    start.no_stdin = true;
    let exec = detach(&daemon, start).await;
    let exited = wait(&daemon, &exec).await.unwrap();
    assert_eq!(
        (exited.status, exited.reason()),
        (Some(Ended::Code(3)), Reason::Exited)
    );
    // And again, and the same.
    assert_eq!(wait(&daemon, &exec).await.unwrap(), exited);
    for follow in [false, true] {
        let logs = logs(&daemon, &exec, follow).await.unwrap();
        assert_eq!(
            (logs.stdout.as_str(), logs.stderr.as_str(), logs.dropped),
            ("out\nread 1\n", "err\n", 0)
        );
        assert_eq!(logs.exited.as_ref(), Some(&exited));
    }
    let listed = execs(&daemon, &sandbox).await;
    assert_eq!((listed.len(), listed[0].detached), (1, true));
    assert_eq!(
        (&listed[0].id, listed[0].exited.as_ref()),
        (&exec, Some(&exited))
    );
    let delete = DeleteSandboxRequest { id: sandbox };
    daemon.client.clone().delete_sandbox(delete).await.unwrap();
    let gone = wait(&daemon, &exec).await.unwrap_err();
    assert_eq!(
        (gone.code(), reason(&gone).as_str()),
        (Code::NotFound, "EXEC_NOT_FOUND")
    );
    assert!(daemon.is_clean().await);
}

#[tokio::test]
async fn waiting_and_following_before_the_end_see_it() {
    let daemon = Daemon::start().await;
    let sandbox = create(&daemon).await;
    let script = "echo one; read -r line; echo \"$line\"";
    let exec = detach(&daemon, detached(&sandbox, &["sh", "-c", script])).await;
    let feeding = async {
        let so_far = loop {
            let so_far = logs(&daemon, &exec, false).await.unwrap();
            if !so_far.stdout.is_empty() {
                break so_far;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        assert_eq!((so_far.stdout.as_str(), so_far.exited), ("one\n", None));
        let attached = Attached::to(&daemon, &exec).await;
        attached.type_in("two\n").await;
        attached
    };
    let (exited, followed, mut attached) =
        tokio::join!(wait(&daemon, &exec), logs(&daemon, &exec, true), feeding);
    let (exited, followed) = (exited.unwrap(), followed.unwrap());
    assert_eq!(exited.status, Some(Ended::Code(0)));
    assert_eq!(followed.stdout, "one\ntwo\n");
    assert_eq!(followed.exited.as_ref(), Some(&exited));
    assert_eq!(attached.exited().await, exited);
    assert!(!attached.seen.contains("one"), "{}", attached.seen);
}

#[tokio::test]
async fn two_may_be_attached_and_one_that_vanishes_ends_nothing() {
    let daemon = Daemon::start().await;
    let sandbox = create(&daemon).await;
    let exec = detach(&daemon, detached(&sandbox, &["cat"])).await;
    let mut one = Attached::to(&daemon, &exec).await;
    let mut other = Attached::to(&daemon, &exec).await;
    one.type_in("from one\n").await;
    one.wait_for("from one\n").await;
    other.wait_for("from one\n").await;
    drop(one);
    other.type_in("from the other\n").await;
    other.wait_for("from the other\n").await;
    let start = AttachStart {
        exec_id: exec.clone(),
        history: true,
        ..AttachStart::default()
    };
    let mut late = Attached::new(&daemon, start).await.unwrap();
    late.wait_for("from one\nfrom the other\n").await;
    late.send(Request::CloseStdin(CloseStdin {})).await;
    assert_eq!(other.exited().await.status, Some(Ended::Code(0)));
    assert_eq!(late.exited().await.status, Some(Ended::Code(0)));
}

#[tokio::test]
async fn a_terminal_is_resized_and_interrupted_by_whoever_is_attached() {
    let daemon = Daemon::start().await;
    let sandbox = create(&daemon).await;
    let script = "trap 'echo size $(stty size)' WINCH; trap 'echo interrupted; exit 7' INT; \
                  tty; echo ready; while :; do sleep 0.05; done";
    let mut start = detached(&sandbox, &["bash", "-c", script]);
    start.set_stdio(Stdio::Pty);
    let exec = detach(&daemon, start).await;
    let attach = AttachStart {
        exec_id: exec.clone(),
        history: true,
        window_size: Some(WindowSize {
            rows: 33,
            columns: 99,
        }),
    };
    let mut attached = Attached::new(&daemon, attach).await.unwrap();
    attached.wait_for("/dev/pts/").await;
    attached.wait_for("ready").await;
    let size = WindowSize {
        rows: 44,
        columns: 111,
    };
    attached.send(Request::WindowSize(size)).await;
    attached.wait_for("size 44 111").await;
    attached.type_in("\u{3}").await;
    attached.wait_for("interrupted").await;
    assert_eq!(attached.exited().await.status, Some(Ended::Code(7)));
}

#[tokio::test]
async fn a_signal_reaches_a_detached_command() {
    let daemon = Daemon::start().await;
    let sandbox = create(&daemon).await;
    let script = "trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done";
    let exec = detach(&daemon, detached(&sandbox, &["bash", "-c", script])).await;
    let start = AttachStart {
        exec_id: exec.clone(),
        history: true,
        ..AttachStart::default()
    };
    let mut attached = Attached::new(&daemon, start).await.unwrap();
    attached.wait_for("ready").await;
    attached.send(Request::Signal(15)).await;
    assert_eq!(attached.exited().await.status, Some(Ended::Code(9)));
}

#[tokio::test]
async fn the_newest_output_is_kept_and_the_rest_is_counted() {
    let daemon = Daemon::start().await;
    let sandbox = create(&daemon).await;
    let bytes: u64 = 100 << 20;
    let script = format!("yes 0123456789abcde | head -c {bytes}; echo last");
    let exec = detach(&daemon, detached(&sandbox, &["sh", "-c", &script])).await;
    assert_eq!(
        wait(&daemon, &exec).await.unwrap().status,
        Some(Ended::Code(0))
    );
    let logs = logs(&daemon, &exec, false).await.unwrap();
    assert!(logs.stdout.ends_with("abcde\nlast\n"));
    assert_eq!(logs.dropped + logs.stdout.len() as u64, bytes + 5);
    assert!((60 << 20..=64 << 20).contains(&logs.stdout.len()));
    // The log has no name.
    let state = fs::read_dir(&daemon.config.state_directory).unwrap();
    assert_eq!(state.count(), 0);
}

#[tokio::test]
async fn who_is_attached_and_does_not_read_is_let_go_and_the_command_goes_on() {
    let daemon = Daemon::start().await;
    let sandbox = create(&daemon).await;
    let script = "read -r x; yes 0123456789abcde | head -c 150000000; echo last";
    let exec = detach(&daemon, detached(&sandbox, &["sh", "-c", script])).await;
    let mut attached = Attached::to(&daemon, &exec).await;
    attached.type_in("\n").await;
    assert_eq!(
        wait(&daemon, &exec).await.unwrap().status,
        Some(Ended::Code(0))
    );
    let lagged = loop {
        match attached.next().await {
            Ok(Some(Response::Stdout(_))) => {}
            Ok(other) => panic!("{other:?}"),
            Err(status) => break status,
        }
    };
    assert_eq!(
        (lagged.code(), reason(&lagged).as_str()),
        (Code::OutOfRange, "OUTPUT_GONE")
    );
}

#[tokio::test]
async fn a_command_that_reads_nothing_can_still_be_watched() {
    let daemon = Daemon::start().await;
    let sandbox = create(&daemon).await;
    let script = "echo up; sleep 1000";
    let exec = detach(&daemon, detached(&sandbox, &["sh", "-c", script])).await;
    let attached = Attached::to(&daemon, &exec).await;
    // Until there is no room for more between the two.
    let piece = "x".repeat(256 << 10);
    let quiet = Duration::from_secs(3);
    while timeout(quiet, attached.type_in(&piece)).await.is_ok() {}
    let start = AttachStart {
        exec_id: exec,
        history: true,
        window_size: Some(WindowSize {
            rows: 24,
            columns: 80,
        }),
    };
    let mut watching = Attached::new(&daemon, start).await.unwrap();
    watching.wait_for("up").await;
}

#[tokio::test]
async fn the_logs_of_a_user_are_bounded_together() {
    let daemon = Daemon::start_with(|config| config.quotas.log_mebibytes = 8).await;
    let sandbox = create(&daemon).await;
    let script = "yes 0123456789abcde | head -c 6000000; echo last";
    let mut execs = Vec::new();
    for _ in 0..3 {
        let exec = detach(&daemon, detached(&sandbox, &["sh", "-c", script])).await;
        wait(&daemon, &exec).await.unwrap();
        execs.push(exec);
    }
    // The oldest went, and what it wrote is counted.
    let first = logs(&daemon, &execs[0], false).await.unwrap();
    assert_eq!((first.stdout.as_str(), first.dropped), ("", 6_000_005));
    assert!(first.exited.is_some());
    let last = logs(&daemon, &execs[2], false).await.unwrap();
    assert_eq!((last.stdout.len(), last.dropped), (6_000_005, 0));

    // What runs shares what there is, and each has a little.
    let script = "yes 0123456789abcde | head -c 6000000; echo last; sleep 1000";
    let mut kept = 0;
    for _ in 0..3 {
        let exec = detach(&daemon, detached(&sandbox, &["sh", "-c", script])).await;
        let logs = loop {
            let logs = logs(&daemon, &exec, false).await.unwrap();
            if logs.stdout.ends_with("last\n") {
                break logs;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        assert_eq!(logs.dropped + logs.stdout.len() as u64, 6_000_005);
        assert!(logs.stdout.len() > 100_000);
        kept += logs.stdout.len();
    }
    assert!(kept < 9 << 20, "{kept}");
}

#[tokio::test]
async fn the_newest_hundred_that_have_ended_are_remembered() {
    let daemon = Daemon::start().await;
    let sandbox = create(&daemon).await;
    let mut all = Vec::new();
    for _ in 0..103 {
        let exec = detach(&daemon, detached(&sandbox, &["true"])).await;
        wait(&daemon, &exec).await.unwrap();
        all.push(exec);
    }
    let mut ids = Vec::new();
    for _ in 0..1000 {
        let listed = execs(&daemon, &sandbox).await;
        ids = listed.into_iter().map(|it| it.id).collect();
        if ids.len() == 100 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(ids, all[3..]);
    let gone = logs(&daemon, &all[0], false).await.unwrap_err();
    assert_eq!(gone.code(), Code::NotFound);
}

#[tokio::test]
async fn a_sandbox_with_a_detached_command_is_not_idle_until_it_ends() {
    let daemon = Daemon::start().await;
    let spec = SandboxSpec {
        idle_timeout: Some(prost_types::Duration {
            seconds: 0,
            nanos: 200_000_000,
        }),
        ..SandboxSpec::default()
    };
    let request = CreateSandboxRequest {
        spec: Some(spec),
        request_id: String::new(),
    };
    let made = daemon.client.clone().create_sandbox(request).await;
    let made = made.unwrap().into_inner();
    assert!(made.expire_time.is_some());
    let exec = detach(&daemon, detached(&made.id, &["cat"])).await;
    tokio::time::sleep(Duration::from_millis(600)).await;
    let request = GetSandboxRequest {
        id: made.id.clone(),
    };
    let seen = daemon.client.clone().get_sandbox(request).await.unwrap();
    assert_eq!(seen.into_inner().expire_time, None);
    let attached = Attached::to(&daemon, &exec).await;
    attached.send(Request::CloseStdin(CloseStdin {})).await;
    assert!(daemon.is_clean().await);
    assert!(logs(&daemon, &exec, false).await.is_err());
}

#[tokio::test]
async fn removing_its_sandbox_ends_it_and_tells_who_waits() {
    let daemon = Daemon::start().await;
    let sandbox = create(&daemon).await;
    let exec = detach(&daemon, detached(&sandbox, &["sleep", "1000"])).await;
    let mut attached = Attached::to(&daemon, &exec).await;
    let mut client = daemon.client.clone();
    let delete = DeleteSandboxRequest { id: sandbox };
    let (exited, deleted) = tokio::join!(wait(&daemon, &exec), client.delete_sandbox(delete));
    deleted.unwrap();
    let exited = exited.unwrap();
    assert_eq!(
        (exited.status, exited.reason()),
        (Some(Ended::Signal(9)), Reason::Killed)
    );
    assert_eq!(attached.exited().await, exited);
    assert!(daemon.is_clean().await);
}

#[tokio::test]
async fn a_stopping_daemon_ends_it_and_says_so() {
    let daemon = Daemon::start().await;
    let sandbox = create(&daemon).await;
    let exec = detach(&daemon, detached(&sandbox, &["sleep", "1000"])).await;
    let mut attached = Attached::to(&daemon, &exec).await;
    let (exited, ()) = tokio::join!(attached.exited(), daemon.stop());
    assert_eq!(exited.reason(), Reason::Daemon);
}

#[tokio::test]
async fn a_killed_exec_is_told_as_killed() {
    let daemon = Daemon::start().await;
    let sandbox = create(&daemon).await;
    let exec = detach(&daemon, detached(&sandbox, &["sleep", "1000"])).await;
    let kill = KillExecRequest {
        exec_id: exec.clone(),
    };
    daemon.client.clone().kill_exec(kill).await.unwrap();
    let exited = wait(&daemon, &exec).await.unwrap();
    assert_eq!(exited.reason(), Reason::Killed);
}

#[tokio::test]
async fn what_was_not_detached_cannot_be_attached() {
    let daemon = Daemon::start().await;
    let mut run = daemon.run(&["cat"]).await.unwrap();
    let exec = run.started().await.exec_id;
    for status in [
        wait(&daemon, &exec).await.unwrap_err(),
        logs(&daemon, &exec, false).await.unwrap_err(),
        Attached::new(
            &daemon,
            AttachStart {
                exec_id: exec.clone(),
                ..AttachStart::default()
            },
        )
        .await
        .err()
        .unwrap(),
    ] {
        assert_eq!(
            (status.code(), reason(&status).as_str()),
            (Code::FailedPrecondition, "NOT_DETACHED")
        );
        assert!(status.message().contains("was not detached"));
    }
    // A sandbox for a call alone ends with it, and so do its descriptors.
    let mut inline = start(&["true"]);
    inline.detach = true;
    let sandbox = create(&daemon).await;
    let mut inherit = detached(&sandbox, &["true"]);
    inherit.set_stdio(Stdio::Inherit);
    for start in [inline, inherit] {
        let refused = daemon.run_with(start).await.err().unwrap();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().contains("`detach`"), "{refused:?}");
    }
}

#[tokio::test]
async fn a_command_that_cannot_be_started_leaves_nothing() {
    let daemon = Daemon::start().await;
    let sandbox = create(&daemon).await;
    let missing = detached(&sandbox, &["frobnicate"]);
    let refused = daemon.run_with(missing).await.err().unwrap();
    assert_eq!(reason(&refused), "COMMAND_NOT_FOUND");
    assert!(execs(&daemon, &sandbox).await.is_empty());
}

#[tokio::test]
async fn another_users_do_not_exist() {
    let daemon = Daemon::start().await;
    let sandbox = create(&daemon).await;
    let exec = detach(&daemon, detached(&sandbox, &["sleep", "1000"])).await;
    let caller = |uid| Caller { uid, peer: None };
    for known in [0, 65534] {
        let found = daemon.registry.job(&caller(known), &exec);
        assert_eq!(found.is_ok(), known == 0);
        if let Err(error) = found {
            assert!(matches!(error, SandboxError::NoJob(_)), "{error}");
        }
        let attached = daemon.registry.job_to_attach(&caller(known), &exec);
        assert_eq!(attached.is_ok(), known == 0);
    }
}

#[tokio::test]
async fn detached_commands_count_for_the_quota_of_execs() {
    let daemon = Daemon::start_with(|config| config.quotas.execs = 2).await;
    let sandbox = create(&daemon).await;
    let mut running = Vec::new();
    for _ in 0..2 {
        running.push(detach(&daemon, detached(&sandbox, &["sleep", "1000"])).await);
    }
    let refused = daemon.run_with(detached(&sandbox, &["true"])).await;
    assert_eq!(reason(&refused.err().unwrap()), "QUOTA_EXCEEDED");
    let kill = KillExecRequest {
        exec_id: running.remove(0),
    };
    daemon.client.clone().kill_exec(kill).await.unwrap();
    // One that has ended does not count.
    assert!(wait_until_async(|| daemon.told.execs().len() == 1).await);
    let exec = detach(&daemon, detached(&sandbox, &["true"])).await;
    wait(&daemon, &exec).await.unwrap();
}

#[tokio::test]
async fn its_refusals_are_among_the_events() {
    let daemon = Daemon::start().await;
    let sandbox = create(&daemon).await;
    let mut client = daemon.client.clone();
    let request = WatchEventsRequest {
        sandbox_id: sandbox.clone(),
        ..WatchEventsRequest::default()
    };
    let mut watch = client.watch_events(request).await.unwrap().into_inner();
    let exec = detach(&daemon, detached(&sandbox, &["sleep", "1000"])).await;
    let (sandbox, cgroup) = (daemon.told.installed()[0].0, daemon.told.execs()[0]);
    daemon
        .events
        .accept(&record(sandbox, cgroup, "/root/.ssh/id_ed25519"));
    loop {
        let response = watch.message().await.unwrap().unwrap().response;
        if let Some(Watched::Denial(denial)) = response {
            assert_eq!(denial.exec_id, exec);
            return;
        }
    }
}

#[tokio::test]
async fn after_a_daemon_that_was_killed_nothing_of_it_is_left() {
    let mut daemon = Daemon::start().await;
    let sandbox = create(&daemon).await;
    let exec = detach(&daemon, detached(&sandbox, &["sleep", "1000"])).await;
    daemon.replace().await;
    let caller = Caller { uid: 0, peer: None };
    let found = daemon.registry.job(&caller, &exec);
    assert!(matches!(found, Err(SandboxError::NoJob(_))));
    assert!(daemon.is_clean().await);
    let state = fs::read_dir(&daemon.config.state_directory).unwrap();
    assert_eq!(state.count(), 0);
}
