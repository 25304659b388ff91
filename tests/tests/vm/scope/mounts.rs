//! Mounts, by the old interface and the new one, and roots.

use nix::errno::Errno;
use sandbox_daemon::proto::{Right, enroll_request};

use super::{ATTACKERS, Way, check, prepared, refused, unused, words};
use crate::{
    client,
    expect::{Case, attack},
    ground,
    host::{self, DEV, ROOT},
};

crate::trials![
    nothing_is_mounted,
    nothing_is_mounted_by_root,
    the_root_is_not_changed,
    with_user_namespaces_nothing_is_mounted_either,
    with_user_namespaces_a_namespace_is_had,
    mounts_that_a_process_brings_along_stay,
];

/// A directory, for the controls: what is mounted there goes with its process.
const AT: &str = "/srv/ground/work/directory";

/// The ground with user namespaces.
const SOFT: &str = r#"
version = 1
name = "soft"

[files]
read = ["/"]
write = ["${workspace}", "${tmp}", "@devices"]

[scope]
allow = ["userns"]
"#;

fn mount(line: &str, operation: &'static str, object: &str) -> Case {
    attack(&words(line)).refused(Errno::EPERM, Right::Scope, operation, object, "mounts")
}

fn old() -> [Case; 3] {
    [
        mount(&format!("mount-tmpfs {AT}"), "mount", AT),
        mount(&format!("mount-bind /srv/ground/plain {AT}"), "mount", AT),
        mount("remount /", "mount", "/"),
    ]
}

async fn nothing_is_mounted() {
    let cases = old().map(|case| case.outside("EPERM"));
    check(
        &[(DEV, Way::Run), (DEV, Way::Enroll)],
        ground::POLICY,
        &cases,
    )
    .await;
}

async fn nothing_is_mounted_by_root() {
    let admin = |line: &str| refused(&words(line), "use", "CAP_SYS_ADMIN", "capability");
    let mut cases = old().map(Case::uncontrolled).to_vec();
    cases.extend([
        admin("file-system-open"),
        admin("tree-clone /srv/ground/plain"),
        admin("mount-attributes /srv").outside("EINVAL"),
        admin("unmount /proc").uncontrolled(),
        admin("pivot /srv /srv").outside("EINVAL"),
    ]);
    check(&[(ROOT, Way::Enroll)], ground::POLICY, &cases).await;
}

async fn the_root_is_not_changed() {
    let cases = [mount(
        "apart chroot /srv/ground/work",
        "chroot",
        ground::WORK,
    )];
    check(&[(ROOT, Way::Enroll)], ground::POLICY, &cases).await;
}

/// A user namespace has all capabilities over what it holds, and a mount
/// namespace of its own with it.
async fn with_user_namespaces_nothing_is_mounted_either() {
    let within = |line: &str, operation, object: &str| {
        mount(&format!("in-userns {line}"), operation, object)
    };
    let cases = [
        within(&format!("mount-tmpfs {AT}"), "mount", AT),
        within(&format!("mount-bind /srv/ground/plain {AT}"), "mount", AT),
        within(&format!("mount-move /srv/ground/plain {AT}"), "mount", AT),
        within("pivot /srv /srv", "mount", "/srv").outside("EINVAL"),
    ];
    check(&ATTACKERS, SOFT, &cases).await;
    // A file system that is mounted nowhere has no place to be named by.
    let step: &[&str] = &["in-userns", "file-system-mount"];
    for (uid, way) in ATTACKERS {
        let ran = super::perform(uid, way, SOFT, &[step]).await;
        assert_eq!(ran.lines(), ["EPERM"], "{ran:?}");
        assert_eq!(ran.told(), (1, 0), "{ran:?}");
        assert_eq!(ran.denials[0].operation, "mount", "{ran:?}");
        assert_eq!(host::attack(uid, "/", step), "ok");
    }
}

async fn with_user_namespaces_a_namespace_is_had() {
    let cases = [
        attack(&["apart", "unshare", "user"]).passes(),
        attack(&["in-userns", "unshare", "net"]).passes(),
        attack(&["in-userns", "chroot", "/srv/ground/plain"]).passes(),
    ];
    check(&ATTACKERS, SOFT, &cases).await;
    let cases = [unused("in-userns unshare net", "user namespace")];
    check(&ATTACKERS, ground::POLICY, &cases).await;
}

/// A process that is enrolled with namespaces of its own may unmount what it
/// mounted there, as far as the kernel cares.
async fn mounts_that_a_process_brings_along_stay() {
    let before: [&[&str]; 2] = [&["own-namespaces"], &["mount-tmpfs", AT]];
    let unmount: &[&str] = &["unmount", AT];
    let reconfigure: &[&str] = &["reconfigure", AT];
    for uid in [DEV, ROOT] {
        for (policy, step, operation) in [
            (SOFT, unmount, "umount"),
            (SOFT, reconfigure, "mount"),
            (ground::POLICY, unmount, "use"),
            (ground::POLICY, reconfigure, "use"),
        ] {
            ground::make(uid);
            let spec = client::spec(uid, client::policy(policy), ground::WORK);
            let inline = enroll_request::Sandbox::Inline(spec);
            let ran = prepared(uid, inline, &before, &[step]).await;
            assert_eq!(ran.lines(), ["EPERM"], "{ran:?}");
            assert_eq!(ran.told(), (1, 0), "{ran:?}");
            assert_eq!(ran.denials[0].operation, operation, "{ran:?}");
            ground::make(uid);
            let argv = client::attacker(&[before[0], before[1], step]);
            assert_eq!(host::output(uid, &argv), "ok\nok\nok\n", "{step:?}");
        }
    }
}
