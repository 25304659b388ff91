//! In observe mode everything is let through and told; a secret goes where it goes
//! in any mode, and nowhere else.

use std::fs;

use super::{Held, came, shoot};
use crate::{
    Test,
    attacks::{Shot, arrived, marker},
    tests,
    world::World,
};

pub(super) fn tests() -> Vec<Test> {
    tests![
        observing_forwards_dummies_and_never_the_secret,
        observing_believes_no_bad_certificate,
    ]
}

const PLACE: &str = "Authorization: Bearer @TOKEN@\r\n";

fn observed(path: &std::path::Path) {
    let text = fs::read_to_string(path).unwrap();
    let mode = "version = 1\nmode = \"observe\"\n";
    fs::write(path, text.replacen("version = 1\n", mode, 1)).unwrap();
}

fn observing_forwards_dummies_and_never_the_secret(world: &World) {
    let daemon = world.daemon();
    let held = Held::by(world, daemon);
    let entry = held.entry(&["tap.example"], "methods = [\"GET\"]");
    let policy = daemon.policy(&format!("allow = [\"tap.example\"]\n{entry}"));
    observed(&policy);
    let mark = marker();
    let text = |host: &str, method: &str, target: &str, rest: &str| {
        format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n{rest}\r\n")
    };
    let path = format!("/{mark}");
    let tap = |method: &str, target: &str, rest: &str| {
        Shot::at(
            "tap.example",
            443,
            text("tap.example", method, target, rest),
        )
        .in_tls()
    };
    let shots = [
        Shot::at("raw.example", 80, text("raw.example", "GET", &path, PLACE)),
        tap("GET", &format!("{path}?@TOKEN@"), ""),
        tap("POST", &path, PLACE),
        tap("GET", &path, "X-Key: @TOKEN@\r\n"),
    ];
    let tried = shoot(daemon, &policy, &shots);
    for got in &tried.got {
        assert_eq!(got.answers(), ["200"], "{tried:?}");
    }
    let dummy = |wrong: &str| format!("the dummy of `{}` {wrong}", held.name);
    tried.attack.assert_told(&[
        format!(
            "observed request raw.example:80 ({})",
            dummy("over plain HTTP")
        ),
        "observed request raw.example:80 (not in the allow list)".into(),
        "observed resolve raw.example (not in the allow list)".into(),
        format!(
            "observed request tap.example:443 ({})",
            dummy("outside its place")
        ),
        format!(
            "observed request tap.example:443 ({})",
            dummy("in a request that it does not cover")
        ),
    ]);
    assert_eq!(arrived(world, &mark).len(), shots.len());
    assert!(came(world, &tried.dummy) && !came(world, &held.token));
    assert!(tried.attack.uses.is_empty());
    // In its place it is what it is in any mode, and what stands elsewhere stays.
    let twice = tap("GET", &path, &format!("{PLACE}X-Key: @TOKEN@\r\n"));
    let tried = shoot(daemon, &policy, &[tap("GET", &path, PLACE), twice]);
    let told = dummy("more than once");
    tried
        .attack
        .assert_told(&[format!("observed request tap.example:443 ({told})")]);
    let with_token = arrived(world, &held.token);
    assert_eq!(with_token.len(), 2, "{tried:?}");
    for bytes in with_token {
        let text = String::from_utf8_lossy(&bytes);
        assert_eq!(text.matches(&held.token).count(), 1, "{text}");
    }
    // A request for another host goes to no other one.
    let other = Shot::at("tap.example", 443, text("api.example", "GET", &path, PLACE)).in_tls();
    let before = arrived(world, &mark).len();
    let tried = shoot(daemon, &policy, &[other]);
    let rule = "a request on a connection to tap.example:443";
    assert_eq!(tried.got[0].answers(), [format!("403 {rule}")]);
    tried
        .attack
        .assert_told(&[format!("request api.example:443 ({rule})")]);
    assert_eq!(arrived(world, &mark).len(), before);
}

fn observing_believes_no_bad_certificate(world: &World) {
    let daemon = world.daemon();
    for host in ["expired.example", "selfsigned.example", "wronghost.example"] {
        let held = Held::by(world, daemon);
        let policy = held.policy(daemon, &[host], "");
        observed(&policy);
        let mark = marker();
        let text = format!("GET /{mark} HTTP/1.1\r\nHost: {host}\r\n{PLACE}\r\n");
        let tried = shoot(daemon, &policy, &[Shot::at(host, 443, text).in_tls()]);
        let answers = tried.got[0].answers();
        let why = "403 the host's certificate is not valid: ";
        assert!(
            answers.len() == 1 && answers[0].starts_with(why),
            "{tried:?}"
        );
        let told: Vec<_> = tried.attack.denials.keys().collect();
        assert!(
            told.len() == 1 && told[0].starts_with("connect "),
            "{told:?}"
        );
        tried.assert_kept(world, &held);
        assert!(!came(world, &mark));
    }
}
