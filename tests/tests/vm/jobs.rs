//! Detached commands behind the walls, and what is left of them: nothing.

use std::{fs, path::Path, time::Duration};

use nix::sys::signal::Signal;
use sandbox_daemon::proto::{
    DeleteSandboxRequest, GetLogsRequest, KillExecRequest, SandboxSpec, Start, WaitExecRequest,
    WatchEventsRequest, get_logs_response, watch_events_response,
};

use crate::{
    client::{self, Client, Run},
    ground,
    host::{self, DEV, ROOT, alive, mounts, sandboxes, text, wait_until},
    restart,
};

crate::trials![
    a_detached_command_is_behind_the_walls_and_its_refusals_are_events,
    a_user_sees_and_ends_only_what_is_theirs,
    nothing_of_a_removed_or_expired_sandbox_remains,
    a_confined_caller_may_read_and_not_write_to_it,
];

/// Those that end the daemon.
pub(crate) fn last() -> Vec<libtest_mimic::Trial> {
    crate::trials![in trials: nothing_of_it_outlives_a_daemon_that_is_killed];
    trials()
}

/// Starts a command that outlives its call; its exec and its first process.
async fn detach(client: &mut Client, start: Start) -> (String, u32) {
    let start = Start {
        detach: true,
        ..start
    };
    let run = Run::start(client, start).await.unwrap();
    (run.started.exec_id.clone(), run.started.pid)
}

async fn logs(client: &mut Client, exec: &str, follow: bool) -> String {
    let request = GetLogsRequest {
        exec_id: exec.into(),
        follow,
    };
    let mut responses = client.get_logs(request).await.unwrap().into_inner();
    let mut written = Vec::new();
    while let Some(response) = responses.message().await.unwrap() {
        if let Some(get_logs_response::Response::Chunk(chunk)) = response.response {
            written.extend(chunk.data);
        }
    }
    text(&written)
}

async fn a_detached_command_is_behind_the_walls_and_its_refusals_are_events() {
    ground::make(DEV);
    let mut client = client::of(DEV).await;
    let sandbox = client::create(&mut client, ground::spec(DEV)).await;
    let steps: [&[&str]; 1] = [&["open", "/srv/ground/secret/key", "r"]];
    let outside = host::attack(DEV, ground::GROUND, steps[0]);
    assert!(outside.starts_with("ok"), "{outside}");
    let start = client::start_in(&sandbox.id, &client::attacker(&steps));
    let (exec, _) = detach(&mut client, start).await;
    let request = WaitExecRequest {
        exec_id: exec.clone(),
    };
    let exited = client.wait_exec(request).await.unwrap().into_inner();
    assert!(exited.denied > 0, "{exited:?}");
    let written = logs(&mut client, &exec, false).await;
    assert!(written.contains("ENOENT"), "{written}");
    let request = WatchEventsRequest {
        sandbox_id: sandbox.id.clone(),
        history: true,
        no_follow: true,
        ..WatchEventsRequest::default()
    };
    let mut watch = client.watch_events(request).await.unwrap().into_inner();
    let mut denied = 0;
    while let Some(response) = watch.message().await.unwrap() {
        if let Some(watch_events_response::Response::Denial(denial)) = response.response {
            assert_eq!(denial.exec_id, exec);
            denied += denial.count;
        }
    }
    assert_eq!(denied, exited.denied);
    client::delete(&mut client, &sandbox.id).await;
}

async fn a_user_sees_and_ends_only_what_is_theirs() {
    ground::make(DEV);
    let mut root = client::root().await;
    let spec = SandboxSpec {
        name: "roots".into(),
        ..ground::spec(ROOT)
    };
    let sandbox = client::create(&mut root, spec).await;
    let (exec, pid) = detach(&mut root, client::start_in(&sandbox.id, &["sleep", "1000"])).await;
    for verb in [
        &["wait", &exec][..],
        &["logs", &exec],
        &["attach", "--no-stdin", &exec],
        &["rm", "roots"],
        &["exec", "roots", "--", "true"],
    ] {
        let output = host::run(DEV, &[&["sandbox"], verb].concat());
        let said = text(&output.stderr);
        assert!(
            said.contains("there is no exec or sandbox"),
            "{verb:?}: {said}"
        );
    }
    let all = host::run(DEV, &["sandbox", "rm", "--all"]);
    assert!(all.status.success(), "{all:?}");
    assert!(alive(pid));
    // A whole id asks the daemon.
    let mut dev = client::of(DEV).await;
    let request = WaitExecRequest { exec_id: exec };
    let status = dev.wait_exec(request).await.unwrap_err();
    assert_eq!(client::reason(&status), "EXEC_NOT_FOUND");
    let all = host::run(ROOT, &["sandbox", "rm", "--all"]);
    assert!(all.status.success(), "{all:?}");
    assert!(!alive(pid) && sandboxes().is_empty());
}

/// What there is of sandboxes on this machine.
#[derive(Debug, PartialEq)]
struct There {
    sandboxes: usize,
    mounts: String,
    namespaces: usize,
    maps: usize,
    unnamed: usize,
}

