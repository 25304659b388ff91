//! File systems by kind: a workspace on each, and what is special about it.

use std::{
    fs,
    os::unix::fs::chown,
    path::{Path, PathBuf},
    process::Command,
};

use nix::{
    errno::Errno,
    mount::{MntFlags, umount2},
};
use sandbox_daemon::proto::{Right, SandboxSpec, Start, WorkspaceMode};

use crate::{
    client,
    disk::{Disk, MountedDisk, run},
    expect::{attack, compare},
    host::{self, DEV, ROOT},
};

crate::trials![
    a_workspace_on_ext4_has_its_walls,
    a_workspace_on_btrfs_has_its_walls,
    a_workspace_on_tmpfs_has_its_walls,
    a_workspace_on_vfat_has_its_walls,
    a_workspace_on_overlayfs_has_its_walls,
    a_workspace_on_a_bind_mount_has_its_walls,
    a_workspace_on_fuse_has_its_walls,
    an_ephemeral_workspace_has_its_walls,
    an_ephemeral_workspace_on_an_overlay_has_its_walls,
    a_denied_name_of_vfat_is_denied_in_any_case,
    a_directory_keeps_what_rules_know_it_by,
    a_denied_directory_is_not_seen_through_an_overlay,
    the_layers_of_an_overlay_are_not_reached_directly,
    a_subvolumes_rules_are_not_those_of_another,
];

const GROUND: &str = "/srv/kinds";
const WORK: &str = "/srv/kinds/fs/tree";

const POLICY: &str = r#"
version = 1
name = "kinds"

[files]
read = ["/", "${workspace}/readonly"]
write = ["${workspace}", "${tmp}"]
deny = [
  "${workspace}/secret", "${workspace}/closed", "${workspace}/missing",
  "${workspace}/gone/below/file", "**/*.pem", "/srv/kinds/lower-secret",
]

[network]
mode = "none"
"#;

const FILES: [&str; 7] = [
    "secret",
    "closed/file",
    "readonly/file",
    "file",
    "other",
    "inner/file",
    "key.pem",
];

/// The files of a workspace, a user's where there are owners.
fn fill(work: &Path, uid: u32) {
    for file in FILES {
        let path = work.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("content of {file}\n")).unwrap();
    }
    // FAT has none.
    let owner = format!("{uid}:{uid}");
    let _ = host::run(ROOT, &["chown", "-R", &owner, &work.to_string_lossy()]);
}

/// Drops what the kernel keeps in memory of files that nobody uses.
fn forget() {
    nix::unistd::sync();
    fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
}

/// What a workspace is on, until it is dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn new(command: &[&str], at: &str) -> Self {
        fs::create_dir_all(at).unwrap();
        run(Command::new(command[0]).args(&command[1..]).arg(at));
        Self(at.into())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        for _ in 0..100 {
            match umount2(&self.0, MntFlags::empty()) {
                Err(nix::errno::Errno::EBUSY) => {
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
                // What hides a failed test is worse.
                _ => return,
            }
        }
    }
}

/// A file system on which there are no hard links.
const LINKLESS: [&str; 2] = ["vfat", "fuse"];

/// Attacks, and works, in a workspace; the second time with nothing in memory.
async fn walls(kind: &str, lay: impl Fn(u32) -> Box<dyn std::any::Any>) {
    walls_of(kind, WorkspaceMode::Direct, lay).await;
}

