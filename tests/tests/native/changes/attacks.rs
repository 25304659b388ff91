//! What a sandbox could try with what is applied. Each attack is really made, and
//! what it would do without the refusal is shown beside it.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, symlink},
};

use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use sandbox_daemon::workspace::{Selection, WorkspaceError};

use super::{Ground, How, POLICY};

const OUTSIDE: &str = "is a symbolic link that leads out of the workspace";

#[test]
fn a_link_that_is_swapped_in_is_not_followed() {
    let outside = tempfile::tempdir().unwrap();
    fs::set_permissions(
        outside.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o777),
    )
    .unwrap();
    let mut ground = Ground::new("mkdir d e; echo a > d/a; echo b > e/b");
    ground.inside("echo attack > d/a; echo attack > d/new; echo x > e/b");
    let changes = ground.changes(&[]);
    // Somebody outside, or an earlier sandbox, puts a link where a directory was.
    let place = outside.path().display();
    ground.outside(&format!("mv d was-d; ln -s {place} d"));
    match ground.apply_these(&changes, How::default()) {
        Err(WorkspaceError::Conflict(found)) => assert!(found.len() >= 2, "{found:?}"),
        other => panic!("{other:?}"),
    }
    let force = How {
        force: true,
        ..How::default()
    };
    let again = ground.apply_how(&["d"], How::default());
    assert!(
        matches!(again, Err(WorkspaceError::Conflict(_))),
        "{again:?}"
    );
    // The control: by its path, a file does land outside.
    ground.outside("echo control > d/control");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    // By force the link is replaced, and still not followed.
    ground.apply_how(&["d"], force).unwrap();
    assert!(fs::symlink_metadata(ground.path("d")).unwrap().is_dir());
    assert_eq!(fs::read(ground.path("d/new")).unwrap(), b"attack\n");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
}

#[test]
fn a_link_in_the_place_of_a_file_is_replaced_and_not_written_through() {
    let outside = tempfile::tempdir().unwrap();
    let target = outside.path().join("target");
    fs::write(&target, "kept").unwrap();
    fs::set_permissions(&target, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    fs::set_permissions(
        outside.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o777),
    )
    .unwrap();
    let mut ground = Ground::new(&format!("ln -s {} link", target.display()));
    ground.inside("rm link; echo attack > link");
    assert_eq!(ground.apply().applied, ["T link"]);
    assert_eq!(fs::read(&target).unwrap(), b"kept");
    assert!(
        !fs::symlink_metadata(ground.path("link"))
            .unwrap()
            .is_symlink()
    );
}

#[test]
fn links_out_of_the_workspace_are_left_out_unless_asked_for() {
    let mut ground = Ground::new("mkdir d; echo a > a");
    ground.inside(
        "ln -s /etc/passwd abs; ln -s ../../etc up; ln -s ../a d/fine; ln -s d/../.. winding; \
         ln -s a in; ln -s ../.. d/up",
    );
    let wanted = ground.merged();
    let report = ground.apply();
    assert_eq!(report.applied, ["A d/fine", "A in"]);
    assert_eq!(
        report.left_out,
        ["abs", "d/up", "up", "winding"].map(|path| format!("{path} {OUTSIDE}"))
    );
    // The control.
    let asked = How {
        outside_links: true,
        ..How::default()
    };
    let report = ground.apply_how(&[], asked).unwrap();
    assert_eq!(report.applied.len(), 4);
    assert_eq!(ground.real(), wanted);
}

#[test]
fn paths_do_not_lead_out() {
    for path in ["../x", "a/../../x", "/etc/passwd"] {
        assert!(Selection::new([path.into()]).is_err(), "{path}");
    }
}

#[test]
fn privileges_are_taken_off() {
    let mut ground = Ground::new("echo a > a; echo b > b; chmod 4755 b");
    ground.inside(
        "cp /bin/true suid; chmod 4755 suid; cp /bin/true sgid; chmod 2755 sgid; \
         chmod 6755 a; chmod 4700 b; mkdir d; chmod 1777 d",
    );
    let seen = ground.merged();
    assert_eq!(seen[std::path::Path::new("suid")].1, 0o4755);
    let report = ground.apply();
    assert_eq!(
        report.left_out,
        [
            "a is applied without its set-user-ID and set-group-ID bits",
            "d is applied without its sticky bit",
            "sgid is applied without its set-group-ID bit",
            "suid is applied without its set-user-ID bit",
        ]
    );
    let mode = |name: &str| fs::metadata(ground.path(name)).unwrap().mode() & 0o7777;
    assert_eq!(
        ["a", "d", "sgid", "suid"].map(mode),
        [0o755, 0o777, 0o755, 0o755]
    );
    // What the real file has already, it keeps.
    assert_eq!(mode("b"), 0o4700);
}

