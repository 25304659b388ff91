//! System V shared memory, semaphores and queues.

use nix::errno::Errno;
use sandbox_daemon::proto::{Right, Start};

use super::{ATTACKERS, Way, enrolled, perform, words};
use crate::{
    client::{self, Run},
    expect::{Case, attack, compare},
    ground,
    host::{self, DEV, ROOT},
};

crate::trials![
    objects_of_the_host_cannot_be_used,
    memory_of_another_sandbox_cannot_be_used,
    processes_of_a_sandbox_share_objects,
    limits_are_told,
    more_objects_than_can_be_told_apart_are_not_made,
];

/// Makes one for everybody, with ipcmk(1); its number.
fn make(uid: u32, what: &[&str]) -> String {
    let argv = [&["ipcmk", "-p", "0666"], what].concat();
    let said = host::output(uid, &argv);
    said.trim().rsplit(' ').next().unwrap().to_owned()
}

fn kept(line: &str, id: &str) -> Case {
    attack(&words(line)).refused(
        Errno::EACCES,
        Right::Scope,
        "use",
        &format!("System V object {id}"),
        "kernel interface",
    )
}

const MEMORY: [&str; 3] = ["shm-attach", "shm-stat", "shm-remove"];
const SEMAPHORES: [&str; 3] = ["sem-add", "sem-value", "sem-remove"];
const QUEUE: [&str; 3] = ["queue-send", "queue-receive", "queue-remove"];

async fn objects_of_the_host_cannot_be_used() {
    for (uid, way) in ATTACKERS {
        ground::make(uid);
        let objects = [
            (make(uid, &["-M", "4096"]), MEMORY),
            (make(uid, &["-S", "1"]), SEMAPHORES),
            (make(uid, &["-Q"]), QUEUE),
        ];
        let cases: Vec<_> = objects
            .iter()
            .flat_map(|(id, steps)| steps.map(|step| kept(&format!("{step} {id}"), id)))
            .collect();
        let steps: Vec<&[&str]> = cases.iter().map(|case| case.step.as_slice()).collect();
        let ran = perform(uid, way, ground::POLICY, &steps).await;
        compare(uid, &cases, &ran);
        for case in &cases {
            let answer = host::attack(uid, "/", &case.step);
            assert_eq!(answer, "ok", "{:?}", case.step);
        }
    }
}

async fn memory_of_another_sandbox_cannot_be_used() {
    for (uid, way) in ATTACKERS {
        ground::make(uid);
        let mut client = client::root().await;
        let steps: [&[&str]; 2] = [&["shm-make"], &["stay"]];
        let start: Start = ground::attacker(uid, &steps);
        let mut other = Run::start(&mut client, start).await.unwrap();
        let id = other.line().await;
        let id = id.strip_prefix("ok ").unwrap();
        let cases = MEMORY.map(|step| kept(&format!("{step} {id}"), id));
        let steps: Vec<&[&str]> = cases.iter().map(|case| case.step.as_slice()).collect();
        let ran = perform(uid, way, ground::POLICY, &steps).await;
        compare(uid, &cases, &ran);
        for case in &cases {
            assert_eq!(host::attack(uid, "/", &case.step), "ok", "{:?}", case.step);
        }
    }
}

async fn processes_of_a_sandbox_share_objects() {
    let cases = [
        attack(&["shm-family"]).finds("7"),
        attack(&["objects-family"]).passes(),
    ];
    super::check(&ATTACKERS, ground::POLICY, &cases).await;
    // Two commands of one sandbox, too.
    ground::make(DEV);
    let mut client = client::root().await;
    let id = client::create(&mut client, ground::spec(DEV)).await.id;
    let start = client::start_in(&id, &client::attacker(&[&["shm-make"]]));
    let ran = client::run(&mut client, start).await;
    let memory = ran.lines()[0].strip_prefix("ok ").unwrap().to_owned();
    let sandbox = sandbox_daemon::proto::enroll_request::Sandbox::SandboxId(id.clone());
    let steps: [&[&str]; 2] = [&["shm-attach", &memory], &["shm-remove", &memory]];
    let ran = enrolled(DEV, sandbox, &steps).await;
    assert_eq!(ran.lines(), ["ok", "ok"], "{ran:?}");
    assert_eq!(ran.exited.denied, 0, "{ran:?}");
    client::delete(&mut client, &id).await;
}

async fn limits_are_told() {
    let cases = [attack(&["shm-limits"]).passes()];
    super::check(&[(DEV, Way::Run)], ground::POLICY, &cases).await;
}

/// How many objects of sandboxes the kernel programs know.
const KNOWN: u64 = 16384;

async fn more_objects_than_can_be_told_apart_are_not_made() {
    // The machine's own limit must not come first.
    let limit: u64 = std::fs::read_to_string("/proc/sys/kernel/msgmni")
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    assert!(limit > KNOWN, "{limit}");
    let remove = || host::output(ROOT, &["ipcrm", "--all=msg"]);
    let all = (KNOWN + 1).to_string();
    for (uid, way) in [(DEV, Way::Run), (ROOT, Way::Enroll)] {
        ground::make(uid);
        let steps: [&[&str]; 2] = [&["queues", &all], &["objects-family"]];
        let ran = perform(uid, way, ground::POLICY, &steps).await;
        let lines = ran.lines();
        let made = lines[0].strip_prefix("ok ").unwrap();
        let made = made
            .strip_suffix(" EPERM")
            .unwrap_or_else(|| panic!("{ran:?}"));
        // Other tests' objects may be among those that are known.
        let made: u64 = made.parse().unwrap();
        assert!((KNOWN - 1000..=KNOWN).contains(&made), "{ran:?}");
        assert_eq!(lines[1], "EPERM", "{ran:?}");
        assert_eq!(ran.told(), (2, 0), "{ran:?}");
        for denial in &ran.denials {
            assert_eq!(denial.operation, "use", "{ran:?}");
            assert_eq!(denial.rule, "kernel interface", "{ran:?}");
        }
        // There is room again when they are gone; outside there always was.
        assert_eq!(host::attack(uid, "/", &["queues", "7"]), "ok 7");
        remove();
        let steps: [&[&str]; 2] = [&["queues", "7"], &["objects-family"]];
        let ran = perform(uid, way, ground::POLICY, &steps).await;
        assert_eq!(ran.lines(), ["ok 7", "ok"], "{ran:?}");
        assert_eq!(ran.exited.denied, 0, "{ran:?}");
        assert_eq!(
            host::attack(uid, "/", &["queues", &all]),
            format!("ok {all}")
        );
        remove();
    }
}