/// The same on the workspace of a mode: of an ephemeral one nothing is left.
async fn walls_of(
    kind: &str,
    workspace: WorkspaceMode,
    lay: impl Fn(u32) -> Box<dyn std::any::Any>,
) {
    for uid in [DEV, ROOT] {
        if Path::new(GROUND).exists() {
            fs::remove_dir_all(GROUND).unwrap();
        }
        fs::create_dir_all(GROUND).unwrap();
        let mounted = lay(uid);
        let before = host::snapshot(WORK);
        let mut client = client::root().await;
        let spec = SandboxSpec {
            workspace_mode: workspace.into(),
            ..client::spec(uid, client::policy(POLICY), WORK)
        };
        let sandbox = client::create(&mut client, spec).await.id;
        for round in ["one", "two"] {
            let refused: [(&[&str], &str); 12] = [
                (&["read", "secret"], "ENOENT"),
                (&["append", "secret"], "ENOENT"),
                (&["stat", "secret"], "ENOENT"),
                (&["read", "closed/file"], "ENOENT"),
                (&["open", "closed/made", "creat"], "EACCES"),
                (&["open", "missing", "creat"], "EACCES"),
                (&["rename", "file", "missing"], "EACCES"),
                (&["mkdir", "gone"], "EACCES"),
                (&["append", "readonly/file"], "EACCES"),
                (&["open", "readonly/made", "creat"], "EACCES"),
                (&["read", "key.pem"], "ENOENT"),
                (&["unlink", "secret"], "EACCES"),
            ];
            let (made, moved) = (format!("{round}-made"), format!("{round}-moved"));
            let inner = format!("inner/{round}");
            let works: Vec<(Vec<&str>, &str)> = vec![
                (vec!["read", "inner/file"], "ok content of inner/file"),
                (vec!["read", "readonly/file"], "ok content of readonly/file"),
                (vec!["append", "file"], "ok"),
                (vec!["truncate", "file"], "ok"),
                (vec!["open", &made, "creat"], "ok"),
                (vec!["append", &made], "ok"),
                (vec!["read", &made], "ok attacked"),
                (vec!["rename", &made, &moved], "ok"),
                (vec!["rename", &moved, "other"], "ok"),
                (vec!["utimes", "other"], "ok"),
                (vec!["mkdir", &inner], "ok"),
                (vec!["list", "inner"], "ok"),
                (vec!["open", "inner/file", "rw"], "ok"),
                (vec!["rmdir", &inner], "ok"),
                (vec!["unlink", "other"], "ok"),
                (vec!["open", "other", "creat+excl"], "ok"),
                (vec!["append", "other"], "ok"),
            ];
            let mut steps: Vec<(Vec<&str>, &str)> = refused
                .iter()
                .map(|(step, answer)| (step.to_vec(), *answer))
                .collect();
            let denied = steps.len() as u64;
            steps.extend(works);
            if kind != "overlay" {
                // Of an overlay of the host's, what a pattern denies is not listed.
                steps.push((vec!["list", "."], "ok"));
            }
            if !LINKLESS.contains(&kind) {
                steps.push((vec!["symlink", "file", &made], "ok"));
                steps.push((vec!["readlink", &made], "ok file"));
                steps.push((vec!["link", "other", &moved], "ok"));
                steps.push((vec!["chmod", &moved], "ok"));
            }
            let all: Vec<&[&str]> = steps.iter().map(|(step, _)| step.as_slice()).collect();
            let start = Start {
                cwd: WORK.into(),
                ..client::start_in(&sandbox, &client::attacker(&all))
            };
            let ran = client::run(&mut client, start).await;
            for ((step, expected), answer) in steps.iter().zip(ran.lines()) {
                let listed = step[0] == "list" && answer.starts_with("ok");
                let answer = if listed { "ok" } else { &answer };
                assert_eq!(
                    answer, *expected,
                    "{kind}, {uid}, {round}: {step:?}; {ran:?}"
                );
            }
            assert_eq!(ran.exited.denied, denied, "{kind}, {uid}, {round}: {ran:?}");
            forget();
        }
        client::delete(&mut client, &sandbox).await;
        let kept = host::snapshot(WORK) == before;
        assert_eq!(kept, workspace == WorkspaceMode::Ephemeral, "{kind}, {uid}");
        for step in [
            ["read", "secret"],
            ["read", "closed/file"],
            ["append", "readonly/file"],
        ] {
            let answer = host::attack(uid, WORK, &step);
            assert!(answer.starts_with("ok"), "{kind}: {step:?}: {answer}");
        }
        drop(mounted);
    }
}

