//! Which requests a credential is for, and that each one on a connection is
//! decided for itself.

use super::{Held, NOTHING, came, shoot, shoot_outside, token};
use crate::{
    Test,
    attacks::{Shot, arrived, marker, under},
    tests,
    world::World,
};

pub(super) fn tests() -> Vec<Test> {
    tests![
        a_dummy_in_a_request_that_no_entry_covers_is_refused,
        a_path_that_servers_read_differently_is_covered_by_nothing,
        a_second_request_is_decided_for_itself,
        a_request_that_hides_in_another_is_never_given_the_secret,
        what_is_not_http_gets_nowhere_inside_tls,
        a_websocket_is_opened_with_a_dummy,
        a_body_of_any_size_and_framing_arrives_whole,
    ]
}

const TAP: &[&str] = &["tap.example"];
const PLACE: &str = "Authorization: Bearer @TOKEN@\r\n";

fn text(method: &str, target: &str, rest: &str) -> String {
    format!("{method} {target} HTTP/1.1\r\nHost: tap.example\r\n{rest}\r\n")
}

fn tap(text: impl AsRef<[u8]>) -> Shot {
    Shot::at("tap.example", 443, text).in_tls()
}

fn a_dummy_in_a_request_that_no_entry_covers_is_refused(world: &World) {
    let daemon = world.daemon();
    let held = Held::by(world, daemon);
    let rest = "methods = [\"GET\", \"post\"]\npaths = [\"/v1/*/pulls\", \"/v2/**\"]";
    let policy = held.policy(daemon, TAP, rest);
    let mark = marker();
    let shots: Vec<_> = [
        ("PUT", format!("/v2/{mark}")),
        ("DELETE", format!("/v2/{mark}")),
        ("HEAD", format!("/v2/{mark}")),
        ("get", format!("/v2/{mark}")),
        ("GET", format!("/V2/{mark}")),
        ("GET", format!("/v3/{mark}")),
        ("GET", format!("/v2?{mark}")),
        ("GET", format!("/v1/{mark}/pulls/")),
        ("GET", format!("/v1/{mark}/issues")),
        ("GET", format!("/v1/{mark}/a/pulls")),
        ("GET", format!("/?/v2/{mark}")),
    ]
    .iter()
    .map(|(method, path)| tap(text(method, path, PLACE)))
    .collect();
    let tried = shoot(daemon, &policy, &shots);
    let rule = format!(
        "the dummy of `{}` in a request that it does not cover",
        held.name
    );
    tried.assert_refused(world, &held, "tap.example:443", &rule);
    assert!(arrived(world, &mark).is_empty());
    let good = [
        tap(text("GET", &format!("/v2/{mark}"), PLACE)),
        tap(text(
            "POST",
            &format!("/v1/{mark}/pulls?page=1"),
            &format!("Content-Length: 0\r\n{PLACE}"),
        )),
        tap(text("GET", &format!("/v%32/a/b/{mark}"), PLACE)),
    ];
    let tried = shoot(daemon, &policy, &good);
    for got in &tried.got {
        assert_eq!(got.answers(), ["200"], "{tried:?}");
    }
    tried.attack.assert_told(NOTHING);
    assert_eq!(arrived(world, &held.token).len(), good.len());
    shoot_outside(&token(), &shots);
    assert_eq!(arrived(world, &mark).len(), good.len() + shots.len());
}

fn a_path_that_servers_read_differently_is_covered_by_nothing(world: &World) {
    let daemon = world.daemon();
    let held = Held::by(world, daemon);
    let policy = held.policy(daemon, TAP, "paths = [\"/v1/**\"]");
    let mark = marker();
    let shots: Vec<_> = [
        "/v1/../admin",
        "/v1/%2e%2e/admin",
        "/v1/.%2E/admin",
        "/v1/./admin",
        "/v1//admin",
        "/v1/a%2f..%2f..%2fadmin",
        "/v1/a%5c..%5cadmin",
        "/v1/..;/admin",
        "/v1/%252e%252e/admin",
        "/v1/a%00",
        "/v1/a%0d%0aX:%20y",
        "//v1/a",
        "/v1/..",
        "/admin/../v1/a",
    ]
    .map(|path| tap(text("GET", &format!("{path}?{mark}"), PLACE)))
    .into();
    let tried = shoot(daemon, &policy, &shots);
    let rule = format!(
        "the dummy of `{}` in a request that it does not cover",
        held.name
    );
    tried.assert_refused(world, &held, "tap.example:443", &rule);
    assert!(arrived(world, &mark).is_empty());
    // A backslash is a slash to some, and not in a target at all.
    let strange = [r"/v1/..\admin", r"/v1\..\admin"].map(|path| tap(text("GET", path, PLACE)));
    let tried = shoot(daemon, &policy, &strange);
    for got in &tried.got {
        assert!(!got.answers().contains(&"200".into()), "{tried:?}");
    }
    tried.assert_kept(world, &held);
    shoot_outside(&token(), &shots);
    assert_eq!(arrived(world, &mark).len(), shots.len());
}

