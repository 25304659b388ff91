//! The API's contract, over its socket, with real commands.

use std::{fmt::Write as _, os::unix::process::ExitStatusExt as _, sync::Arc, time::Duration};

use sandbox_common::Counters;
use sandbox_daemon::{
    api::{Lock, SocketError},
    launch::Peer,
    proto::{
        self, CloseStdin, CreateSandboxRequest, DeleteSandboxRequest, GetSandboxRequest,
        ListSandboxesRequest, PolicySource, PolicyText, SandboxSpec, UpdateSandboxRequest,
        ValidatePolicyRequest, ValidatePolicyResponse, WatchEventsRequest,
        exited::{Reason, Status as Ended},
        policy_source::Source,
        run_request::Request,
        start::Sandbox as Where,
        watch_events_response::Response as Watched,
    },
    sandbox::{Caller, SandboxError, Spec},
};
use tonic::Code;

use crate::daemon::{Daemon, reason, record, start, wait_until_async};

fn text(toml: &str) -> PolicySource {
    PolicySource {
        source: Some(Source::Text(PolicyText {
            display_name: "test.toml".into(),
            toml: toml.into(),
            origin: String::new(),
        })),
        ..PolicySource::default()
    }
}

async fn create(daemon: &Daemon, request_id: &str) -> Result<proto::Sandbox, tonic::Status> {
    let request = CreateSandboxRequest {
        spec: Some(SandboxSpec::default()),
        request_id: request_id.into(),
    };
    let mut client = daemon.client.clone();
    Ok(client.create_sandbox(request).await?.into_inner())
}

#[tokio::test]
async fn a_wrong_policy_is_refused_with_its_position() {
    let daemon = Daemon::start().await;
    let toml = "version = 1\n[files]\nreed = [\"/\"]\n";
    let mut wrong = start(&["true"]);
    wrong.sandbox = Some(Where::Inline(SandboxSpec {
        policy: Some(text(toml)),
        ..SandboxSpec::default()
    }));
    let status = daemon.run_with(wrong).await.err().unwrap();
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::InvalidArgument, "POLICY_INVALID")
    );
    assert!(
        status.message().contains("test.toml:3:1"),
        "{}",
        status.message()
    );
    let details: tonic_types::pb::Status = prost::Message::decode(status.details()).unwrap();
    let carried = details
        .details
        .iter()
        .find(|any| any.type_url.ends_with("/sandbox.v1.ValidatePolicyResponse"))
        .unwrap();
    let carried: ValidatePolicyResponse = prost::Message::decode(&*carried.value).unwrap();
    assert_eq!(
        (carried.diagnostics[0].line, carried.diagnostics[0].column),
        (3, 1)
    );

    let request = ValidatePolicyRequest {
        policy: Some(text(toml)),
        workspace: String::new(),
    };
    let mut client = daemon.client.clone();
    let response = client.validate_policy(request).await.unwrap().into_inner();
    assert!(!response.valid);
    assert_eq!(response.diagnostics, carried.diagnostics);
    let request = ValidatePolicyRequest {
        policy: Some(text("version = 1\n[files]\nread = [\"/usr\"]\n")),
        workspace: String::new(),
    };
    let response = client.validate_policy(request).await.unwrap().into_inner();
    assert!(response.valid && response.policy_digest.len() == 64);
    assert!(daemon.is_clean().await);
}

#[tokio::test]
async fn even_a_very_wrong_policy_fits_a_status() {
    let daemon = Daemon::start().await;
    let long = "x".repeat(20_000);
    let mut toml = format!("version = 1\n[files]\nread = [\"{long}\"]\n");
    for i in 0..500 {
        writeln!(toml, "unknown{i} = 1").unwrap();
    }
    let mut wrong = start(&["true"]);
    wrong.sandbox = Some(Where::Inline(SandboxSpec {
        policy: Some(text(&toml)),
        ..SandboxSpec::default()
    }));
    let status = daemon.run_with(wrong).await.err().unwrap();
    assert_eq!(reason(&status), "POLICY_INVALID");
    assert!(status.message().len() + status.details().len() < 8000);
}