fn disk(kind: &'static str, options: &str, uid: u32) -> MountedDisk {
    let disk = Disk::make(kind, &[]).mounted_with(&format!("{GROUND}/fs"), options);
    fill(Path::new(WORK), uid);
    disk
}

async fn a_workspace_on_ext4_has_its_walls() {
    walls("ext4", |uid| Box::new(disk("ext4", "loop", uid))).await;
}

async fn a_workspace_on_btrfs_has_its_walls() {
    walls("btrfs", |uid| {
        let disk = Disk::make("btrfs", &[]).mounted(&format!("{GROUND}/fs"));
        run(Command::new("btrfs").args(["subvolume", "create", WORK]));
        fill(Path::new(WORK), uid);
        Box::new(disk)
    })
    .await;
}

async fn a_workspace_on_tmpfs_has_its_walls() {
    walls("tmpfs", |uid| {
        let mounted = Mounted::new(&["mount", "-t", "tmpfs", "none"], &format!("{GROUND}/fs"));
        fill(Path::new(WORK), uid);
        Box::new(mounted)
    })
    .await;
}

async fn a_workspace_on_vfat_has_its_walls() {
    run(Command::new("modprobe").args(["-a", "nls_cp437", "nls_iso8859-1", "nls_ascii"]));
    walls("vfat", |uid| {
        Box::new(disk("vfat", &format!("loop,uid={uid},gid={uid}"), uid))
    })
    .await;
}

/// Workspace files in the lower layer of an overlay at `at`.
fn overlay(uid: u32, lower: &str, at: &str) -> Mounted {
    run(Command::new("modprobe").arg("overlay"));
    let upper = format!("{GROUND}/layers-{}", at.replace('/', "-"));
    for directory in ["upper", "work"] {
        fs::create_dir_all(format!("{upper}/{directory}")).unwrap();
    }
    let _ = host::run(
        ROOT,
        &["chown", &format!("{uid}:{uid}"), &format!("{upper}/upper")],
    );
    let options = format!("lowerdir={lower},upperdir={upper}/upper,workdir={upper}/work");
    Mounted::new(&["mount", "-t", "overlay", "overlay", "-o", &options], at)
}

async fn a_workspace_on_overlayfs_has_its_walls() {
    walls("overlay", |uid| {
        let lower = format!("{GROUND}/lower");
        fill(Path::new(&lower), uid);
        Box::new(overlay(uid, &lower, WORK))
    })
    .await;
}

async fn a_workspace_on_a_bind_mount_has_its_walls() {
    walls("bind", |uid| {
        let real = format!("{GROUND}/real");
        fill(Path::new(&real), uid);
        Box::new(Mounted::new(&["mount", "--bind", &real], WORK))
    })
    .await;
}

async fn a_workspace_on_fuse_has_its_walls() {
    run(Command::new("modprobe").arg("fuse"));
    walls("fuse", |uid| {
        let real = format!("{GROUND}/real");
        fill(Path::new(&real), uid);
        Box::new(Mounted::new(&["bindfs", &real], WORK))
    })
    .await;
}

async fn an_ephemeral_workspace_has_its_walls() {
    for kind in ["ext4", "btrfs"] {
        walls_of(kind, WorkspaceMode::Ephemeral, |uid| {
            Box::new(disk(kind, "loop", uid))
        })
        .await;
    }
}

async fn an_ephemeral_workspace_on_an_overlay_has_its_walls() {
    walls_of("overlay", WorkspaceMode::Ephemeral, |uid| {
        let lower = format!("{GROUND}/lower");
        fill(Path::new(&lower), uid);
        Box::new(overlay(uid, &lower, WORK))
    })
    .await;
}

/// Runs attacks in a sandbox of the developer's; what they answer.
async fn answers(policy: &str, steps: &[&[&str]]) -> (Vec<String>, u64) {
    let spec = client::spec(DEV, client::policy(policy), WORK);
    let start = Start {
        cwd: GROUND.into(),
        ..client::start(spec, &client::attacker(steps))
    };
    let ran = client::run(&mut client::root().await, start).await;
    (ran.lines(), ran.exited.denied)
}

