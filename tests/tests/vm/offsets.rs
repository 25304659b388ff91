//! A wrong offset must be noticed before anybody relies on the walls: this
//! program raises them as sandboxd does, but takes one member for another.

use std::{
    ffi::OsString,
    fs,
    os::fd::AsFd as _,
    path::Path,
    process::{Command, ExitCode, Output},
};

use sandbox_daemon::{
    cgroup::{Hierarchy, Slice},
    chain::Chain,
    kernel::{Options, PIN_DIRECTORY},
    selftest, walls,
};

use crate::{
    host::{self, text},
    restart,
};

crate::trials![
    a_wrong_offset_of_a_file_is_noticed_before_the_daemon_serves,
    a_wrong_offset_of_a_task_or_socket_is_noticed_before_the_daemon_serves,
    a_missing_member_is_refused_by_its_name,
];

/// The argument with which this program raises the walls, with the mistake to
/// make behind it.
pub(crate) const WALLS: &str = "--walls";

/// The argument with which the self-test starts this program as its canary.
pub(crate) const CANARY: &str = "--canary";

/// What the daemon does before it serves; then it ends. The walls stay.
pub(crate) fn raise(mistake: &[OsString]) -> ExitCode {
    let words: Vec<_> = mistake.iter().filter_map(|it| it.to_str()).collect();
    let mistake = match words[..] {
        [constant, member] => Some((constant, member)),
        _ => None,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let slice = Hierarchy::find().and_then(|it| it.slice(Slice::NAME));
    let slice = slice.unwrap();
    let options = Options {
        slice: slice.cgroup().as_fd(),
        slice_id: slice.id(),
        sandbox_level: slice.sandbox_level(),
        event_burst: 4096,
        event_rate: 512,
        mistake,
    };
    let program = std::env::current_exe().unwrap();
    let directory = Path::new("/run/sandboxd");
    let raised = runtime.block_on(walls::raise(&options, &slice, directory, &program));
    match raised {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", Chain::of(&error));
            ExitCode::FAILURE
        }
    }
}

/// The canary of these walls.
pub(crate) fn canary(directory: &Path) -> ExitCode {
    selftest::canary(directory)
}

/// A constant, what is taken for it, and what the self-test says about that.
type Mistake = (&'static str, &'static str, &'static str);

/// What is read of files. The second is a pointer, whose type the verifier knows.
const OF_FILES: [Mistake; 3] = [
    (
        "INODE__I_INO",
        "i_size",
        "`/proc` is taken for another file",
    ),
    (
        "DENTRY__D_PARENT",
        "d_inode",
        "refuses the program `file_open`",
    ),
    ("FILE__F_MODE", "f_flags", "the self-test does not start"),
];
const MORE_OF_FILES: [Mistake; 3] = [
    (
        "DENTRY__D_NAME_NAME",
        "d_fsdata",
        "to read an open file gave No such file or directory",
    ),
    (
        "SUPER_BLOCK__S_DEV",
        "s_count",
        "`/proc` is taken for another file",
    ),
    (
        "SUPER_BLOCK__S_MAGIC",
        "s_maxbytes",
        "to write a setting of the kernel gave success",
    ),
];

/// What is read of others' tasks and sockets.
const OF_OTHERS: [Mistake; 2] = [
    (
        "TASK_STRUCT__CGROUPS",
        "signal",
        // It is refused its own limits.
        "the self-test does not start",
    ),
    (
        "SOCK__SK_CGRP_DATA_CGROUP",
        "sk_user_data",
        "to connect to a Unix socket of its own gave Operation not permitted",
    ),
];
const MORE_OF_OTHERS: [Mistake; 4] = [
    ("MM_STRUCT__EXE_FILE", "pgd", "were recorded as"),
    ("UNIX_SOCK__PATH_DENTRY", "path.mnt", "were recorded as"),
    ("TASK_STRUCT__TGID", "prio", "were recorded as"),
    ("CGROUP__KN", "root", "the self-test does not start"),
];

async fn a_wrong_offset_of_a_file_is_noticed_before_the_daemon_serves() {
    restart::end_the_daemon(nix::sys::signal::Signal::SIGHUP).await;
    fs::remove_dir_all(PIN_DIRECTORY).unwrap();
    // The control: without a mistake they are raised.
    let control = walls(&[]);
    assert!(control.status.success(), "{control:?}");
    assert_eq!(restart::attached().len(), 1);
    noticed(&OF_FILES, &MORE_OF_FILES).await;
}

async fn a_wrong_offset_of_a_task_or_socket_is_noticed_before_the_daemon_serves() {
    restart::end_the_daemon(nix::sys::signal::Signal::SIGHUP).await;
    noticed(&OF_OTHERS, &MORE_OF_OTHERS).await;
}

async fn a_missing_member_is_refused_by_its_name() {
    let error = text(&walls(&["INODE__I_INO", "i_nothing"]).stderr);
    let missing = "this kernel has no `inode.i_nothing`";
    assert!(error.contains(missing), "{error}");
    assert_eq!(restart::attached().len(), 1);
}

/// Each load takes seconds: most mistakes wait for the long variant.
async fn noticed(mistakes: &[Mistake], more: &[Mistake]) {
    // Earlier walls would refuse what these let through.
    fs::remove_dir_all(PIN_DIRECTORY).unwrap();
    let more = if host::long() { more } else { &[] };
    let mut wrong = Vec::new();
    for (constant, member, complaint) in mistakes.iter().chain(more) {
        let output = walls(&[constant, member]);
        let error = text(&output.stderr);
        if output.status.success() || !error.contains(complaint) {
            wrong.push(format!("{constant} as {member}: {error}"));
        }
        // Nothing of it stays.
        let left = (restart::attached(), host::sandboxes());
        if (left.0.len(), left.1.len()) != (0, 0) {
            wrong.push(format!("{constant} as {member} left {left:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    restart::start_another("/tmp/sandboxd-offsets.log").await;
}

fn walls(mistake: &[&str]) -> Output {
    Command::new(host::this_program())
        .arg(WALLS)
        .args(mistake)
        .output()
        .unwrap()
}
