//! No silence: as many refusals are told, or counted as lost, as there were.

use std::collections::BTreeMap;

use sandbox_daemon::proto::{Start, WatchEventsRequest, watch_events_response::Response};

use crate::{
    client::{self, Client, Ran, Run},
    ground::{self, GROUND, POLICY, WORK},
    host::{self, DEV},
};

crate::trials![
    every_refusal_of_every_kind_is_told,
    ten_thousand_refusals_are_told_or_counted,
    a_noisy_sandbox_costs_another_no_event,
    the_history_tells_what_was_lost,
];

/// How often each is attempted, by several processes: few enough for each to
/// be told.
const COUNT: u64 = 500;
const PROCESSES: &str = "4";

/// A step that is refused, with its error, as an operation.
type Kind = (&'static str, &'static str, &'static [&'static str]);

const KINDS: [Kind; 37] = [
    ("open", "ENOENT", &["read", "secret/key"]),
    ("open", "EACCES", &["append", "plain/file"]),
    ("stat", "ENOENT", &["stat", "secret/key"]),
    ("getxattr", "ENOENT", &["listxattr", "secret/key"]),
    ("readlink", "ENOENT", &["readlink", "secret/link"]),
    ("create", "EACCES", &["open", "plain/new", "creat"]),
    ("mkdir", "EACCES", &["mkdir", "plain/new"]),
    ("mknod", "EACCES", &["mkfifo", "plain/new"]),
    ("symlink", "EACCES", &["symlink", "file", "plain/new"]),
    ("truncate", "EACCES", &["truncate", "plain/file"]),
    ("setattr", "EACCES", &["chmod", "plain/file"]),
    ("setattr", "EACCES", &["utimes", "plain/file"]),
    ("unlink", "EACCES", &["unlink", "plain/file"]),
    ("rmdir", "EACCES", &["rmdir", "plain/directory"]),
    ("rename", "EACCES", &["rename", "plain/file", "plain/new"]),
    ("link", "EXDEV", &["link", "plain/file", "work/new"]),
    ("connect", "EPERM", &["tcp", "203.0.113.1:7300", "x"]),
    ("send", "EPERM", &["udp", "203.0.113.1:7300", "x"]),
    ("send", "EPERM", &["udp", "[2001:db8::1]:7300", "x"]),
    ("connect", "EPERM", &["unix", "stream", client::SOCKET]),
    ("clone", "EPERM", &["clone-into", "/sys/fs/cgroup"]),
    ("setxattr", "EACCES", &["setxattr", "plain/file", "user.a"]),
    (
        "removexattr",
        "EACCES",
        &["removexattr", "plain/file", "user.a"],
    ),
    (
        "ioctl",
        "EPERM",
        &["ioctl", "plain/file", "FS_IOC_SETFLAGS"],
    ),
    ("fcntl", "EACCES", &["lease", "plain/file"]),
    ("watch", "ENOENT", &["watch", "secret/key"]),
    ("socket", "EACCES", &["socket", "38", "5", "0"]),
    ("bind", "EPERM", &["bind", "tcp", "127.0.0.1:7301"]),
    ("listen", "EPERM", &["listen-unbound"]),
    ("signal", "EPERM", &["kill", PID, "15"]),
    ("ptrace", "EPERM", &["ptrace-attach", PID]),
    ("setpriority", "EPERM", &["priority", PID]),
    ("setscheduler", "EPERM", &["affinity", PID]),
    ("prlimit", "EPERM", &["limit", PID]),
    ("use", "EPERM", &["unshare", "user"]),
    ("use", "EPERM", &["io-uring"]),
    ("use", "EPERM", &["userfaultfd"]),
];

/// Stands for the number of a process outside.
const PID: &str = "PID";

