//! Limits that need no controllers of cgroup2: time and output; that nothing
//! survives; and that what this host cannot do is refused.

use std::{
    fs,
    path::PathBuf,
    time::{Duration, SystemTime},
};

use sandbox_daemon::{
    cgroup::{Controllers, Hierarchy},
    proto::{
        self, CreateSandboxRequest, GetSandboxRequest, KillExecRequest, Limits, PolicySource,
        PolicyText, SandboxSpec, Start, Stdio, UpdateSandboxRequest,
        exited::{Reason, Status as Ended},
        policy_source::Source,
        start::Sandbox as Where,
    },
};
use tonic::Code;

use crate::daemon::{Daemon, Transcript, reason, start, wait_until_async};

/// A script in a sandbox of its own with these limits.
fn limited(script: &str, limits: Limits) -> Start {
    Start {
        sandbox: Some(Where::Inline(spec(limits))),
        ..start(&["sh", "-c", script])
    }
}

fn spec(limits: Limits) -> SandboxSpec {
    SandboxSpec {
        limits: Some(limits),
        ..SandboxSpec::default()
    }
}

#[expect(clippy::unnecessary_wraps, reason = "the field's type")]
fn seconds(seconds: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos: 0 })
}

fn timeout() -> Limits {
    Limits {
        timeout: seconds(1),
        ..Limits::default()
    }
}

fn output(output: u64) -> Limits {
    Limits {
        output,
        ..Limits::default()
    }
}

async fn finish(daemon: &Daemon, start: Start) -> Transcript {
    let transcript = daemon.run_with(start).await.unwrap().finish().await;
    assert!(daemon.cgroups().is_empty(), "{:?}", daemon.cgroups());
    transcript
}

async fn create(daemon: &Daemon, limits: Limits) -> proto::Sandbox {
    let request = CreateSandboxRequest {
        spec: Some(spec(limits)),
        request_id: String::new(),
    };
    let created = daemon.client.clone().create_sandbox(request).await;
    created.unwrap().into_inner()
}

