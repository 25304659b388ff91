//! No silence: every refusal is told or counted, to everybody who may know.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader, Lines},
    os::unix::ffi::OsStrExt as _,
    process::{Child, ChildStdout, Stdio},
};

use sandbox_daemon::proto::{
    Denial, GetInfoRequest, WatchEventsRequest, denial::Object, watch_events_response::Response,
};
use serde_json::{Value, json};
use tonic::{Code, Streaming};

use crate::{
    client::{self, Client, run},
    ground::{self, WORK},
    host::{self, DEV, ROOT},
};

crate::trials![
    identical_refusals_are_one_kind_with_a_count,
    as_many_refusals_are_told_or_counted_as_there_were,
    a_watcher_that_does_not_read_is_told_what_it_lost,
    a_watcher_sees_what_the_caller_sees,
    a_watcher_resumes_where_it_was,
    a_user_watches_only_its_own,
    a_name_cannot_speak_to_a_terminal,
    events_are_followed_everywhere,
    a_run_tells_its_events_in_json,
    a_run_that_fails_tells_why_in_json,
    every_program_is_loaded_and_cheap_to_verify,
];

async fn identical_refusals_are_one_kind_with_a_count() {
    ground::make(DEV);
    let steps: [&[&str]; 1] = [&["many", "secret/key", "20"]];
    let ran = run(&mut client::root().await, ground::attacker(DEV, &steps)).await;
    assert_eq!(ran.exited.denied, 20, "{ran:?}");
    assert_eq!(ran.told(), (20, 0), "{ran:?}");
    assert!(ran.denials.len() <= 20, "{ran:?}");
    assert_eq!(
        ran.denials[0].count, 1,
        "the first is told at once: {ran:?}"
    );
    assert!(ran.denials.len() < 20, "{ran:?}");
}

async fn as_many_refusals_are_told_or_counted_as_there_were() {
    ground::make(DEV);
    let steps: [&[&str]; 3] = [
        &["flood", "plain/new", "1500"],
        &["many", "secret/key", "1500"],
        &["flood", "secret/new", "1500"],
    ];
    let ran = run(&mut client::root().await, ground::attacker(DEV, &steps)).await;
    assert_eq!(ran.exited.denied, 4500);
    let (told, lost) = ran.told();
    assert_eq!(told + lost, 4500, "{told} told, {lost} lost");
    assert_eq!(lost, ran.exited.lost, "{:?}", ran.lost);
}

async fn a_watcher_that_does_not_read_is_told_what_it_lost() {
    ground::make(DEV);
    let mut root = client::root().await;
    let id = client::create(&mut root, ground::spec(DEV)).await.id;
    let request = WatchEventsRequest {
        sandbox_id: id.clone(),
        ..WatchEventsRequest::default()
    };
    let (mut stream, _) = watch(&mut root, request).await;
    // More than its queue and the connection hold.
    let mut denied = 0;
    for path in ["a", "b", "c"] {
        let path = format!("/srv/ground/plain/{path}");
        let steps: [&[&str]; 1] = [&["flood", &path, "2500"]];
        let start = client::start_in(&id, &client::attacker(&steps));
        denied += run(&mut root, start).await.exited.denied;
    }
    assert_eq!(denied, 7500);
    let (mut told, mut lost) = (0, 0);
    while told + lost < denied {
        match stream.message().await.unwrap().unwrap().response {
            Some(Response::Denial(denial)) => told += denial.count,
            Some(Response::Lost(it)) => lost += it.count,
            other => panic!("{other:?} came"),
        }
    }
    assert!(lost > 0, "{told} told");
    assert_eq!(told + lost, denied);
    client::delete(&mut root, &id).await;
}

async fn watch(
    client: &mut Client,
    request: WatchEventsRequest,
) -> (
    Streaming<sandbox_daemon::proto::WatchEventsResponse>,
    String,
) {
    let mut stream = client.watch_events(request).await.unwrap().into_inner();
    let first = stream.message().await.unwrap().unwrap();
    let Some(Response::Watching(watching)) = first.response else {
        panic!("first came {first:?}");
    };
    (stream, watching.epoch)
}

async fn next(stream: &mut Streaming<sandbox_daemon::proto::WatchEventsResponse>) -> Denial {
    let message = stream.message().await.unwrap().unwrap();
    match message.response {
        Some(Response::Denial(denial)) => denial,
        other => panic!("{other:?} came"),
    }
}