#[tokio::test]
async fn deleting_a_sandbox_kills_what_runs_in_it() {
    let daemon = Daemon::start().await;
    let sandbox = create(&daemon, "").await.unwrap();
    let mut sleeper = start(&["sleep", "1000"]);
    sleeper.sandbox = Some(Where::SandboxId(sandbox.id.clone()));
    let mut run = daemon.run_with(sleeper).await.unwrap();
    let started = run.started().await;
    assert_eq!(started.sandbox_id, sandbox.id);
    let mut client = daemon.client.clone();
    let seen = client
        .get_sandbox(GetSandboxRequest {
            id: sandbox.id.clone(),
        })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(seen.execs[0].argv, ["sleep", "1000"]);
    assert_eq!(
        (&seen.execs[0].id, seen.execs[0].pid),
        (&started.exec_id, started.pid)
    );
    let delete = DeleteSandboxRequest { id: sandbox.id };
    client.delete_sandbox(delete.clone()).await.unwrap();
    assert!(daemon.cgroups().is_empty() && daemon.told.installed().is_empty());
    let exited = run.finish().await.exited;
    assert_eq!(
        (exited.status, exited.reason()),
        (Some(Ended::Signal(9)), Reason::Killed)
    );
    let again = client.delete_sandbox(delete).await.unwrap_err();
    assert_eq!(
        (again.code(), reason(&again).as_str()),
        (Code::NotFound, "SANDBOX_NOT_FOUND")
    );
}

