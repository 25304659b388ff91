//! What may not be read does not exist.

use nix::errno::Errno;

use crate::{
    client,
    expect::{attack, check, compare},
    ground,
    host::{self, DEV, ROOT},
};

crate::trials![
    a_denied_file_is_not_there_to_be_opened,
    a_denied_file_is_not_there_to_be_seen,
    a_denied_directory_is_neither_listed_nor_seen,
    a_denied_file_is_not_there_for_another_path_to_it,
    a_descriptor_of_a_path_cannot_be_reopened,
    what_may_be_read_is_read,
    a_pipe_is_not_emptied_by_reading_it,
];

const SECRET: &str = "/srv/ground/secret";

async fn a_denied_file_is_not_there_to_be_opened() {
    check(&[
        attack(&["open", "secret/key", "r"]).hidden("open", "secret/key", SECRET),
        attack(&["open", "secret/key", "w"]).hidden("open", "secret/key", SECRET),
        attack(&["open", "secret/key", "rw"]).hidden("open", "secret/key", SECRET),
        attack(&["open", "secret/key", "append"]).hidden("open", "secret/key", SECRET),
        attack(&["open", "secret/key", "trunc"]).hidden("open", "secret/key", SECRET),
        attack(&["open", "secret/key", "creat"]).hidden("open", "secret/key", SECRET),
        attack(&["open", "secret/key", "neither"]).hidden("open", "secret/key", SECRET),
        attack(&["open", "work/hidden", "r"]).hidden("open", "work/hidden", "${workspace}/hidden"),
        attack(&["exec", "secret/program"]).hidden("open", "secret/program", SECRET),
    ])
    .await;
}

async fn a_denied_file_is_not_there_to_be_seen() {
    check(&[
        attack(&["stat", "secret/key"]).hidden("stat", "secret/key", SECRET),
        attack(&["lstat", "secret/link"]).hidden("stat", "secret/link", SECRET),
        attack(&["readlink", "secret/link"]).hidden("readlink", "secret/link", SECRET),
        attack(&["stat", "work/hidden"]).hidden("stat", "work/hidden", "${workspace}/hidden"),
    ])
    .await;
}

async fn a_denied_directory_is_neither_listed_nor_seen() {
    check(&[
        attack(&["list", "secret"]).hidden("open", "secret", SECRET),
        attack(&["list", "secret/directory"]).hidden("open", "secret/directory", SECRET),
        attack(&["stat", "secret/directory"]).hidden("stat", "secret/directory", SECRET),
        attack(&["stat", "secret"]).hidden("stat", "secret", SECRET),
    ])
    .await;
}

async fn a_denied_file_is_not_there_for_another_path_to_it() {
    let paths = [
        "work/../secret/key",
        "/srv/ground/secret/key",
        "work/to-secret",
        "work/to-directory/key",
        "/proc/self/cwd/secret/key",
        "/proc/self/root/srv/ground/secret/key",
        "/proc/thread-self/root/srv/ground/work/to-secret",
    ];
    let cases: Vec<_> = paths
        .iter()
        .map(|path| attack(&["read", path]).hidden("open", "secret/key", SECRET))
        .collect();
    check(&cases).await;
}

async fn a_descriptor_of_a_path_cannot_be_reopened() {
    check(&[
        attack(&["reopen", "secret/key", "r"]).hidden("open", "secret/key", SECRET),
        attack(&["reopen", "secret", "r+directory"]).hidden("open", "secret", SECRET),
        attack(&["reopen", "plain/file", "w"]).kept("open", "plain/file", "/"),
    ])
    .await;
}

async fn what_may_be_read_is_read() {
    check(&[
        attack(&["read", "plain/file"]).finds("content of plain/file"),
        attack(&["read", "plain/link"]).finds("content of plain/file"),
        attack(&["readlink", "plain/link"]).finds("file"),
        attack(&["list", "plain/directory"]).finds("0"),
        attack(&["stat", "plain/file"]).finds("22"),
        attack(&["read", "work/file"]).finds("content of work/file"),
        attack(&["read", "plain/missing"]).fails(Errno::ENOENT),
    ])
    .await;
}

/// What is read from it is not there any more for whom it was meant.
async fn a_pipe_is_not_emptied_by_reading_it() {
    let pipe = "plain/pipe";
    for uid in [DEV, ROOT] {
        ground::make(uid);
        host::output(uid, &["mkfifo", "/srv/ground/plain/pipe"]);
        let cases = [
            attack(&["open", pipe, "r"]).kept("open", pipe, "/"),
            attack(&["open", pipe, "rw"]).kept("open", pipe, "/"),
            attack(&["mkfifo", "work/pipe"]).passes(),
            attack(&["open", "work/pipe", "r"]).passes(),
            attack(&["stat", pipe]).finds("0"),
        ];
        let steps: Vec<&[&str]> = cases.iter().map(|case| case.step.as_slice()).collect();
        let mut client = client::root().await;
        let ran = client::run(&mut client, ground::attacker(uid, &steps)).await;
        compare(uid, &cases, &ran);
        for step in &steps[..2] {
            assert_eq!(host::attack(uid, ground::GROUND, step), "ok");
        }
    }
}
