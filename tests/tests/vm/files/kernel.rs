//! The kernel's own file systems: they are the host's.

use std::fs;

use nix::errno::Errno;
use sandbox_daemon::proto::Right;

use crate::{
    client,
    expect::{Case, attack, compare},
    host::{self, DEV, ROOT},
};

crate::trials![
    the_kernels_settings_cannot_be_written,
    a_process_cannot_leave_its_cgroup,
    the_programs_and_traces_of_the_kernel_are_not_there,
    a_process_reads_about_itself_and_writes_nothing,
];

const RULE: &str = "kernel file system";

/// A policy that would open all of them.
const OPEN: &str = "version = 1\nname = \"open\"\n[files]\nwrite = [\"/\"]\n";

async fn check_open(uid: u32, cases: &[Case]) {
    let steps: Vec<&[&str]> = cases.iter().map(|case| case.step.as_slice()).collect();
    let spec = client::spec(uid, client::policy(OPEN), "/srv");
    let start = client::start(spec, &client::attacker(&steps));
    let ran = client::run(&mut client::root().await, start).await;
    compare(uid, cases, &ran);
    for case in cases {
        let answer = host::attack(uid, "/", &case.step);
        assert!(answer.starts_with("ok"), "{:?}: {answer}", case.step);
    }
}

async fn the_kernels_settings_cannot_be_written() {
    let before = fs::read("/proc/sys/kernel/hostname").unwrap();
    let kept = |path: &'static str| attack(&["open", path, "w"]).kept("open", path, RULE);
    let cases = [
        kept("/proc/sys/kernel/hostname"),
        kept("/proc/sysrq-trigger"),
        kept("/sys/kernel/mm/transparent_hugepage/enabled"),
        attack(&["read", "/proc/sys/kernel/ostype"]).finds("Linux"),
    ];
    check_open(ROOT, &cases).await;
    assert_eq!(fs::read("/proc/sys/kernel/hostname").unwrap(), before);
}

async fn a_process_cannot_leave_its_cgroup() {
    let made = "/sys/fs/cgroup/system.slice/attacked";
    let cases = [
        attack(&["open", "/sys/fs/cgroup/cgroup.procs", "w"]).kept(
            "open",
            "/sys/fs/cgroup/cgroup.procs",
            RULE,
        ),
        attack(&["mkdir", made]).kept("mkdir", made, RULE),
    ];
    check_open(ROOT, &cases).await;
    fs::remove_dir(made).unwrap();
}

async fn the_programs_and_traces_of_the_kernel_are_not_there() {
    let hidden = |path: &'static str| {
        attack(&["list", path]).refused(Errno::ENOENT, Right::Read, "open", path, RULE)
    };
    check_open(
        ROOT,
        &[hidden("/sys/fs/bpf"), hidden("/sys/kernel/tracing")],
    )
    .await;
}

async fn a_process_reads_about_itself_and_writes_nothing() {
    let steps: [&[&str]; 2] = [
        &["open", "/proc/self/status", "r"],
        &["open", "/proc/self/oom_score_adj", "w"],
    ];
    for uid in [DEV, ROOT] {
        let spec = client::spec(uid, client::policy(OPEN), "/srv");
        let start = client::start(spec, &client::attacker(&steps));
        let ran = client::run(&mut client::root().await, start).await;
        assert_eq!(ran.lines(), ["ok", "EACCES"], "{ran:?}");
        assert_eq!(ran.exited.denied, 1, "{ran:?}");
        assert_eq!(ran.denials[0].rule, RULE, "{ran:?}");
        assert_eq!(host::attack(uid, "/", steps[1]), "ok");
    }
}
