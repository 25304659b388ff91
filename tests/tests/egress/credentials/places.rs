//! Where in a request a dummy may stand, and where not.

use super::{Held, NOTHING, came, shoot, shoot_outside, token};
use crate::{
    Test,
    attacks::{Shot, arrived, marker},
    tests,
    world::World,
};

pub(super) fn tests() -> Vec<Test> {
    tests![
        a_dummy_works_in_every_place_of_a_token,
        a_dummy_outside_its_place_is_refused,
        a_dummy_that_is_said_twice_is_refused,
        a_dummy_in_a_body_is_refused,
        a_dummy_in_a_folded_header_is_malformed,
        a_dummy_that_is_compressed_stays_a_dummy,
        a_key_of_somebody_else_is_refused_in_the_place_of_the_dummy,
        a_credential_in_a_header_or_a_query_has_its_place_there,
        a_credential_without_a_dummy_is_added_to_what_it_covers,
    ]
}

const TAP: &[&str] = &["tap.example"];
const PLACE: &str = "Authorization: Bearer @TOKEN@\r\n";

/// A request to the host that keeps bytes.
fn request(target: &str, rest: &str) -> Shot {
    let text = format!("GET {target} HTTP/1.1\r\nHost: tap.example\r\n{rest}\r\n");
    Shot::at("tap.example", 443, text).in_tls()
}

fn a_dummy_works_in_every_place_of_a_token(world: &World) {
    let daemon = world.daemon();
    let held = Held::by(world, daemon);
    let policy = held.policy(daemon, &["api.example"], "");
    let values = [
        "Bearer @TOKEN@",
        "bearer  @TOKEN@",
        "token @TOKEN@",
        "Basic @BASE64<somebody:@TOKEN@>@",
        "Basic @BASE64<@TOKEN@:x-oauth-basic>@",
        "Basic @BASE64<@TOKEN@:>@",
    ];
    let path = format!("/{}", marker());
    let shots: Vec<_> = values
        .iter()
        .flat_map(|value| {
            let text = format!(
                "GET {path} HTTP/1.1\r\nHost: api.example\r\nAuthorization: {value}\r\n\r\n"
            );
            let through = Shot::through("api.example", 443, &text);
            [Shot::at("api.example", 443, &text), through].map(Shot::in_tls)
        })
        .collect();
    let tried = shoot(daemon, &policy, &shots);
    for got in &tried.got {
        assert_eq!(got.answers(), ["200"], "{tried:?}");
        assert_eq!(got.issuer, "issuer=CN = sandboxd", "{tried:?}");
    }
    tried.attack.assert_told(NOTHING);
    let used = format!("{} GET api.example:443{path} (api.example)", held.name);
    assert_eq!(tried.attack.uses.keys().collect::<Vec<_>>(), [&used]);
    let count = u64::try_from(shots.len()).unwrap();
    assert_eq!(tried.attack.uses[&used], count);
    assert!(!came(world, &tried.dummy));
    let control = token();
    let got = shoot_outside(&control, &shots[..1]);
    assert_eq!(got[0].answers(), ["401"]);
    assert_eq!(got[0].issuer, "issuer=CN = authority");
}

fn a_dummy_outside_its_place_is_refused(world: &World) {
    let daemon = world.daemon();
    let held = Held::by(world, daemon);
    let policy = held.policy(daemon, TAP, "");
    let mark = marker();
    let path = format!("/{mark}");
    let shots = [
        request(&format!("{path}/@TOKEN@"), ""),
        request(&format!("{path}?q=@TOKEN@"), ""),
        request(&format!("{path}?q=@PERCENT<@TOKEN@>@"), ""),
        request(&path, "Cookie: a=b; session=@TOKEN@\r\n"),
        request(&path, "X-Key: @TOKEN@\r\n"),
        request(&path, "X-Key: @BASE64<@TOKEN@>@\r\n"),
        request(&path, "X-Key: Basic @BASE64<a:@TOKEN@>@\r\n"),
        request(&path, "User-Agent: curl/@TOKEN@\r\n"),
        request(&path, "Referer: https://tap.example/?@TOKEN@\r\n"),
        request(&path, "Authorization: @TOKEN@\r\n"),
        request(&path, "Authorization: Digest username=@TOKEN@\r\n"),
        request(&path, "Authorization: Bearer x@TOKEN@\r\n"),
        request(&path, "Authorization: Bearer @TOKEN@, x\r\n"),
        request(&path, "Authorization: Basic @BASE64<a:x@TOKEN@>@\r\n"),
    ];
    let tried = shoot(daemon, &policy, &shots);
    let rule = format!("the dummy of `{}` outside its place", held.name);
    tried.assert_refused(world, &held, "tap.example:443", &rule);
    assert!(arrived(world, &mark).is_empty());
    let control = token();
    shoot_outside(&control, &shots);
    assert_eq!(arrived(world, &mark).len(), shots.len());
    assert!(came(world, &control));
}

