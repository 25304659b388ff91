//! Ephemeral workspaces: the real tree is reached by no way, whatever else shows
//! it, and what git and editors run later is the sandbox's own inside.

use std::{
    fs::{self, File},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use nix::mount::{MntFlags, umount2};
use sandbox_daemon::proto::{GetSandboxRequest, SandboxSpec, Start, WorkspaceMode};

use crate::{
    client, disk,
    host::{self, DEV, ROOT},
};

crate::trials![
    the_real_files_are_not_written_through_another_mount,
    what_is_denied_elsewhere_is_denied_in_the_overlay,
    git_works_in_it_and_the_repository_stays_as_it_was,
    a_process_that_runs_cannot_be_enrolled_in_it,
    a_passed_descriptor_of_a_layer_shows_nothing_more,
];

const GROUND: &str = "/srv/ephemeral";
const WORK: &str = "/srv/ephemeral/tree/project";
/// Another way to the directory above the workspace, and one to a part of it.
const ABOVE: &str = "/srv/ephemeral/above";
const PART: &str = "/srv/ephemeral/part";

const POLICY: &str = r#"
version = 1
name = "ephemeral"

[files]
read = ["/", "${workspace}/readonly"]
write = ["${workspace}", "${tmp}", "/srv/ephemeral/above", "/srv/ephemeral/part"]
deny = ["${workspace}/secret", "${workspace}/gone", "**/*.pem", "/srv/ephemeral/part/closed"]

[network]
mode = "none"
"#;

/// Mounts of the host's own, until they are dropped.
struct Binds;

impl Binds {
    fn make() -> Self {
        for (what, at) in [
            ("/srv/ephemeral/tree", ABOVE),
            (&format!("{WORK}/part"), PART),
        ] {
            fs::create_dir_all(at).unwrap();
            disk::run(Command::new("mount").args(["--bind", what, at]));
        }
        Self
    }
}

impl Drop for Binds {
    fn drop(&mut self) {
        for at in [ABOVE, PART] {
            let _ = umount2(at, MntFlags::MNT_DETACH);
        }
    }
}

fn fill(uid: u32) {
    if Path::new(GROUND).exists() {
        fs::remove_dir_all(GROUND).unwrap();
    }
    for file in [
        "secret",
        "file",
        "other",
        "readonly/file",
        "key.pem",
        "part/file",
        "part/closed/file",
    ] {
        let path = Path::new(WORK).join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("content of {file}\n")).unwrap();
    }
    let owner = format!("{uid}:{uid}");
    host::output(ROOT, &["chown", "-R", &owner, GROUND]);
}

fn spec(uid: u32, mode: WorkspaceMode) -> SandboxSpec {
    SandboxSpec {
        workspace_mode: mode.into(),
        ..client::spec(uid, client::policy(POLICY), WORK)
    }
}

async fn answers(uid: u32, mode: WorkspaceMode, steps: &[&[&str]]) -> (Vec<String>, u64) {
    let start = Start {
        cwd: GROUND.into(),
        ..client::start(spec(uid, mode), &client::attacker(steps))
    };
    let ran = client::run(&mut client::root().await, start).await;
    (ran.lines(), ran.exited.denied)
}