const THREE: [&[&str]; 3] = [
    &["read", "secret/key"],
    &["read", "work/hidden"],
    &["append", "plain/file"],
];

async fn a_watcher_sees_what_the_caller_sees() {
    ground::make(DEV);
    let mut root = client::root().await;
    let (mut stream, epoch) = watch(&mut root, WatchEventsRequest::default()).await;
    let ran = run(&mut root, ground::attacker(DEV, &THREE)).await;
    assert_eq!(ran.denials.len(), 3, "{ran:?}");
    for denial in &ran.denials {
        assert_eq!(&next(&mut stream).await, denial);
        assert_eq!(denial.epoch, epoch);
    }
    let request = WatchEventsRequest {
        sandbox_id: ran.denials[0].sandbox_id.clone(),
        history: true,
        no_follow: true,
        ..WatchEventsRequest::default()
    };
    let (mut history, _) = watch(&mut root, request).await;
    for denial in &ran.denials {
        assert_eq!(&next(&mut history).await, denial);
    }
    assert_eq!(history.message().await.unwrap(), None);
}

async fn a_watcher_resumes_where_it_was() {
    ground::make(DEV);
    let mut root = client::root().await;
    let ran = run(&mut root, ground::attacker(DEV, &THREE)).await;
    let first = &ran.denials[0];
    let request = |epoch: &str, after_sequence| WatchEventsRequest {
        epoch: epoch.into(),
        after_sequence,
        no_follow: true,
        ..WatchEventsRequest::default()
    };
    let resumed = request(&first.epoch, first.sequence);
    let (mut stream, _) = watch(&mut root, resumed).await;
    assert_eq!(next(&mut stream).await, ran.denials[1]);
    assert_eq!(next(&mut stream).await, ran.denials[2]);
    assert_eq!(stream.message().await.unwrap(), None);
    for beyond in [
        request("another", first.sequence),
        request(&first.epoch, first.sequence + 1_000_000),
    ] {
        let call = root.watch_events(beyond).await;
        let status = match call {
            Err(status) => status,
            Ok(stream) => stream.into_inner().message().await.unwrap_err(),
        };
        assert_eq!(status.code(), Code::OutOfRange, "{status:?}");
    }
}

async fn a_user_watches_only_its_own() {
    let mut dev = client::of(DEV).await;
    let mut root = client::root().await;
    let (mut stream, _) = watch(&mut dev, WatchEventsRequest::default()).await;
    ground::make(ROOT);
    let roots = run(&mut root, ground::attacker(ROOT, &THREE)).await;
    ground::make(DEV);
    let devs = run(&mut root, ground::attacker(DEV, &THREE)).await;
    assert_eq!(roots.denials.len(), 3);
    for denial in &devs.denials {
        assert_eq!(&next(&mut stream).await, denial);
    }
}

async fn a_name_cannot_speak_to_a_terminal() {
    ground::make(DEV);
    let name = "\u{1b}[2J\nfake: denied \u{202e}";
    let path = format!("/srv/ground/secret/{name}");
    fs::write(&path, "x").unwrap();
    let steps: [&[&str]; 1] = [&["read", &path]];
    let ran = run(&mut client::root().await, ground::attacker(DEV, &steps)).await;
    assert_eq!(ran.lines(), ["ENOENT"], "{ran:?}");
    let [denial] = ran.denials.as_slice() else {
        panic!("{ran:?}");
    };
    let bytes = std::ffi::OsStr::new(&path).as_bytes().to_vec();
    assert_eq!(denial.object, Some(Object::Path(bytes.into())));
    let shown = &denial.object_display;
    let unsafe_ = |character: char| character.is_control() || character == '\u{202e}';
    assert!(!shown.contains(unsafe_), "{shown:?}");
    let output = host::run(DEV, &["sandbox", "events", "--sandbox", &denial.sandbox_id]);
    let text = host::text(&output.stdout);
    assert_eq!(text.lines().count(), 1, "{text:?}");
    assert!(!text.trim_end().contains(unsafe_), "{text:?}");
}