async fn is_gone(daemon: &Daemon, id: &str) -> bool {
    let mut client = daemon.client.clone();
    for _ in 0..3000 {
        let request = GetSandboxRequest { id: id.into() };
        if client.get_sandbox(request).await.is_err() {
            return daemon.cgroups().is_empty();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    false
}

#[tokio::test]
async fn a_command_whose_time_is_up_is_told_so_and_may_end_as_it_likes() {
    let daemon = Daemon::start().await;
    let script = "trap 'echo got; exit 3' TERM; echo up; while :; do sleep 0.05; done";
    let transcript = finish(&daemon, limited(script, timeout())).await;
    assert_eq!(transcript.stdout, b"up\ngot\n");
    let exited = transcript.exited;
    assert_eq!(exited.status, Some(Ended::Code(3)));
    assert_eq!(exited.reason(), Reason::Timeout);
    assert_eq!(exited.limits.unwrap().timeout, seconds(1));
    // The control: one that is in time ends by itself.
    let transcript = finish(&daemon, limited("echo up", timeout())).await;
    assert_eq!(transcript.exited.reason(), Reason::Exited);
}

#[tokio::test]
async fn what_does_not_listen_is_killed_after_a_while() {
    let daemon = Daemon::start().await;
    let script = "trap 'echo once' TERM; trap '' HUP
        (trap '' TERM; setsid sleep 1000) &
        while :; do sleep 0.05; done";
    let transcript = finish(&daemon, limited(script, timeout())).await;
    let exited = transcript.exited;
    assert_eq!(exited.status, Some(Ended::Signal(9)));
    assert_eq!(exited.reason(), Reason::Timeout);
    assert_eq!(transcript.stdout, b"once\n");
}

#[tokio::test]
async fn what_is_stopped_hears_that_its_time_is_up() {
    let daemon = Daemon::start().await;
    let script = "trap 'echo got; exit 0' TERM; kill -STOP $$; echo went on";
    let transcript = finish(&daemon, limited(script, timeout())).await;
    assert!(transcript.stdout.starts_with(b"got\n"));
    assert_eq!(transcript.exited.status, Some(Ended::Code(0)));
    assert_eq!(transcript.exited.reason(), Reason::Timeout);
}

#[tokio::test]
async fn an_execs_own_timeout_replaces_the_sandboxs() {
    let daemon = Daemon::start().await;
    let mut longer = limited("sleep 3; echo done", timeout());
    longer.timeout = seconds(600);
    let transcript = finish(&daemon, longer).await;
    assert_eq!(transcript.stdout, b"done\n");
    assert_eq!(transcript.exited.reason(), Reason::Exited);
    let mut shorter = limited("sleep 1000", Limits::default());
    shorter.timeout = seconds(1);
    let exited = finish(&daemon, shorter).await.exited;
    assert_eq!(exited.reason(), Reason::Timeout);
    assert_eq!(exited.limits.unwrap().timeout, seconds(1));
}

#[tokio::test]
async fn output_beyond_the_limit_ends_the_command_and_is_not_relayed() {
    let daemon = Daemon::start().await;
    let transcript = finish(&daemon, limited("yes & yes >&2", output(100_001))).await;
    assert_eq!(
        transcript.stdout.len() + transcript.stderr.len(),
        100_001,
        "both streams together"
    );
    let exited = transcript.exited;
    assert_eq!(exited.status, Some(Ended::Signal(9)));
    assert_eq!(exited.reason(), Reason::Output);
    // As much as it may, and no byte more, is no reason.
    let script = "head -c 100000 /dev/zero; head -c 1 /dev/zero >&2";
    let transcript = finish(&daemon, limited(script, output(100_001))).await;
    assert_eq!(transcript.exited.status, Some(Ended::Code(0)));
    assert_eq!(transcript.exited.reason(), Reason::Exited);
    // It had ended when its output was read.
    let transcript = finish(&daemon, limited("echo too much", output(3))).await;
    assert_eq!(transcript.stdout, b"too");
    assert_eq!(transcript.exited.reason(), Reason::Output);
    let mut terminal = limited("yes", output(1000));
    terminal.stdio = Stdio::Pty.into();
    let transcript = finish(&daemon, terminal).await;
    assert_eq!(transcript.stdout.len(), 1000);
    assert_eq!(transcript.exited.reason(), Reason::Output);
}

#[tokio::test]
async fn output_that_cannot_be_counted_is_refused_where_it_is_limited() {
    let daemon = Daemon::start().await;
    let mut inherit = limited("true", output(1000));
    inherit.stdio = Stdio::Inherit.into();
    inherit.caller_start_time = sandbox_daemon::sys::start_time(std::process::id()).unwrap();
    let refused = daemon.run_with(inherit.clone()).await.err().unwrap();
    assert_eq!(
        (refused.code(), reason(&refused).as_str()),
        (Code::FailedPrecondition, "OUTPUT_NOT_COUNTED")
    );
    assert!(daemon.is_clean().await);
    inherit.sandbox = Some(Where::Inline(SandboxSpec::default()));
    let transcript = finish(&daemon, inherit).await;
    assert_eq!(transcript.exited.status, Some(Ended::Code(0)));
}

#[tokio::test]
async fn a_sandbox_whose_time_is_up_ends_with_all_that_runs_in_it() {
    let daemon = Daemon::start().await;
    let limits = Limits {
        sandbox_timeout: seconds(2),
        ..Limits::default()
    };
    let sandbox = create(&daemon, limits).await;
    let time = |time: Option<prost_types::Timestamp>| SystemTime::try_from(time.unwrap()).unwrap();
    let lasts = time(sandbox.expire_time).duration_since(time(sandbox.create_time));
    assert_eq!((lasts.unwrap() + Duration::from_millis(500)).as_secs(), 2);
    let mut runs = Vec::new();
    for script in [
        "trap 'exit 4' TERM; while :; do sleep 0.05; done",
        "sleep 1000",
    ] {
        let mut within = start(&["sh", "-c", script]);
        within.sandbox = Some(Where::SandboxId(sandbox.id.clone()));
        runs.push(daemon.run_with(within).await.unwrap());
    }
    let mut statuses = Vec::new();
    for run in runs {
        let exited = run.finish().await.exited;
        assert_eq!(exited.reason(), Reason::SandboxTimeout);
        assert_eq!(exited.limits.unwrap().sandbox_timeout, seconds(2));
        statuses.push(exited.status);
    }
    assert_eq!(statuses, [Some(Ended::Code(4)), Some(Ended::Signal(15))]);
    assert!(is_gone(&daemon, &sandbox.id).await);
    // One that nothing runs in, and one that is for one command.
    let idle = create(&daemon, limits).await;
    assert!(is_gone(&daemon, &idle.id).await);
    let exited = finish(&daemon, limited("sleep 1000", limits)).await.exited;
    assert_eq!(exited.reason(), Reason::SandboxTimeout);
}

#[tokio::test]
async fn a_new_policy_can_end_a_sandboxs_time() {
    let daemon = Daemon::start().await;
    let sandbox = create(&daemon, Limits::default()).await;
    let toml = "version = 1\n[files]\nread = [\"/\"]\n[limits]\nsandbox_timeout = \"1s\"\n";
    let request = UpdateSandboxRequest {
        id: sandbox.id.clone(),
        policy: Some(PolicySource {
            source: Some(Source::Text(PolicyText {
                toml: toml.into(),
                ..PolicyText::default()
            })),
            ..PolicySource::default()
        }),
        ..UpdateSandboxRequest::default()
    };
    let updated = daemon.client.clone().update_sandbox(request).await;
    let updated = updated.unwrap().into_inner();
    assert_eq!(updated.limits.unwrap().sandbox_timeout, seconds(1));
    assert!(is_gone(&daemon, &sandbox.id).await);
}

#[tokio::test]
async fn limits_that_make_no_sense_are_refused_by_name() {
    let daemon = Daemon::start().await;
    for (limits, field) in [
        (
            Limits {
                memory: 1,
                ..Limits::default()
            },
            "limits.memory",
        ),
        (
            Limits {
                cpu_millis: 1,
                ..Limits::default()
            },
            "limits.cpu_millis",
        ),
        (
            Limits {
                pids: u32::MAX,
                ..Limits::default()
            },
            "limits.pids",
        ),
        (
            Limits {
                timeout: seconds(1 << 40),
                ..Limits::default()
            },
            "limits.timeout",
        ),
    ] {
        let refused = daemon
            .run_with(limited("true", limits))
            .await
            .err()
            .unwrap();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().contains(field), "{}", refused.message());
    }
    let mut own = limited("true", Limits::default());
    own.timeout = seconds(1 << 40);
    let refused = daemon.run_with(own).await.err().unwrap();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(daemon.is_clean().await);
}

#[tokio::test]
async fn a_limit_whose_controller_this_host_lacks_is_refused_before_anything_runs() {
    let daemon = Daemon::start().await;
    let hierarchy = Hierarchy::find().unwrap();
    let missing: Vec<_> = Controllers::available(hierarchy.path()).missing().collect();
    for (controller, limits) in [
        (
            "memory",
            Limits {
                memory: 64 << 20,
                ..Limits::default()
            },
        ),
        (
            "cpu",
            Limits {
                cpu_millis: 500,
                ..Limits::default()
            },
        ),
        (
            "pids",
            Limits {
                pids: 64,
                ..Limits::default()
            },
        ),
    ] {
        let marker = daemon.config.state_directory.join(controller);
        let script = format!("touch {}", marker.display());
        let run = daemon.run_with(limited(&script, limits)).await;
        if missing.contains(&controller) {
            let refused = run.err().unwrap();
            assert_eq!(
                (refused.code(), reason(&refused).as_str()),
                (Code::FailedPrecondition, "KERNEL_FEATURE_MISSING")
            );
            let says = format!("`{controller}` cannot be limited here");
            assert!(refused.message().contains(&says), "{}", refused.message());
            assert!(!marker.exists());
            assert!(daemon.is_clean().await);
        } else {
            run.unwrap().finish().await;
            assert!(marker.exists());
        }
    }
    // What is only counted may be absent.
    let script = "i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done";
    let usage = finish(&daemon, limited(script, Limits::default()))
        .await
        .exited
        .usage;
    let usage = usage.unwrap();
    assert!(
        usage.cpu_time.is_some_and(|time| time.nanos > 0),
        "{usage:?}"
    );
    assert_eq!(usage.peak_memory.is_none(), missing.contains(&"memory"));
}

/// Each leaves something behind that does not want to end.
const SURVIVORS: [(&str, &str); 5] = [
    (
        "a session of its own",
        "setsid sh -c 'trap \"\" TERM HUP INT; while :; do sleep 1; done' & echo up; wait",
    ),
    (
        "a double fork",
        "(setsid sh -c 'sleep 1000 & sleep 1000 &' &); echo up; sleep 1000",
    ),
    (
        "stopped",
        "sh -c 'kill -STOP $$' & sh -c 'kill -STOP $$' & echo up; kill -STOP $$",
    ),
    (
        "many",
        "for i in $(seq 300); do setsid sleep 1000 & done; echo up; wait",
    ),
    (
        "ones that come again",
        "again() { while :; do sh -c 'sleep 0.01 & sleep 0.01' & sleep 0.005; done; }; again & again & echo up; wait",
    ),
];

#[tokio::test]
async fn nothing_survives_an_exec_that_is_killed() {
    let daemon = Daemon::start().await;
    for (name, script) in SURVIVORS {
        let mut run = daemon.run(&["sh", "-c", script]).await.unwrap();
        let exec_id = run.started().await.exec_id;
        run.wait_for("up").await;
        let mut client = daemon.client.clone();
        client.kill_exec(KillExecRequest { exec_id }).await.unwrap();
        let exited = run.finish().await.exited;
        assert_eq!(exited.reason(), Reason::Killed, "{name}");
        assert!(daemon.cgroups().is_empty(), "{name}");
    }
}

#[tokio::test]
async fn nothing_survives_the_client() {
    let daemon = Daemon::start().await;
    for (name, script) in SURVIVORS {
        let mut run = daemon.run(&["sh", "-c", script]).await.unwrap();
        run.wait_for("up").await;
        drop(run);
        assert!(daemon.is_clean().await, "{name}");
    }
}

#[tokio::test]
async fn what_is_frozen_is_killed_too() {
    let daemon = Daemon::start().await;
    let mut run = daemon.run(&["sleep", "1000"]).await.unwrap();
    let started = run.started().await;
    let cgroup: PathBuf = Hierarchy::find().unwrap().path().join(&daemon.config.slice);
    let cgroup = cgroup.join(&started.sandbox_id).join(&started.exec_id);
    fs::write(cgroup.join("cgroup.freeze"), "1").unwrap();
    let frozen = || {
        let events = fs::read_to_string(cgroup.join("cgroup.events"));
        events.unwrap().contains("frozen 1")
    };
    assert!(wait_until_async(frozen).await);
    let request = KillExecRequest {
        exec_id: started.exec_id.clone(),
    };
    daemon.client.clone().kill_exec(request).await.unwrap();
    assert_eq!(run.finish().await.exited.reason(), Reason::Killed);
    assert!(daemon.cgroups().is_empty());
}