async fn the_real_files_are_not_written_through_another_mount() {
    let steps: [(&[&str], &str); 10] = [
        // In the overlay.
        (&["append", "tree/project/file"], "ok"),
        (&["append", "tree/project/part/file"], "ok"),
        // The real ones.
        (&["append", "above/project/file"], "EACCES"),
        (&["open", "above/project/made", "creat"], "EACCES"),
        (&["unlink", "above/project/other"], "EACCES"),
        (&["append", "part/file"], "EACCES"),
        (&["open", "part/made", "creat"], "EACCES"),
        (&["read", "above/project/secret"], "ENOENT"),
        (&["open", "above/project/gone", "creat"], "EACCES"),
        (&["read", "above/project/key.pem"], "ENOENT"),
    ];
    let all: Vec<&[&str]> = steps.iter().map(|(step, _)| *step).collect();
    for uid in [DEV, ROOT] {
        fill(uid);
        let binds = Binds::make();
        let before = host::snapshot(WORK);
        let (answers, denied) = answers(uid, WorkspaceMode::Ephemeral, &all).await;
        let expected: Vec<_> = steps.iter().map(|(_, answer)| *answer).collect();
        assert_eq!(answers, expected, "{uid}");
        assert_eq!(denied, 8, "{uid}");
        assert_eq!(host::snapshot(WORK), before, "{uid}");
        // The control: where the workspace is worked in directly, what is granted
        // is written by either way.
        let direct: Vec<&[&str]> = all[..7].to_vec();
        let (answers, _) = self::answers(uid, WorkspaceMode::Direct, &direct).await;
        assert!(
            answers.iter().all(|answer| answer == "ok"),
            "{uid}: {answers:?}"
        );
        drop(binds);
    }
}

async fn what_is_denied_elsewhere_is_denied_in_the_overlay() {
    fill(DEV);
    let binds = Binds::make();
    let steps: [&[&str]; 3] = [
        &["read", "part/closed/file"],
        &["read", "tree/project/part/closed/file"],
        &["append", "tree/project/part/closed/file"],
    ];
    let (answers, _) = answers(DEV, WorkspaceMode::Ephemeral, &steps).await;
    assert_eq!(answers, ["ENOENT", "ENOENT", "ENOENT"]);
    for step in steps {
        assert!(
            host::attack(DEV, GROUND, step).starts_with("ok"),
            "{step:?}"
        );
    }
    drop(binds);
}

async fn git_works_in_it_and_the_repository_stays_as_it_was() {
    fill(DEV);
    let git = |arguments: &[&str]| {
        let argv = [&["git", "-C", WORK], arguments].concat();
        host::output(DEV, &argv)
    };
    git(&["init", "-q"]);
    git(&["add", "."]);
    git(&["commit", "-qm", "first"]);
    let before = host::snapshot(WORK);
    let script = "set -e; git config user.name agent; git mv part moved; echo more >> file; \
        git commit -qam second; printf '#!/bin/sh\n' > .git/hooks/post-checkout; \
        git log --format=%an:%s | head -1; git status --short";
    let spec = SandboxSpec {
        workspace_mode: WorkspaceMode::Ephemeral.into(),
        ..client::spec(DEV, client::named("default"), WORK)
    };
    let start = client::start(spec.clone(), &["sh", "-c", script]);
    let ran = client::run(&mut client::root().await, start).await;
    assert_eq!(ran.lines(), ["agent:second"], "{ran:?}");
    assert_eq!(host::snapshot(WORK), before);
    // The control: directly, git's settings may not be written.
    let direct = SandboxSpec {
        workspace_mode: WorkspaceMode::Direct.into(),
        ..spec
    };
    let start = client::start(direct, &["git", "config", "user.name", "agent"]);
    let ran = client::run(&mut client::root().await, start).await;
    assert_eq!(ran.exited.denied, 1, "{ran:?}");
}

async fn a_process_that_runs_cannot_be_enrolled_in_it() {
    fill(DEV);
    let mut process = host::command(DEV, &["sleep", "600"]).spawn().unwrap();
    let request = |mode| sandbox_daemon::proto::EnrollRequest {
        sandbox: Some(sandbox_daemon::proto::enroll_request::Sandbox::Inline(
            spec(DEV, mode),
        )),
        pid: process.id(),
        ..Default::default()
    };
    let mut client = client::root().await;
    let refused = client.enroll(request(WorkspaceMode::Ephemeral)).await;
    let refused = refused.map(drop).unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{refused:?}");
    assert!(refused.message().contains("ephemeral"), "{refused:?}");
    assert!(host::sandboxes().is_empty());
    let enrolled = client.enroll(request(WorkspaceMode::Direct)).await;
    drop(enrolled.unwrap());
    process.kill().unwrap();
    process.wait().unwrap();
}