async fn every_program_is_loaded_and_cheap_to_verify() {
    let mut client = client::root().await;
    let info = client
        .get_info(GetInfoRequest {})
        .await
        .unwrap()
        .into_inner();
    let instructions: BTreeMap<_, _> = info
        .hooks
        .iter()
        .map(|hook| (hook.name.as_str(), hook.verified_instructions))
        .collect();
    println!("verified instructions: {instructions:?}");
    for hook in [
        "file_open",
        "path_truncate",
        "inode_create",
        "inode_mkdir",
        "inode_mknod",
        "inode_symlink",
        "inode_link",
        "inode_unlink",
        "inode_rmdir",
        "inode_rename",
        "inode_setattr",
        "inode_getattr",
        "inode_readlink",
        "connect4",
        "connect6",
        "sendmsg4",
        "sendmsg6",
    ] {
        assert!(instructions.contains_key(hook), "{hook}: {info:#?}");
    }
    for hook in &info.hooks {
        assert!(hook.loaded || hook.class != "required", "{hook:?}");
        let cost = hook.verified_instructions;
        assert!(!hook.loaded || (1..200_000).contains(&cost), "{hook:?}");
    }
    for hook in &info.hooks {
        let classes = ["required", "recommended", "optional"];
        assert!(classes.contains(&hook.class.as_str()), "{hook:?}");
        assert!(["lsm", "cgroup"].contains(&hook.kind.as_str()), "{hook:?}");
    }
    for name in ["files", "network", "scope"] {
        let wall = info.walls.iter().find(|wall| wall.name == name);
        assert!(wall.is_some_and(|wall| wall.in_force), "{info:#?}");
    }
    assert!(info.denied >= info.emitted, "{info:#?}");
}