async fn every_refusal_of_every_kind_is_told() {
    ground::make(DEV);
    let mut client = client::root().await;
    let policy = format!("{POLICY}listen = \"none\"\n");
    let spec = client::spec(DEV, client::policy(&policy), WORK);
    let id = client::create(&mut client, spec).await.id;
    let count = COUNT.to_string();
    let mut victim = host::command(DEV, &["sleep", "infinity"]).spawn().unwrap();
    let pid = victim.id().to_string();
    let mut wrong = Vec::new();
    for (operation, errno, step) in KINDS {
        let step = step
            .iter()
            .map(|word| if *word == PID { &pid } else { *word });
        let repeated: Vec<_> = ["times", PROCESSES, &count]
            .into_iter()
            .chain(step)
            .collect();
        let ran = client::run(&mut client, inside(&id, &[&repeated])).await;
        let told: BTreeMap<_, u64> = by_operation(&ran);
        let expected = BTreeMap::from([(operation.to_owned(), COUNT)]);
        let counted = (ran.exited.denied, ran.exited.lost, ran.lost.len());
        if ran.lines() != [errno] || told != expected || counted != (COUNT, 0, 0) {
            wrong.push(format!("{repeated:?}: {told:?}, {counted:?}, {ran:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    client::delete(&mut client, &id).await;
    victim.kill().unwrap();
    victim.wait().unwrap();
    // The control: outside, they are no refusals.
    for (_, _, step) in &KINDS[..2] {
        let answer = host::attack(DEV, GROUND, step);
        assert!(answer.starts_with("ok"), "{step:?}: {answer}");
    }
}

/// A command in a sandbox that is there, standing on the ground.
fn inside(sandbox: &str, steps: &[&[&str]]) -> Start {
    Start {
        cwd: GROUND.into(),
        ..client::start_in(sandbox, &client::attacker(steps))
    }
}

fn by_operation(ran: &Ran) -> BTreeMap<String, u64> {
    let mut told = BTreeMap::new();
    for denial in &ran.denials {
        *told.entry(denial.operation.clone()).or_default() += denial.count;
    }
    told
}

const MANY: u64 = 10_000;

async fn ten_thousand_refusals_are_told_or_counted() {
    ground::make(DEV);
    let mut client = client::root().await;
    let steps: [&[&str]; 1] = [&["times", PROCESSES, "10000", "read", "secret/key"]];
    let ran = client::run(&mut client, ground::attacker(DEV, &steps)).await;
    assert_eq!(ran.lines(), ["ENOENT"], "{ran:?}");
    let (told, lost) = ran.told();
    assert_eq!(ran.exited.denied, MANY);
    assert_eq!((told + lost, lost), (MANY, ran.exited.lost));
    assert!(told >= 4096, "a burst is told: {told}");
}

/// What a user's sandboxes have in the daemon's memory.
async fn history(client: &mut Client, sandbox: &str) -> (u64, u64) {
    let request = WatchEventsRequest {
        sandbox_id: sandbox.into(),
        history: true,
        no_follow: true,
        ..WatchEventsRequest::default()
    };
    let mut stream = client.watch_events(request).await.unwrap().into_inner();
    let (mut told, mut lost) = (0, 0);
    while let Some(message) = stream.message().await.unwrap() {
        match message.response {
            Some(Response::Denial(denial)) => told += denial.count,
            Some(Response::Lost(it)) => {
                assert_eq!(it.sandbox_id, sandbox, "{it:?}");
                assert!(it.sequence > 0, "{it:?}");
                lost += it.count;
            }
            _ => {}
        }
    }
    (told, lost)
}

async fn the_history_tells_what_was_lost() {
    ground::make(DEV);
    let mut client = client::root().await;
    let id = client::create(&mut client, ground::spec(DEV)).await.id;
    let steps: [&[&str]; 1] = [&["times", "1", "6000", "read", "secret/key"]];
    let ran = client::run(&mut client, inside(&id, &steps)).await;
    assert!(ran.exited.lost > 0, "{ran:?}");
    let (told, lost) = history(&mut client, &id).await;
    assert_eq!((told + lost, lost), (6000, ran.exited.lost));
    let shown = host::output(DEV, &["sandbox", "events", "--sandbox", &id]);
    let without = shown
        .lines()
        .filter(|line| line.contains("refused without a record"));
    assert!(without.count() > 0, "{shown}");
    client::delete(&mut client, &id).await;
}

async fn a_noisy_sandbox_costs_another_no_event() {
    ground::make(DEV);
    let mut client = client::root().await;
    let noisy = [
        ["say", "ready"].as_slice(),
        &["times", PROCESSES, "10000", "read", "secret/key"],
    ];
    let mut noisy = Run::start(&mut client.clone(), ground::attacker(DEV, &noisy))
        .await
        .unwrap();
    assert_eq!(noisy.line().await, "ok ready");
    let names: Vec<_> = (0..50).map(|it| format!("plain/new-{it}")).collect();
    let steps: Vec<_> = names.iter().map(|name| ["mkdir", name]).collect();
    let steps: Vec<&[&str]> = steps.iter().map(<[&str; 2]>::as_slice).collect();
    let quiet = client::run(&mut client, ground::attacker(DEV, &steps)).await;
    let noisy = noisy.end().await;
    let expected = vec!["EACCES"; names.len()];
    assert_eq!(quiet.lines(), expected, "{quiet:?}");
    let objects: Vec<_> = quiet
        .denials
        .iter()
        .map(|denial| denial.object_display.clone())
        .collect();
    let expected: Vec<_> = names.iter().map(|it| format!("{GROUND}/{it}")).collect();
    assert_eq!(objects, expected, "{quiet:?}");
    assert!(quiet.denials.iter().all(|denial| denial.count == 1));
    assert_eq!(quiet.lost, []);
    assert_eq!((quiet.exited.denied, quiet.exited.lost), (50, 0));
    let (told, lost) = noisy.told();
    assert_eq!(told + lost, MANY);
    assert_eq!(noisy.exited.denied, MANY);
}
