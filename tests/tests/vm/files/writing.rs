//! What may not be written stays as it is.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use nix::errno::Errno;
use sandbox_daemon::proto::Right;

use crate::{
    client,
    expect::{attack, check, compare, control},
    ground::{self, GROUND},
    host::{self, DEV, ROOT},
};

crate::trials![
    a_readable_file_cannot_be_opened_for_writing,
    a_readable_file_cannot_be_truncated,
    nothing_can_be_made_in_a_readable_directory,
    a_file_without_a_name_cannot_be_made_in_a_readable_directory,
    nothing_can_be_removed_from_a_readable_directory,
    nothing_can_be_moved_out_of_into_or_over_a_readable_place,
    a_readable_file_keeps_its_mode_owner_and_times,
    no_program_is_made_that_runs_as_somebody_else,
    a_program_that_runs_as_somebody_else_is_not_changed,
    a_place_below_a_writable_one_can_be_read_only,
    a_directory_above_a_ruled_place_cannot_be_moved,
    what_is_denied_is_not_written_either,
    what_may_be_written_is_written,
];

async fn a_readable_file_cannot_be_opened_for_writing() {
    check(&[
        attack(&["open", "plain/file", "w"]).kept("open", "plain/file", "/"),
        attack(&["open", "plain/file", "rw"]).kept("open", "plain/file", "/"),
        attack(&["open", "plain/file", "append"]).kept("open", "plain/file", "/"),
        attack(&["open", "plain/file", "trunc"]).kept("open", "plain/file", "/"),
        attack(&["open", "plain/file", "creat"]).kept("open", "plain/file", "/"),
        attack(&["open", "plain/file", "neither"]).kept("open", "plain/file", "/"),
        attack(&["append", "plain/link"]).kept("open", "plain/file", "/"),
    ])
    .await;
}

async fn a_readable_file_cannot_be_truncated() {
    check(&[
        attack(&["truncate", "plain/file"]).kept("truncate", "plain/file", "/"),
        attack(&["open", "plain/file", "trunc-only"]).kept("truncate", "plain/file", "/"),
    ])
    .await;
}

async fn nothing_can_be_made_in_a_readable_directory() {
    check(&[
        attack(&["open", "plain/new", "creat"]).kept("create", "plain/new", "/"),
        attack(&["open", "plain/new", "creat+excl"]).kept("create", "plain/new", "/"),
        attack(&["mkdir", "plain/made"]).kept("mkdir", "plain/made", "/"),
        attack(&["mkfifo", "plain/fifo"]).kept("mknod", "plain/fifo", "/"),
        attack(&["bind", "plain/socket"]).kept("mknod", "plain/socket", "/"),
        attack(&["symlink", "file", "plain/alias"]).kept("symlink", "plain/alias", "/"),
        attack(&["link", "work/file", "plain/hard"]).kept("link", "plain/hard", "/"),
    ])
    .await;
}

async fn a_file_without_a_name_cannot_be_made_in_a_readable_directory() {
    for uid in [DEV, ROOT] {
        ground::make(uid);
        let steps: [&[&str]; 2] = [&["open", "plain", "tmpfile"], &["open", "work", "tmpfile"]];
        let ran = client::run(&mut client::root().await, ground::attacker(uid, &steps)).await;
        assert_eq!(ran.lines(), ["EACCES", "ok"], "{ran:?}");
        let [denial] = ran.denials.as_slice() else {
            panic!("{ran:?}");
        };
        let path = &denial.object_display;
        assert!(
            path.starts_with(&format!("{GROUND}/plain/#")),
            "{denial:#?}"
        );
        assert_eq!(denial.right(), Right::Write);
        assert_eq!(host::attack(uid, GROUND, steps[0]), "ok");
    }
}

async fn nothing_can_be_removed_from_a_readable_directory() {
    check(&[
        attack(&["unlink", "plain/file"]).kept("unlink", "plain/file", "/"),
        attack(&["unlink", "plain/link"]).kept("unlink", "plain/link", "/"),
        attack(&["rmdir", "plain/directory"]).kept("rmdir", "plain/directory", "/"),
    ])
    .await;
}

