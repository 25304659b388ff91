//! Who is believed: hosts by the proxy, and the proxy by clients.

use super::{Held, NOTHING, came, shoot, shoot_outside, token};
use crate::{
    Test,
    attacks::{Shot, arrived, marker, outside, under},
    tests,
    world::World,
};

pub(super) fn tests() -> Vec<Test> {
    tests![
        a_host_with_a_bad_certificate_gets_nothing,
        a_client_that_does_not_believe_the_proxy_is_told_how_to_go_past_it,
        a_host_that_is_left_alone_is_passed_untouched,
    ]
}

const PLACE: &str = "Authorization: Bearer @TOKEN@\r\n";
const OURS: &str = "issuer=CN = sandboxd";
const THEIRS: &str = "issuer=CN = authority";

fn text(host: &str, target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n{PLACE}\r\n")
}

fn a_host_with_a_bad_certificate_gets_nothing(world: &World) {
    let daemon = world.daemon();
    let mut mark = marker();
    for (host, why) in [
        ("expired.example", "it has expired"),
        ("selfsigned.example", "nobody who is believed has signed it"),
        ("wronghost.example", "it is for other names"),
    ] {
        for rest in ["", "methods = [\"PUT\"]"] {
            mark = marker();
            let held = Held::by(world, daemon);
            let policy = held.policy(daemon, &[host], rest);
            let request = text(host, &format!("/{mark}"));
            let shots = [
                Shot::at(host, 443, &request),
                Shot::through(host, 443, &request),
            ]
            .map(Shot::in_tls);
            let tried = shoot(daemon, &policy, &shots);
            let rule = format!("the host's certificate is not valid: {why}");
            for got in &tried.got {
                assert_eq!(got.answers(), [format!("403 {rule}")], "{tried:?}");
                assert_eq!(got.issuer, OURS);
            }
            let told = format!("connect {host}:443 ({rule})");
            tried.attack.assert_told(&[&told]);
            assert_eq!(tried.attack.denials[&told], 2);
            tried.assert_kept(world, &held);
            assert!(!came(world, &mark) && tried.attack.uses.is_empty());
        }
        let shot = Shot::at(host, 443, text(host, &format!("/{mark}"))).in_tls();
        let control = token();
        assert_eq!(
            shoot_outside(&control, &[shot.believing()])[0].answers(),
            ["200"]
        );
        assert!(came(world, &control));
    }
    // One with a good one, at the same address, is believed.
    let held = Held::by(world, daemon);
    let policy = held.policy(daemon, &["api.example"], "");
    let shots = [Shot::at("api.example", 443, text("api.example", "/")).in_tls()];
    assert_eq!(shoot(daemon, &policy, &shots).got[0].answers(), ["200"]);
}

fn a_client_that_does_not_believe_the_proxy_is_told_how_to_go_past_it(world: &World) {
    let daemon = world.daemon();
    let held = Held::by(world, daemon);
    let policy = held.policy(daemon, &["api.example"], "");
    let path = format!("/{}", marker());
    // It believes the host's own authority alone.
    let get = format!(
        "curl -sS -m 10 --cacert /srv/tls/ca.pem -o /dev/null -w '%{{http_code}}' \
         -H \"Authorization: Bearer $TOKEN\" https://api.example{path} || echo \" $?\""
    );
    let attack = under(daemon, &policy, &get);
    assert_eq!(attack.printed, "000 60\n", "{attack:?}");
    attack.assert_told(&[
        "connect api.example:443 (the client does not trust this boundary's certificates: \
         `intercept = false` leaves its host alone)",
    ]);
    assert!(!came(world, &path));
    let network = "allow = [\"api.example\"]\n[[credential]]\nname = \"pinned\"\n\
                   hosts = [\"api.example\"]\nintercept = false\n";
    let attack = under(daemon, &daemon.policy(network), &get);
    assert_eq!(attack.printed, "401", "{attack:?}");
    attack.assert_told(NOTHING);
    assert!(came(world, &path));
    assert_eq!(outside(&format!("TOKEN={}; {get}", held.token)), "200");
}

fn a_host_that_is_left_alone_is_passed_untouched(world: &World) {
    let daemon = world.daemon();
    let held = Held::by(world, daemon);
    let entry = held.entry(&["*.example"], "");
    let alone = "[[credential]]\nname = \"alone\"\nhosts = [\"tap.example\"]\nintercept = false\n";
    let policy = daemon.policy(&format!(
        "allow = [\"tap.example\", \"api.example\"]\n{entry}{alone}"
    ));
    let mark = marker();
    let shots = ["tap.example", "api.example"]
        .map(|host| Shot::at(host, 443, text(host, &format!("/{mark}"))).in_tls());
    let tried = shoot(daemon, &policy, &shots);
    let issuers: Vec<_> = tried.got.iter().map(|it| it.issuer.as_str()).collect();
    assert_eq!(issuers, [THEIRS, OURS], "{tried:?}");
    let came_there = arrived(world, &mark);
    let came_there = String::from_utf8_lossy(&came_there[0]);
    assert!(came_there.contains(&tried.dummy) && !came_there.contains(&held.token));
}
