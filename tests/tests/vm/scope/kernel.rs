//! Interfaces of the kernel that no sandbox needs.

use super::{ATTACKERS, Way, check, unused};
use crate::{
    expect::attack,
    ground,
    host::{self, DEV, ROOT},
};

crate::trials![
    user_namespaces_are_refused,
    io_uring_is_refused,
    userfaultfd_is_refused,
    bpf_is_refused,
    events_of_the_processor_are_refused,
    the_kernels_log_is_refused,
    keyrings_are_refused,
    quotas_are_refused,
    modules_are_not_loaded_by_asking,
    files_without_names_are_let_through,
];

const DEVS: [(u32, Way); 2] = [(DEV, Way::Run), (DEV, Way::Enroll)];
const ROOTS: [(u32, Way); 1] = [(ROOT, Way::Enroll)];

async fn user_namespaces_are_refused() {
    let cases = [
        unused("unshare user", "user namespace"),
        unused("clone-userns", "user namespace"),
    ];
    check(&ATTACKERS, ground::POLICY, &cases).await;
}

async fn io_uring_is_refused() {
    let cases = [
        unused("io-uring", "io_uring"),
        // One whose requests a thread of the kernel's looks for.
        unused("io-uring-poll", "io_uring"),
    ];
    check(&ATTACKERS, ground::POLICY, &cases).await;
}

async fn userfaultfd_is_refused() {
    let cases = [unused("userfaultfd", "userfaultfd")];
    check(&ATTACKERS, ground::POLICY, &cases).await;
}

async fn bpf_is_refused() {
    let cases = [
        unused("bpf-map", "bpf"),
        unused("bpf-next-program", "bpf"),
        unused("bpf-link 1", "bpf"),
    ];
    check(&ROOTS, ground::POLICY, &cases).await;
    // Without privileges there is none to be had outside either.
    let cases = [unused("bpf-next-program", "bpf").outside("EPERM")];
    check(&DEVS, ground::POLICY, &cases).await;
}

async fn events_of_the_processor_are_refused() {
    // Debian's kernels have a setting that keeps all but root away.
    let setting = Setting::put("/proc/sys/kernel/perf_event_paranoid", "1");
    let cases = [unused("perf", "perf_event_open")];
    check(&ATTACKERS, ground::POLICY, &cases).await;
    drop(setting);
}

async fn the_kernels_log_is_refused() {
    // Otherwise nobody without privileges gets as far as to be refused.
    let setting = Setting::put("/proc/sys/kernel/dmesg_restrict", "0");
    let cases = [
        unused("syslog", "kernel log"),
        unused("syslog-size", "kernel log"),
    ];
    check(&ATTACKERS, ground::POLICY, &cases).await;
    drop(setting);
    let setting = Setting::put("/proc/sys/kernel/dmesg_restrict", "1");
    ground::make(ROOT);
    let ran = super::perform(ROOT, Way::Enroll, ground::POLICY, &[&["syslog"]]).await;
    assert_eq!(ran.lines(), ["EPERM"], "{ran:?}");
    // 6.1 asks for a second capability, which once was the one.
    assert!((1..=2).contains(&ran.exited.denied), "{ran:?}");
    assert_eq!(ran.denials[0].object_display, "CAP_SYSLOG", "{ran:?}");
    assert_eq!(host::attack(ROOT, "/", &["syslog"]), "ok");
    drop(setting);
}

async fn keyrings_are_refused() {
    let steps: [&[&str]; 4] = [
        &["add-key"],
        &["add-key-process"],
        &["request-key"],
        &["join-keyring"],
    ];
    for (uid, way) in ATTACKERS {
        ground::make(uid);
        let serial = host::attack(uid, "/", &["make-key"]);
        let ran = super::perform(uid, way, ground::POLICY, &steps).await;
        // A keyring that cannot be had is to some calls one that is not there.
        for line in ran.lines() {
            assert!(["EPERM", "ENOKEY"].contains(&line.as_str()), "{ran:?}");
        }
        assert_eq!((ran.lines().len(), ran.told()), (4, (4, 0)), "{ran:?}");
        for denial in &ran.denials {
            assert_eq!(denial.object_display, "keyring", "{ran:?}");
        }
        for step in steps.iter().filter(|step| step[0] != "request-key") {
            assert_eq!(host::attack(uid, "/", step), "ok", "{step:?}");
        }
        let step = ["read-key", serial.strip_prefix("ok ").unwrap()];
        let ran = super::perform(uid, way, ground::POLICY, &[&step]).await;
        assert_eq!(ran.lines(), ["ENOKEY"], "{ran:?}");
        // Asked once whether the key is the process's, and once for itself.
        assert_eq!(ran.told(), (2, 0), "{ran:?}");
        assert_eq!(ran.denials[0].object_display, "keyring", "{ran:?}");
        assert_eq!(host::attack(uid, "/", &step), "ok");
    }
}

async fn quotas_are_refused() {
    check(&ATTACKERS, ground::POLICY, &[unused("quota", "quota")]).await;
}

/// Protocols are loaded when somebody asks for them; refused as a kind of
/// socket, so by what is run: a program in a format that a module knows.
async fn modules_are_not_loaded_by_asking() {
    for (uid, way) in ATTACKERS {
        ground::make(uid);
        let path = "/srv/ground/work/unknown";
        let steps: [&[&str]; 1] = [&["exec", path]];
        let prepare = || {
            use std::os::unix::fs::PermissionsExt as _;
            std::fs::write(path, b"\x01\x02\x03\x04rubbish").unwrap();
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        };
        prepare();
        let ran = super::perform(uid, way, ground::POLICY, &steps).await;
        assert_eq!(ran.exited.denied, 1, "{ran:?}");
        assert_eq!(ran.denials[0].object_display, "kernel module", "{ran:?}");
    }
}

async fn files_without_names_are_let_through() {
    let cases = [attack(&["memfd"]).passes(), attack(&["eventfd"]).passes()];
    check(&ATTACKERS, ground::POLICY, &cases).await;
}

/// A setting of the kernel's, until it is dropped.
struct Setting {
    path: &'static str,
    before: Vec<u8>,
}

impl Setting {
    fn put(path: &'static str, value: &str) -> Self {
        let before = std::fs::read(path).unwrap();
        std::fs::write(path, value).unwrap();
        Self { path, before }
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        std::fs::write(self.path, &self.before).unwrap();
    }
}