/// The daemon's descriptors of the layers of a sandbox's workspace: a directory on
/// the file system that is mounted nowhere, and the real one.
fn layers() -> [File; 2] {
    let directory = format!("/proc/{}/fd", host::daemon());
    let entries = fs::read_dir(directory).unwrap();
    let paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    let find = |wanted: &dyn Fn(&Path, &fs::Metadata) -> bool| {
        let found = paths.iter().find(|path| {
            let file = fs::metadata(path);
            file.is_ok_and(|file| file.is_dir() && wanted(path, &file))
        });
        File::open(found.unwrap()).unwrap()
    };
    let real = fs::metadata(WORK).unwrap();
    [
        find(&|path, _| fs::read_link(path).is_ok_and(|it| it == Path::new("/upper"))),
        find(&|_, file| (file.dev(), file.ino()) == (real.dev(), real.ino())),
    ]
}

/// Who may look into the daemon hands a layer in; it is no way around the walls.
async fn a_passed_descriptor_of_a_layer_shows_nothing_more() {
    let steps: [&[&str]; 7] = [
        &["list", "/proc/self/fd/0"],
        &["read", "/proc/self/fd/0/file"],
        &["read", "/proc/self/fd/0/secret"],
        &["append", "/proc/self/fd/0/file"],
        &["open", "/proc/self/fd/0/made", "creat"],
        &["mkdir", "/proc/self/fd/0/gone"],
        &["list", "/proc/self/fd/0/.."],
    ];
    for uid in [DEV, ROOT] {
        fill(uid);
        let mut client = client::root().await;
        let sandbox = client::create(&mut client, spec(uid, WorkspaceMode::Ephemeral)).await;
        let write = ["sandbox", "exec", &sandbox.id, "--", "sh", "-c"];
        let script = ["echo inside > file; echo inside > new"];
        host::run_with(uid, WORK, &[&write[..], &script].concat(), "");
        let before = host::snapshot(WORK);
        // Of what is above the upper layer, its own permissions are the first wall.
        let above = if uid == ROOT { "ENOENT" } else { "EACCES" };
        let hidden = [["ENOENT"; 4].as_slice(), &["EACCES"; 2], &[above]].concat();
        let shown = [
            "ok 6",
            "ok content of file",
            "ENOENT",
            "EACCES",
            "EACCES",
            "EACCES",
            "ok 1",
        ];
        let control = [["ok 2", "ok inside"], ["ok 6", "ok content of file"]];
        let layers = layers().into_iter().zip([&hidden[..], &shown]).zip(control);
        for ((layer, expected), control) in layers {
            let argv = client::attacker(&steps);
            let argv = [&["sandbox", "exec", &sandbox.id, "--"], argv.as_slice()].concat();
            let given = layer.try_clone().unwrap();
            let inside = host::command(uid, &argv).stdin(given).output().unwrap();
            let said = host::text(&inside.stdout);
            assert_eq!(said.lines().collect::<Vec<_>>(), expected, "{uid}");
            // The control.
            let argv = client::attacker(&steps[..2]);
            let outside = host::command(uid, &argv).stdin(layer).output().unwrap();
            let said = host::text(&outside.stdout);
            assert_eq!(said.lines().collect::<Vec<_>>(), control, "{uid}");
        }
        let request = GetSandboxRequest {
            id: sandbox.id.clone(),
        };
        let told = client.get_sandbox(request).await.unwrap().into_inner();
        // The upper layer has no `secret` that could be refused.
        assert_eq!(told.denied, if uid == ROOT { 10 } else { 9 }, "{told:?}");
        assert_eq!(host::snapshot(WORK), before, "{uid}");
        client::delete(&mut client, &sandbox.id).await;
    }
}
