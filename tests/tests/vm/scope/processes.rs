//! Other processes, looked into and changed.

use sandbox_daemon::proto::enroll_request;

use super::{ATTACKERS, Victim, Way, aimed, enrolled, object, perform, refused};
use crate::{
    client::{self, Run},
    expect::{Case, attack, compare},
    ground,
    host::{self, DEV, ROOT},
};

crate::trials![
    a_process_outside_cannot_be_looked_into,
    a_process_outside_cannot_be_slowed_or_bounded,
    a_process_of_another_sandbox_cannot_be_touched,
    an_outside_parent_does_not_trace,
    a_process_outside_is_given_no_child,
    a_sandbox_debugs_its_own_processes,
    a_list_of_processes_is_that_of_the_sandbox,
    the_daemon_cannot_be_touched,
];

/// Step, and what it answers. Paths in /proc have an answer of their own.
const LOOKS: [(&str, &str); 14] = [
    ("ptrace-attach PID", "EPERM"),
    ("ptrace-seize PID", "EPERM"),
    ("open /proc/PID/mem r", "ENOENT"),
    ("open /proc/PID/environ r", "ENOENT"),
    ("open /proc/PID/maps r", "ENOENT"),
    ("readlink /proc/PID/cwd", "EACCES"),
    ("readlink /proc/PID/root", "EACCES"),
    ("readlink /proc/PID/exe", "EACCES"),
    ("vm-read PID ADDRESS", "EPERM"),
    ("vm-write PID ADDRESS", "EPERM"),
    ("get-descriptor PID", "EPERM"),
    ("kcmp PID", "EPERM"),
    ("robust-list PID", "EPERM"),
    ("move-pages PID", "EPERM"),
];

/// Those that only root can do outside.
const ROOTS_LOOKS: [(&str, &str); 2] = [
    ("enter-namespace PID", "EPERM"),
    ("madvise PID ADDRESS", "EACCES"),
];

/// Step, and what events call it.
const CHANGES: [(&str, &str); 5] = [
    ("priority PID", "setpriority"),
    ("io-priority PID", "setpriority"),
    ("scheduler PID", "setscheduler"),
    ("affinity PID", "setscheduler"),
    ("limit PID", "prlimit"),
];

fn looks(uid: u32) -> Vec<(&'static str, &'static str)> {
    let roots = ROOTS_LOOKS.iter().filter(|_| uid == ROOT);
    LOOKS.iter().chain(roots).copied().collect()
}

fn look(step: &str, answer: &str, pid: u32, address: &str) -> Case {
    let step = aimed(step, pid, address);
    // The files about a process are not there; what needs no file is refused.
    if step[0] == "open" {
        return attack(&step).hidden("open", step[1], "another process");
    }
    refused(&step, "ptrace", &object(pid), "another process").answers(answer)
}

async fn a_process_outside_cannot_be_looked_into() {
    for (uid, way) in ATTACKERS {
        ground::make(uid);
        let victim = Victim::of(uid);
        let cases: Vec<_> = looks(uid)
            .into_iter()
            .map(|(step, answer)| look(step, answer, victim.pid(), &victim.address))
            .collect();
        let steps: Vec<&[&str]> = cases.iter().map(|case| case.step.as_slice()).collect();
        let ran = perform(uid, way, ground::POLICY, &steps).await;
        compare(uid, &cases, &ran);
        for (step, _) in looks(uid) {
            let step = victim.aimed(step);
            let answer = host::attack(uid, "/", &step);
            assert!(answer.starts_with("ok"), "{step:?}: {answer}");
        }
    }
}

async fn a_process_outside_cannot_be_slowed_or_bounded() {
    for (uid, way) in ATTACKERS {
        ground::make(uid);
        let victim = Victim::of(uid);
        let cases = CHANGES.map(|(step, operation)| {
            let step = victim.aimed(step);
            refused(&step, operation, &victim.object(), "another process")
        });
        let steps: Vec<&[&str]> = cases.iter().map(|case| case.step.as_slice()).collect();
        let ran = perform(uid, way, ground::POLICY, &steps).await;
        compare(uid, &cases, &ran);
        for case in &cases {
            assert_eq!(host::attack(uid, "/", &case.step), "ok", "{:?}", case.step);
        }
    }
}

async fn a_process_of_another_sandbox_cannot_be_touched() {
    for (uid, way) in ATTACKERS {
        ground::make(uid);
        let mut client = client::root().await;
        let steps: [&[&str]; 2] = [&["pid"], &["victim"]];
        let mut victim = Run::start(&mut client, ground::attacker(uid, &steps))
            .await
            .unwrap();
        let pid = victim.line().await;
        let pid: u32 = pid.strip_prefix("ok ").unwrap().parse().unwrap();
        let address = victim.line().await;
        let another = "another process";
        let mut cases: Vec<_> = LOOKS
            .iter()
            .map(|(step, answer)| look(step, answer, pid, &address))
            .collect();
        let killed = aimed("kill PID 9", pid, "");
        cases.push(refused(&killed, "signal", &object(pid), another));
        cases.extend(CHANGES.map(|(step, operation)| {
            refused(&aimed(step, pid, ""), operation, &object(pid), another)
        }));
        let steps: Vec<&[&str]> = cases.iter().map(|case| case.step.as_slice()).collect();
        let ran = perform(uid, way, ground::POLICY, &steps).await;
        compare(uid, &cases, &ran);
        assert!(host::alive(pid));
    }
}

