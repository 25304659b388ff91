//! What changes a file, or waits for what happens to it, without opening it for
//! that: attributes, ioctl(2), leases, watches.

use std::{fs, os::unix::fs::chown, path::Path};

use nix::errno::Errno;
use sandbox_daemon::proto::Right;

use crate::{
    client,
    expect::{Case, attack, check, compare},
    host::{self, DEV, ROOT},
};

crate::trials![
    a_readable_file_keeps_its_attributes_and_acls,
    what_may_not_be_read_shows_no_attributes,
    a_readable_file_keeps_its_flags,
    a_subvolume_is_not_made_through_a_descriptor,
    nothing_is_typed_into_a_terminal,
    what_may_not_be_read_is_not_watched,
    a_readable_file_is_not_leased,
    what_may_be_written_is_controlled,
];

const ACL: &str = "system.posix_acl_access";

fn typed(case: Case, object: &str) -> Case {
    case.refused(Errno::EPERM, Right::Write, "ioctl", object, "ioctl")
}

async fn a_readable_file_keeps_its_attributes_and_acls() {
    let file = "plain/file";
    let kept = |step: &[&'static str], operation| attack(step).kept(operation, file, "/");
    check(&[
        kept(&["setxattr", file, "user.attack"], "setxattr"),
        kept(&["setxattr", "plain/link", "user.attack"], "setxattr"),
        kept(&["fsetxattr", file, "user.attack"], "setxattr"),
        kept(&["setxattr", file, ACL], "setxattr"),
        kept(&["fsetxattr", file, ACL], "setxattr"),
        kept(&["removexattr", file, "user.attack"], "removexattr").outside("ENODATA"),
        kept(&["removexattr", file, ACL], "removexattr"),
        attack(&["setxattr", "secret/key", "user.attack"]).kept(
            "setxattr",
            "secret/key",
            "/srv/ground/secret",
        ),
    ])
    .await;
}

async fn what_may_not_be_read_shows_no_attributes() {
    let rule = "/srv/ground/secret";
    let hidden = |step: &[&'static str], object, answer: &'static str| {
        let case = attack(step).hidden("getxattr", object, rule);
        case.outside(answer)
    };
    let key = "secret/key";
    check(&[
        hidden(&["getxattr", key, "user.none"], key, "ENODATA"),
        hidden(&["getxattr", "work/to-secret", "user.none"], key, "ENODATA"),
        hidden(&["getxattr", key, ACL], key, "ENODATA"),
        hidden(&["listxattr", key], key, "ok 0"),
        hidden(&["listxattr", "secret"], "secret", "ok 0"),
    ])
    .await;
    check(&[
        attack(&["listxattr", "plain/file"]).finds("0"),
        attack(&["getxattr", "plain/file", "user.none"]).fails(Errno::ENODATA),
    ])
    .await;
}

async fn a_readable_file_keeps_its_flags() {
    let file = "plain/file";
    let kept = |step: &[&'static str]| typed(attack(step), file);
    check(&[
        kept(&["ioctl", file, "FS_IOC_SETFLAGS"]),
        kept(&["ioctl32", file, "FS_IOC32_SETFLAGS"]),
        kept(&["ioctl", file, "FS_IOC_ENABLE_VERITY"]).outside("EOPNOTSUPP"),
        kept(&["ioctl32", file, "FS_IOC_ENABLE_VERITY"]).outside("EOPNOTSUPP"),
    ])
    .await;
    // What only reads goes through.
    check(&[
        attack(&["ioctl", file, "FS_IOC_GETFLAGS"]).passes(),
        attack(&["ioctl", "work/file", "FS_IOC_SETFLAGS"]).passes(),
    ])
    .await;
}

async fn a_subvolume_is_not_made_through_a_descriptor() {
    const READABLE: &str = "version = 1\n[files]\nread = [\"/\"]\n";
    const WRITABLE: &str = "version = 1\n[files]\nread = [\"/\"]\nwrite = [\"/srv/volume\"]\n";
    const IMAGE: &str = "/srv/volume.img";
    const MOUNT: &str = "/srv/volume";
    const STEP: [&str; 3] = ["ioctl", MOUNT, "BTRFS_IOC_SUBVOL_CREATE"];
    fs::create_dir_all(MOUNT).unwrap();
    host::output(ROOT, &["truncate", "-s", "128M", IMAGE]);
    host::output(ROOT, &["modprobe", "-a", "btrfs", "loop"]);
    host::output(ROOT, &["mkfs.btrfs", "-q", "-f", IMAGE]);
    host::output(ROOT, &["mount", "-o", "loop", IMAGE, MOUNT]);
    let made = Path::new(MOUNT).join("attacked");
    for uid in [DEV, ROOT] {
        chown(MOUNT, Some(uid), Some(uid)).unwrap();
        // Where directories may be made it could take a name that may not be.
        for (policy, workspace) in [(READABLE, "/srv"), (WRITABLE, MOUNT)] {
            let case = typed(attack(&STEP), MOUNT);
            let spec = client::spec(uid, client::policy(policy), workspace);
            let start = client::start(spec, &client::attacker(&[&STEP]));
            let ran = client::run(&mut client::root().await, start).await;
            compare(uid, &[case], &ran);
            assert!(!made.exists());
        }
        assert_eq!(host::attack(uid, "/", &STEP), "ok");
        assert!(made.exists());
        host::output(
            ROOT,
            &["btrfs", "-q", "subvolume", "delete", "/srv/volume/attacked"],
        );
    }
    host::output(ROOT, &["umount", MOUNT]);
    fs::remove_file(IMAGE).unwrap();
}

async fn nothing_is_typed_into_a_terminal() {
    // 6.2 and later refuse it to ordinary users unless told otherwise.
    let _ = fs::write("/proc/sys/dev/tty/legacy_tiocsti", "1");
    let terminal = "/dev/pts/0";
    check(&[
        typed(attack(&["type", "TIOCSTI"]), terminal),
        typed(attack(&["type32", "TIOCSTI"]), terminal),
        // The console's alone, and there is none in the guest.
        typed(attack(&["type", "TIOCLINUX"]), terminal).outside("ENOTTY"),
        typed(attack(&["type32", "TIOCLINUX"]), terminal).outside("ENOTTY"),
    ])
    .await;
    check(&[attack(&["type", "TIOCGWINSZ"]).passes()]).await;
}

async fn what_may_not_be_read_is_not_watched() {
    let rule = "/srv/ground/secret";
    check(&[
        attack(&["watch", "secret"]).hidden("watch", "secret", rule),
        attack(&["watch", "secret/key"]).hidden("watch", "secret/key", rule),
        attack(&["watch", "work/to-secret"]).hidden("watch", "secret/key", rule),
    ])
    .await;
    check(&[
        attack(&["watch", "plain"]).passes(),
        attack(&["watch", "work/file"]).passes(),
        attack(&["dnotify", "plain"]).passes(),
    ])
    .await;
}

async fn a_readable_file_is_not_leased() {
    check(&[attack(&["lease", "plain/file"]).kept("fcntl", "plain/file", "/")]).await;
    check(&[attack(&["lease", "work/file"]).passes()]).await;
}

async fn what_may_be_written_is_controlled() {
    check(&[
        attack(&["setxattr", "work/file", "user.own"]).passes(),
        attack(&["setxattr", "work/file", ACL]).passes(),
        attack(&["removexattr", "work/file", "user.own"]).uncontrolled(),
        attack(&["removexattr", "work/file", ACL]).passes(),
    ])
    .await;
}
