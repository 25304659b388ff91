//! Devices: by number, whatever they are called, and terminals by whose they
//! are.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown},
};

use nix::{
    errno::Errno,
    fcntl::OFlag,
    pty::{PtyMaster, grantpt, posix_openpt, ptsname_r, unlockpt},
    sys::stat::{Mode, SFlag, major, makedev, minor, mknod},
};
use sandbox_daemon::proto::{Right, Start};

use super::asked::{answer, becomes};
use crate::{
    client,
    enroll::{Attacker, enroll, request, until_ended},
    expect::{Case, attack, check, compare},
    ground::{self, GROUND, WORK},
    host::{self, DEV, ROOT},
};

crate::trials![
    the_disk_and_other_devices_are_not_opened,
    a_device_is_known_by_its_number_wherever_its_node_lies,
    no_device_is_made,
    a_policy_opens_a_device_by_name,
    a_device_that_comes_later_is_opened,
    devices_that_everybody_has_work,
    the_users_other_terminals_are_not_there,
    an_enrolled_process_has_its_own_terminal_alone,
    a_sandbox_has_terminals_of_its_own,
    what_shells_do_with_dev_goes_unnoticed,
];

fn closed(step: &[&'static str], right: Right, object: &str) -> Case {
    attack(step).refused(Errno::EPERM, right, "open", object, "device")
}

/// Steps in the ground's sandbox, on what a test has put there.
async fn perform(uid: u32, cases: &[Case]) {
    let steps: Vec<&[&str]> = cases.iter().map(|case| case.step.as_slice()).collect();
    let ran = client::run(&mut client::root().await, ground::attacker(uid, &steps)).await;
    compare(uid, cases, &ran);
}

/// The device of the root file system.
fn disk() -> &'static str {
    let device = fs::metadata("/").unwrap().dev();
    let link = format!("/sys/dev/block/{}:{}", major(device), minor(device));
    let target = fs::read_link(link).unwrap();
    let name = target.file_name().unwrap().to_str().unwrap();
    Box::leak(format!("/dev/{name}").into_boxed_str())
}

async fn the_disk_and_other_devices_are_not_opened() {
    let disk = disk();
    ground::make(ROOT);
    let cases = [
        closed(&["open", disk, "r"], Right::Read, disk),
        closed(&["open", "/dev/kmsg", "r"], Right::Read, "/dev/kmsg"),
        attack(&["open", disk, "w"]).kept("open", disk, "/"),
    ];
    perform(ROOT, &cases).await;
    assert_eq!(host::attack(ROOT, "/", &cases[0].step), "ok");
    assert_eq!(host::attack(ROOT, "/", &cases[1].step), "ok");
}

async fn a_device_is_known_by_its_number_wherever_its_node_lies() {
    let disk = fs::metadata(disk()).unwrap().rdev();
    let serial = fs::metadata("/dev/ttyS0").unwrap().rdev();
    for uid in [DEV, ROOT] {
        ground::make(uid);
        for (name, kind, device) in [
            ("disk", SFlag::S_IFBLK, disk),
            ("serial", SFlag::S_IFCHR, serial),
            ("null", SFlag::S_IFCHR, makedev(1, 3)),
        ] {
            let path = format!("{WORK}/{name}");
            mknod(path.as_str(), kind, Mode::from_bits_truncate(0o666), device).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o666)).unwrap();
        }
        let cases = [
            closed(&["open", "work/disk", "r"], Right::Read, "work/disk"),
            closed(&["open", "work/disk", "rw"], Right::Write, "work/disk"),
            closed(&["open", "work/serial", "r"], Right::Read, "work/serial"),
            closed(&["reopen", "work/serial", "w"], Right::Write, "work/serial"),
            attack(&["open", "work/null", "rw"]).passes(),
        ];
        perform(uid, &cases).await;
        for case in &cases {
            // Nobody writes to a disk that is mounted.
            if !case.step.contains(&"rw") {
                assert_eq!(
                    host::attack(uid, GROUND, &case.step),
                    "ok",
                    "{:?}",
                    case.step
                );
            }
        }
    }
    ground::make(DEV);
}

async fn no_device_is_made() {
    ground::make(ROOT);
    let step = ["mknod", "work/made", "b", "8", "0"];
    // What was started has no capabilities, what was enrolled still has them.
    let ran = client::run(&mut client::root().await, ground::attacker(ROOT, &[&step])).await;
    assert_eq!(ran.lines(), ["EPERM"], "{ran:?}");
    let mut attacker = Attacker::start(ROOT, &[&["wait"], &step]);
    let mut client = client::root().await;
    let (mut stream, _) = enroll(&mut client, request(ROOT, attacker.pid()))
        .await
        .unwrap();
    attacker.go_on();
    assert_eq!(attacker.line(), "ok");
    assert_eq!(attacker.line(), "EPERM");
    let denials = until_ended(&mut stream).await;
    assert_eq!(denials.len(), 1, "{denials:#?}");
    assert_eq!(host::attack(ROOT, GROUND, &step), "ok");
    ground::make(DEV);
}

