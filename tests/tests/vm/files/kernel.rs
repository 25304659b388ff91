//! The kernel's own file systems: they are the host's.

use std::fs;

use nix::errno::Errno;
use sandbox_daemon::proto::{Right, enroll_request::Sandbox};

use crate::{
    client,
    expect::{Case, attack, compare},
    host::{self, DEV, ROOT},
    scope::enrolled,
};

crate::trials![
    the_kernels_settings_cannot_be_written,
    a_process_cannot_leave_its_cgroup,
    the_programs_and_traces_of_the_kernel_are_not_there,
    a_process_reads_and_writes_about_its_own_sandbox,
    files_of_processes_outside_are_not_read,
    the_processes_of_a_sandbox_see_each_other,
    the_kernels_other_file_systems_are_closed_by_kind,
    message_queues_of_others_are_neither_opened_nor_made,
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

async fn a_process_reads_and_writes_about_its_own_sandbox() {
    for uid in [DEV, ROOT] {
        let cases = [
            attack(&["open", "/proc/self/status", "r"]).passes(),
            attack(&["open", "/proc/thread-self/stat", "r"]).passes(),
            attack(&["list", "/proc/self/fd"]).finds("4"),
            attack(&["put", "/proc/self/oom_score_adj", "500"]).passes(),
            attack(&["put", "/proc/self/comm", "renamed"]).passes(),
            attack(&["put", "/proc/thread-self/comm", "again"]).passes(),
            attack(&["put", "/proc/self/coredump_filter", "0x33"]).passes(),
            attack(&["put", "/proc/self/timerslack_ns", "60000"]).passes(),
            attack(&["read", "/proc/meminfo"]).uncontrolled(),
            attack(&["open", "/proc/net/tcp", "r"]).passes(),
            attack(&["open", "/proc/sys/kernel/osrelease", "r"]).passes(),
        ];
        for (number, case) in cases.iter().enumerate() {
            // What is found differs: only whether there is something counts.
            let steps: [&[&str]; 1] = [&case.step];
            let spec = client::spec(uid, client::policy(OPEN), "/srv");
            let start = client::start(spec, &client::attacker(&steps));
            let ran = client::run(&mut client::root().await, start).await;
            assert!(ran.lines()[0].starts_with("ok"), "{number}: {ran:?}");
            assert_eq!(ran.denials, [], "{ran:?}");
        }
    }
}

async fn files_of_processes_outside_are_not_read() {
    for uid in [DEV, ROOT] {
        let mut outside = host::command(uid, &["sleep", "1000"]).spawn().unwrap();
        let file = |name: &str| -> &'static str {
            Box::leak(format!("/proc/{}/{name}", outside.id()).into_boxed_str())
        };
        let mut cases: Vec<_> = [
            "cmdline",
            "comm",
            "status",
            "stat",
            "statm",
            "cgroup",
            "mountinfo",
            "limits",
            "oom_score",
            "task",
            "",
        ]
        .map(file)
        .map(|path| {
            let path = path.trim_end_matches('/');
            let case = attack(&["open", path, "r"]);
            case.refused(Errno::ENOENT, Right::Read, "open", path, "another process")
        })
        .into();
        for path in ["/proc/1/oom_adj", "/proc/1/uid_map"] {
            let case = attack(&["read", path]);
            cases.push(case.refused(Errno::ENOENT, Right::Read, "open", path, "another process"));
        }
        let path = file("comm");
        let case = attack(&["open", path, "w"]);
        cases.push(case.refused(Errno::ENOENT, Right::Read, "open", path, "another process"));
        // That it is there can be seen.
        cases.push(attack(&["stat", file("")]).finds("0"));
        check_open(uid, &cases).await;
        outside.kill().unwrap();
        outside.wait().unwrap();
    }
}

