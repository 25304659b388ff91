//! What contains a sandbox cannot be changed from inside, each part by name:
//! settings, policies, state, programs, and the cgroup that it is in.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, chown},
    path::Path,
};

use nix::errno::Errno;
use sandbox_daemon::proto::Right;

use super::{ATTACKERS, Way, enrolled, perform, unused, words};
use crate::{
    client,
    expect::{Case, attack, compare},
    ground,
    host::{self, DEV, ROOT, SLICE},
};

crate::trials![
    settings_and_policies_are_read_only_whatever_the_policy_says,
    state_does_not_exist_inside,
    a_workspace_of_sandboxds_own_places_is_refused,
    a_policy_that_opens_sandboxds_own_places_is_refused,
    programs_in_force_are_neither_reached_nor_taken_away,
    root_leaves_its_cgroup_by_no_road,
    root_writes_none_of_the_kernels_settings,
];

/// The softest policy for files that there is.
const OPEN: &str = "version = 1\nname = \"open\"\n[files]\nwrite = [\"/\"]\n";

const CONTENT: &str = "of the machine's\n";

/// A file of the machine's that anybody may write, as far as the kernel cares.
struct Planted(&'static str);

impl Planted {
    fn put(path: &'static str) -> Self {
        let parent = Path::new(path).parent().unwrap();
        fs::create_dir_all(parent).unwrap();
        // The daemon's state is root's alone: here only its walls are to say no.
        fs::set_permissions(parent, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(path, CONTENT).unwrap();
        chown(path, Some(DEV), Some(DEV)).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o666)).unwrap();
        Self(path)
    }
}

impl Drop for Planted {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.0);
    }
}

fn kept(line: &str, operation: &'static str, object: &str) -> Case {
    attack(&words(line)).kept(operation, object, "sandboxd")
}

async fn check(uid: u32, way: Way, cases: &[Case]) {
    ground::make(uid);
    let steps: Vec<&[&str]> = cases.iter().map(|case| case.step.as_slice()).collect();
    let ran = perform(uid, way, OPEN, &steps).await;
    compare(uid, cases, &ran);
}

async fn settings_and_policies_are_read_only_whatever_the_policy_says() {
    const FILES: [&str; 4] = [
        "/etc/sandboxd/config.toml.attacked",
        "/etc/sandboxd/sets.toml.attacked",
        "/etc/sandboxd/policies/attacked.toml",
        "/usr/lib/sandboxd/policies/attacked.toml",
    ];
    for (uid, way) in ATTACKERS {
        let planted = FILES.map(Planted::put);
        let mut cases = Vec::new();
        for file in FILES {
            cases.push(kept(&format!("append {file}"), "open", file));
            cases.push(attack(&words(&format!("read {file}"))).finds(CONTENT.trim()));
        }
        if uid == ROOT {
            for file in FILES {
                cases.push(kept(&format!("unlink {file}"), "unlink", file));
            }
            let made = "/etc/sandboxd/policies/made.toml";
            cases.push(kept(&format!("open {made} creat"), "create", made));
            let moved = "/etc/sandboxd";
            cases.push(kept(&format!("rename {moved} /etc/moved"), "rename", moved));
        }
        check(uid, way, &cases).await;
        for file in FILES {
            assert_eq!(fs::read_to_string(file).unwrap(), CONTENT);
            assert_eq!(host::attack(uid, "/", &["append", file]), "ok");
        }
        drop(planted);
    }
}

async fn state_does_not_exist_inside() {
    const FILES: [&str; 2] = ["/run/sandboxd/attacked", "/var/lib/sandboxd/attacked"];
    for (uid, way) in ATTACKERS {
        let planted = FILES.map(Planted::put);
        let mut cases = Vec::new();
        for file in FILES {
            let hidden = |step: &str, operation| {
                attack(&words(&format!("{step} {file}"))).hidden(operation, file, "sandboxd")
            };
            cases.push(hidden("read", "open"));
            cases.push(hidden("stat", "stat"));
        }
        check(uid, way, &cases).await;
        // The default policy says the same.
        let steps: Vec<&[&str]> = cases.iter().map(|case| case.step.as_slice()).collect();
        let spec = client::spec(uid, client::named("default"), ground::WORK);
        let ran = match way {
            Way::Run => {
                let start = client::start(spec, &client::attacker(&steps));
                client::run(&mut client::root().await, start).await
            }
            Way::Enroll => {
                let inline = sandbox_daemon::proto::enroll_request::Sandbox::Inline(spec);
                enrolled(uid, inline, &steps).await
            }
        };
        compare(uid, &cases, &ran);
        for case in &cases {
            let answer = host::attack(uid, "/", &case.step);
            assert!(answer.starts_with("ok "), "{:?}: {answer}", case.step);
        }
        drop(planted);
    }
}

