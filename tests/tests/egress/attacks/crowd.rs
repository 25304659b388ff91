//! Many at a time, slow ones, and a proxy that is killed among them.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use nix::sys::signal::{Signal, kill};
use sandbox_tests::egress::Daemon;

use super::{
    Attack, NOTHING, Shot, attacker, inside, marker, proxy_of, results, running_proxy, shooting,
    wait_for,
};
use crate::{
    Test, tests,
    world::{self, World},
};

pub(super) fn tests() -> Vec<Test> {
    tests![
        ten_thousand_idle_connections_leave_room_for_others,
        clients_that_never_say_all_hold_nobody_up,
        clients_that_say_it_slowly_hold_nobody_up,
        a_proxy_that_is_killed_under_load_lets_nothing_past,
    ]
}

const ALLOW: &str = r#"allow = ["echo.example"]"#;

/// Others are served while a crowd of so many is there; what came of the crowd.
fn beside_a_crowd(world: &World, how: &str, processes: usize, each: usize) -> Attack {
    let daemon = world::another_daemon();
    let home = world.home();
    let directory = home.display().to_string();
    let numbers = [processes, each].map(|it| it.to_string());
    let crowd = attacker("crowd.py", &[how, &numbers[0], &numbers[1], &directory]);
    std::thread::scope(|scope| {
        let crowd = scope.spawn(|| inside(&daemon, ALLOW, &crowd));
        let there = |number: usize| home.join(format!("there-{number}")).exists();
        wait_for(|| ((0..processes).all(there) || crowd.is_finished()).then_some(()));
        assert!(!crowd.is_finished(), "{:?}", crowd.join());
        others_are_served(&daemon);
        std::fs::write(home.join("go"), "").unwrap();
        crowd.join().unwrap()
    })
}

fn others_are_served(daemon: &Daemon) {
    let request = "GET http://echo.example/ HTTP/1.1\r\nHost: echo.example\r\n\r\n";
    let shots = vec![Shot::proxy(request); 20];
    let begun = Instant::now();
    let attack = inside(daemon, ALLOW, &shooting(&shots));
    for got in results(&attack.printed) {
        assert_eq!(got.answers(), ["200"], "{attack:?}");
    }
    // A second of it is the wait for more.
    assert!(
        begun.elapsed() < Duration::from_secs(8),
        "{:?}",
        begun.elapsed()
    );
}

fn ten_thousand_idle_connections_leave_room_for_others(world: &World) {
    let attack = beside_a_crowd(world, "idle", 10, 1000);
    // Of each process twenty are asked.
    assert_eq!(attack.printed, "20\n".repeat(10), "{attack:?}");
    attack.assert_told(NOTHING);
}

fn clients_that_never_say_all_hold_nobody_up(world: &World) {
    let attack = beside_a_crowd(world, "half", 4, 250);
    assert_eq!(attack.printed, "0\n".repeat(4), "{attack:?}");
    attack.assert_told(NOTHING);
}

fn clients_that_say_it_slowly_hold_nobody_up(world: &World) {
    let attack = beside_a_crowd(world, "slow", 4, 250);
    // They were in time after all.
    let answered: Vec<_> = attack.printed.lines().collect();
    assert_eq!(answered, ["21"; 4], "{attack:?}");
    attack.assert_told(NOTHING);
}

fn a_proxy_that_is_killed_under_load_lets_nothing_past(world: &World) {
    let daemon = world::another_daemon();
    inside(&daemon, ALLOW, "true");
    let prefix = marker();
    let load = attacker("load.py", &["32", "8", &prefix]);
    let (attack, killed) = std::thread::scope(|scope| {
        let load = scope.spawn(|| inside(&daemon, ALLOW, &load));
        let served = |world: &World| {
            let of_ours = |it: &&serde_json::Value| {
                it["path"]
                    .as_str()
                    .unwrap_or_default()
                    .starts_with(&format!("/{prefix}"))
            };
            world.records().iter().filter(of_ours).count()
        };
        wait_for(|| (served(world) > 50).then_some(()));
        let mut killed = Vec::new();
        for _ in 0..4 {
            let proxy = proxy_of(&daemon);
            kill(proxy, Signal::SIGKILL).unwrap();
            killed.push(proxy);
            let next = wait_for(|| running_proxy(&daemon).filter(|next| *next != proxy));
            assert!(!killed.contains(&next));
            let before = served(world);
            wait_for(|| (served(world) > before + 50 || load.is_finished()).then_some(()));
        }
        (load.join().unwrap(), killed)
    });
    assert_eq!(killed.len(), 4);
    let mut seen: BTreeMap<String, u64> = serde_json::from_str(&attack.printed).unwrap();
    assert!(seen.remove("late").is_some_and(|it| it > 20), "{attack:?}");
    assert!(
        seen.remove("echo.example: right")
            .is_some_and(|it| it > 200),
        "{attack:?}"
    );
    let refused = ["403", "no name"].map(|it| seen.remove(&format!("other.example: {it}")));
    assert!(
        refused.iter().all(|it| it.is_some_and(|it| it > 10)),
        "{attack:?}"
    );
    let interrupted = [
        "reset",
        "closed",
        "cut off",
        "ECONNREFUSED",
        "no name server",
        "502",
        "503",
        "504",
    ];
    for what in seen.keys() {
        let (_, what) = what.split_once(": ").unwrap();
        assert!(interrupted.contains(&what), "{attack:?}");
    }
    assert!(seen.values().sum::<u64>() >= 4, "{attack:?}");
    for told in attack.denials.keys() {
        let known = [
            "request other.example:80 (not in the allow list)",
            "resolve other.example (not in the allow list)",
        ];
        let away = told.ends_with(" (the proxy is away)");
        assert!(away || known.contains(&told.as_str()), "{told}");
    }
    for record in world.records() {
        let path = record["path"].as_str().unwrap_or_default();
        if path.contains(&prefix) {
            assert_eq!(record["host"], "echo.example");
        }
    }
}