#[tokio::test]
async fn a_sandbox_outlives_its_execs_which_share_its_tmp() {
    let daemon = Daemon::start().await;
    let sandbox = create(&daemon, "").await.unwrap();
    let mut write = start(&["sh", "-c", "echo kept > /tmp/file"]);
    write.sandbox = Some(Where::SandboxId(sandbox.id.clone()));
    assert_eq!(
        daemon
            .run_with(write)
            .await
            .unwrap()
            .finish()
            .await
            .exited
            .status,
        Some(Ended::Code(0))
    );
    let mut read = start(&["cat", "/tmp/file"]);
    read.sandbox = Some(Where::SandboxId(sandbox.id.clone()));
    assert_eq!(
        daemon.run_with(read).await.unwrap().finish().await.stdout,
        b"kept\n"
    );
    assert!(!std::path::Path::new("/tmp/file").exists());
    let mut client = daemon.client.clone();
    let listed = client
        .list_sandboxes(ListSandboxesRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(listed.sandboxes.len(), 1);
    assert!(listed.sandboxes[0].execs.is_empty());
}

#[tokio::test]
async fn quotas_bound_what_a_user_has() {
    let daemon = Daemon::start_with(|config| {
        config.quotas.sandboxes = 2;
        config.quotas.execs = 1;
    })
    .await;
    let mut run = daemon.run(&["sleep", "1000"]).await.unwrap();
    run.started().await;
    let refused = daemon.run(&["true"]).await.err().unwrap();
    assert_eq!(
        (refused.code(), reason(&refused).as_str()),
        (Code::ResourceExhausted, "QUOTA_EXCEEDED")
    );
    assert!(
        refused.message().contains("1 execs"),
        "{}",
        refused.message()
    );
    // The sandbox that was made for it is gone again.
    create(&daemon, "").await.unwrap();
    let refused = create(&daemon, "").await.unwrap_err();
    assert!(
        refused.message().contains("2 sandboxes"),
        "{}",
        refused.message()
    );
    drop(run);
    assert!(wait_until_async(|| daemon.cgroups().len() == 1).await);
    let again = daemon.run(&["true"]).await.unwrap().finish().await;
    assert_eq!(again.exited.status, Some(Ended::Code(0)));
}

#[tokio::test]
async fn the_same_request_id_makes_one_sandbox() {
    let daemon = Daemon::start().await;
    let (one, two) = tokio::join!(create(&daemon, "r"), create(&daemon, "r"));
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_eq!(one.id, two.id);
    assert_eq!(daemon.cgroups(), [one.id.as_str()]);
    let mut client = daemon.client.clone();
    let other = CreateSandboxRequest {
        spec: Some(SandboxSpec {
            name: "other".into(),
            ..SandboxSpec::default()
        }),
        request_id: "r".into(),
    };
    let reused = client.create_sandbox(other).await.unwrap_err();
    assert_eq!(reused.code(), Code::AlreadyExists);
    client
        .delete_sandbox(DeleteSandboxRequest { id: one.id.clone() })
        .await
        .unwrap();
    assert_ne!(create(&daemon, "r").await.unwrap().id, one.id);
}

#[tokio::test]
async fn an_update_replaces_the_policy_if_the_etag_is_right() {
    let daemon = Daemon::start().await;
    let sandbox = create(&daemon, "").await.unwrap();
    let before = daemon.told.installed();
    let update = |etag: &str, toml: &str| UpdateSandboxRequest {
        id: sandbox.id.clone(),
        policy: Some(text(toml)),
        etag: etag.into(),
    };
    let mut client = daemon.client.clone();
    let toml = "version = 1\nname = \"second\"\nmode = \"observe\"\n[files]\nread = [\"/\"]\n";
    let stale = client
        .update_sandbox(update("stale", toml))
        .await
        .unwrap_err();
    assert_eq!(
        (stale.code(), reason(&stale).as_str()),
        (Code::Aborted, "ETAG_MISMATCH")
    );
    let wrong = client
        .update_sandbox(update("", "version = 9\n"))
        .await
        .unwrap_err();
    assert_eq!(reason(&wrong), "POLICY_INVALID");
    assert_eq!(daemon.told.installed(), before);
    let updated = client
        .update_sandbox(update(&sandbox.etag, toml))
        .await
        .unwrap()
        .into_inner();
    assert_ne!(updated.etag, sandbox.etag);
    assert_ne!(updated.policy_digest, sandbox.policy_digest);
    assert_eq!(
        (updated.policy_name.as_str(), updated.observe),
        ("second", true)
    );
    let after = daemon.told.installed();
    assert!(after[0].0 == before[0].0 && after[0].1 > before[0].1);
}

#[tokio::test]
async fn an_idle_sandbox_is_deleted() {
    let daemon = Daemon::start().await;
    let request = CreateSandboxRequest {
        spec: Some(SandboxSpec {
            idle_timeout: Some(prost_types::Duration {
                seconds: 0,
                nanos: 50_000_000,
            }),
            ..SandboxSpec::default()
        }),
        request_id: String::new(),
    };
    daemon.client.clone().create_sandbox(request).await.unwrap();
    assert!(daemon.is_clean().await);
}

#[tokio::test]
async fn another_users_sandbox_does_not_exist() {
    let daemon = Daemon::start().await;
    let (root, nobody, daemon_user) = (0, 65534, 1);
    let caller = |uid| Caller { uid, peer: None };
    let spec = Spec {
        uid: Some(nobody),
        ..Spec::default()
    };
    let made = daemon
        .registry
        .create(&caller(root), spec.clone(), "")
        .await
        .unwrap();
    assert_eq!(made.account.uid, nobody);
    assert!(daemon.registry.get(&caller(nobody), &made.id).is_ok());
    let found = daemon.registry.get(&caller(daemon_user), &made.id);
    assert!(matches!(found, Err(SandboxError::NoSandbox(_))));
    assert!(daemon.registry.list(&caller(daemon_user)).is_empty());
    assert_eq!(daemon.registry.list(&caller(root)).len(), 1);
    let foreign = daemon.registry.create(&caller(daemon_user), spec, "").await;
    assert!(matches!(foreign, Err(SandboxError::ForeignUid(_))));
    let deleted = daemon.registry.delete(&caller(daemon_user), &made.id).await;
    assert!(matches!(deleted, Err(SandboxError::NoSandbox(_))));
    daemon
        .registry
        .delete(&caller(nobody), &made.id)
        .await
        .unwrap();
}

#[tokio::test]
async fn every_denial_comes_before_exited_and_the_counts_add_up() {
    let daemon = Daemon::start().await;
    let mut client = daemon.client.clone();
    let mut watch = client
        .watch_events(WatchEventsRequest::default())
        .await
        .unwrap()
        .into_inner();
    let first = watch.message().await.unwrap().unwrap().response;
    let Some(Watched::Watching(watching)) = first else {
        panic!("{first:?}");
    };
    let mut run = daemon.run(&["cat"]).await.unwrap();
    let started = run.started().await;
    let (sandbox, exec) = (daemon.told.installed()[0].0, daemon.told.execs()[0]);
    let counters = Counters {
        denied: 9,
        emitted: 6,
        limited: 2,
        dropped: 1,
        ..Counters::default()
    };
    daemon.told.count(exec, counters);
    for _ in 0..4 {
        daemon
            .events
            .accept(&record(sandbox, exec, "/root/.ssh/id_ed25519"));
    }
    run.send(Request::CloseStdin(CloseStdin {})).await;
    // Some arrive only after the command has ended.
    let (events, late) = (daemon.events.clone(), record(sandbox, exec, "/root/.netrc"));
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(300)).await;
        events.accept(&late);
        events.accept(&late);
    });
    let transcript = run.finish().await;
    assert_eq!(
        (
            transcript.exited.denied,
            transcript.exited.lost,
            transcript.lost
        ),
        (9, 3, 3)
    );
    assert_eq!(transcript.denials.iter().map(|it| it.count).sum::<u64>(), 6);
    let denial = &transcript.denials[0];
    assert_eq!(
        (&denial.sandbox_id, &denial.exec_id),
        (&started.sandbox_id, &started.exec_id)
    );
    assert_eq!((denial.exe_display.as_str(), denial.count), ("cat", 1));
    assert!(
        denial.object_display.ends_with("/root/.ssh/id_ed25519"),
        "{}",
        denial.object_display
    );

    let mut watched = Vec::new();
    while watched
        .iter()
        .map(|it: &proto::Denial| it.count)
        .sum::<u64>()
        < 6
    {
        if let Some(Watched::Denial(denial)) = watch.message().await.unwrap().unwrap().response {
            watched.push(denial);
        }
    }
    assert_eq!(watched, transcript.denials);
    let resume = WatchEventsRequest {
        epoch: watching.epoch.clone(),
        after_sequence: watched[0].sequence,
        no_follow: true,
        ..WatchEventsRequest::default()
    };
    let mut resumed = client.watch_events(resume).await.unwrap().into_inner();
    let mut again = Vec::new();
    while let Some(response) = resumed.message().await.unwrap() {
        if let Some(Watched::Denial(denial)) = response.response {
            again.push(denial);
        }
    }
    assert_eq!(again, watched[1..]);
    let gone = WatchEventsRequest {
        epoch: "another".into(),
        ..WatchEventsRequest::default()
    };
    let gone = client.watch_events(gone).await.unwrap_err();
    assert_eq!(
        (gone.code(), reason(&gone).as_str()),
        (Code::OutOfRange, "EVENTS_GONE")
    );
}