async fn invalid(policy: &str, workspace: &str) -> String {
    let spec = client::spec(ROOT, client::policy(policy), workspace);
    let start = client::start(spec, &["true"]);
    let Err(status) = client::Run::start(&mut client::root().await, start).await else {
        panic!("it was started");
    };
    assert_eq!(client::reason(&status), "POLICY_INVALID", "{status:?}");
    status.message().to_owned()
}

async fn a_workspace_of_sandboxds_own_places_is_refused() {
    let policy = "version = 1\n[files]\nread = [\"/\"]\nwrite = [\"${workspace}\"]\n";
    let planted = Planted::put("/etc/sandboxd/policies/attacked.toml");
    let message = invalid(policy, "/etc/sandboxd/policies").await;
    assert!(message.contains("which is sandboxd's own"), "{message}");
    drop(planted);
}

async fn a_policy_that_opens_sandboxds_own_places_is_refused() {
    for entry in [
        "write = [\"/etc/sandboxd\"]",
        "write = [\"/etc/sandboxd/policies/own.toml\"]",
        "write = [\"/usr/lib/sandboxd\"]",
        "read = [\"/var/lib/sandboxd/secrets\"]",
        "read = [\"/run/sandboxd\"]",
    ] {
        let policy = format!("version = 1\n[files]\n{entry}\n");
        let message = invalid(&policy, "/srv").await;
        assert!(message.contains("which is sandboxd's own"), "{message}");
    }
}

async fn programs_in_force_are_neither_reached_nor_taken_away() {
    const PINS: &str = "/sys/fs/bpf/sandboxd";
    let load = fs::read_dir(PINS).unwrap().next().unwrap().unwrap().path();
    let pins: Vec<_> = fs::read_dir(&load)
        .unwrap()
        .map(|entry| entry.unwrap().path().display().to_string())
        .collect();
    let pin = &pins[0];
    let own = "kernel file system";
    let cases = [
        attack(&words(&format!("list {PINS}"))).refused(
            Errno::ENOENT,
            Right::Read,
            "open",
            PINS,
            own,
        ),
        attack(&words(&format!("unlink {pin}"))).kept("unlink", pin, own),
        unused(&format!("bpf-open {pin}"), "bpf"),
        unused("bpf-link 1", "bpf"),
        unused("bpf-next-program", "bpf"),
    ];
    check(ROOT, Way::Enroll, &cases).await;
    for case in [&cases[0], &cases[2], &cases[4]] {
        let answer = host::attack(ROOT, "/", &case.step);
        assert!(answer.starts_with("ok"), "{:?}: {answer}", case.step);
    }
    assert!(Path::new(pin).exists());
}

async fn root_leaves_its_cgroup_by_no_road() {
    let own = "kernel file system";
    let made = format!("{SLICE}/attacked");
    let mut cases: Vec<_> = ["cgroup.procs", "cgroup.threads", "cgroup.subtree_control"]
        .iter()
        .map(|file| {
            let path = format!("/sys/fs/cgroup/{file}");
            attack(&words(&format!("open {path} w"))).kept("open", &path, own)
        })
        .collect();
    cases.push(attack(&words(&format!("mkdir {made}"))).kept("mkdir", &made, own));
    check(ROOT, Way::Enroll, &cases).await;
    let clone: &[&str] = &["clone-into", "/sys/fs/cgroup"];
    ground::make(ROOT);
    let ran = perform(ROOT, Way::Enroll, OPEN, &[clone]).await;
    assert_eq!(ran.lines(), ["EPERM"], "{ran:?}");
    assert_eq!(ran.told(), (1, 0), "{ran:?}");
    assert_eq!(ran.denials[0].rule, "leaving the sandbox", "{ran:?}");
    for step in cases.iter().map(|case| case.step.as_slice()) {
        assert_eq!(host::attack(ROOT, "/", step), "ok", "{step:?}");
    }
    fs::remove_dir(made).unwrap();
    assert_eq!(host::attack(ROOT, "/", clone), "ok");
}

async fn root_writes_none_of_the_kernels_settings() {
    let own = "kernel file system";
    let paths = [
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/modprobe",
        "/proc/sysrq-trigger",
        "/sys/kernel/uevent_helper",
    ];
    let cases: Vec<_> = paths
        .iter()
        .filter(|path| Path::new(path).exists())
        .map(|path| attack(&words(&format!("open {path} w"))).kept("open", path, own))
        .collect();
    check(ROOT, Way::Enroll, &cases).await;
    for case in &cases {
        assert_eq!(host::attack(ROOT, "/", &case.step), "ok", "{:?}", case.step);
    }
}
