//! HTTP beyond plain requests: redirects, upgrades, bodies that wait to be
//! wanted, and HTTP/2 whose parts would mean something else in HTTP/1.

use super::{NOTHING, Shot, arrived, inside, marker, outside, shoot, shoot_outside, was_served};
use crate::{Test, tests, world::World};

pub(super) fn tests() -> Vec<Test> {
    tests![
        a_redirect_to_another_host_is_a_request_like_any_other,
        a_websocket_is_opened_to_an_allowed_host_alone,
        a_body_that_waits_is_not_asked_for_where_it_may_not_go,
        http_2_reaches_a_server_of_http_1_as_one_request,
        http_2_that_means_more_in_http_1_is_refused,
        http_2_for_another_host_is_refused,
    ]
}

fn a_redirect_to_another_host_is_a_request_like_any_other(world: &World) {
    let path = format!("/{}", marker());
    let get = format!(
        "curl -sL -m 10 -o /dev/null -w '%{{http_code}} ' 'http://echo.example/redirect?http://other.example{path}' || echo $?"
    );
    let plain = "unset HTTP_PROXY HTTPS_PROXY ALL_PROXY http_proxy https_proxy all_proxy";
    let script = format!("{get}; {plain}; {get}");
    let attack = inside(world.daemon(), r#"allow = ["echo.example"]"#, &script);
    assert_eq!(attack.printed, "403 302 6\n");
    attack.assert_told(&[
        "request other.example:80 (not in the allow list)",
        "resolve other.example (not in the allow list)",
    ]);
    assert!(!was_served(world, &path));
    assert_eq!(outside(&get), "200 ");
    assert!(was_served(world, &path));
}

fn a_websocket_is_opened_to_an_allowed_host_alone(world: &World) {
    let mark = marker();
    let upgrade = |host: &str| {
        format!(
            "GET / HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
    };
    // One whole frame, masked by zeros.
    let mut frame = vec![0x81, 0x80 | u8::try_from(mark.len()).unwrap(), 0, 0, 0, 0];
    frame.extend(mark.bytes());
    let of = |host| Shot::at("ws.example", 80, upgrade(host)).then(&frame);
    let (got, attack) = shoot(world, &["ws.example"], &[of("ws.example")]);
    assert_eq!(got[0].answers(), ["101"]);
    assert!(got[0].bytes.ends_with(mark.as_bytes()), "{got:?}");
    attack.assert_told(NOTHING);
    let frames = |world: &World| {
        world
            .records()
            .iter()
            .filter(|it| it["kind"] == "websocket")
            .count()
    };
    let before = frames(world);
    let rule = "a request on a connection to ws.example:80";
    let (got, attack) = shoot(world, &["ws.example"], &[of("other.example")]);
    // What was a frame is no request.
    assert_eq!(got[0].answers()[0], format!("403 {rule}"));
    attack.assert_told(&[format!("request other.example:80 ({rule})")]);
    let explicit = upgrade("ws.example").replacen(" /", " http://ws.example/", 1);
    let (got, attack) = shoot(
        world,
        &["echo.example"],
        &[Shot::proxy(explicit).then(&frame)],
    );
    assert_eq!(got[0].answers()[0], "403 not in the allow list");
    attack.assert_told(&["request ws.example:80 (not in the allow list)"]);
    assert_eq!(frames(world), before);
}

fn a_body_that_waits_is_not_asked_for_where_it_may_not_go(world: &World) {
    let (good, bad) = (format!("/{}", marker()), format!("/{}", marker()));
    let post = |host: &str, path: &str| {
        let head = format!(
            "POST http://{host}{path} HTTP/1.1\r\nHost: {host}\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n"
        );
        Shot::proxy(head).then("body")
    };
    let shots = [post("echo.example", &good), post("other.example", &bad)];
    let (got, attack) = shoot(world, &["echo.example"], &shots);
    assert_eq!(got[0].answers(), ["100", "200"]);
    assert!(String::from_utf8_lossy(&got[0].bytes).contains(r#""body": "body""#));
    assert_eq!(got[1].answers(), ["403 not in the allow list"]);
    attack.assert_told(&["request other.example:80 (not in the allow list)"]);
    assert!(was_served(world, &good) && !was_served(world, &bad));
    let head = String::from_utf8_lossy(&shots[1].parts[0]).replace("http://other.example", "");
    let direct = Shot::at("other.example", 80, head).then("body");
    assert_eq!(shoot_outside(&[direct])[0].answers(), ["100", "200"]);
    assert!(was_served(world, &bad));
}

/// A frame (RFC 9113, 4.1).
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags, 0, 0, 0, stream]);
    frame.extend(payload);
    frame
}

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;

/// A connection with one request of these header fields, as they are, and a body.
fn http_2(fields: &[(&str, &str)], body: Option<&str>) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        // Literal, not indexed, not compressed (RFC 7541, 6.2.2).
        block.push(0);
        for text in [name, value] {
            assert!(text.len() < 127);
            block.push(u8::try_from(text.len()).unwrap());
            block.extend(text.bytes());
        }
    }
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(4, 0, 0, &[]));
    let end = u8::from(body.is_none());
    bytes.extend(frame(HEADERS, 4 | end, 1, &block));
    bytes.extend(
        body.map(|body| frame(0, 1, 1, body.as_bytes()))
            .unwrap_or_default(),
    );
    bytes
}

