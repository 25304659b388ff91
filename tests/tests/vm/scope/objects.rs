//! System V shared memory, semaphores and queues.

use nix::errno::Errno;
use sandbox_daemon::proto::{Limits, Right, SandboxSpec, enroll_request::Sandbox, exited::Reason};

use super::{ATTACKERS, Way, enrolled, perform, words};
use crate::{
    client::{self, Client, Ran},
    expect::{Case, attack, compare},
    ground,
    host::{self, DEV, ROOT},
};

crate::trials![
    objects_of_the_host_cannot_be_used,
    memory_of_another_sandbox_cannot_be_used,
    processes_of_a_sandbox_share_objects,
    what_is_made_inside_goes_with_the_sandbox,
    limits_are_told,
    more_objects_than_can_be_told_apart_are_not_made,
];

/// Makes one for everybody, with ipcmk(1); its number.
fn make(uid: u32, what: &[&str]) -> String {
    let argv = [&["ipcmk", "-p", "0666"], what].concat();
    let said = host::output(uid, &argv);
    said.trim().rsplit(' ').next().unwrap().to_owned()
}

/// Who was started inside has a namespace of objects: there is nothing else in it.
/// Who was enrolled keeps the host's, and the wall refuses.
fn kept(way: Way, line: &str, id: &str) -> Case {
    let attack = attack(&words(line));
    if matches!(way, Way::Run) {
        return attack.fails(Errno::EINVAL);
    }
    attack.refused(
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
            .flat_map(|(id, steps)| steps.map(|step| kept(way, &format!("{step} {id}"), id)))
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
        let other = client::create(&mut client, ground::spec(uid)).await.id;
        let made = enrolled(uid, in_sandbox(&other), &[&["shm-make"]]).await;
        let id = made.lines()[0].strip_prefix("ok ").unwrap().to_owned();
        let cases = MEMORY.map(|step| kept(way, &format!("{step} {id}"), &id));
        let steps: Vec<&[&str]> = cases.iter().map(|case| case.step.as_slice()).collect();
        let ran = perform(uid, way, ground::POLICY, &steps).await;
        compare(uid, &cases, &ran);
        for case in &cases {
            assert_eq!(host::attack(uid, "/", &case.step), "ok", "{:?}", case.step);
        }
        client::delete(&mut client, &other).await;
    }
}

fn in_sandbox(id: &str) -> Sandbox {
    Sandbox::SandboxId(id.to_owned())
}

async fn processes_of_a_sandbox_share_objects() {
    let cases = [
        attack(&["shm-family"]).finds("7"),
        attack(&["objects-family"]).passes(),
    ];
    super::check(&ATTACKERS, ground::POLICY, &cases).await;
    // Two commands of one sandbox, too; and two that were enrolled in one.
    ground::make(DEV);
    let mut client = client::root().await;
    let id = client::create(&mut client, ground::spec(DEV)).await.id;
    let first: [&[&str]; 1] = [&["shm-make"]];
    for way in [Way::Run, Way::Enroll] {
        let made = in_one(&mut client, &id, way, &first).await;
        let memory = made.lines()[0].strip_prefix("ok ").unwrap().to_owned();
        let steps: [&[&str]; 2] = [&["shm-attach", &memory], &["shm-remove", &memory]];
        let ran = in_one(&mut client, &id, way, &steps).await;
        assert_eq!(ran.lines(), ["ok", "ok"], "{way:?}: {ran:?}");
        assert_eq!(ran.exited.denied, 0, "{way:?}: {ran:?}");
    }
    client::delete(&mut client, &id).await;
}

async fn in_one(client: &mut Client, id: &str, way: Way, steps: &[&[&str]]) -> Ran {
    match way {
        Way::Run => {
            let start = client::start_in(id, &client::attacker(steps));
            client::run(client, start).await
        }
        Way::Enroll => enrolled(DEV, in_sandbox(id), steps).await,
    }
}

/// Bytes of memory that is shared or in a tmpfs.
fn shared() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Shmem:"));
    let kib: u64 = line
        .unwrap()
        .trim()
        .strip_suffix(" kB")
        .unwrap()
        .parse()
        .unwrap();
    kib << 10
}

/// The lines of what ipcs(1) and the like read, without the first.
fn listed(text: &str) -> Vec<&str> {
    text.lines().skip(1).collect()
}

const SEGMENTS: &str = "/proc/sysvipc/shm";

async fn what_is_made_inside_goes_with_the_sandbox() {
    const MEBIBYTES: u64 = 64;
    // The kernel adds up what its processors counted now and then.
    const HELD: u64 = (MEBIBYTES * 3 / 4) << 20;
    const FREE: u64 = (MEBIBYTES / 4) << 20;
    let size = (MEBIBYTES << 20).to_string();
    for uid in [DEV, ROOT] {
        ground::make(uid);
        let hosts = make(uid, &["-M", "4096"]);
        let outside = std::fs::read_to_string(SEGMENTS).unwrap();
        assert!(!listed(&outside).is_empty(), "{outside}");
        let before = shared();
        let more = || shared().saturating_sub(before);
        let mut client = client::root().await;
        let id = client::create(&mut client, ground::spec(uid)).await.id;
        let steps: [&[&str]; 1] = [&["shm-fill", &size]];
        let start = client::start_in(&id, &client::attacker(&steps));
        let made = client::run(&mut client, start).await;
        assert!(made.lines()[0].starts_with("ok "), "{made:?}");
        // It outlives its maker, and the sandbox sees it and nothing else.
        let grown = more();
        assert!(grown > HELD, "{uid}: {grown}");
        let start = client::start_in(&id, &["cat", SEGMENTS]);
        let inside = client::run(&mut client, start).await.stdout;
        let inside = host::text(&inside);
        let [segment] = listed(&inside)[..] else {
            panic!("{inside}");
        };
        assert!(segment.contains(&size), "{segment}");
        // Outside it is not there, and what was there still is.
        assert_eq!(
            std::fs::read_to_string(SEGMENTS).unwrap().lines().count(),
            outside.lines().count()
        );
        assert_eq!(host::attack(uid, "/", &["shm-stat", &hosts]), "ok");
        client::delete(&mut client, &id).await;
        // The kernel clears up on its own time.
        host::wait_until("its memory is free", || more() < FREE).await;
        // It counts as memory of the sandbox.
        let spec = SandboxSpec {
            limits: Some(Limits {
                memory: MEBIBYTES << 19,
                ..Limits::default()
            }),
            ..ground::spec(uid)
        };
        let start = client::start(spec, &client::attacker(&steps));
        let killed = client::run(&mut client, start).await;
        assert_eq!(killed.exited.reason(), Reason::Memory, "{killed:?}");
        // The control: what is made outside stays.
        let stays = host::attack(uid, "/", &["shm-fill", &size]);
        let stays = stays.strip_prefix("ok ").unwrap();
        let grown = more();
        assert!(grown > HELD, "{uid}: {grown}");
        for id in [stays, &hosts] {
            assert_eq!(host::attack(uid, "/", &["shm-remove", id]), "ok");
        }
    }
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
