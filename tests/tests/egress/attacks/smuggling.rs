//! Requests that two readers divide in two ways: what reaches a server is one
//! request for each that was decided, however they were written.

use super::{NOTHING, Shot, arrived, marker, shoot, shoot_outside};
use crate::{Test, tests, world::World};

pub(super) fn tests() -> Vec<Test> {
    tests![
        two_lengths_are_refused,
        a_length_that_is_said_twice_is_passed_on_once,
        what_is_no_header_is_refused,
        two_hosts_are_refused,
        chunks_that_hide_a_request_arrive_without_it,
        a_body_that_looks_like_a_request_stays_a_body,
        headers_about_the_connection_stay_behind,
        a_head_of_more_than_64_kib_is_refused,
        a_server_that_answers_twice_is_not_heard_twice,
    ]
}

/// A request that must not come to be, for the end of another.
fn hidden(mark: &str) -> String {
    format!("GET /{mark} HTTP/1.1\r\nHost: other.example\r\n\r\n")
}

/// Each of these heads before a hidden request, on a connection to the host and
/// through the proxy: 400, no refusal, nothing arrives. A direct connection
/// delivers it.
fn assert_refused(world: &World, heads: &[String], body: impl Fn(&str) -> String) {
    let mark = marker();
    let body = body(&hidden(&mark));
    let mut shots = Vec::new();
    for head in heads {
        let explicit = head.replacen(" /", " http://raw.example/", 1);
        shots.push(Shot::at("raw.example", 80, format!("{head}{body}")));
        shots.push(Shot::proxy(format!("{explicit}{body}")));
    }
    let (got, attack) = shoot(world, &["raw.example"], &shots);
    let through: Vec<_> = got
        .iter()
        .zip(&shots)
        .filter(|(got, _)| got.answers() != ["400"] || got.end != "closed")
        .map(|(got, shot)| (got, String::from_utf8_lossy(&shot.parts[0]).into_owned()))
        .collect();
    assert!(through.is_empty(), "{through:#?}");
    attack.assert_told(NOTHING);
    assert!(arrived(world, &mark).is_empty());
    let direct: Vec<_> = shots.into_iter().step_by(2).collect();
    shoot_outside(&direct);
    assert_eq!(arrived(world, &mark).len(), direct.len());
}

fn post(headers: &str) -> String {
    format!("POST /a HTTP/1.1\r\nHost: raw.example\r\n{headers}\r\n")
}

fn two_lengths_are_refused(world: &World) {
    let heads = [
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        "Transfer-Encoding: identity, chunked\r\nContent-Length: 5\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding:\x0bchunked\r\nContent-Length: 5\r\n",
        "Transfer-Encoding : chunked\r\nContent-Length: 5\r\n",
        "Transfer-Encoding\t: chunked\r\nContent-Length: 5\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: 5, 5\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: -1\r\n",
        "Content-Length: 0x5\r\n",
        "Content-Length: 5 5\r\n",
        "Content-Length: 18446744073709551616\r\n",
    ]
    .map(post);
    assert_refused(world, &heads, |hidden| format!("0\r\n\r\n{hidden}"));
}

/// Some of these the HTTP code reads, as RFC 9112 has it: what a server gets says
/// its length once, and what follows is a request of its own.
fn a_length_that_is_said_twice_is_passed_on_once(world: &World) {
    let rule = "a request on a connection to raw.example:80";
    let read = |answers: &[&str]| {
        answers
            .iter()
            .map(|it| (*it).to_owned())
            .collect::<Vec<_>>()
    };
    let refused = format!("403 {rule}");
    for (headers, answers) in [
        (
            "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
            read(&["200"]),
        ),
        (
            "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
            read(&["200"]),
        ),
        (
            "X: y\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n",
            read(&["200"]),
        ),
        (
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            read(&["400", &refused]),
        ),
        (
            "Content-Length: 5\r\nContent-Length: 5\r\n",
            read(&["200", &refused]),
        ),
    ] {
        let (mark, good) = (marker(), marker());
        let head = post(headers).replace("/a", &format!("/{good}"));
        let shot = Shot::at(
            "raw.example",
            80,
            format!("{head}0\r\n\r\n{}", hidden(&mark)),
        );
        let (got, attack) = shoot(world, &["raw.example"], std::slice::from_ref(&shot));
        assert_eq!(got[0].answers(), answers, "{head}");
        let told = format!("request other.example:80 ({rule})");
        attack.assert_told(if answers.len() == 2 {
            std::slice::from_ref(&told)
        } else {
            &[]
        });
        let came = arrived(world, &good);
        assert_eq!(came.len(), usize::from(answers[0] == "200"), "{head}");
        for bytes in came {
            let text = String::from_utf8(bytes).unwrap().to_lowercase();
            let lengths = text.matches("content-length:").count();
            let codings = text.matches("transfer-encoding:").count();
            assert_eq!(lengths + codings, 1, "{text}");
            assert!(text.ends_with("0\r\n\r\n"), "{text}");
        }
        assert!(arrived(world, &mark).is_empty());
        shoot_outside(&[shot]);
        assert_eq!(arrived(world, &mark).len(), 1);
    }
}