#[test]
fn devices_pipes_and_sockets_are_left_out() {
    let mut ground = Ground::new("echo a > a; mkfifo was");
    ground.inside("mkfifo pipe; rm a; mkfifo a; rm was; echo file > was");
    let device = ground.path("dev");
    ground.view.call(move || {
        let mode = Mode::from_bits_truncate(0o666);
        mknod(&device, SFlag::S_IFBLK, mode, makedev(7, 0)).unwrap();
    });
    let special = "is a device, a pipe or a socket";
    let report = ground.apply();
    assert_eq!(
        report.left_out,
        ["a", "dev", "pipe"].map(|it| format!("{it} {special}"))
    );
    assert_eq!(report.applied, ["T was"]);
    assert!(!ground.path("dev").exists() && !ground.path("pipe").exists());
    assert_eq!(fs::read(ground.path("a")).unwrap(), b"a\n");
}

#[test]
fn what_git_runs_is_left_out_in_every_repository() {
    let mut ground = Ground::new("git init -q .; mkdir sub; git init -q --bare sub/bare");
    ground.inside(
        "mkdir -p .git/hooks; echo evil > .git/hooks/post-checkout; echo evil >> .git/config; \
         echo x > .git/HEAD; git init -q made; echo evil > made/.git/hooks/post-checkout; \
         git init -q --bare sub/new; echo evil >> sub/bare/config; \
         mkdir hooks; echo fine > hooks/pre; echo fine > config",
    );
    let report = ground.apply();
    let own = "is read-only by the policy's rule `repository`";
    let run = "is what git runs or follows in a repository";
    assert!(
        report.left_out.contains(&format!(".git/config {own}")),
        "{report:?}"
    );
    assert!(
        report
            .left_out
            .contains(&format!(".git/hooks/post-checkout {own}"))
    );
    for path in [
        "made/.git/config",
        "made/.git/hooks",
        "sub/new/config",
        "sub/bare/config",
    ] {
        assert!(
            report.left_out.contains(&format!("{path} {run}")),
            "{path}: {report:?}"
        );
    }
    for path in ["made/.git/HEAD", "sub/new/HEAD", "hooks/pre", "config"] {
        assert!(ground.path(path).exists(), "{path}");
    }
    assert!(!ground.path("made/.git/hooks").exists() && !ground.path("made/.git/config").exists());
    assert_eq!(fs::read(ground.path(".git/HEAD")).unwrap(), b"x\n");
    // The control: a policy with a line of its own opens them.
    let open = POLICY.replace(
        "[\"${workspace}\"]",
        "[\"${workspace}\", \"${workspace}/.git/hooks\"]",
    );
    ground.policy = open;
    let report = ground.apply();
    assert!(
        report
            .applied
            .contains(&"A .git/hooks/post-checkout".to_owned()),
        "{report:?}"
    );
}

/// What runs with the user's next command in a directory, if git follows.
const EVIL: &str = "[core]\n\tbare = false\n\tfsmonitor = touch ran; false\n";

#[test]
fn what_leads_git_to_settings_of_the_sandboxs_own_is_left_out() {
    let outside = tempfile::tempdir().unwrap();
    fs::set_permissions(
        outside.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o777),
    )
    .unwrap();
    // Such as `${cache}`, where what a sandbox writes stays.
    let place = outside.path().display();
    let git = "git -c user.name=t -c user.email=t@t";
    let mut ground = Ground::new(&format!(
        "git init -q repo; cd repo; {git} commit -q --allow-empty -m x; \
         git worktree add -q ../tree; git init -q --bare {place}/evil; \
         printf '{EVIL}' > {place}/evil/config"
    ));
    ground.inside(&format!(
        "mkdir file link; echo 'gitdir: {place}/evil' > file/.git; ln -s ../bare link/.GIT; \
         mkdir bare; cd bare; mkdir o r; ln -s o objects; ln -s r refs; \
         echo ref: refs/heads/x > HEAD; printf '{EVIL}' > config; cd ../repo/.git; \
         echo {place}/evil > worktrees/tree/commondir; mv info ../info; ln -s ../info info"
    ));
    // The control: inside, git does follow.
    for directory in ["file", "tree"] {
        ground.inside(&format!("cd {directory}; git status || true; rm ran"));
    }
    let report = ground.apply();
    let leads = "leads git to another repository";
    let run = "is what git runs or follows in a repository";
    for line in [
        format!("file/.git {leads}"),
        format!("link/.GIT {leads}"),
        format!("bare/config {run}"),
        format!("repo/.git/worktrees/tree/commondir {run}"),
        format!("repo/.git/info {run}"),
    ] {
        assert!(report.left_out.contains(&line), "{line}: {report:?}");
    }
    for directory in ["file", "bare", "tree", "repo"] {
        ground.outside(&format!(
            "cd {directory}; git status || true; test ! -e ran"
        ));
    }
}