/// `sandbox events --follow` of somebody, until it is dropped.
struct Follower {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Follower {
    fn start(uid: u32, format: &str) -> Self {
        let argv = ["sandbox", "events", "--follow", "-o", format];
        let mut child = host::command(uid, &argv)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Lines up to and with the first one that has this in it.
    fn until(&mut self, what: &str) -> Vec<String> {
        let mut seen = Vec::new();
        while !seen.last().is_some_and(|line: &String| line.contains(what)) {
            seen.push(self.lines.next().expect("it follows").unwrap());
        }
        seen
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn events_are_followed_everywhere() {
    ground::make(DEV);
    let mut followers = [(ROOT, "json"), (DEV, "json"), (DEV, "text")]
        .map(|(uid, format)| Follower::start(uid, format));
    for follower in &mut followers[..2] {
        follower.until("\"type\":\"watching\"");
    }
    let refused = |uid: u32| {
        let script = "echo $SANDBOX_ID; cat ~/.netrc";
        let argv = ["sandbox", "run", "--", "sh", "-c", script];
        let output = host::run_with(uid, WORK, &argv, "");
        host::text(&output.stdout).trim_end().to_owned()
    };
    let (roots, devs) = (refused(ROOT), refused(DEV));
    let [root, dev, text] = followers.each_mut().map(|it| it.until(&devs));
    // Root sees everybody's, everybody their own.
    assert_eq!(root.iter().filter(|line| line.contains(&roots)).count(), 1);
    for seen in [&dev, &text] {
        assert!(!seen.iter().any(|line| line.contains(&roots)), "{seen:?}");
    }
    let event: Value = serde_json::from_str(dev.last().unwrap()).unwrap();
    assert_eq!(event["type"], "denial", "{event:#}");
    assert_eq!(event["path"], "/home/dev/.netrc", "{event:#}");
    let line = text.last().unwrap();
    let (moment, rest) = line.split_once(' ').unwrap();
    assert!(moment.len() == 24 && moment.ends_with('Z'), "{line}");
    let says = format!("{devs} denied read /home/dev/.netrc (rule credentials) by cat[");
    assert!(rest.starts_with(&says), "{line}");
}

/// The events of `sandbox run --json 3` with arguments, and its status.
fn told(arguments: &str) -> (Vec<Value>, Option<i32>) {
    let script = format!("sandbox run --json 3 {arguments} 3>json >/dev/null 2>&1");
    let output = host::command(DEV, &["sh", "-c", &script])
        .env("GITHUB_TOKEN", "x")
        .current_dir(WORK)
        .output()
        .unwrap();
    let json = fs::read_to_string(format!("{WORK}/json")).unwrap();
    let events = json.lines().map(|line| serde_json::from_str(line).unwrap());
    (events.collect(), output.status.code())
}

async fn a_run_tells_its_events_in_json() {
    ground::make(DEV);
    let mut outside = host::command(DEV, &["sleep", "600"]).spawn().unwrap();
    let pid = outside.id();
    let script = format!(
        "(: >$(printf \"/home/dev/.ssh/\\377\")); cat /home/dev/.netrc; unshare -U true; \
         (echo >/dev/tcp/203.0.113.1/443); kill -0 {pid}; sandbox version; kill -TERM $$"
    );
    let (events, code) = told(&format!("-- bash -c '{script}'"));
    outside.kill().unwrap();
    outside.wait().unwrap();
    assert_eq!(code, Some(128 + 15), "{events:#?}");
    let (first, rest) = events.split_first().unwrap();
    assert_eq!(first["type"], "started", "{first:#}");
    assert_eq!(first["policy_name"], "default", "{first:#}");
    assert_eq!(first["observe"], false, "{first:#}");
    let withheld = first["withheld_env"].as_array().unwrap();
    assert!(withheld.contains(&"GITHUB_TOKEN".into()), "{first:#}");
    let (last, denials) = rest.split_last().unwrap();
    assert_eq!(last["type"], "exited", "{last:#}");
    assert_eq!(last["signal"], 15, "{last:#}");
    assert_eq!(last.get("code"), None, "{last:#}");
    assert_eq!(last["reason"], "exited", "{last:#}");
    assert_eq!(last["denied"], 6, "{events:#?}");
    let objects = [
        ("path_base64", json!("L2hvbWUvZGV2Ly5zc2gv/w==")),
        ("path", json!("/home/dev/.netrc")),
        ("facility", json!("user namespace")),
        ("address", json!("203.0.113.1:443")),
        ("target_pid", json!(pid)),
        ("unix_socket", json!(client::SOCKET)),
    ];
    assert_eq!(denials.len(), objects.len(), "{events:#?}");
    for (denial, (kind, object)) in denials.iter().zip(objects) {
        assert_eq!(denial["type"], "denial", "{denial:#}");
        assert_eq!(denial[kind], object, "{denial:#}");
        for field in ["sandbox_id", "exec_id", "policy_digest"] {
            assert_eq!(denial[field], first[field], "{denial:#}");
        }
        assert_eq!(denial["verdict"], "denied", "{denial:#}");
        assert_eq!(denial["count"], 1, "{denial:#}");
        assert_eq!(denial["uid"], DEV, "{denial:#}");
    }

    let observing = ground::POLICY.replace("name =", "mode = \"observe\"\nname =");
    fs::write(format!("{WORK}/../observing.toml"), observing).unwrap();
    let (events, code) = told("-p ../observing.toml -- cat ../secret/key");
    assert_eq!(code, Some(0), "{events:#?}");
    assert_eq!(events[0]["observe"], true, "{events:#?}");
    assert_eq!(events[1]["verdict"], "observed", "{events:#?}");
    assert_eq!(events[1]["path"], "/srv/ground/secret/key", "{events:#?}");
}

async fn a_run_that_fails_tells_why_in_json() {
    ground::make(DEV);
    fs::write(format!("{WORK}/wrong.toml"), "version = 1\nx = 1\n").unwrap();
    for (arguments, reason, status) in [
        ("-- no-such-command", "COMMAND_NOT_FOUND", 127),
        ("-- /etc", "NOT_EXECUTABLE", 126),
        ("-p none -- true", "POLICY_NOT_FOUND", 125),
        ("-p ./wrong.toml -- true", "POLICY_INVALID", 125),
        ("--rw /home/dev/.ssh -- true", "POLICY_INVALID", 125),
        ("--host unix:///none -- true", "DAEMON_UNREACHABLE", 125),
    ] {
        let (events, code) = told(arguments);
        assert_eq!(code, Some(status), "{arguments}: {events:#?}");
        let [event] = events.as_slice() else {
            panic!("{arguments}: {events:#?}");
        };
        assert_eq!(event["type"], "failed", "{event:#}");
        assert_eq!(event["reason"], reason, "{event:#}");
        assert_ne!(event["message"], "", "{event:#}");
    }
    // A command that ends so by itself has not failed.
    let (events, code) = told("-- sh -c 'exit 125'");
    assert_eq!(code, Some(125));
    assert_eq!(events.last().unwrap()["type"], "exited", "{events:#?}");
}
