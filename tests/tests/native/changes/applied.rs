//! Changes that are written to the real workspace.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
};

use sandbox_daemon::workspace::WorkspaceError;

use super::{Ground, How, POLICY, host};

#[test]
fn what_was_applied_is_what_the_sandbox_sees_and_no_change_any_more() {
    let mut ground = Ground::new(
        "echo a > mod; echo b > del; echo 'long enough' > old; echo t > type; ln -s mod link; \
         mkdir -p d/e gone/deep; echo x > d/e/f; echo y > gone/deep/f; echo f > f2d; mkdir d2f; \
         echo in > d2f/in",
    );
    ground.inside(
        "echo more >> mod; rm del; mv old new; rm type; ln -s mod type; ln -sfn d link; \
         chmod 751 d/e/f; rm -r gone; mkdir empty; mkdir -p n/m; echo z > n/m/f; chmod 711 n/m; \
         rm f2d; mkdir f2d; echo y > f2d/y; rm -r d2f; echo z > d2f; chmod 600 d2f",
    );
    let wanted = ground.merged();
    let before = ground.real();
    let all = ground.letters();
    let dry_run = How {
        dry_run: true,
        ..How::default()
    };
    let tried = ground.apply_how(&[], dry_run).unwrap();
    assert_eq!((tried.applied, ground.real()), (all, before));
    let report = ground.apply();
    assert!(report.left_out.is_empty(), "{report:?}");
    assert_eq!(ground.real(), wanted);
    assert_eq!(ground.merged(), wanted);
    assert_eq!(ground.letters(), [""; 0]);
    let meta = fs::metadata(ground.path("n/m/f")).unwrap();
    assert_eq!(meta.uid(), crate::support::USER);
}

#[test]
fn only_what_is_chosen_is_applied() {
    let mut ground = Ground::new("echo a > a; echo b > b; mkdir d; echo c > d/c");
    ground.inside("echo x >> a; echo x >> b; mkdir d/n; echo x > d/n/x; echo y > d/n/y; rm d/c");
    let report = ground.apply_how(&["a", "d/n/x"], How::default()).unwrap();
    assert_eq!(report.applied, ["M a", "A d/n/x"]);
    assert_eq!(ground.letters(), ["M b", "D d/c", "A d/n/y"]);
    assert_eq!(fs::read(ground.path("d/c")).unwrap(), b"c\n");
}

#[test]
fn applied_twice_is_no_conflict_with_itself() {
    let mut ground = Ground::new("echo a > a");
    ground.inside("echo 1 > a; echo 1 > new");
    ground.apply();
    ground.inside("echo 2 > a; rm new");
    assert_eq!(ground.apply().applied, ["M a", "D new"]);
    assert_eq!(fs::read(ground.path("a")).unwrap(), b"2\n");
    // The control: somebody else's change of it is one.
    ground.inside("echo 3 > a");
    ground.outside("echo other > a");
    let changed = "was made or changed in the real workspace since the sandbox began";
    assert_eq!(ground.conflicts(), [format!("a {changed}")]);
}

#[test]
fn a_conflict_refuses_all_of_it() {
    let mut ground = Ground::new(
        "echo a > edited; echo b > fine; mkdir gone; echo c > gone/c; echo d > moved-over",
    );
    ground.inside("echo in >> edited; echo in >> fine; rm -r gone; echo in > new; echo x > dir");
    ground.outside("echo out >> edited; echo out > new; echo out > gone/added; mkdir dir");
    let before = ground.real();
    let changed = "was made or changed in the real workspace since the sandbox began";
    assert_eq!(
        ground.conflicts(),
        ["edited", "gone/added", "new"].map(|path| format!("{path} {changed}"))
    );
    assert_eq!(ground.real(), before);
    // What has none can be applied alone, and by force all can.
    let report = ground.apply_how(&["fine"], How::default()).unwrap();
    assert_eq!(report.applied, ["M fine"]);
    let force = How {
        force: true,
        ..How::default()
    };
    let report = ground.apply_how(&["edited", "new", "gone"], force).unwrap();
    assert_eq!(report.left_out, [""; 0]);
    assert_eq!(fs::read(ground.path("edited")).unwrap(), b"a\nin\n");
    assert!(!ground.path("gone").exists());
}

#[test]
fn an_index_that_git_wrote_outside_too_is_no_conflict() {
    let mut ground = Ground::new("git init -q .; echo a > a; git add a");
    ground.inside("echo b > b; git add b");
    ground.outside("echo c > c; git add c");
    let index = fs::read(ground.path(".git/index")).unwrap();
    let report = ground.apply();
    assert!(report.applied.contains(&"A b".to_owned()), "{report:?}");
    let stale = ".git/index was written by git in the real workspace too; `git reset` makes \
                 it anew";
    assert_eq!(report.left_out, [stale]);
    assert_eq!(fs::read(ground.path(".git/index")).unwrap(), index);
}