async fn the_processes_of_a_sandbox_see_each_other() {
    for uid in [DEV, ROOT] {
        let script = "sleep 100 & cat /proc/$!/cmdline /proc/$!/status >/dev/null \
            && echo 600 >/proc/$!/oom_score_adj && cat /proc/$!/oom_score_adj; \
            ps -A -o comm= | sort -u | tr '\\n' ' '; kill $!";
        let spec = client::spec(uid, client::policy(OPEN), "/srv");
        let start = client::start(spec, &["sh", "-c", script]);
        let ran = client::run(&mut client::root().await, start).await;
        let lines = ran.lines();
        assert_eq!(lines[0], "600", "{ran:?}");
        let seen: Vec<&str> = lines[1].split_whitespace().collect();
        assert_eq!(seen, ["ps", "sh", "sleep", "sort", "tr"], "{ran:?}");
        for denial in &ran.denials {
            assert_eq!(denial.rule, "another process", "{denial:?}");
        }
    }
}

/// Mounted for the test, and read with a policy that would open everything.
async fn the_kernels_other_file_systems_are_closed_by_kind() {
    let places = [
        ("configfs", "/srv/kind-configfs", true),
        ("debugfs", "/srv/kind-debugfs", false),
        ("fusectl", "/srv/kind-fusectl", true),
        ("mqueue", "/dev/mqueue", false),
        ("pstore", "/srv/kind-pstore", false),
        ("securityfs", "/srv/kind-securityfs", true),
        ("binfmt_misc", "/srv/kind-binfmt_misc", true),
    ];
    let mut mounted = Vec::new();
    for (kind, place, _) in places {
        let _ = host::run(ROOT, &["modprobe", kind]);
        fs::create_dir_all(place).unwrap();
        let there = host::mounts().contains(&format!(" {place} "));
        if !there {
            host::output(ROOT, &["mount", "-t", kind, "none", place]);
            mounted.push(place);
        }
    }
    let cases: Vec<Case> = places
        .iter()
        .flat_map(|&(_, place, readable)| {
            let list = attack(&["open", place, "r"]);
            let list = if readable {
                list.passes()
            } else {
                list.refused(Errno::ENOENT, Right::Read, "open", place, RULE)
            };
            [
                list,
                attack(&["utimes", place]).kept("setattr", place, RULE),
            ]
        })
        .collect();
    check_open(ROOT, &cases).await;
    for place in mounted {
        host::output(ROOT, &["umount", place]);
    }
}

async fn message_queues_of_others_are_neither_opened_nor_made() {
    for uid in [DEV, ROOT] {
        let _ = fs::remove_file("/dev/mqueue/made");
        let _ = fs::remove_file("/dev/mqueue/others");
        assert_eq!(host::attack(uid, "/", &["queue", "/others"]), "ok");
        let cases = [
            attack(&["queue", "/others"]).refused(
                Errno::ENOENT,
                Right::Read,
                "open",
                "/dev/mqueue/others",
                RULE,
            ),
            attack(&["queue", "/made"]).kept("create", "/dev/mqueue/made", RULE),
        ];
        // Who is enrolled keeps the host's queues.
        let steps = cases.each_ref().map(|case| case.step.as_slice());
        let spec = client::spec(uid, client::policy(OPEN), "/srv");
        let ran = enrolled(uid, Sandbox::Inline(spec.clone()), &steps).await;
        compare(uid, &cases, &ran);
        for step in steps {
            assert_eq!(host::attack(uid, "/", step), "ok", "{step:?}");
        }
        // Who is started has others, on a file system that is mounted nowhere: the
        // same name leads there, and it is closed too.
        let start = client::start(spec, &client::attacker(&steps));
        let ran = client::run(&mut client::root().await, start).await;
        assert_eq!(ran.lines(), ["EACCES", "EACCES"], "{ran:?}");
        assert_eq!(ran.told(), (2, 0), "{ran:?}");
        for (denial, name) in ran.denials.iter().zip(["/others", "/made"]) {
            assert_eq!(denial.operation, "create", "{ran:?}");
            assert_eq!(denial.rule, "unknown file system", "{ran:?}");
            assert!(
                denial.object_display.ends_with(&format!(": {name}")),
                "{ran:?}"
            );
        }
    }
    fs::remove_file("/dev/mqueue/made").unwrap();
    fs::remove_file("/dev/mqueue/others").unwrap();
}