/// What came of that request: its status, or the error that ended its stream or
/// the connection.
fn outcome(mut bytes: &[u8]) -> String {
    while let [a, b, c, kind, _, _, _, _, _, rest @ ..] = bytes {
        let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        let (payload, rest) = rest.split_at(length.min(rest.len()));
        bytes = rest;
        let error = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().unwrap());
        match *kind {
            // By the static table, or as text in the code of RFC 7541, appendix B.
            HEADERS => {
                let field = payload
                    .iter()
                    .position(|byte| *byte & 0xe0 != 0x20)
                    .unwrap();
                return match payload[field..] {
                    [0x88, ..] => "200".to_owned(),
                    [0x8c, ..] => "400".to_owned(),
                    [0x48, 0x83, 0x68, 0x0c, 0xff, ..] => "403".to_owned(),
                    _ => format!("{payload:x?}"),
                };
            }
            RST_STREAM => return format!("reset {}", error(0)),
            GOAWAY if error(4) != 0 => return format!("goaway {}", error(4)),
            _ => {}
        }
    }
    "nothing".to_owned()
}

fn fields<'a>(path: &'a str, authority: &'a str) -> Vec<(&'a str, &'a str)> {
    vec![
        (":method", "GET"),
        (":scheme", "http"),
        (":authority", authority),
        (":path", path),
    ]
}

fn http_2_reaches_a_server_of_http_1_as_one_request(world: &World) {
    let path = format!("/{}", marker());
    let mut post = fields(&path, "raw.example");
    post[0].1 = "POST";
    let shot = Shot::proxy(http_2(&post, Some("GET / HTTP/1.1\r\n\r\n")));
    let (got, attack) = shoot(world, &["raw.example"], &[shot]);
    assert_eq!(outcome(&got[0].bytes), "200");
    attack.assert_told(NOTHING);
    let came = arrived(world, &path);
    assert_eq!(came.len(), 1);
    let text = String::from_utf8(came[0].clone()).unwrap().to_lowercase();
    assert!(
        text.starts_with(&format!("post {path} http/1.1\r\n")),
        "{text}"
    );
    assert!(text.contains("host: raw.example\r\n"), "{text}");
    // Its length is said, and so it stays a body.
    let chunked = "transfer-encoding: chunked\r\n\r\n12\r\nget / http/1.1\r\n\r\n\r\n0\r\n\r\n";
    assert!(text.ends_with(chunked), "{text}");
}

fn http_2_that_means_more_in_http_1_is_refused(world: &World) {
    let mark = marker();
    let path = format!("/{mark}");
    let good = || fields(&path, "raw.example");
    let with = |name: &'static str, value: &'static str| {
        let mut fields = good();
        fields.push((name, value));
        fields
    };
    let but = |field: usize, value| {
        let mut fields = good();
        fields[field].1 = value;
        fields
    };
    let hidden = format!("/ HTTP/1.1\r\nHost: other.example\r\n\r\nGET {path}");
    let long_path = hidden.as_str();
    let cases = [
        with("x", "a\r\nTransfer-Encoding: chunked"),
        with("x", "a\nb"),
        with("x", "a\0b"),
        with("x\r\ny", "a"),
        with("x: y", "a"),
        with("X", "upper case"),
        with("", "a"),
        with("connection", "x"),
        with("transfer-encoding", "chunked"),
        with("upgrade", "websocket"),
        with("keep-alive", "1"),
        with("te", "gzip"),
        with(":path", "/twice"),
        with(":status", "200"),
        with("host", "other.example"),
        with("content-length", "5"),
        with("content-length", "x"),
        but(0, "GET / HTTP/1.1\r\nX:"),
        but(1, "https"),
        but(2, "raw.example\r\nX: y"),
        but(2, "other.example@raw.example"),
        but(2, "raw.example other.example"),
        but(3, long_path),
        but(3, ""),
    ];
    let shots: Vec<_> = cases
        .iter()
        .map(|fields| Shot::proxy(http_2(fields, Some("x"))))
        .collect();
    let (got, attack) = shoot(world, &["raw.example"], &shots);
    for (got, case) in got.iter().zip(&cases) {
        let outcome = outcome(&got.bytes);
        // PROTOCOL_ERROR, or malformed to the proxy.
        let refused = ["reset 1", "goaway 1", "400"].contains(&outcome.as_str());
        assert!(refused, "{case:?}: {outcome}");
    }
    attack.assert_told(NOTHING);
    assert!(arrived(world, &mark).is_empty());
    let direct = Shot::at("raw.example", 80, http_2(&cases[0], None));
    shoot_outside(&[direct]);
    assert_eq!(arrived(world, &mark).len(), 1);
}

fn http_2_for_another_host_is_refused(world: &World) {
    let path = format!("/{}", marker());
    let bytes = http_2(&fields(&path, "other.example"), None);
    let shots = [
        Shot::proxy(&bytes),
        Shot::at("h2.example", 80, &bytes),
        Shot::through("raw.example", 80, &bytes),
    ];
    let (got, attack) = shoot(world, &["h2.example", "raw.example"], &shots);
    for got in &got {
        assert_eq!(outcome(&got.bytes), "403", "{got:?}");
    }
    attack.assert_told(&[
        "request other.example:80 (a request on a connection to h2.example:80)",
        "request other.example:80 (a request on a connection to raw.example:80)",
        "request other.example:80 (not in the allow list)",
    ]);
    let got = shoot_outside(&shots[1..2]);
    assert_eq!(outcome(&got[0].bytes), "200");
}