fn a_second_request_is_decided_for_itself(world: &World) {
    let daemon = world.daemon();
    let held = Held::by(world, daemon);
    let policy = held.policy(daemon, TAP, "paths = [\"/v1/**\"]");
    let (good, foreign) = (marker(), token());
    let first = text("GET", &format!("/v1/{good}"), PLACE);
    let keyed = format!("Authorization: Bearer {foreign}\r\n");
    let elsewhere = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: api.example\r\n{PLACE}\r\n");
    let name = &held.name;
    let mut asked = 0;
    let mut try_second = |second: &dyn Fn(&str) -> String, host: &str, rule: &str| {
        let bad = marker();
        let second = second(&bad);
        let shots = [tap(format!("{first}{second}")), tap(&first).then(&second)];
        let tried = shoot(daemon, &policy, &shots);
        for got in &tried.got {
            let expected = ["200".to_owned(), format!("403 {rule}")];
            assert_eq!(got.answers(), expected, "{tried:?}");
        }
        tried
            .attack
            .assert_told(&[format!("request {host}:443 ({rule})")]);
        assert!(!came(world, &tried.dummy) && !came(world, &bad));
        asked += shots.len();
        let control = token();
        shoot_outside(&control, &shots[..1]);
        assert!(came(world, &bad));
        assert_eq!(arrived(world, &control).len(), 1);
    };
    try_second(
        &|bad| text("GET", &format!("/v2/{bad}"), PLACE),
        "tap.example",
        &format!("the dummy of `{name}` in a request that it does not cover"),
    );
    try_second(
        &|bad| text("GET", &format!("/v1/{bad}?@TOKEN@"), ""),
        "tap.example",
        &format!("the dummy of `{name}` outside its place"),
    );
    try_second(
        &|bad| elsewhere(&format!("/v1/{bad}")),
        "api.example",
        "a request on a connection to tap.example:443",
    );
    assert!(!came(world, &foreign));
    try_second(
        &|bad| text("GET", &format!("/v1/{bad}"), &keyed),
        "tap.example",
        &format!("another credential than `{name}`"),
    );
    assert_eq!(arrived(world, &held.token).len(), asked);
}

fn a_request_that_hides_in_another_is_never_given_the_secret(world: &World) {
    let daemon = world.daemon();
    let held = Held::by(world, daemon);
    let policy = held.policy(daemon, TAP, "methods = [\"POST\"]");
    let (outer, inner) = (marker(), marker());
    // What is hidden would have the token if it were seen as a request.
    let hidden = format!("POST /{inner} HTTP/1.1\r\nHost: tap.example\r\n\r\n");
    let length = hidden.len();
    let post = |rest: &str| text("POST", &format!("/{outer}"), &format!("{PLACE}{rest}"));
    let malformed = [
        post(&format!(
            "Content-Length: 0\r\nContent-Length: {length}\r\n"
        )) + &hidden,
        post(&format!("Content-Length: {length}, 0\r\n")) + &hidden,
        post(&format!("Content-Length: +{length}\r\n")) + &hidden,
        post("Transfer-Encoding: chunked, identity\r\n") + "0\r\n\r\n" + &hidden,
        post("Transfer-Encoding: xchunked\r\n") + "0\r\n\r\n" + &hidden,
        post("Transfer-Encoding : chunked\r\n") + "0\r\n\r\n" + &hidden,
    ];
    let shots = malformed.map(tap);
    let tried = shoot(daemon, &policy, &shots);
    for (at, got) in tried.got.iter().enumerate() {
        assert!(!got.answers().contains(&"200".into()), "{at}: {tried:?}");
    }
    tried.assert_kept(world, &held);
    assert!(!came(world, &inner), "{tried:?}");
    shoot_outside(&token(), &shots);
    assert!(came(world, &inner));
    // What has both lengths arrives as one request, or not at all.
    let (outer, inner) = (marker(), marker());
    let hidden = format!("POST /{inner} HTTP/1.1\r\nHost: tap.example\r\n\r\n");
    let post = |rest: &str| text("POST", &format!("/{outer}"), &format!("{PLACE}{rest}"));
    let both = [
        post("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n") + "0\r\n\r\n" + &hidden,
        post("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n") + "0\r\n\r\n" + &hidden,
        post("Transfer-Encoding: chunked\r\n") + "0\n\n" + &hidden,
        post("Transfer-Encoding: chunked\r\n") + "5;x=\"\n\"\r\nhello\r\n0\r\n\r\n" + &hidden,
        post(&format!("Content-Length: {length}\r\n")) + &hidden,
    ]
    .map(tap);
    shoot(daemon, &policy, &both);
    for bytes in arrived(world, &outer) {
        let text = String::from_utf8_lossy(&bytes).to_lowercase();
        let heads = text.matches("host: tap.example").count();
        let tokens = text.matches(&held.token.to_lowercase()).count();
        // A token for each request that was seen as one, framed in one way.
        assert!(tokens <= heads, "{text}");
        assert!(
            !(text.contains("content-length: 5") && text.contains("chunked")),
            "{text}"
        );
    }
}

