//! No silence: every refusal is told or counted, to everybody who may know.

use std::{collections::BTreeMap, fs, os::unix::ffi::OsStrExt as _};

use sandbox_daemon::proto::{
    Denial, GetInfoRequest, WatchEventsRequest, denial::Object, watch_events_response::Response,
};
use tonic::{Code, Streaming};

use crate::{
    client::{self, Client, run},
    ground,
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
    for name in ["files", "network"] {
        let wall = info.walls.iter().find(|wall| wall.name == name);
        assert!(wall.is_some_and(|wall| wall.in_force), "{info:#?}");
    }
    assert!(info.denied >= info.emitted, "{info:#?}");
}
