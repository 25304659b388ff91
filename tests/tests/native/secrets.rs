//! Secrets through the API: whose they are, who may change them, and that nothing
//! ever gives a value back.

use std::{
    fs,
    os::unix::{fs::chown, process::CommandExt as _},
    process::{Child, Command},
    sync::Arc,
};

use sandbox_daemon::{
    launch::Peer,
    proto::{
        CredentialUse, DeleteSecretRequest, ListSecretsRequest, SetSecretRequest,
        WatchEventsRequest, lost::Reason, run_response::Response, watch_events_response,
    },
    sandbox::{Caller, SandboxError},
    secrets::{SecretError, Secrets},
};
use sandbox_proxy::channel::Used;
use tonic::{Code, Status};

use crate::{
    daemon::{Daemon, reason},
    support::{OTHER, USER},
};

const VALUE: &str = "ghp_n0t-to-be-seen";

/// Root's, by its client.
async fn set(daemon: &Daemon, uid: Option<u32>, name: &str, value: &str) -> Result<(), Status> {
    let request = SetSecretRequest {
        name: name.into(),
        value: value.to_owned().into(),
        uid,
    };
    daemon.client.clone().set_secret(request).await.map(|_| ())
}

async fn names(daemon: &Daemon, uid: Option<u32>) -> Vec<String> {
    let request = ListSecretsRequest { uid };
    let mut client = daemon.client.clone();
    let listed = client.list_secrets(request).await.unwrap().into_inner();
    assert!(!format!("{listed:?}").contains(VALUE));
    listed.secrets.into_iter().map(|it| it.name).collect()
}

async fn delete(daemon: &Daemon, uid: Option<u32>, name: &str) -> Result<(), Status> {
    let name = name.to_owned();
    let mut client = daemon.client.clone();
    let deleted = client.delete_secret(DeleteSecretRequest { name, uid });
    deleted.await.map(|_| ())
}

/// A process of a user, as the daemon knows callers.
struct Process {
    child: Child,
    caller: Caller,
}