fn what_is_not_http_gets_nowhere_inside_tls(world: &World) {
    let daemon = world.daemon();
    let held = Held::by(world, daemon);
    let policy = held.policy(daemon, TAP, "");
    let mark = marker();
    let shots = [
        tap(format!("SSH-2.0-{mark} @TOKEN@\r\n")),
        tap(format!("\0\0\0{mark} @TOKEN@\r\n")),
        tap(format!("*1\r\n${mark}\r\n@TOKEN@\r\n")),
    ];
    let tried = shoot(daemon, &policy, &shots);
    for got in &tried.got {
        assert!(got.bytes.is_empty(), "{tried:?}");
    }
    let rule = format!(
        "no HTTP on a connection to a host of credential `{}`",
        held.name
    );
    tried
        .attack
        .assert_told(&[format!("connect tap.example:443 ({rule})")]);
    tried.assert_kept(world, &held);
    assert!(!came(world, &mark));
    shoot_outside(&token(), &shots);
    assert_eq!(arrived(world, &mark).len(), shots.len());
}

fn a_websocket_is_opened_with_a_dummy(world: &World) {
    let daemon = world.daemon();
    let held = Held::by(world, daemon);
    let policy = held.policy(daemon, &["api.example"], "");
    let mark = marker();
    let upgrade = |place: &str| {
        format!(
            "GET /socket HTTP/1.1\r\nHost: api.example\r\nConnection: Upgrade\r\n\
             Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{place}\r\n"
        )
    };
    // One whole frame, masked by zeros.
    let mut frame = vec![0x81, 0x80 | u8::try_from(mark.len()).unwrap(), 0, 0, 0, 0];
    frame.extend(mark.bytes());
    let of = |place| {
        Shot::at("api.example", 443, upgrade(place))
            .in_tls()
            .then(&frame)
    };
    let tried = shoot(daemon, &policy, &[of(PLACE)]);
    assert_eq!(tried.got[0].answers(), ["101"], "{tried:?}");
    assert!(tried.got[0].bytes.ends_with(mark.as_bytes()), "{tried:?}");
    tried.attack.assert_told(NOTHING);
    let used = format!("{} GET api.example:443/socket (api.example)", held.name);
    assert_eq!(tried.attack.uses.keys().collect::<Vec<_>>(), [&used]);
    assert!(!came(world, &tried.dummy));
    let tried = shoot(daemon, &policy, &[of("X-Key: @TOKEN@\r\n")]);
    assert!(tried.got[0].answers()[0].starts_with("403 "), "{tried:?}");
    assert!(!came(world, &tried.dummy));
}

fn a_body_of_any_size_and_framing_arrives_whole(world: &World) {
    let daemon = world.daemon();
    let held = Held::by(world, daemon);
    let policy = held.policy(daemon, &["api.example"], "");
    let path = format!("/{}", marker());
    // Of nothing but a dummy's beginning: what is searched for is nearly there.
    let script = format!(
        "part=$(printf %s \"$TOKEN\" | head -c 30); yes \"$part\" | head -c 3000000 >all; \
         for how in A:b Transfer-Encoding:chunked; do \
         curl -sS --fail -H $how -H \"Authorization: Bearer $TOKEN\" -H Expect: \
         --data-binary @all -o /dev/null -w '%{{http_code}} ' https://api.example{path}; done"
    );
    let attack = under(daemon, &policy, &script);
    assert_eq!(attack.printed, "200 200 ", "{attack:?}");
    let records = world.records();
    let bodies: Vec<_> = records
        .iter()
        .filter(|it| it["path"] == path.as_str())
        .map(|it| it["body"].as_str().unwrap().len())
        .collect();
    assert_eq!(bodies, [4_000_000, 4_000_000]);
}