#[test]
fn a_rename_of_a_directory_keeps_what_the_sandbox_sees() {
    let mut ground = Ground::new("mkdir -p a/b; seq 1000 > a/b/c; echo d > a/d; ln -s d a/l");
    ground.inside("mv a z");
    let wanted = ground.merged();
    ground.apply();
    assert_eq!(ground.real(), wanted);
    assert_eq!(ground.merged(), wanted);
    // Without what is remembered of files, the overlay has to find them again.
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    assert_eq!(ground.merged(), wanted);
    assert_eq!(ground.letters(), [""; 0]);
    ground.inside("echo more >> z/b/c");
    assert_eq!(ground.letters(), ["M z/b/c"]);
}

#[test]
fn hard_links_outside_keep_what_they_had() {
    let mut ground = Ground::new("echo a > a; ln a b; echo m > m; ln m n");
    ground.inside("echo x > a; chmod 600 m");
    let inode = fs::metadata(ground.path("m")).unwrap().ino();
    ground.apply();
    assert_eq!(fs::read(ground.path("a")).unwrap(), b"x\n");
    assert_eq!(fs::read(ground.path("b")).unwrap(), b"a\n");
    // Permissions alone change the file that is there.
    let meta = fs::metadata(ground.path("m")).unwrap();
    assert_eq!((meta.ino(), meta.mode() & 0o777), (inode, 0o600));
}

#[test]
fn attributes_survive_whether_the_overlay_keeps_them_or_not() {
    let mut ground = Ground::prepared(POLICY, |dir| {
        host(dir, "echo a > a");
        xattr::set(dir.join("a"), "user.kept", b"1").unwrap();
    });
    ground.inside("echo b >> a");
    ground.apply();
    assert_eq!(fs::read(ground.path("a")).unwrap(), b"a\nb\n");
    let kept = xattr::get(ground.path("a"), "user.kept").unwrap();
    assert_eq!(kept.as_deref(), Some(&b"1"[..]));
}

#[test]
fn two_gigabytes_of_nothing_are_applied_as_that() {
    let mut ground = Ground::new("true");
    ground.inside("truncate -s 2G big; echo end >> big");
    let start = std::time::Instant::now();
    ground.apply();
    eprintln!("2 GiB applied: {:?}", start.elapsed());
    let meta = fs::metadata(ground.path("big")).unwrap();
    assert_eq!(meta.len(), (2 << 30) + 4);
    assert!(meta.blocks() < 4096, "{}", meta.blocks());
}

#[test]
fn twenty_thousand_files_are_applied() {
    let mut ground = Ground::new("true");
    ground.inside(
        "for d in $(seq 200); do mkdir -p t/$d; for f in $(seq 100); do echo $d $f > t/$d/$f; \
         done; done",
    );
    let start = std::time::Instant::now();
    let report = ground.apply();
    eprintln!("20,000 files applied: {:?}", start.elapsed());
    assert_eq!(report.applied.len(), 1 + 200 + 20_000);
    assert_eq!(ground.letters(), [""; 0]);
}

#[test]
fn what_the_user_may_not_write_is_refused_before_anything_is_written() {
    let mut ground = Ground::new("mkdir closed; echo a > closed/a; echo b > b; chmod 555 closed");
    ground.inside("chmod 755 closed; echo x > closed/a; chmod 555 closed; echo x > b");
    let before = ground.real();
    match ground.apply_how(&[], How::default()) {
        Err(WorkspaceError::NotWritable(found)) => assert_eq!(found.len(), 1),
        other => panic!("{other:?}"),
    }
    assert_eq!(ground.real(), before);
    // The control: what the sandbox opened for good is opened first.
    ground.inside("chmod 755 closed");
    assert_eq!(ground.apply().applied, ["M b", "M closed/", "M closed/a"]);
    assert_eq!(fs::read(ground.path("closed/a")).unwrap(), b"x\n");
}

#[test]
fn a_closed_directory_arrives_closed_and_full() {
    let mut ground = Ground::new("mkdir -p old/in; echo x > old/in/x; chmod 555 old/in");
    ground.inside(
        "mkdir -p new/in; echo y > new/in/y; chmod 555 new/in new; chmod 755 old/in; rm -r old",
    );
    let wanted = ground.merged();
    assert_eq!(ground.apply().left_out, [""; 0]);
    assert_eq!(ground.real(), wanted);
    let mode = fs::metadata(ground.path("new/in")).unwrap().permissions();
    assert_eq!(mode.mode() & 0o777, 0o555);
}

#[test]
fn files_that_change_meanwhile_are_told_of() {
    let mut ground = Ground::new("echo a > a; echo b > b; echo c > c");
    ground.inside("echo x > a; echo x > b; echo x > c; echo x > d");
    let changes = ground.changes(&[]);
    // After the search, before the check.
    ground.outside("echo new > d");
    assert!(matches!(
        ground.apply_these(&changes, How::default()),
        Err(WorkspaceError::Conflict(found)) if found.len() == 1
    ));
    ground.outside("rm d");
    ground.inside("rm b; rm c; mkdir c");
    let report = ground.apply_these(&changes, How::default()).unwrap();
    let gone = "was changed by the sandbox just now";
    assert_eq!(report.left_out, [format!("b {gone}"), format!("c {gone}")]);
    assert_eq!(report.applied, ["M a", "A d"]);
}