fn a_dummy_that_is_said_twice_is_refused(world: &World) {
    let daemon = world.daemon();
    let held = Held::by(world, daemon);
    let policy = held.policy(daemon, TAP, "");
    let mark = marker();
    let path = format!("/{mark}");
    let shots = [
        request(&path, &format!("{PLACE}{PLACE}")),
        request(&path, &format!("{PLACE}X-Key: @TOKEN@\r\n")),
        request(&path, &format!("X-Key: @BASE64<@TOKEN@>@\r\n{PLACE}")),
        request(&path, "Authorization: Bearer @TOKEN@ @TOKEN@\r\n"),
        request(&path, "Authorization: Basic @BASE64<@TOKEN@:@TOKEN@>@\r\n"),
        request(&format!("{path}?q=@TOKEN@"), PLACE),
        request(&format!("{path}/@TOKEN@"), PLACE),
    ];
    let tried = shoot(daemon, &policy, &shots);
    let rule = format!("the dummy of `{}` more than once", held.name);
    tried.assert_refused(world, &held, "tap.example:443", &rule);
    assert!(arrived(world, &mark).is_empty());
    shoot_outside(&token(), &shots);
    assert_eq!(arrived(world, &mark).len(), shots.len());
}

fn a_dummy_in_a_body_is_refused(world: &World) {
    let daemon = world.daemon();
    let held = Held::by(world, daemon);
    let policy = held.policy(daemon, &["waiting.example"], "");
    let mark = marker();
    let post = |rest: &str| {
        let text = format!("POST /{mark} HTTP/1.1\r\nHost: waiting.example\r\n{rest}");
        Shot::at("waiting.example", 443, text).in_tls()
    };
    let length = held.token.len() + 6;
    let whole = format!("Content-Length: {length}\r\n\r\na=@TOKEN@&b=c");
    let chunked = "Transfer-Encoding: chunked\r\n\r\n";
    let (front, back) = ("@CHUNK<a=@TOKEN[:20]@>@", "@CHUNK<@TOKEN[20:]@>@0\r\n\r\n");
    let trailer = "Trailer: X-Key\r\nTransfer-Encoding: chunked\r\n\r\n@CHUNK<a>@0\r\n";
    let single = "@CHUNK<@TOKEN[:1]@>@@CHUNK<@TOKEN[1:2]@>@@CHUNK<@TOKEN[2:]@>@0\r\n\r\n";
    let shots = [
        post(&whole),
        post(&format!("{PLACE}{whole}")),
        post(&format!("Content-Length: {length}\r\n\r\na=@TOKEN[:20]@")).then("@TOKEN[20:]@&b=c"),
        post(&format!("{chunked}@CHUNK<@TOKEN@>@0\r\n\r\n")),
        post(&format!("{chunked}{front}{back}")),
        post(&format!("{chunked}{front}")).then(back),
        post(&format!("{chunked}{single}")),
        post(&format!("{trailer}X-Key: @TOKEN@\r\n\r\n")),
        post(trailer).then("X-Key: @TOKEN@\r\n\r\n"),
    ];
    let tried = shoot(daemon, &policy, &shots);
    let rule = format!("the dummy of `{}` in a body", held.name);
    for (shot, got) in shots.iter().zip(&tried.got) {
        assert_eq!(got.answers(), [format!("403 {rule}")], "{shot:?} {tried:?}");
    }
    let told = format!("request waiting.example:443 ({rule})");
    tried.attack.assert_told(&[&told]);
    assert_eq!(tried.attack.denials[&told], 9);
    assert!(!came(world, &tried.dummy), "{tried:?}");
    // One of them had the dummy in its place too: that was a use.
    let with_token = world.raw_bytes();
    let with_token = with_token.iter().filter(|it| {
        let text = String::from_utf8_lossy(it);
        text.contains(&held.token)
    });
    assert!(with_token.clone().count() <= 1);
    for bytes in with_token {
        assert!(String::from_utf8_lossy(bytes).contains(&format!("Bearer {}", held.token)));
    }
    let control = token();
    shoot_outside(&control, &shots);
    assert!(came(world, &control));
}

