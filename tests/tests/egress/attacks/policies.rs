//! What a policy says is what happens: from the next request on, to the port,
//! and against what else it says.

use std::{fs, thread};

use sandbox_daemon::sandbox::{Caller, PolicyFrom, PolicySource};

use super::{
    Got, NOTHING, Shot, arrived, attacker, inside, marker, results, shoot, shooting, under,
    wait_for, was_served,
};
use crate::{Test, tests, world::World};

pub(super) fn tests() -> Vec<Test> {
    tests![
        the_next_request_of_an_open_connection_is_decided_by_the_new_policy,
        what_is_denied_is_denied_although_it_is_allowed,
        a_rule_is_for_its_ports_alone,
        observing_lets_everything_through_and_tells,
    ]
}

fn the_next_request_of_an_open_connection_is_decided_by_the_new_policy(world: &World) {
    let daemon = world.daemon();
    let (home, path) = (world.home(), format!("/{}", marker()));
    let keep = attacker(
        "keep.py",
        &["echo.example", &path, &home.display().to_string()],
    );
    let policy = daemon.policy(r#"allow = ["echo.example"]"#);
    let workspace = world.home();
    let attack = thread::scope(|scope| {
        // Its workspace says which of the sandboxes is this one.
        let keep = scope.spawn(|| super::in_workspace(daemon, &policy, &workspace, &keep));
        wait_for(|| (home.join("asked").exists() || keep.is_finished()).then_some(()));
        let caller = Caller { uid: 0, peer: None };
        let sandboxes = daemon.registry.list(&caller);
        let ours = sandboxes
            .iter()
            .find(|it| it.workspace.as_ref() == Some(&workspace));
        let id = ours.unwrap().id.clone();
        let toml = fs::read_to_string(daemon.policy(r#"allow = ["other.example"]"#)).unwrap();
        let source = PolicySource {
            from: PolicyFrom::Text {
                display_name: "another".into(),
                toml,
                origin: None,
            },
            ..PolicySource::default()
        };
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime
            .block_on(daemon.registry.update(&caller, &id, source, ""))
            .unwrap();
        fs::write(home.join("go"), "").unwrap();
        keep.join().unwrap()
    });
    assert_eq!(
        attack.printed, "200 None\n403 not in the allow list\nthe same connection\n",
        "{attack:?}"
    );
    attack.assert_told(&["request echo.example:80 (not in the allow list)"]);
    let requests = world.records();
    let requests = requests
        .iter()
        .filter(|it| it["path"] == path.as_str())
        .count();
    assert_eq!(requests, 1);
}

fn what_is_denied_is_denied_although_it_is_allowed(world: &World) {
    let mark = marker();
    let request = |host: &str| format!("GET http://{host}/{mark} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let shots = [
        Shot::proxy(request("raw.example")),
        Shot::proxy(request("raw.example:8080")),
        Shot::through("raw.example", 443, ""),
        Shot::at("raw.example", 80, ""),
    ];
    let network =
        "allow = [\"*.example\", \"raw.example\", \"raw.example:8080\"]\ndeny = [\"raw.example\"]";
    let attack = inside(world.daemon(), network, &shooting(&shots));
    let got = results(&attack.printed);
    let answers: Vec<_> = got[..3].iter().flat_map(Got::answers).collect();
    // Without a port it is denied at every port.
    assert_eq!(answers, ["403 deny raw.example"; 3]);
    assert_eq!(got[3].end, "no name");
    attack.assert_told(&[
        "connect raw.example:443 (deny raw.example)",
        "request raw.example:80 (deny raw.example)",
        "request raw.example:8080 (deny raw.example)",
        "resolve raw.example (deny raw.example)",
    ]);
    assert!(arrived(world, &mark).is_empty());
    let (got, _) = shoot(world, &["*.example"], &shots[..1]);
    assert_eq!(got[0].answers(), ["200"]);
}

fn a_rule_is_for_its_ports_alone(world: &World) {
    let mark = marker();
    let ports = [80, 443, 853, 8080];
    let request = |port| format!("GET /{mark} HTTP/1.1\r\nHost: raw.example:{port}\r\n\r\n");
    let shots = ports.map(|port| Shot::through("raw.example", port, request(port)));
    for (rule, open) in [
        ("raw.example", vec![80, 443]),
        ("raw.example:853", vec![853]),
    ] {
        let (got, attack) = shoot(world, &[rule], &shots);
        let (good, bad): (Vec<_>, Vec<_>) = ports
            .into_iter()
            .zip(got)
            .partition(|(port, _)| open.contains(port));
        for (port, got) in good {
            assert_eq!(got.answers(), ["200"], "{rule} {port}");
        }
        for (port, got) in &bad {
            assert_eq!(
                got.answers(),
                ["403 not in the allow list"],
                "{rule} {port}"
            );
        }
        let told: Vec<_> = bad
            .iter()
            .map(|(port, _)| format!("connect raw.example:{port} (not in the allow list)"))
            .collect();
        attack.assert_told(&told);
    }
    assert_eq!(arrived(world, &mark).len(), 3);
    // The same for connections that know of no proxy.
    let shots = [853, 8080].map(|port| Shot::at("raw.example", port, request(port)));
    let (got, attack) = shoot(world, &["raw.example:853"], &shots);
    assert_eq!(got[0].answers(), ["200"]);
    assert_eq!(got[1].answers(), ["403 not in the allow list"]);
    attack.assert_told(&["connect raw.example:8080 (not in the allow list)"]);
    assert_eq!(arrived(world, &mark).len(), 4);
}

fn observing_lets_everything_through_and_tells(world: &World) {
    let (mark, path) = (marker(), format!("/{}", marker()));
    let daemon = world.daemon();
    let policy = daemon.policy(r#"allow = ["raw.example"]"#);
    let text = fs::read_to_string(&policy).unwrap();
    fs::write(
        &policy,
        text.replacen("version = 1\n", "version = 1\nmode = \"observe\"\n", 1),
    )
    .unwrap();
    let of = |host: &str, path: &str| format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let shots = [
        Shot::at("other.example", 80, of("other.example", &path)),
        Shot::at("raw.example", 80, of("other.example", &format!("/{mark}"))),
        Shot::through("private.example", 80, of("private.example", &path)),
        Shot::at("203.0.113.22", 80, of("x", &path)),
    ];
    let attack = under(daemon, &policy, &shooting(&shots));
    for got in results(&attack.printed) {
        assert_eq!(got.answers(), ["200"], "{attack:?}");
    }
    attack.assert_told(&[
        "observed connect 203.0.113.22:80 (network proxy)",
        "observed packet 203.0.113.22:80 (network proxy)",
        "observed connect private.example:80 (not in the allow list)",
        "observed connect private.example:80 (resolves to 10.0.0.5, a private address)",
        "observed request other.example:80 (a request on a connection to raw.example:80)",
        "observed request other.example:80 (not in the allow list)",
        "observed request private.example:80 (not in the allow list)",
        "observed resolve other.example (not in the allow list)",
    ]);
    assert_eq!(arrived(world, &mark).len(), 1);
    assert!(was_served(world, &path));
    let enforced = inside(daemon, r#"allow = ["raw.example"]"#, &shooting(&shots[..1]));
    assert_eq!(results(&enforced.printed)[0].end, "no name");
    assert_ne!(enforced.denials.len(), NOTHING.len());
}