impl Process {
    fn of(uid: u32, adjust: impl FnOnce(&mut Command)) -> Self {
        let mut command = Command::new("sleep");
        command.arg("1000").uid(uid).gid(uid);
        adjust(&mut command);
        let child = command.spawn().unwrap();
        let peer = Peer::of_process(child.id(), uid, uid).unwrap();
        let caller = Caller {
            uid,
            peer: Some(Arc::new(peer)),
        };
        Self { child, caller }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_request_that_is_printed_does_not_show_the_value() {
    let request = SetSecretRequest {
        name: "github".into(),
        value: VALUE.into(),
        uid: None,
    };
    let printed = format!("{request:?}");
    assert!(printed.contains("github") && !printed.contains(VALUE));
    // Bytes as numbers are no better.
    assert!(!printed.contains("103"), "{printed}");
}

#[tokio::test]
async fn a_secret_is_set_listed_rotated_and_removed() {
    let daemon = Daemon::start().await;
    assert!(names(&daemon, None).await.is_empty());
    set(&daemon, None, "github", VALUE).await.unwrap();
    set(&daemon, None, "npm", "another").await.unwrap();
    assert_eq!(names(&daemon, None).await, ["github", "npm"]);
    let kept = |name| daemon.registry.secrets().get(0, name).unwrap();
    assert_eq!(kept("github").unwrap().expose(), VALUE);
    set(&daemon, None, "github", "rotated").await.unwrap();
    assert_eq!(kept("github").unwrap().expose(), "rotated");
    delete(&daemon, None, "github").await.unwrap();
    assert!(kept("github").is_none());
    assert_eq!(names(&daemon, None).await, ["npm"]);
    let missing = delete(&daemon, None, "github").await.unwrap_err();
    assert_eq!(
        (missing.code(), reason(&missing).as_str()),
        (Code::NotFound, "SECRET_NOT_FOUND")
    );
}

#[tokio::test]
async fn what_cannot_be_kept_is_refused_in_words_without_the_value() {
    let daemon = Daemon::start().await;
    let broken = format!("{VALUE}\n");
    for (name, value) in [
        ("github", broken.as_str()),
        ("", VALUE),
        (VALUE_NAME, VALUE),
    ] {
        let status = set(&daemon, None, name, value).await.unwrap_err();
        assert_eq!(
            (status.code(), reason(&status).as_str()),
            (Code::InvalidArgument, "SECRET_INVALID")
        );
        let said = format!("{status:?}");
        assert!(!said.contains("n0t-to-be-seen"), "{said}");
    }
    assert!(names(&daemon, None).await.is_empty());
}

/// Somebody has mixed up the two.
const VALUE_NAME: &str = "github=ghp_n0t-to-be-seen";

#[tokio::test]
async fn another_users_secrets_are_neither_seen_nor_removed_and_root_names_users() {
    let daemon = Daemon::start().await;
    set(&daemon, Some(USER), "npm", VALUE).await.unwrap();
    assert_eq!(names(&daemon, Some(USER)).await, ["npm"]);
    assert!(names(&daemon, None).await.is_empty());
    let registry = &daemon.registry;
    let other = Process::of(OTHER, |_| {});
    let listed = registry.list_secrets(&other.caller, None).await.unwrap();
    assert!(listed.is_empty());
    let listed = registry.list_secrets(&other.caller, Some(USER)).await;
    assert!(matches!(listed, Err(SandboxError::ForeignUid(USER))));
    let name = || "npm".to_owned();
    let deleted = registry.delete_secret(&other.caller, None, name()).await;
    assert!(matches!(
        deleted,
        Err(SandboxError::Secret(SecretError::NotFound {
            uid: OTHER,
            ..
        }))
    ));
    let deleted = registry.delete_secret(&other.caller, Some(USER), name());
    assert!(matches!(deleted.await, Err(SandboxError::ForeignUid(USER))));
    let value = Secrets::value(b"theirs".to_vec()).unwrap();
    let set = registry.set_secret(&other.caller, Some(USER), name(), value);
    assert!(matches!(set.await, Err(SandboxError::ForeignUid(USER))));
    let kept = registry.secrets().get(USER, "npm").unwrap().unwrap();
    assert_eq!(kept.expose(), VALUE);
    // Control: the user itself may.
    let own = Process::of(USER, |_| {});
    registry
        .delete_secret(&own.caller, None, name())
        .await
        .unwrap();
    assert!(names(&daemon, Some(USER)).await.is_empty());
}

#[tokio::test]
async fn a_confined_caller_changes_no_secret() {
    let daemon = Daemon::start().await;
    set(&daemon, Some(USER), "npm", VALUE).await.unwrap();
    for wrapper in [
        &["setpriv", "--no-new-privs"][..],
        &["unshare", "--user", "--map-root-user"],
        &["unshare", "--mount"],
    ] {
        let script = format!("exec {} sleep 1000", wrapper.join(" "));
        let uid = if wrapper[1] == "--mount" { 0 } else { USER };
        let mut child = Command::new("sh");
        child.args(["-c", &script]).uid(uid).gid(uid);
        let child = child.spawn().unwrap();
        let settled = crate::support::wait_until(|| {
            let comm = fs::read_to_string(format!("/proc/{}/comm", child.id()));
            comm.is_ok_and(|comm| comm == "sleep\n")
        });
        assert!(settled, "{wrapper:?}");
        let peer = Peer::of_process(child.id(), uid, uid).unwrap();
        let confined = Process {
            child,
            caller: Caller {
                uid,
                peer: Some(Arc::new(peer)),
            },
        };
        let registry = &daemon.registry;
        let value = Secrets::value(b"theirs".to_vec()).unwrap();
        let uid = Some(USER);
        let set = registry.set_secret(&confined.caller, uid, "npm".into(), value);
        assert!(
            matches!(set.await, Err(SandboxError::ConfinedKeeper(_))),
            "{wrapper:?}"
        );
        let deleted = registry.delete_secret(&confined.caller, uid, "npm".into());
        assert!(
            matches!(deleted.await, Err(SandboxError::ConfinedKeeper(_))),
            "{wrapper:?}"
        );
    }
    let kept = daemon.registry.secrets().get(USER, "npm").unwrap();
    assert_eq!(kept.unwrap().expose(), VALUE);
}

#[tokio::test]
async fn what_is_not_roots_is_not_used() {
    let daemon = Daemon::start().await;
    set(&daemon, None, "npm", VALUE).await.unwrap();
    let secrets = daemon.registry.secrets();
    let file = secrets.state().join("secrets/0/npm");
    chown(&file, Some(USER), None).unwrap();
    let error = secrets.get(0, "npm").unwrap_err();
    assert!(matches!(error, SecretError::Exposed { .. }), "{error}");
    // A new value is a new file.
    set(&daemon, None, "npm", VALUE).await.unwrap();
    assert!(secrets.get(0, "npm").unwrap().is_some());

    chown(secrets.state().join("secrets/0"), Some(USER), None).unwrap();
    let status = set(&daemon, None, "npm", VALUE).await.unwrap_err();
    assert_eq!(reason(&status), "SECRETS_EXPOSED");
    assert!(!format!("{status:?}").contains(VALUE));
    chown(secrets.state().join("secrets/0"), Some(0), None).unwrap();

    chown(secrets.state(), Some(USER), None).unwrap();
    assert!(Secrets::open(secrets.state()).is_err());
    let status = set(&daemon, None, "npm", VALUE).await.unwrap_err();
    assert_eq!(reason(&status), "SECRETS_EXPOSED");
}

fn used(exec: u64, count: u64) -> Used {
    Used {
        sandbox: 0,
        exec,
        generation: 0,
        pid: std::process::id(),
        uid: USER,
        comm: *b"git-remote-https",
        credential: "github".into(),
        rule: "o/r".into(),
        host: "github.com".into(),
        port: 443,
        method: "POST".into(),
        path: "/o/r/git-receive-pack".into(),
        repository: "o/r".into(),
        refs: vec!["refs/heads/\x1b[2J".into()],
        further_refs: 0,
        count,
    }
}

#[tokio::test]
async fn every_use_comes_before_exited_and_counts_as_no_refusal() {
    let daemon = Daemon::start().await;
    let mut run = daemon.run(&["sh", "-c", "read _"]).await.unwrap();
    let started = run.started().await;
    let [exec] = daemon.told.execs()[..] else {
        panic!("one exec runs");
    };
    daemon.events.used(used(exec, 3));
    let Some(Response::Used(live)) = run.next().await else {
        panic!("the use is told while the command runs");
    };
    assert_eq!((live.sequence, live.count), (1, 3));
    assert_eq!(
        (&live.exec_id, &live.sandbox_id),
        (&started.exec_id, &started.sandbox_id)
    );
    assert_eq!(live.exe_display, "git-remote-https");
    assert_eq!(
        live.request_display,
        "POST github.com:443 /o/r/git-receive-pack (o/r: refs/heads/\\x1b[2J)"
    );
    assert_eq!(live.refs, ["refs/heads/\x1b[2J"]);
    daemon.events.used(used(exec, 2));
    drop(run.requests.take());
    let transcript = run.finish().await;
    let counts: Vec<_> = transcript.used.iter().map(|it| it.count).collect();
    assert_eq!(counts, [2]);
    assert_eq!((transcript.exited.denied, transcript.exited.lost), (0, 0));
    assert_eq!(transcript.lost, 0);

    let history = history(&daemon).await;
    assert_eq!(history.0, [vec![live], transcript.used].concat());
}

#[tokio::test]
async fn uses_beyond_the_rate_are_told_as_lost_before_exited() {
    let daemon = Daemon::start().await;
    let mut run = daemon.run(&["sh", "-c", "read _"]).await.unwrap();
    run.started().await;
    let [exec] = daemon.told.execs()[..] else {
        panic!("one exec runs");
    };
    for _ in 0..2000 {
        daemon.events.used(used(exec, 1));
    }
    drop(run.requests.take());
    let transcript = run.finish().await;
    assert!(transcript.lost > 0);
    assert_eq!(transcript.used.len() as u64 + transcript.lost, 2000);
    assert_eq!((transcript.exited.denied, transcript.exited.lost), (0, 0));
    let (told, lost) = history(&daemon).await;
    assert_eq!(told.len() as u64 + lost, 2000);
}

/// Uses in the buffer, and how many were lost.
async fn history(daemon: &Daemon) -> (Vec<CredentialUse>, u64) {
    let request = WatchEventsRequest {
        history: true,
        no_follow: true,
        ..WatchEventsRequest::default()
    };
    let mut client = daemon.client.clone();
    let mut watched = client.watch_events(request).await.unwrap().into_inner();
    let (mut told, mut lost) = (Vec::new(), 0);
    while let Some(response) = watched.message().await.unwrap() {
        match response.response {
            Some(watch_events_response::Response::Used(used)) => told.push(used),
            Some(watch_events_response::Response::Lost(it)) => {
                assert_eq!(it.reason(), Reason::Use);
                lost += it.count;
            }
            Some(watch_events_response::Response::Watching(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    (told, lost)
}