fn a_dummy_in_a_folded_header_is_malformed(world: &World) {
    let daemon = world.daemon();
    let held = Held::by(world, daemon);
    let policy = held.policy(daemon, TAP, "");
    let mark = marker();
    let path = format!("/{mark}");
    let shots = [
        request(&path, "Authorization: Bearer\r\n @TOKEN@\r\n"),
        request(&path, "Authorization:\r\n\tBearer @TOKEN@\r\n"),
        request(&path, "X-Key: a\r\n @TOKEN@\r\n"),
        request(&path, "Authorization : Bearer @TOKEN@\r\n"),
    ];
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

fn a_dummy_that_is_compressed_stays_a_dummy(world: &World) {
    let daemon = world.daemon();
    let held = Held::by(world, daemon);
    let policy = held.policy(daemon, TAP, "");
    let mark = marker();
    let text = format!(
        "POST /{mark} HTTP/1.1\r\nHost: tap.example\r\nContent-Encoding: gzip\r\n\
         Transfer-Encoding: chunked\r\n\r\n@CHUNK<@GZIP<@TOKEN@>@>@0\r\n\r\n"
    );
    let shots = [Shot::at("tap.example", 443, text).in_tls()];
    let tried = shoot(daemon, &policy, &shots);
    assert_eq!(tried.got[0].answers()[0], "200", "{tried:?}");
    tried.attack.assert_told(NOTHING);
    let came = arrived(world, &mark);
    let is_gzip = |it: &[u8]| it.windows(3).any(|it| it == [0x1f, 0x8b, 8]);
    assert!(is_gzip(&came[0]), "{came:?}");
    tried.assert_kept(world, &held);
    assert!(tried.attack.uses.is_empty());
}

fn a_key_of_somebody_else_is_refused_in_the_place_of_the_dummy(world: &World) {
    let daemon = world.daemon();
    let held = Held::by(world, daemon);
    let policy = held.policy(daemon, TAP, r#"paths = ["/v1/**"]"#);
    let (mark, foreign) = (marker(), token());
    let mut shots = Vec::new();
    // Also where the credential is not for.
    for path in [format!("/v1/{mark}"), format!("/v2/{mark}")] {
        for value in [
            format!("Bearer {foreign}"),
            format!("token {foreign}"),
            format!("Basic @BASE64<somebody:{foreign}>@"),
            foreign.clone(),
        ] {
            shots.push(request(&path, &format!("Authorization: {value}\r\n")));
        }
    }
    let tried = shoot(daemon, &policy, &shots);
    let rule = format!("another credential than `{}`", held.name);
    tried.assert_refused(world, &held, "tap.example:443", &rule);
    assert!(!came(world, &foreign));
    // Nothing in its place is nothing to refuse.
    let bare = [request(&format!("/v2/{mark}"), "")];
    let tried = shoot(daemon, &policy, &bare);
    assert_eq!(tried.got[0].answers(), ["200"]);
    shoot_outside(&token(), &shots);
    assert!(came(world, &foreign));
}

fn a_credential_in_a_header_or_a_query_has_its_place_there(world: &World) {
    let daemon = world.daemon();
    let mark = marker();
    for (scheme, good, bad, foreign) in [
        (
            "scheme = \"header\"\nheader = \"X-Api-Key\"",
            request(&format!("/{mark}"), "x-api-key: @TOKEN@\r\n"),
            request(&format!("/{mark}"), PLACE),
            request(&format!("/{mark}"), "X-API-KEY: another\r\n"),
        ),
        (
            "scheme = \"query\"\nquery = \"key\"",
            request(&format!("/{mark}?a=b&key=@TOKEN@&c=d"), ""),
            request(&format!("/{mark}?other=@TOKEN@"), ""),
            request(&format!("/{mark}?a=b&k%65y=another"), ""),
        ),
    ] {
        let held = Held::by(world, daemon);
        let policy = held.policy(daemon, TAP, scheme);
        let tried = shoot(daemon, &policy, &[bad]);
        let rule = format!("the dummy of `{}` outside its place", held.name);
        tried.assert_refused(world, &held, "tap.example:443", &rule);
        let tried = shoot(daemon, &policy, &[foreign]);
        let rule = format!("another credential than `{}`", held.name);
        tried.assert_refused(world, &held, "tap.example:443", &rule);
        let tried = shoot(daemon, &policy, &[good]);
        assert_eq!(tried.got[0].answers(), ["200"], "{tried:?}");
        assert!(came(world, &held.token) && !came(world, &tried.dummy));
        let used = format!("{} GET tap.example:443/{mark} (tap.example)", held.name);
        assert_eq!(tried.attack.uses.keys().collect::<Vec<_>>(), [&used]);
    }
}

fn a_credential_without_a_dummy_is_added_to_what_it_covers(world: &World) {
    let daemon = world.daemon();
    let held = Held::by(world, daemon);
    let entry = held.entry(TAP, "paths = [\"/v1/*\"]");
    let entry = entry.replace("env = \"TOKEN\"\n", "");
    let policy = daemon.policy(&format!("allow = {TAP:?}\n{entry}"));
    let mark = marker();
    let shots = [
        request(&format!("/v2/{mark}"), ""),
        request("/v1/a/b", ""),
        request("/v1", ""),
        request("/v1/%2e%2e/v1/a", ""),
    ];
    let tried = shoot(daemon, &policy, &shots);
    for got in &tried.got {
        assert_eq!(got.answers(), ["200"], "{tried:?}");
    }
    assert!(!came(world, &held.token));
    let tried = shoot(daemon, &policy, &[request(&format!("/v1/{mark}"), "")]);
    assert_eq!(tried.got[0].answers(), ["200"], "{tried:?}");
    assert!(came(world, &held.token));
    let used = format!("{} GET tap.example:443/v1/{mark} (/v1/*)", held.name);
    assert_eq!(tried.attack.uses.keys().collect::<Vec<_>>(), [&used]);
}