fn clear() {
    if Path::new(GROUND).exists() {
        fs::remove_dir_all(GROUND).unwrap();
    }
    fs::create_dir_all(GROUND).unwrap();
}

async fn a_denied_name_of_vfat_is_denied_in_any_case() {
    run(Command::new("modprobe").args(["-a", "nls_cp437", "nls_iso8859-1", "nls_ascii"]));
    clear();
    let options = format!("loop,uid={DEV},gid={DEV}");
    let disk = disk("vfat", &options, DEV);
    let mut client = client::root().await;
    let spec = client::spec(DEV, client::policy(POLICY), WORK);
    let sandbox = client::create(&mut client, spec).await.id;
    let steps: [&[&str]; 9] = [
        &["read", "SECRET"],
        &["read", "SeCrEt"],
        &["read", "secret."],
        &["read", "CLOSED/FILE"],
        &["open", "MISSING", "creat"],
        &["open", "missing.", "creat"],
        &["mkdir", "GONE"],
        &["read", "KEY.PEM"],
        &["open", "OTHER.PEM", "creat"],
    ];
    let expected = [
        "ENOENT", "ENOENT", "ENOENT", "ENOENT", "EACCES", "EACCES", "EACCES", "ENOENT", "EACCES",
    ];
    // What comes to be there has its rule, and before that its name.
    for made in [false, true] {
        if made {
            fs::write(Path::new(WORK).join("missing"), "made outside\n").unwrap();
            forget();
        }
        let more: [&[&str]; 2] = [&["read", "MISSING"], &["read", "Missing"]];
        let steps: Vec<_> = if made { more.to_vec() } else { steps.to_vec() };
        let start = Start {
            cwd: WORK.into(),
            ..client::start_in(&sandbox, &client::attacker(&steps))
        };
        let ran = client::run(&mut client, start).await;
        if made {
            assert_eq!(ran.lines(), ["ENOENT"; 2], "{ran:?}");
            assert_eq!(host::attack(DEV, WORK, more[0]), "ok made outside");
        } else {
            assert_eq!(ran.lines(), expected, "{ran:?}");
            assert_eq!(ran.exited.denied, 9, "{ran:?}");
            assert_eq!(host::attack(DEV, WORK, steps[0]), "ok content of secret");
        }
    }
    client::delete(&mut client, &sandbox).await;
    drop(disk);
}

/// Its generation, which old file systems let its owner set, and how names in it
/// are compared.
async fn a_directory_keeps_what_rules_know_it_by() {
    const POLICY: &str = r#"
version = 1
[files]
read = ["/"]
write = ["${workspace}"]
deny = ["${workspace}/**/.env", "${workspace}/missing"]
"#;
    let disks: [(&[&str], &str); 2] = [
        (&["-O", "^metadata_csum,^64bit"], "FS_IOC_SETVERSION"),
        (&["-O", "casefold"], "FS_IOC_SETFLAGS-casefold"),
    ];
    for (options, command) in disks {
        for uid in [DEV, ROOT] {
            clear();
            let disk = Disk::make("ext4", options).mounted(&format!("{GROUND}/fs"));
            fs::create_dir_all(WORK).unwrap();
            chown(WORK, Some(uid), Some(uid)).unwrap();
            let step: &[&str] = &["ioctl", WORK, command];
            let spec = client::spec(uid, client::policy(POLICY), WORK);
            let start = client::start(spec, &client::attacker(&[step]));
            let ran = client::run(&mut client::root().await, start).await;
            let case =
                attack(&["ioctl"]).refused(Errno::EPERM, Right::Write, "ioctl", WORK, "ioctl");
            compare(uid, &[case], &ran);
            assert_eq!(host::attack(uid, "/", step), "ok");
            drop(disk);
        }
    }
}