#[test]
fn a_repository_is_not_put_together_in_steps() {
    let mut ground = Ground::new("true");
    ground.inside(&format!(
        "mkdir d; cd d; mkdir objects; printf '{EVIL}' > config"
    ));
    let report = ground.apply();
    assert_eq!(report.applied, ["A d/", "A d/config", "A d/objects/"]);
    ground.inside("cd d; mkdir refs; echo ref: refs/heads/x > HEAD");
    let report = ground.apply();
    let makes = "makes a repository of what is there, with what git runs";
    assert_eq!(
        report.left_out,
        [format!("d/HEAD {makes}"), format!("d/refs {makes}")]
    );
    // The control: it is one inside.
    ground.inside("cd d; git rev-parse --git-dir");
    ground.outside("cd d; ! git rev-parse --git-dir");
}

#[test]
fn nothing_takes_the_place_of_a_directory_that_holds_what_is_read_only() {
    for (prepare, attack) in [
        ("git init -q .", "mv .git away; echo 'gitdir: away' > .git"),
        (
            "true",
            "git init -q away; mv away/.git repo; ln -s repo .git",
        ),
    ] {
        let mut ground = Ground::new(prepare);
        ground.inside(attack);
        let report = ground.apply();
        let told = report
            .left_out
            .iter()
            .any(|it| it.starts_with(".git takes the place of a directory"));
        assert!(told, "{report:?}");
        let meta = fs::symlink_metadata(ground.path(".git"));
        assert!(meta.map_or(true, |it| it.is_dir()));
    }
}

#[test]
fn what_the_policy_holds_back_is_left_out_wherever_its_link_leads() {
    let outside = tempfile::tempdir().unwrap();
    fs::set_permissions(
        outside.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    let link = outside.path().join("bashrc");
    let policy = format!(
        "version = 1\n[files]\nread = [\"/\", \"{}\", \"${{workspace}}/fixed\"]\n\
         write = [\"${{workspace}}\", \"${{workspace}}/fixed/open\"]\ndeny = [\"**/.env\"]\n",
        link.display()
    );
    let mut ground = Ground::with(
        "echo a > dot-bashrc; mkdir -p fixed/open; echo b > fixed/b; echo s > .env",
        &policy,
    );
    symlink(ground.path("dot-bashrc"), &link).unwrap();
    ground.inside(
        "echo x > dot-bashrc; echo x > fixed/b; echo x > fixed/open/x; echo x > .env; \
         mkdir .vscode; echo x > .vscode/tasks.json",
    );
    let report = ground.apply();
    assert_eq!(
        report.applied,
        ["A .vscode/", "A .vscode/tasks.json", "A fixed/open/x"]
    );
    assert_eq!(
        report.left_out,
        [
            ".env is denied by the policy's rule `**/.env`".to_owned(),
            format!(
                "dot-bashrc is read-only by the policy's rule `{}`",
                link.display()
            ),
            "fixed/b is read-only by the policy's rule `${workspace}/fixed`".to_owned(),
        ]
    );
}

#[test]
fn what_root_owns_is_not_lost_with_the_directory_that_was_renamed() {
    let mut ground = Ground::new("mkdir d; echo mine > d/mine");
    let secret = ground.path("d/secret");
    fs::write(&secret, "root's own\n").unwrap();
    fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    ground.inside("mv d e");
    let report = ground.apply();
    assert!(ground.path("e/mine").exists() && !ground.path("d/mine").exists());
    assert_eq!(fs::read(&secret).unwrap(), b"root's own\n");
    assert!(!ground.path("e/secret").exists(), "{report:?}");
}