impl There {
    fn now() -> Self {
        let daemon = host::daemon();
        let links = |directory: &str| -> Vec<String> {
            let entries = fs::read_dir(directory).unwrap().flatten();
            let links = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
            links.map(|it| it.to_string_lossy().into_owned()).collect()
        };
        let mut namespaces: Vec<_> = fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter_map(|entry| fs::read_link(entry.path().join("ns/mnt")).ok())
            .collect();
        let tasks = fs::read_dir(format!("/proc/{daemon}/task")).unwrap();
        let of_tasks = tasks.flatten().map(|it| it.path().join("ns/mnt"));
        namespaces.extend(of_tasks.filter_map(|path| fs::read_link(path).ok()));
        namespaces.sort();
        namespaces.dedup();
        let open = links(&format!("/proc/{daemon}/fd"));
        Self {
            sandboxes: sandboxes().len(),
            mounts: mounts(),
            namespaces: namespaces.len(),
            maps: aya::maps::loaded_maps().count(),
            unnamed: open
                .iter()
                .filter(|it| it.starts_with("/var/lib/sandboxd/"))
                .count(),
        }
    }
}

async fn nothing_of_a_removed_or_expired_sandbox_remains() {
    ground::make(DEV);
    let mut client = client::root().await;
    let before = There::now();
    assert_eq!((before.sandboxes, before.unnamed), (0, 0));
    for expires in [false, true] {
        let spec = SandboxSpec {
            idle_timeout: expires.then_some(prost_types::Duration {
                seconds: 3,
                nanos: 0,
            }),
            ..ground::spec(DEV)
        };
        let sandbox = client::create(&mut client, spec).await;
        let mut pids = Vec::new();
        for script in [
            "echo text; setsid sleep 1000 & sleep 1000",
            "echo text; exit 0",
        ] {
            let start = client::start_in(&sandbox.id, &["sh", "-c", script]);
            let (exec, pid) = detach(&mut client, start).await;
            pids.push((exec, pid));
        }
        let (running, pid) = pids[0].clone();
        wait_until("both have written", || There::now().unnamed == 2).await;
        assert_eq!(There::now().sandboxes, 1);
        assert_ne!(There::now().maps, before.maps);
        // A reader does not keep it.
        let mut reader = client.clone();
        let followed = tokio::spawn(async move { logs(&mut reader, &running, true).await });
        if expires {
            let request = KillExecRequest {
                exec_id: pids[0].0.clone(),
            };
            client.kill_exec(request).await.unwrap();
        } else {
            client::delete(&mut client, &sandbox.id).await;
        }
        assert_eq!(followed.await.unwrap(), "text\n");
        wait_until("it is all gone", || There::now() == before).await;
        assert!(!alive(pid));
        let request = DeleteSandboxRequest { id: sandbox.id };
        let gone = client.delete_sandbox(request).await.unwrap_err();
        assert_eq!(client::reason(&gone), "SANDBOX_NOT_FOUND");
    }
    assert_eq!(names_in_state(), Vec::<String>::new());
}

/// What has a name in the daemon's state, but for secrets.
fn names_in_state() -> Vec<String> {
    let Ok(entries) = fs::read_dir(Path::new("/var/lib/sandboxd")) else {
        return Vec::new();
    };
    let names = entries.map(|it| it.unwrap().file_name().to_string_lossy().into_owned());
    names.filter(|name| name != "secrets").collect()
}

async fn a_confined_caller_may_read_and_not_write_to_it() {
    ground::make(DEV);
    let id = host::output(
        DEV,
        &["sandbox", "run", "-d", "-i", "-w", "/home/dev", "--", "cat"],
    );
    let id = id.trim();
    let attach = format!("echo hello | setpriv --no-new-privs sandbox attach {id}");
    let output = host::run(DEV, &["sh", "-c", &attach]);
    let said = text(&output.stderr);
    assert!(said.contains("is confined itself"), "{said}");
    let logs = format!("setpriv --no-new-privs sandbox logs {id}");
    assert_eq!(host::output(DEV, &["sh", "-c", &logs]), "");
    let attach = format!("echo hello | sandbox attach {id}");
    assert_eq!(host::output(DEV, &["sh", "-c", &attach]), "hello\n");
    host::output(DEV, &["sandbox", "rm", id]);
}

async fn nothing_of_it_outlives_a_daemon_that_is_killed() {
    ground::make(DEV);
    let before = There::now();
    let mut client = client::root().await;
    let sandbox = client::create(&mut client, ground::spec(DEV)).await;
    let script = "echo text; setsid sleep 1000 & sleep 1000";
    let start = client::start_in(&sandbox.id, &["sh", "-c", script]);
    let (exec, pid) = detach(&mut client, start).await;
    // Not before: without a reader its write would end it.
    while logs(&mut client, &exec, false).await != "text\n" {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(There::now().unnamed, 1);
    restart::end_the_daemon(Signal::SIGKILL).await;
    assert!(alive(pid));
    restart::start_another("/run/after-the-jobs.log").await;
    wait_until("it is all gone", || {
        let now = There::now();
        (now.sandboxes, &now.mounts, now.unnamed) == (0, &before.mounts, 0)
            && now.namespaces <= before.namespaces
    })
    .await;
    assert!(!alive(pid));
    assert_eq!(names_in_state(), Vec::<String>::new());
    let mut client = client::root().await;
    let request = WaitExecRequest { exec_id: exec };
    let gone = client.wait_exec(request).await.unwrap_err();
    assert_eq!(client::reason(&gone), "EXEC_NOT_FOUND");
}