async fn a_denied_directory_is_not_seen_through_an_overlay() {
    clear();
    let lower = format!("{GROUND}/lower-secret");
    fill(Path::new(WORK), DEV);
    fill(Path::new(&lower), DEV);
    // The denied directory as a layer, and one that holds it.
    let whole = overlay(DEV, &lower, &format!("{WORK}/whole"));
    let above = overlay(DEV, GROUND, &format!("{WORK}/above"));
    let steps: [&[&str]; 6] = [
        &["read", "fs/tree/whole/file"],
        &["append", "fs/tree/whole/file"],
        &["open", "fs/tree/whole/made", "creat"],
        &["read", "fs/tree/above/lower-secret/file"],
        &["append", "fs/tree/above/lower-secret/file"],
        &["list", "fs/tree/above/lower-secret"],
    ];
    let expected = ["ENOENT", "ENOENT", "EACCES", "ENOENT", "ENOENT", "ENOENT"];
    let (answers, denied) = answers(POLICY, &steps).await;
    assert_eq!(answers, expected);
    assert_eq!(denied, 6);
    for step in steps {
        assert!(
            host::attack(DEV, GROUND, step).starts_with("ok"),
            "{step:?}"
        );
    }
    drop((above, whole));
}

async fn the_layers_of_an_overlay_are_not_reached_directly() {
    clear();
    let lower = format!("{GROUND}/lower");
    fill(Path::new(&lower), DEV);
    let mounted = overlay(DEV, &lower, WORK);
    let upper = format!("{GROUND}/layers-{}", WORK.replace('/', "-"));
    let made = format!("{upper}/upper/made");
    let steps: [&[&str]; 4] = [
        &["open", "fs/tree/inside", "creat"],
        &["open", &made, "creat"],
        &["append", "lower/file"],
        &["mkdir", "lower/made"],
    ];
    let (answers, denied) = answers(POLICY, &steps).await;
    assert_eq!(answers, ["ok", "EACCES", "EACCES", "EACCES"]);
    assert_eq!(denied, 3);
    for step in steps.iter().skip(1) {
        assert_eq!(host::attack(DEV, GROUND, step), "ok", "{step:?}");
    }
    drop(mounted);
}

async fn a_subvolumes_rules_are_not_those_of_another() {
    clear();
    let disk = Disk::make("btrfs", &[]).mounted(&format!("{GROUND}/fs"));
    let btrfs = |arguments: &[&str]| run(Command::new("btrfs").args(arguments));
    btrfs(&["subvolume", "create", WORK]);
    fill(Path::new(WORK), DEV);
    nix::unistd::sync();
    // Its snapshot has the same numbers and generations.
    let snapshot = format!("{GROUND}/fs/snapshot");
    btrfs(&["subvolume", "snapshot", WORK, &snapshot]);
    let other = format!("{GROUND}/fs/other");
    btrfs(&["subvolume", "create", &other]);
    fill(Path::new(&other), DEV);
    let inside = format!("{WORK}/nested");
    btrfs(&["subvolume", "create", &inside]);
    run(Command::new("chown").args(["1000:1000", &inside]));
    let steps: [&[&str]; 12] = [
        &["append", "fs/tree/file"],
        &["open", "fs/tree/nested/made", "creat"],
        &["read", "fs/tree/secret"],
        &["read", "fs/snapshot/file"],
        &["append", "fs/snapshot/file"],
        &["open", "fs/snapshot/made", "creat"],
        &["open", "fs/snapshot/inner/made", "creat"],
        &["read", "fs/snapshot/secret"],
        &["read", "fs/snapshot/closed/file"],
        &["append", "fs/other/file"],
        &["open", "fs/other/made", "creat"],
        &["read", "fs/other/secret"],
    ];
    let expected = [
        "ok",
        "ok",
        "ENOENT",
        "ok content of file",
        "EACCES",
        "EACCES",
        "EACCES",
        "ENOENT",
        "ENOENT",
        "EACCES",
        "EACCES",
        "ok content of secret",
    ];
    let (answers, denied) = answers(POLICY, &steps).await;
    assert_eq!(answers, expected);
    assert_eq!(denied, 8);
    for step in [steps[4], steps[7]] {
        assert!(
            host::attack(DEV, GROUND, step).starts_with("ok"),
            "{step:?}"
        );
    }
    drop(disk);
}