async fn a_policy_opens_a_device_by_name() {
    const POLICY: &str = r#"
version = 1
name = "devices"
[files]
read = ["/"]
write = ["@devices"]
[devices]
allow = ["/dev/ttyS0", "/dev/not-there"]
"#;
    let cases = [
        attack(&["open", "/dev/ttyS0", "r"]).passes(),
        attack(&["open", "/dev/ttyS0", "w"]).passes(),
        closed(&["open", "/dev/kmsg", "r"], Right::Read, "/dev/kmsg"),
    ];
    let steps: Vec<&[&str]> = cases.iter().map(|case| case.step.as_slice()).collect();
    let spec = client::spec(ROOT, client::policy(POLICY), "/srv");
    let start = client::start(spec, &client::attacker(&steps));
    let ran = client::run(&mut client::root().await, start).await;
    compare(ROOT, &cases, &ran);
}

async fn a_device_that_comes_later_is_opened() {
    const POLICY: &str = r#"
version = 1
name = "devices"
[files]
read = ["/"]
write = ["@devices", "/dev/ttyS0"]
[devices]
allow = ["/dev/coming"]
"#;
    ground::make(ROOT);
    let mut client = client::root().await;
    let spec = client::spec(ROOT, client::policy(POLICY), "/srv");
    let id = client::create(&mut client, spec).await.id;
    let (same, step) = (["open", "/dev/ttyS0", "r"], ["open", "/dev/coming", "r"]);
    assert_eq!(answer(&mut client, &id, &same).await, "EPERM");
    assert_eq!(answer(&mut client, &id, &step).await, "ENOENT");
    let number = fs::metadata("/dev/ttyS0").unwrap().rdev();
    mknod("/dev/coming", SFlag::S_IFCHR, Mode::S_IRUSR, number).unwrap();
    becomes(&mut client, &id, &step, "ok").await;
    fs::remove_file("/dev/coming").unwrap();
    client::delete(&mut client, &id).await;
}

async fn devices_that_everybody_has_work() {
    check(&[
        attack(&["put", "/dev/null", "x"]).passes(),
        attack(&["open", "/dev/zero", "rw"]).passes(),
        attack(&["open", "/dev/full", "rw"]).passes(),
        attack(&["open", "/dev/random", "r"]).passes(),
        attack(&["open", "/dev/urandom", "r"]).passes(),
        attack(&["open", "/dev/ptmx", "rw"]).passes(),
        attack(&["terminal"]).passes(),
    ])
    .await;
}

async fn the_users_other_terminals_are_not_there() {
    for uid in [DEV, ROOT] {
        let (_master, slave) = terminal(uid);
        ground::make(uid);
        let case = attack(&["open", slave, "r"]).fails(Errno::ENOENT);
        perform(uid, &[case]).await;
        assert_eq!(host::attack(uid, "/", &["open", slave, "r"]), "ok");
    }
}

async fn an_enrolled_process_has_its_own_terminal_alone() {
    let (_master, slave) = terminal(DEV);
    ground::make(DEV);
    let steps: [&[&str]; 3] = [&["wait"], &["open", slave, "r"], &["terminal"]];
    let mut attacker = Attacker::start(DEV, &steps);
    let mut client = client::root().await;
    let (mut stream, _) = enroll(&mut client, request(DEV, attacker.pid()))
        .await
        .unwrap();
    attacker.go_on();
    for answer in ["ok", "EPERM", "ok"] {
        assert_eq!(attacker.line(), answer);
    }
    let denials = until_ended(&mut stream).await;
    let [denial] = denials.as_slice() else {
        panic!("{denials:#?}");
    };
    assert_eq!(denial.object_display, slave);
    assert_eq!(denial.rule, "device");
    assert_eq!(denial.errno, Errno::EPERM as u32);
    assert_eq!(host::attack(DEV, "/", steps[1]), "ok");
}

/// A terminal of the host's that is a user's.
fn terminal(uid: u32) -> (PtyMaster, &'static str) {
    let master = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let slave: &'static str = Box::leak(ptsname_r(&master).unwrap().into_boxed_str());
    chown(slave, Some(uid), None).unwrap();
    (master, slave)
}

async fn a_sandbox_has_terminals_of_its_own() {
    for uid in [DEV, ROOT] {
        let argv = ["script", "-qec", "tty", "/dev/null"];
        let start = client::start(ground::spec(uid), &argv);
        let ran = client::run(&mut client::root().await, start).await;
        assert_eq!(ran.lines(), ["/dev/pts/0"], "{ran:?}");
        assert_eq!(ran.denials, [], "{ran:?}");
        assert_eq!(ran.code(), Some(0), "{ran:?}");
    }
}

async fn what_shells_do_with_dev_goes_unnoticed() {
    const SCRIPT: &str = "
cat <(echo substituted)
echo out >/dev/stdout
echo fd >/dev/fd/1
echo in | cat /dev/stdin
echo shared >/dev/shm/file && cat /dev/shm/file
exec 3<>work/file && cat </dev/fd/3
head -c 4 /dev/zero | wc -c
echo gone >/dev/null
echo full >/dev/full 2>/dev/null || echo full
[ -c /dev/tty ] && ls /dev/pts >/dev/null && echo end
";
    for uid in [DEV, ROOT] {
        ground::make(uid);
        let start = Start {
            cwd: GROUND.into(),
            ..client::start(ground::spec(uid), &["bash", "-c", SCRIPT])
        };
        let ran = client::run(&mut client::root().await, start).await;
        let expected = [
            "substituted",
            "out",
            "fd",
            "in",
            "shared",
            "content of work/file",
            "4",
            "full",
            "end",
        ];
        assert_eq!(ran.lines(), expected, "{ran:?}");
        assert_eq!(ran.denials, [], "{ran:?}");
    }
}