fn what_is_no_header_is_refused(world: &World) {
    let heads = [
        post("X: y\r\n Transfer-Encoding: chunked\r\n"),
        post(" X: folded\r\n"),
        post("X: a\r\n\tb\r\n"),
        post("No colon\r\n"),
        post(": no name\r\n"),
        post("X: a\0b\r\n"),
        post("X: a\rY: b\r\n"),
        post("X\0: a\r\n"),
        "GET /a HTTP/1.1\r\nHost: raw.example\r\nX y: z\r\n\r\n".to_owned(),
        "GET /a HTTP/1.1 \r\nHost: raw.example\r\n\r\n".to_owned(),
        "GET /a HTTP/1.2\r\nHost: raw.example\r\n\r\n".to_owned(),
        "GET /a HTTP/11\r\nHost: raw.example\r\n\r\n".to_owned(),
        "GET /a b HTTP/1.1\r\nHost: raw.example\r\n\r\n".to_owned(),
    ];
    assert_refused(world, &heads, str::to_owned);
}

fn two_hosts_are_refused(world: &World) {
    let heads = [
        "Host: raw.example\r\nHost: other.example\r\n",
        "Host: other.example\r\nHost: raw.example\r\n",
        "Host: raw.example\r\nhost: raw.example\r\n",
        "Host: raw.example, other.example\r\n",
        "Host: raw.example other.example\r\n",
        "Host: raw.example/other.example\r\n",
        "Host: other.example@raw.example\r\n",
        "Host:\r\n",
        "X: y\r\n",
    ];
    let (mark, mut shots) = (marker(), Vec::new());
    for head in heads {
        shots.push(Shot::at(
            "raw.example",
            80,
            format!("GET /{mark} HTTP/1.1\r\n{head}\r\n"),
        ));
        let explicit = format!("GET http://raw.example/{mark} HTTP/1.1\r\n{head}\r\n");
        shots.push(Shot::proxy(explicit));
    }
    let (got, attack) = shoot(world, &["raw.example"], &shots);
    for (got, shot) in got.iter().zip(&shots) {
        let text = String::from_utf8_lossy(&shot.parts[0]).into_owned();
        let answers = got.answers();
        let refused = answers == ["400"] || answers == ["403 not a host name"];
        assert!(refused, "{text}: {answers:?}");
    }
    assert!(
        attack
            .denials
            .keys()
            .all(|it| it.starts_with("request ") && it.ends_with("(not a host name)")),
        "{attack:?}"
    );
    assert!(arrived(world, &mark).is_empty());
    shoot_outside(&shots[..1]);
    assert_eq!(arrived(world, &mark).len(), 1);
}

fn chunks_that_hide_a_request_arrive_without_it(world: &World) {
    let (mark, good) = (marker(), marker());
    let head =
        format!("POST /{good} HTTP/1.1\r\nHost: raw.example\r\nTransfer-Encoding: chunked\r\n\r\n");
    let hidden = hidden(&mark);
    let bodies = [
        // In an extension, in a quoted one, in a trailer, after a bare LF.
        format!("3;x={hidden}abc\r\n0\r\n\r\n"),
        format!("3;x=\"\r\n{hidden}\"\r\nabc\r\n0\r\n\r\n"),
        format!("3\r\nabc\r\n0\r\nX: y\r\n {hidden}\r\n"),
        format!("3\r\nabc\r\n0\r\nHost: other.example\r\nContent-Length: 5\r\nX: {mark}\r\n\r\n"),
        format!("3\nabc\n0\n\n{hidden}"),
        format!("3 \r\nabc\r\n0\r\n\n{hidden}"),
        format!("+3\r\nabc\r\n0\r\n\r\n{hidden}"),
        format!("0x3\r\nabc\r\n0\r\n\r\n{hidden}"),
        format!("10000000000000003\r\nabc\r\n0\r\n\r\n{hidden}"),
        format!("3\r\nabcXX0\r\n\r\n{hidden}"),
    ];
    let shots: Vec<_> = bodies
        .iter()
        .map(|body| Shot::at("raw.example", 80, format!("{head}{body}")))
        .collect();
    let (got, attack) = shoot(world, &["raw.example"], &shots);
    for got in &got {
        // At most the one request that was sent, then the end or another host's.
        let answers = got.answers();
        assert!(answers.len() <= 2, "{answers:?}");
        assert!(
            answers.iter().skip(1).all(|it| !it.starts_with("200")),
            "{answers:?}"
        );
    }
    for told in attack.denials.keys() {
        assert_eq!(
            told,
            "request other.example:80 (a request on a connection to raw.example:80)"
        );
    }
    for bytes in arrived(world, &good) {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        assert_eq!(text.matches("HTTP/1.1").count(), 1, "{text}");
        assert!(!text.contains("other.example"), "{text}");
    }
    assert!(arrived(world, &mark).is_empty());
    shoot_outside(&shots);
    assert_eq!(arrived(world, &mark).len(), shots.len());
}