async fn nothing_can_be_moved_out_of_into_or_over_a_readable_place() {
    check(&[
        attack(&["rename", "plain/file", "work/new"]).kept("rename", "plain/file", "/"),
        attack(&["rename", "plain/directory", "work/new"]).kept("rename", "plain/directory", "/"),
        attack(&["rename", "work/file", "plain/new"]).kept("rename", "plain/new", "/"),
        attack(&["rename-new", "work/file", "plain/other"]).kept("rename", "plain/other", "/"),
        attack(&["rename", "work/file", "plain/file"]).kept("rename", "plain/file", "/"),
        attack(&["exchange", "work/file", "plain/file"]).kept("rename", "plain/file", "/"),
        attack(&["exchange", "plain/file", "work/file"]).kept("rename", "plain/file", "/"),
    ])
    .await;
}

async fn a_readable_file_keeps_its_mode_owner_and_times() {
    check(&[
        attack(&["chmod", "plain/file"]).kept("setattr", "plain/file", "/"),
        attack(&["fchmod", "plain/file"]).kept("setattr", "plain/file", "/"),
        attack(&["chown", "plain/file"]).kept("setattr", "plain/file", "/"),
        attack(&["utimes", "plain/file"]).kept("setattr", "plain/file", "/"),
        attack(&["chmod", "plain/directory"]).kept("setattr", "plain/directory", "/"),
    ])
    .await;
}

async fn no_program_is_made_that_runs_as_somebody_else() {
    let refused = |step: &[&'static str], operation, object| {
        attack(step).refused(Errno::EPERM, Right::Write, operation, object, "setuid")
    };
    check(&[
        refused(&["mode", "work/file", "4755"], "setattr", "work/file"),
        refused(&["mode", "work/file", "4600"], "setattr", "work/file"),
        refused(&["mode", "work/file", "2755"], "setattr", "work/file"),
        refused(&["make", "work/new", "4755"], "create", "work/new"),
        refused(&["make", "work/new", "6711"], "create", "work/new"),
    ])
    .await;
    // Without a name it is refused as it is opened.
    for uid in [DEV, ROOT] {
        ground::make(uid);
        let step = ["make-nameless", "work", "4755"];
        let ran = client::run(&mut client::root().await, ground::attacker(uid, &[&step])).await;
        assert_eq!(ran.lines(), ["EPERM"], "{ran:?}");
        let [denial] = ran.denials.as_slice() else {
            panic!("{ran:?}");
        };
        assert_eq!(
            (denial.operation.as_str(), denial.rule.as_str()),
            ("open", "setuid")
        );
        assert_eq!(host::attack(uid, GROUND, &step), "ok");
    }
    check(&[
        attack(&["mode", "work/directory", "2775"]).passes(),
        attack(&["mode", "work/file", "1755"]).passes(),
        attack(&["make", "work/new", "644"]).passes(),
    ])
    .await;
}

async fn a_program_that_runs_as_somebody_else_is_not_changed() {
    for uid in [DEV, ROOT] {
        ground::make(uid);
        let mode = fs::Permissions::from_mode(0o4755);
        fs::set_permissions(Path::new(GROUND).join("work/file"), mode).unwrap();
        let case = |step: &[&'static str], operation| {
            let case = attack(step);
            case.refused(Errno::EPERM, Right::Write, operation, "work/file", "setuid")
        };
        let cases = [
            case(&["append", "work/file"], "open"),
            case(&["mode", "work/file", "6755"], "setattr"),
            attack(&["mode", "work/file", "4700"]).passes(),
            attack(&["mode", "work/file", "755"]).passes(),
        ];
        let steps: Vec<&[&str]> = cases.iter().map(|case| case.step.as_slice()).collect();
        let ran = client::run(&mut client::root().await, ground::attacker(uid, &steps)).await;
        compare(uid, &cases, &ran);
        // The control: without the bit it is written.
        for case in &cases {
            control(uid, case);
        }
    }
}

