//! A host that is allowed as the front of one that is not: what a client asks
//! for on a connection has to be what the connection was granted for.

use super::{ALERT, Got, NOTHING, Shot, arrived, marker, shoot, shoot_outside};
use crate::{Test, tests, world::World};

pub(super) fn tests() -> Vec<Test> {
    tests![
        tls_for_another_name_is_answered_by_an_alert,
        tls_in_the_smallest_pieces_is_put_together_before_it_is_judged,
        tls_for_several_names_is_refused,
        tls_that_nobody_can_read_is_refused,
        a_request_for_another_host_is_refused_on_a_connection_to_an_allowed_one,
        a_second_request_is_judged_like_the_first,
        a_request_line_and_a_host_that_disagree_are_malformed,
        http_after_the_server_spoke_is_refused,
    ]
}

/// Every way to a port of the host that keeps bytes.
fn ways(port: u16, bytes: &[u8]) -> [Shot; 2] {
    [
        Shot::at("raw.example", port, bytes),
        Shot::through("raw.example", port, bytes),
    ]
}

/// A `ClientHello` with these server names and a recognisable random.
fn hello(names: &[&str], marker: &str) -> Vec<u8> {
    let mut random = marker.as_bytes().to_vec();
    random.resize(32, b'.');
    let entries: Vec<u8> = names
        .iter()
        .flat_map(|name| {
            let mut entry = vec![0];
            entry.extend(length(name.len()));
            entry.extend(name.bytes());
            entry
        })
        .collect();
    let mut extension = vec![0, 0];
    extension.extend(length(entries.len() + 2));
    extension.extend(length(entries.len()));
    extension.extend(entries);
    let mut body = vec![3, 3];
    body.extend(random);
    body.extend([0, 0, 2, 0x13, 1, 1, 0]);
    body.extend(length(extension.len()));
    body.extend(extension);
    let mut message = vec![1, 0];
    message.extend(length(body.len()));
    message.extend(body);
    message
}

fn length(length: usize) -> [u8; 2] {
    u16::try_from(length).unwrap().to_be_bytes()
}

/// In records of this size.
fn records(message: &[u8], size: usize) -> Vec<u8> {
    message
        .chunks(size)
        .flat_map(|fragment| {
            let mut record = vec![22, 3, 1];
            record.extend(length(fragment.len()));
            record.extend(fragment);
            record
        })
        .collect()
}

fn assert_alert(got: &Got) {
    assert_eq!(
        (got.bytes.as_slice(), got.end.as_str()),
        (&ALERT[..], "closed")
    );
}

fn tls_for_another_name_is_answered_by_an_alert(world: &World) {
    for port in [443, 8080] {
        let (good, bad) = (marker(), marker());
        let allowed = ways(port, &records(&hello(&["Raw.Example"], &good), 1 << 14));
        let fronted = ways(port, &records(&hello(&["other.example"], &bad), 1 << 14));
        let shots = [allowed.as_slice(), &fronted].concat();
        let (got, attack) = shoot(world, &["raw.example", "raw.example:8080"], &shots);
        for got in &got[..2] {
            assert_eq!((got.bytes.len(), got.end.as_str()), (0, "silence"));
        }
        got[2..].iter().for_each(assert_alert);
        let told = format!("connect other.example:{port} (TLS for another name than raw.example)");
        attack.assert_told(&[&told]);
        assert_eq!(attack.denials[&told], 2);
        assert_eq!(arrived(world, &good).len(), 2);
        assert!(arrived(world, &bad).is_empty());
        shoot_outside(&fronted[..1]);
        assert_eq!(arrived(world, &bad).len(), 1);
    }
}

fn tls_in_the_smallest_pieces_is_put_together_before_it_is_judged(world: &World) {
    let (good, bad) = (marker(), marker());
    let message = |name, marker: &str| records(&hello(&[name], marker), 1);
    let whole = |name, marker: &str| records(&hello(&[name], marker), 1 << 14);
    let mut shots = Vec::new();
    for port in [443, 8080] {
        shots.extend(ways(port, &message("raw.example", &good)));
    }
    for port in [443, 8080] {
        shots.extend(ways(port, &message("other.example", &bad)));
        shots.extend(ways(port, &whole("other.example", &bad)).map(|it| it.pieces(1)));
    }
    let (got, attack) = shoot(world, &["raw.example", "raw.example:8080"], &shots);
    for got in &got[..4] {
        assert_eq!((got.bytes.len(), got.end.as_str()), (0, "silence"));
    }
    got[4..].iter().for_each(assert_alert);
    attack.assert_told(&[
        "connect other.example:443 (TLS for another name than raw.example)",
        "connect other.example:8080 (TLS for another name than raw.example)",
    ]);
    assert!(arrived(world, &bad).is_empty());
    // In records of one byte nobody finds the marker: what arrived is compared.
    let sent = message("raw.example", &good);
    let came = world.raw_bytes().iter().filter(|it| **it == sent).count();
    assert_eq!(came, 4);
}

fn tls_for_several_names_is_refused(world: &World) {
    let bad = marker();
    let lists: [&[&str]; 3] = [
        &["raw.example", "other.example"],
        &["other.example", "raw.example"],
        &["raw.example", "raw.example"],
    ];
    let shots: Vec<_> = lists
        .iter()
        .flat_map(|names| ways(443, &records(&hello(names, &bad), 1 << 14)))
        .collect();
    let (got, attack) = shoot(world, &["raw.example", "raw.example:8080"], &shots);
    got.iter().for_each(assert_alert);
    attack.assert_told(&["connect raw.example:443 (a TLS server name that is no host name)"]);
    assert!(arrived(world, &bad).is_empty());
    shoot_outside(&shots[..1]);
    assert_eq!(arrived(world, &bad).len(), 1);
}