fn a_body_that_looks_like_a_request_stays_a_body(world: &World) {
    let (mark, good) = (marker(), marker());
    let body = hidden(&mark);
    let length = body.len();
    let of = |headers: &str, body: &str| {
        format!("POST /{good} HTTP/1.1\r\nHost: raw.example\r\n{headers}\r\n{body}")
    };
    let shots = [
        Shot::at(
            "raw.example",
            80,
            of(&format!("Content-Length: {length}\r\n"), &body),
        ),
        Shot::at(
            "raw.example",
            80,
            of(
                "Transfer-Encoding: chunked\r\n",
                &format!("{length:x}\r\n{body}\r\n0\r\n\r\n"),
            ),
        ),
    ];
    let (got, attack) = shoot(world, &["raw.example"], &shots);
    assert!(got.iter().all(|it| it.answers()[0] == "200"));
    attack.assert_told(NOTHING);
    let came = arrived(world, &good);
    assert_eq!(came.len(), 2);
    for bytes in came {
        let text = String::from_utf8(bytes).unwrap().to_lowercase();
        let whole = text.contains(&format!("content-length: {length}\r\n"))
            || text.contains("transfer-encoding: chunked\r\n");
        assert!(whole && text.contains(&body.to_lowercase()), "{text}");
    }
}

fn headers_about_the_connection_stay_behind(world: &World) {
    let mark = marker();
    let headers = "Connection: close, X-Named, Host, Content-Length\r\nX-Named: 1\r\nKeep-Alive: 1\r\n\
        Proxy-Connection: keep-alive\r\nProxy-Authorization: Basic eA==\r\nUpgrade: h2c\r\n\
        HTTP2-Settings: AAMAAABkAAQAAP__\r\nTE: gzip\r\nX-Kept: 1\r\n";
    let request = format!("GET /{mark} HTTP/1.1\r\nHost: raw.example\r\n{headers}\r\n");
    let shots = [Shot::at("raw.example", 80, &request)];
    let (got, _) = shoot(world, &["raw.example"], &shots);
    assert_eq!(got[0].answers(), ["200"]);
    let came = arrived(world, &mark).remove(0);
    let text = String::from_utf8(came).unwrap().to_lowercase();
    assert!(
        text.contains("x-kept: 1") && text.contains("host: raw.example\r\n"),
        "{text}"
    );
    for gone in [
        "x-named",
        "keep-alive",
        "proxy-",
        "upgrade",
        "http2",
        "gzip",
    ] {
        assert!(!text.contains(gone), "{gone} in {text}");
    }
    shoot_outside(&shots);
    let direct = arrived(world, &mark);
    assert!(direct.contains(&request.into_bytes()));
}

fn a_head_of_more_than_64_kib_is_refused(world: &World) {
    let (small, large) = (marker(), marker());
    let of = |mark: &str, headers: usize, size: usize| {
        let headers: Vec<_> = (0..headers)
            .map(|it| format!("X-{it}: {}\r\n", "y".repeat(size)))
            .collect();
        let headers = headers.concat();
        format!("GET /{mark} HTTP/1.1\r\nHost: raw.example\r\n{headers}\r\n")
    };
    let shots = [
        Shot::at("raw.example", 80, of(&small, 50, 1000)),
        Shot::at("raw.example", 80, of(&large, 1, 70_000)),
        Shot::at("raw.example", 80, of(&large, 70, 1000)),
        Shot::at("raw.example", 80, of(&large, 200, 1)),
        Shot::proxy(of(&large, 70, 1000).replacen(" /", " http://raw.example/", 1)),
        Shot::at(
            "raw.example",
            80,
            format!("GET /{large}{} HTTP/1.1\r\n", "x".repeat(70_000)),
        ),
    ];
    let (got, attack) = shoot(world, &["raw.example"], &shots);
    assert_eq!(got[0].answers(), ["200"]);
    for got in &got[1..5] {
        assert_eq!(got.answers(), ["431"]);
        assert_eq!(got.end, "closed");
    }
    let line = got[5].answers();
    assert!(line == ["414"] || line == ["431"], "{line:?}");
    attack.assert_told(NOTHING);
    assert!(arrived(world, &large).is_empty());
    shoot_outside(&shots[1..]);
    assert_eq!(arrived(world, &large).len(), 4);
}

fn a_server_that_answers_twice_is_not_heard_twice(world: &World) {
    // It answers each empty line: this body's once more.
    let mark = marker();
    let body = "x\r\n\r\n";
    let first =
        format!("POST /{mark} HTTP/1.1\r\nHost: raw.example\r\nContent-Length: 5\r\n\r\n{body}");
    let second = format!("GET /{mark} HTTP/1.1\r\nHost: raw.example\r\n\r\n");
    let (got, _) = shoot(
        world,
        &["raw.example"],
        &[Shot::at("raw.example", 80, &first).then(&second)],
    );
    // The second answer of the first connection is nobody's: the next request
    // has a connection of its own.
    assert_eq!(got[0].answers(), ["200", "200"]);
    assert_eq!(arrived(world, &mark).len(), 2);
    let got = shoot_outside(&[Shot::at("raw.example", 80, &first).then(&second)]);
    assert_eq!(got[0].answers(), ["200", "200", "200"]);
}