#[tokio::test]
async fn a_daemon_that_ends_ends_its_commands_and_says_so() {
    let daemon = Daemon::start().await;
    let mut run = daemon.run(&["sleep", "1000"]).await.unwrap();
    run.started().await;
    let sandbox = create(&daemon, "").await.unwrap();
    assert_eq!(daemon.cgroups().len(), 2);
    let finished = tokio::spawn(run.finish());
    let told = daemon.told.clone();
    daemon.stop().await;
    assert_eq!(finished.await.unwrap().exited.reason(), Reason::Daemon);
    assert!(told.installed().is_empty(), "{}", sandbox.id);
}

#[tokio::test]
async fn a_second_daemon_refuses_to_start() {
    let daemon = Daemon::start().await;
    let second = Lock::take(&daemon.config).err().unwrap();
    assert!(matches!(second, SocketError::Running { .. }));
    assert!(
        second.to_string().contains("another sandboxd is running"),
        "{second}"
    );
}

#[tokio::test]
async fn a_process_is_enrolled_and_ends_with_the_call() {
    let daemon = Daemon::start().await;
    let mut sleeper = std::process::Command::new("sleep")
        .arg("1000")
        .stdin(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let request = proto::EnrollRequest {
        sandbox: Some(proto::enroll_request::Sandbox::Inline(
            SandboxSpec::default(),
        )),
        pid: sleeper.id(),
        allow_inherited: true,
        ..proto::EnrollRequest::default()
    };
    let mut client = daemon.client.clone();
    let mut enrolled = client.enroll(request).await.unwrap().into_inner();
    let first = enrolled.message().await.unwrap().unwrap().response;
    let Some(proto::enroll_response::Response::Enrolled(first)) = first else {
        panic!("{first:?}");
    };
    assert_eq!(first.pids, [sleeper.id()]);
    assert_eq!(daemon.cgroups().len(), 1);
    drop(enrolled);
    let status = tokio::task::spawn_blocking(move || sleeper.wait().unwrap())
        .await
        .unwrap();
    assert_eq!(status.signal(), Some(9));
    assert!(daemon.is_clean().await);
}

#[tokio::test]
async fn the_next_daemon_ends_what_ran_and_takes_over_what_was_to_stay() {
    let mut daemon = Daemon::start().await;
    let kept = create(&daemon, "").await.unwrap();
    create(&daemon, "").await.unwrap();
    let mut sleeper = std::process::Command::new("sleep")
        .arg("1000")
        .stdin(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let request = proto::EnrollRequest {
        sandbox: Some(proto::enroll_request::Sandbox::SandboxId(kept.id.clone())),
        pid: sleeper.id(),
        allow_inherited: true,
        stay: true,
        ..proto::EnrollRequest::default()
    };
    let mut client = daemon.client.clone();
    let mut enrolled = client.enroll(request).await.unwrap().into_inner();
    let first = enrolled.message().await.unwrap().unwrap().response;
    let Some(proto::enroll_response::Response::Enrolled(first)) = first else {
        panic!("{first:?}");
    };
    // The call ends, the process stays.
    drop(enrolled);
    let mut beside = start(&["sleep", "1000"]);
    beside.sandbox = Some(Where::SandboxId(kept.id.clone()));
    let mut beside = daemon.run_with(beside).await.unwrap();
    let beside_id = beside.started().await.exec_id;
    let toml = "version = 1\nname = \"second\"\n[files]\nread = [\"/\"]\n";
    let update = UpdateSandboxRequest {
        id: kept.id.clone(),
        policy: Some(text(toml)),
        etag: String::new(),
    };
    client.update_sandbox(update).await.unwrap();
    // As if the daemon had been killed: its calls are not ended by it.
    std::mem::forget(beside);
    drop(client);
    daemon.replace().await;

    assert_eq!(daemon.cgroups(), [kept.id.as_str()]);
    let root = Caller { uid: 0, peer: None };
    let adopted = daemon.registry.get(&root, &kept.id).unwrap();
    assert_eq!(adopted.policy().policy.name, "second");
    assert_eq!(daemon.told.installed().len(), 1);
    let execs = adopted.execs();
    let ids: Vec<_> = execs.iter().map(|exec| exec.id.as_str()).collect();
    assert_eq!(ids, [first.exec_id.as_str()]);
    assert_ne!(ids, [beside_id.as_str()]);
    assert_eq!((execs[0].pid(), execs[0].enrolled), (sleeper.id(), true));
    assert!(sleeper.try_wait().unwrap().is_none());
    daemon.registry.delete(&root, &kept.id).await.unwrap();
    let status = sleeper.wait().unwrap();
    assert_eq!(status.signal(), Some(9));
    assert!(daemon.is_clean().await);
    let shelf = daemon.config.runtime_directory().join("sandboxes");
    assert_eq!(std::fs::read_dir(shelf).unwrap().count(), 0);
}

#[tokio::test]
async fn a_sandboxed_process_may_not_call_and_is_told_where_it_is() {
    let daemon = Daemon::start().await;
    let caller = |pid| Caller {
        uid: 0,
        peer: Some(Arc::new(Peer::of_process(pid, 0, 0).unwrap())),
    };
    let outside = caller(std::process::id());
    assert!(daemon.registry.may_call(&outside).is_ok());
    let mut run = daemon.run(&["sleep", "1000"]).await.unwrap();
    let started = run.started().await;
    let refused = daemon.registry.may_call(&caller(started.pid));
    let Err(SandboxError::InSandbox(sandbox)) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(sandbox, started.sandbox_id);
}

#[tokio::test]
async fn the_health_service_says_that_it_serves() {
    use tonic_health::pb::{
        HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
    };
    let daemon = Daemon::start().await;
    let uri = format!("unix://{}", daemon.config.socket.display());
    let channel = tonic::transport::Endpoint::from_shared(uri).unwrap();
    let mut client = HealthClient::new(channel.connect().await.unwrap());
    for service in ["", "sandbox.v1.Sandboxes"] {
        let request = HealthCheckRequest {
            service: service.into(),
        };
        let answer = client.check(request).await.unwrap().into_inner();
        assert_eq!(answer.status(), ServingStatus::Serving, "`{service}`");
    }
    daemon.stop().await;
}