async fn a_place_below_a_writable_one_can_be_read_only() {
    let rule = "${workspace}/readonly";
    let below = "work/readonly/file";
    check(&[
        attack(&["read", below]).finds("content of work/readonly/file"),
        attack(&["append", below]).kept("open", below, rule),
        attack(&["truncate", below]).kept("truncate", below, rule),
        attack(&["unlink", below]).kept("unlink", below, rule),
        attack(&["chmod", below]).kept("setattr", below, rule),
        attack(&["rename", below, "work/new"]).kept("rename", below, rule),
        attack(&["rename", "work/file", below]).kept("rename", below, rule),
        attack(&["exchange", "work/file", below]).kept("rename", below, rule),
        attack(&["open", "work/readonly/new", "creat"]).kept("create", "work/readonly/new", rule),
        attack(&["rmdir", "work/readonly/directory"]).kept(
            "rmdir",
            "work/readonly/directory",
            rule,
        ),
        attack(&["rename", "work/readonly", "work/new"]).kept("rename", "work/readonly", rule),
        attack(&["exchange", "work/readonly", "work/empty"]).kept("rename", "work/readonly", rule),
        attack(&["chmod", "work/readonly"]).kept("setattr", "work/readonly", rule),
    ])
    .await;
}

async fn a_directory_above_a_ruled_place_cannot_be_moved() {
    let rule = "${workspace}/pinned/deep/file";
    check(&[
        attack(&["rename", "work/pinned", "work/new"]).kept("rename", "work/pinned", rule),
        attack(&["exchange", "work/pinned", "work/empty"]).kept("rename", "work/pinned", rule),
        attack(&["exchange", "work/empty", "work/pinned"]).kept("rename", "work/pinned", rule),
        attack(&["rename", "work/pinned/deep", "work/new"]).kept(
            "rename",
            "work/pinned/deep",
            rule,
        ),
        attack(&["rename", "work/pinned/deep/file", "work/new"]).kept(
            "rename",
            "work/pinned/deep/file",
            rule,
        ),
        attack(&["unlink", "work/pinned/deep/file"]).kept("unlink", "work/pinned/deep/file", rule),
        attack(&["rmdir", "work/pinned/deep"])
            .kept("rmdir", "work/pinned/deep", rule)
            .outside("ENOTEMPTY"),
    ])
    .await;
    // But it may be worked in.
    check(&[
        attack(&["open", "work/pinned/new", "creat"]).passes(),
        attack(&["open", "work/pinned/deep/new", "creat"]).passes(),
        attack(&["chmod", "work/pinned"]).passes(),
    ])
    .await;
}

async fn what_is_denied_is_not_written_either() {
    let rule = "/srv/ground/secret";
    check(&[
        attack(&["truncate", "secret/key"]).kept("truncate", "secret/key", rule),
        attack(&["unlink", "secret/key"]).kept("unlink", "secret/key", rule),
        attack(&["rename", "secret/key", "work/new"]).kept("rename", "secret/key", rule),
        attack(&["rename", "work/file", "secret/key"]).kept("rename", "secret/key", rule),
        attack(&["rename", "secret", "work/new"]).kept("rename", "secret", rule),
        attack(&["exchange", "work/empty", "secret"]).kept("rename", "secret", rule),
        attack(&["chmod", "secret/key"]).kept("setattr", "secret/key", rule),
        attack(&["open", "secret/new", "creat"]).kept("create", "secret/new", rule),
        attack(&["mkdir", "secret/made"]).kept("mkdir", "secret/made", rule),
    ])
    .await;
}

async fn what_may_be_written_is_written() {
    check(&[
        attack(&["append", "work/file"]).passes(),
        attack(&["truncate", "work/file"]).passes(),
        attack(&["open", "work/new", "creat+excl"]).passes(),
        attack(&["open", "work", "tmpfile"]).passes(),
        attack(&["mkdir", "work/made"]).passes(),
        attack(&["mkfifo", "work/fifo"]).passes(),
        attack(&["bind", "work/socket"]).passes(),
        attack(&["symlink", "file", "work/alias"]).passes(),
        attack(&["link", "work/other", "work/hard"]).passes(),
        attack(&["rename", "work/file", "work/renamed"]).passes(),
        attack(&["exchange", "work/empty", "work/other"]).passes(),
        attack(&["chmod", "work/other"]).passes(),
        attack(&["utimes", "work/other"]).passes(),
        attack(&["unlink", "work/key"]).fails(Errno::ENOENT),
        attack(&["unlink", "work/empty"]).uncontrolled(),
        attack(&["rmdir", "work/other"]).uncontrolled(),
        attack(&["open", "/tmp/file", "creat"]).uncontrolled(),
        attack(&["open", "/dev/null", "rw"]).passes(),
    ])
    .await;
}