async fn an_outside_parent_does_not_trace() {
    for (uid, way) in ATTACKERS {
        ground::make(uid);
        let step: &[&str] = &["trace-me"];
        let ran = perform(uid, way, ground::POLICY, &[step]).await;
        assert_eq!(ran.lines(), ["EPERM"], "{ran:?}");
        assert_eq!(ran.exited.denied, 1, "{ran:?}");
        assert_eq!(ran.denials[0].operation, "ptrace", "{ran:?}");
        assert_eq!(host::attack(uid, "/", step), "ok");
    }
}

async fn a_sandbox_debugs_its_own_processes() {
    for (uid, way) in ATTACKERS {
        ground::make(uid);
        let cases = [attack(&["trace-child"]).finds("secret!")];
        let steps: Vec<&[&str]> = cases.iter().map(|case| case.step.as_slice()).collect();
        let ran = perform(uid, way, ground::POLICY, &steps).await;
        compare(uid, &cases, &ran);
        // Also where debugger and program were started apart.
        let mut client = client::root().await;
        let id = client::create(&mut client, ground::spec(uid)).await.id;
        let program = client::start_in(&id, &client::attacker(&[&["pid"], &["victim"]]));
        let mut program = Run::start(&mut client, program).await.unwrap();
        let pid = program.line().await;
        let pid: u32 = pid.strip_prefix("ok ").unwrap().parse().unwrap();
        let address = program.line().await;
        let read = aimed("vm-read PID ADDRESS", pid, &address);
        let sandbox = enroll_request::Sandbox::SandboxId(id.clone());
        let ran = enrolled(uid, sandbox, &[&read]).await;
        assert_eq!(ran.lines(), ["ok secret!"], "{ran:?}");
        client::delete(&mut client, &id).await;
    }
}

async fn a_list_of_processes_is_that_of_the_sandbox() {
    for (uid, name) in [(DEV, "dev"), (ROOT, "root")] {
        let spec = client::spec(uid, client::policy(ground::POLICY), ground::WORK);
        ground::make(uid);
        let start = client::start(spec, &["ps", "-e", "-o", "user,comm"]);
        let ran = client::run(&mut client::root().await, start).await;
        assert_eq!(ran.code(), Some(0), "{ran:?}");
        let lines: Vec<_> = ran.lines();
        let words: Vec<Vec<_>> = lines
            .iter()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(words, [["USER", "COMMAND"], [name, "ps"]], "{ran:?}");
        for denial in &ran.denials {
            assert_eq!(denial.rule, "another process", "{ran:?}");
        }
    }
}

/// Of a command it would be the daemon, of an enrolled process its parent.
async fn a_process_outside_is_given_no_child() {
    for (uid, way) in ATTACKERS.into_iter().chain([(ROOT, Way::Run)]) {
        ground::make(uid);
        let parent = match way {
            Way::Run => host::daemon(),
            Way::Enroll => std::process::id(),
        };
        let cases = [
            refused(&["sibling"], "clone", &object(parent), "another process"),
            attack(&["sibling-of-a-child"]),
        ];
        let steps: Vec<&[&str]> = cases.iter().map(|case| case.step.as_slice()).collect();
        let ran = perform(uid, way, ground::POLICY, &steps).await;
        compare(uid, &cases, &ran);
        assert_eq!(host::attack(uid, "/", &["sibling"]), "ok");
    }
}

async fn the_daemon_cannot_be_touched() {
    let daemon = host::daemon();
    let cases = [
        look("ptrace-attach PID", "EPERM", daemon, ""),
        look("open /proc/PID/mem rw", "ENOENT", daemon, ""),
        look("open /proc/PID/environ r", "ENOENT", daemon, ""),
        look("get-descriptor PID", "EPERM", daemon, ""),
        refused(
            &aimed("kill PID 9", daemon, ""),
            "signal",
            &object(daemon),
            "another process",
        ),
        refused(
            &aimed("limit PID", daemon, ""),
            "prlimit",
            &object(daemon),
            "another process",
        ),
    ];
    ground::make(ROOT);
    let steps: Vec<&[&str]> = cases.iter().map(|case| case.step.as_slice()).collect();
    let ran = perform(ROOT, Way::Enroll, ground::POLICY, &steps).await;
    compare(ROOT, &cases, &ran);
    assert_eq!(host::daemon(), daemon);
    for (at, case) in cases.iter().enumerate().filter(|(at, _)| *at != 4) {
        let answer = host::attack(ROOT, "/", &case.step);
        assert!(answer.starts_with("ok"), "{at}: {:?}: {answer}", case.step);
    }
}
