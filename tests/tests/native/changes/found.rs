//! What is found, and what is no change.

use std::{fs, os::unix::fs::MetadataExt as _};

use sandbox_daemon::workspace::{Kind, Lines, Selection, Watch, Workspace, WorkspaceError};

use super::Ground;

#[test]
fn every_kind_of_change_is_found_at_its_path() {
    let ground = Ground::new(
        "echo a > mod; echo b > del; echo 'long enough' > old; echo t > type; ln -s mod link; \
         mkdir -p d/e gone/deep; echo x > d/e/f; echo y > gone/deep/f; echo same > same; \
         mkfifo pipe",
    );
    ground.inside(
        "echo more >> mod; rm del; mv old new; rm type; ln -s mod type; ln -sfn d link; \
         chmod 755 d/e/f; rm -r gone; mkdir empty; mkdir -p n/m; echo z > n/m/f",
    );
    assert_eq!(
        ground.letters(),
        [
            "M d/e/f",
            "D del",
            "A empty/",
            "D gone/",
            "D gone/deep/",
            "D gone/deep/f",
            "M link",
            "M mod",
            "A n/",
            "A n/m/",
            "A n/m/f",
            "R old > new",
            "T type",
        ]
    );
    let changes = ground.changes(&["d", "mod"]);
    assert_eq!(changes.len(), 2);
    let mode = &changes[0];
    assert!(!mode.contents && mode.kind == Kind::Modified);
    let modes = (mode.old.unwrap().mode, mode.new.unwrap().mode);
    assert_eq!(modes, (0o100_644, 0o100_755));
}

#[test]
fn what_is_as_it_was_is_no_change() {
    let ground = Ground::new("echo a > a; echo b > b; mkdir d; echo c > d/c; ln -s a l");
    ground.inside(
        "touch a; chmod 600 b; chmod 644 b; cp -p d/c x; rm d/c; mv x d/c; ln -sfn b l; \
         ln -sfn a l; mkdir t; rmdir t; mv d e; mv e d; echo z > z; rm z",
    );
    assert_eq!(ground.letters(), [""; 0]);
    // The control: the overlay does hold something.
    let upper = &ground.view.layers().unwrap().upper;
    let upper = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(upper));
    assert!(fs::read_dir(upper).unwrap().count() > 1);
}

#[test]
fn a_directory_that_was_moved_is_its_files_elsewhere() {
    let ground = Ground::new(
        "mkdir -p a/b; echo one of some length > a/one; echo two > a/b/two; mkdir opaque; \
         echo 1 > opaque/1; echo 2 > opaque/2",
    );
    ground.inside("mv a moved; rm -r opaque; mkdir opaque; echo 2 > opaque/2; echo 3 > opaque/3");
    assert_eq!(
        ground.letters(),
        [
            "D a/",
            "D a/b/",
            "A moved/",
            "A moved/b/",
            "R a/b/two > moved/b/two",
            "R a/one > moved/one",
            "D opaque/1",
            "A opaque/3",
        ]
    );
}

#[test]
fn a_file_becomes_a_directory_and_a_directory_a_file() {
    let ground = Ground::new("echo f > f; mkdir d; echo x > d/x");
    ground.inside("rm f; mkdir f; echo y > f/y; rm -r d; echo d > d");
    assert_eq!(ground.letters(), ["T d", "D d/x", "T f/", "A f/y"]);
}

#[test]
fn odd_names_are_names() {
    let ground = Ground::new("true");
    ground.inside(
        r#"touch -- "$(printf 'new\nline')" "$(printf 'caf\351')" 'quo"te' 'sp ace' '\back' "-dash""#,
    );
    assert_eq!(
        ground.letters(),
        [
            "A -dash",
            "A \\\\back",
            "A caf\\xe9",
            "A new\\x0aline",
            "A quo\"te",
            "A sp ace",
        ]
    );
}