fn tls_that_nobody_can_read_is_refused(world: &World) {
    let bad = marker();
    let names = ["203.0.113.22", "other.example\0.raw.example", "", "[::1]"];
    let mut shots: Vec<_> = names
        .iter()
        .map(|name| Shot::at("raw.example", 443, records(&hello(&[name], &bad), 1 << 14)))
        .collect();
    let mut lying = hello(&["raw.example"], &bad);
    lying.extend(hello(&["other.example"], &bad));
    shots.push(Shot::at("raw.example", 443, records(&lying, 1 << 14)));
    let (got, attack) = shoot(world, &["raw.example", "raw.example:8080"], &shots);
    got.iter().for_each(assert_alert);
    attack.assert_told(&[
        "connect raw.example:443 (a TLS server name that is no host name)",
        "connect raw.example:443 (a malformed TLS hello)",
    ]);
    assert!(arrived(world, &bad).is_empty());
    shoot_outside(&shots);
    assert_eq!(arrived(world, &bad).len(), shots.len());
}

fn a_request_for_another_host_is_refused_on_a_connection_to_an_allowed_one(world: &World) {
    let bad = marker();
    let request = |host: &str| format!("GET /{bad} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    for port in [80, 443, 8080] {
        let rule = format!("a request on a connection to raw.example:{port}");
        let ways = ways(port, request(&format!("other.example:{port}")).as_bytes());
        let (got, attack) = shoot(
            world,
            &["raw.example", "raw.example:443", "raw.example:8080"],
            &ways,
        );
        for got in &got {
            assert_eq!(got.answers(), [format!("403 {rule}")]);
        }
        attack.assert_told(&[&format!("request other.example:{port} ({rule})")]);
    }
    // The same host at a port that nobody asked for is another one too.
    let shots = ways(80, request("raw.example:8080").as_bytes());
    let (_, attack) = shoot(world, &["raw.example", "raw.example:8080"], &shots);
    attack.assert_told(&["request raw.example:8080 (a request on a connection to raw.example:80)"]);
    assert!(arrived(world, &bad).is_empty());
    shoot_outside(&[Shot::at("raw.example", 80, request("other.example"))]);
    assert_eq!(arrived(world, &bad).len(), 1);
}

fn a_second_request_is_judged_like_the_first(world: &World) {
    let (good, bad) = (marker(), marker());
    let request = |path: &str, host: &str| format!("GET /{path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let (first, second) = (
        request(&good, "raw.example"),
        request(&bad, "other.example"),
    );
    let shots = [
        Shot::at("raw.example", 80, format!("{first}{second}")),
        Shot::at("raw.example", 80, &first).then(&second),
        Shot::through("raw.example", 80, format!("{first}{second}")),
    ];
    let (got, attack) = shoot(world, &["raw.example", "raw.example:8080"], &shots);
    for got in &got {
        let refused = "403 a request on a connection to raw.example:80";
        assert_eq!(got.answers(), ["200", refused]);
    }
    attack.assert_told(&["request other.example:80 (a request on a connection to raw.example:80)"]);
    assert_eq!(arrived(world, &good).len(), 3);
    assert!(arrived(world, &bad).is_empty());
    let got = shoot_outside(&shots[..1]);
    assert_eq!(got[0].answers(), ["200", "200"]);
    assert_eq!(arrived(world, &bad).len(), 1);
}

fn a_request_line_and_a_host_that_disagree_are_malformed(world: &World) {
    let bad = marker();
    let of = |line: &str, host: &str| {
        format!("GET http://{line}/{bad} HTTP/1.1\r\nHost: {host}\r\n\r\n")
    };
    let shots = [
        Shot::proxy(of("raw.example", "other.example")),
        Shot::proxy(of("other.example", "raw.example")),
        Shot::at("raw.example", 80, of("raw.example", "other.example")),
        Shot::at("raw.example", 80, of("other.example", "raw.example")),
        Shot::through("raw.example", 80, of("other.example", "raw.example")),
        Shot::proxy(of("raw.example:8080", "raw.example")),
        Shot::proxy(of("raw.example@other.example", "raw.example")),
    ];
    let (got, attack) = shoot(world, &["raw.example", "raw.example:8080"], &shots);
    for (got, shot) in got.iter().zip(&shots) {
        assert_eq!(got.answers(), ["400"], "{shot:?}");
    }
    attack.assert_told(NOTHING);
    assert!(arrived(world, &bad).is_empty());
    shoot_outside(&shots[2..3]);
    assert_eq!(arrived(world, &bad).len(), 1);
}

fn http_after_the_server_spoke_is_refused(world: &World) {
    let bad = marker();
    let request = format!("GET /{bad} HTTP/1.1\r\nHost: other.example\r\n\r\n");
    let line = |world: &World| {
        let records = world.records();
        records
            .iter()
            .filter(|it| it["kind"] == "line" && it.to_string().contains(&encoded(&bad)))
            .count()
    };
    let shot = Shot::at("db.example", 5432, "").then(&request);
    let (got, attack) = shoot(world, &["db.example:5432"], std::slice::from_ref(&shot));
    assert_eq!(
        (got[0].bytes.as_slice(), got[0].end.as_str()),
        (&b"220 ready\n"[..], "reset")
    );
    attack.assert_told(&["connect db.example:5432 (HTTP where the server spoke first)"]);
    assert_eq!(line(world), 0);
    shoot_outside(&[shot]);
    assert_eq!(line(world), 1);
}

/// How the first line of that request is recorded.
fn encoded(marker: &str) -> String {
    use base64::{Engine as _, prelude::BASE64_STANDARD as BASE64};
    BASE64.encode(format!("GET /{marker} HTTP/1.1\r\n"))
}