#[test]
fn what_the_user_may_not_read_is_never_shown() {
    let ground = Ground::new("mkdir d; echo mine > d/mine");
    let secret = ground.path("d/secret");
    fs::write(&secret, "root's own\n").unwrap();
    fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    ground.inside("mv d e");
    let (patch, left_out) = ground.patch(true);
    let text = String::from_utf8(patch).unwrap();
    assert!(!text.contains("root's"), "{text}");
    assert!(text.contains("rename from d/mine"), "{text}");
    let unreadable = "cannot be read by the sandbox's user";
    assert_eq!(
        left_out,
        [
            format!("d/secret {unreadable}"),
            format!("e/secret {unreadable}")
        ]
    );
    // The control: root's eyes see it there.
    let dir = ground.dir.path().to_owned();
    let seen = ground
        .view
        .call(move || fs::read(dir.join("e/secret")).unwrap());
    assert_eq!(seen, b"root's own\n");
}

#[test]
fn attributes_of_the_users_are_compared_where_the_overlay_keeps_them() {
    let ground = Ground::new("echo a > a; echo b > b; echo c > c");
    for (name, attribute) in [("a", "user.kept"), ("b", "user.gone")] {
        xattr::set(ground.path(name), attribute, b"1").unwrap();
    }
    let [a, b, c] = ["a", "b", "c"].map(|name| ground.path(name));
    let kept = ground.view.call(move || {
        fs::OpenOptions::new().append(true).open(&a).unwrap();
        let _ = xattr::remove(&b, "user.gone");
        xattr::set(&c, "user.new", b"2").is_ok()
    });
    if kept {
        assert_eq!(ground.letters(), ["M b", "M c"]);
        assert_eq!(ground.changes(&["c"])[0].xattrs, ["user.new"]);
    } else {
        assert_eq!(ground.letters(), [""; 0]);
    }
}

#[test]
fn lines_are_counted_and_binaries_are_not() {
    let ground = Ground::new("seq 10 > text; printf 'a\\0b' > binary; echo x > mode");
    ground.inside("sed -i 3d text; echo 11 >> text; printf 'a\\0c' > binary; chmod +x mode");
    let workspace = Workspace::new(ground.view.layers().unwrap(), &ground.account);
    let lines: Vec<Lines> = ground
        .changes(&[])
        .iter()
        .map(|change| {
            workspace
                .lines(change, &mut Watch::new(&mut |_| true))
                .unwrap()
        })
        .collect();
    let text = Lines {
        binary: false,
        added: 1,
        deleted: 1,
    };
    let binary = Lines {
        binary: true,
        ..Lines::default()
    };
    assert_eq!(lines, [binary, Lines::default(), text]);
}

#[test]
fn twenty_thousand_files_and_two_gigabytes_of_nothing_are_found() {
    let ground = Ground::new("truncate -s 2G sparse; echo end >> sparse; truncate -s 2G same");
    ground.inside(
        "for d in $(seq 200); do mkdir -p t/$d; for f in $(seq 100); do echo $d $f > t/$d/$f; \
         done; done; truncate -s 3G sparse; touch same; truncate -s 2G new; mv new moved",
    );
    let start = std::time::Instant::now();
    let changes = ground.changes(&[]);
    eprintln!("20,000 files: {:?}", start.elapsed());
    // A directory of directories, two hundred, the files, and two that are sparse.
    assert_eq!(changes.len(), 1 + 200 + 20_000 + 2);
    let start = std::time::Instant::now();
    let (patch, _) = ground.patch(false);
    eprintln!("a patch of {} bytes: {:?}", patch.len(), start.elapsed());
}

#[test]
fn whoever_goes_away_ends_the_search() {
    let ground = Ground::new("true");
    ground.inside("for f in $(seq 1000); do echo $f > $f; done");
    let mut seen = 0;
    let mut tell = |files| {
        seen = files;
        files < 10
    };
    let workspace = Workspace::new(ground.view.layers().unwrap(), &ground.account);
    let found = workspace.changes(&Selection::default(), &mut Watch::new(&mut tell));
    assert!(matches!(found, Err(WorkspaceError::Cancelled)));
    assert_eq!(seen, 10);
}

#[test]
fn looking_changes_nothing() {
    let ground = Ground::new("mkdir d; echo a > d/a; echo b > b");
    let before = (
        ground.real(),
        fs::metadata(ground.path("d/a")).unwrap().ctime_nsec(),
    );
    ground.inside("echo c > d/a; rm b");
    let seen = ground.merged();
    ground.changes(&[]);
    ground.patch(true);
    let after = (
        ground.real(),
        fs::metadata(ground.path("d/a")).unwrap().ctime_nsec(),
    );
    assert_eq!(after, before);
    assert_eq!(ground.merged(), seen);
}
