//! Names that are none, names as letters, and name servers that are not the
//! proxy's.

use super::{
    NOTHING, Shot, arrived, inside, marker, outside, results, shoot, shoot_outside, shooting,
    was_served,
};
use crate::{Test, tests, world::World};

pub(super) fn tests() -> Vec<Test> {
    tests![
        an_address_is_not_connected_to_in_any_notation,
        an_address_is_not_requested_in_any_notation,
        what_is_no_host_name_leads_nowhere,
        an_allowed_name_is_the_same_however_it_is_written,
        a_question_is_answered_the_same_whatever_server_it_is_put_to,
        labels_below_an_allowed_name_do_not_leave_either,
        only_addresses_are_asked_of_the_world_for_an_allowed_name,
        dns_over_tls_is_not_connected_to,
        dns_over_https_is_a_host_like_any_other,
        an_address_in_the_range_of_names_that_nobody_was_given_is_refused,
        an_address_that_another_sandbox_was_given_is_refused,
        udp_to_the_address_of_an_allowed_name_is_refused,
    ]
}

const ADDRESSES: [&str; 18] = [
    "203.0.113.22",
    "203.0.113.22.",
    "203.0.28950",
    "203.28950",
    "3405803798",
    "0xcb007116",
    "0xCB.0.0x71.0x16",
    "0313.0.0161.026",
    "127.0.0.1",
    "127.1",
    "0",
    "0x7f.1",
    "[2001:db8::10]",
    "[::1]",
    "[fe80::1%25wire]",
    "[fe80::1%wire]",
    "[::ffff:203.0.113.22]",
    "[::ffff:cb00:7116]",
];

fn an_address_is_not_connected_to_in_any_notation(world: &World) {
    let shots: Vec<_> = ADDRESSES
        .iter()
        .map(|host| Shot::through(host, 80, ""))
        .collect();
    let (got, attack) = shoot(world, &["raw.example"], &shots);
    for (got, host) in got.iter().zip(ADDRESSES) {
        assert_eq!(
            got.answers(),
            ["403 an address instead of a name"],
            "{host}"
        );
        assert_eq!(got.end, "no tunnel");
    }
    let told = ADDRESSES.map(|host| format!("connect {host}:80 (an address instead of a name)"));
    attack.assert_told(&told);
}

fn an_address_is_not_requested_in_any_notation(world: &World) {
    let path = format!("/{}", marker());
    let request = |host: &str| format!("GET http://{host}{path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let shots: Vec<_> = ADDRESSES
        .iter()
        .map(|host| Shot::proxy(request(host)))
        .collect();
    let (got, attack) = shoot(world, &["raw.example"], &shots);
    for (got, host) in got.iter().zip(ADDRESSES) {
        assert_eq!(
            got.answers(),
            ["403 an address instead of a name"],
            "{host}"
        );
    }
    let told = ADDRESSES.map(|host| format!("request {host}:80 (an address instead of a name)"));
    attack.assert_told(&told);
    assert!(!was_served(world, &path));
    // The C library reads these as one address, and outside there is a server.
    for host in ["203.0.113.22", "203.28950", "3405803798", "0xcb007116"] {
        let got = shoot_outside(&[Shot::at(
            host,
            80,
            format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"),
        )]);
        assert_eq!(got[0].answers(), ["200"], "{host}");
    }
    assert!(was_served(world, &path));
}

fn what_is_no_host_name_leads_nowhere(world: &World) {
    let label = format!("{}.raw.example", "a".repeat(64));
    let long = format!("{}raw.example", "a.".repeat(130));
    // What the HTTP code already does not read as a request has no host to tell.
    let malformed = [
        "raw.example\0.other.example",
        "raw.example other.example",
        "raw.example\t",
    ];
    let nameless = [
        "raw..example",
        ".raw.example",
        "-raw.example",
        "raw_.example-",
        "xn--a.example",
        "*.raw.example",
    ];
    let nameless: Vec<_> = nameless
        .into_iter()
        .chain([label.as_str(), &long])
        .collect();
    let ask = |host: &str| Shot::proxy(format!("CONNECT {host}:80 HTTP/1.1\r\n\r\n"));
    let shots: Vec<_> = malformed
        .iter()
        .chain(&nameless)
        .map(|host| ask(host))
        .collect();
    let (got, attack) = shoot(
        world,
        &["raw.example", "*.raw.example", "*.example"],
        &shots,
    );
    for (got, shot) in got.iter().zip(&shots).take(malformed.len()) {
        assert_eq!(got.answers(), ["400"], "{shot:?}");
    }
    for (got, shot) in got.iter().zip(&shots).skip(malformed.len()) {
        assert_eq!(got.answers(), ["403 not a host name"], "{shot:?}");
    }
    let told: Vec<_> = nameless
        .iter()
        .map(|host| match host.get(..255) {
            // Of what is longer than any name, the beginning.
            Some(begin) => format!("connect {begin}…:80 (not a host name)"),
            None => format!("connect {host}:80 (not a host name)"),
        })
        .collect();
    attack.assert_told(&told);
    let (got, _) = shoot(world, &["raw.example"], &[ask("raw.example")]);
    assert_eq!(got[0].answers(), ["200"]);
}

fn an_allowed_name_is_the_same_however_it_is_written(world: &World) {
    let mark = marker();
    let hosts = ["raw.example", "RAW.Example", "raw.example."];
    let request = |host: &str| format!("GET /{mark} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let mut shots: Vec<_> = hosts
        .iter()
        .map(|host| Shot::through(host, 80, request(host)))
        .collect();
    shots.extend(hosts.map(|host| Shot::at(host, 80, request("raw.EXAMPLE."))));
    let (got, attack) = shoot(world, &["raw.example"], &shots);
    for got in &got {
        assert_eq!(got.answers(), ["200"]);
    }
    attack.assert_told(NOTHING);
    let came = arrived(world, &mark);
    assert_eq!(came.len(), shots.len());
    for bytes in came {
        let text = String::from_utf8(bytes).unwrap();
        assert!(
            text.to_lowercase().contains("host: raw.example\r\n"),
            "{text}"
        );
    }
    // And one that is denied is denied however it is written.
    let shots = ["OTHER.example", "other.example.", "oTHER.EXAMPLE."]
        .map(|host| Shot::through(host, 80, ""));
    let (_, attack) = shoot(world, &["raw.example"], &shots);
    attack.assert_told(&["connect other.example:80 (not in the allow list)"]);
}

const A: u16 = 1;
const NS: u16 = 2;
const CNAME: u16 = 5;
const MX: u16 = 15;
const TXT: u16 = 16;
const AAAA: u16 = 28;
const HTTPS: u16 = 65;
const ANY: u16 = 255;

fn query(name: &str, kind: u16) -> Vec<u8> {
    let mut query = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        query.push(u8::try_from(label.len()).unwrap());
        query.extend(label.bytes());
    }
    query.push(0);
    query.extend(kind.to_be_bytes());
    query.extend([0, 1]);
    query
}

fn over_tcp(query: &[u8]) -> Vec<u8> {
    let mut bytes = u16::try_from(query.len()).unwrap().to_be_bytes().to_vec();
    bytes.extend(query);
    bytes
}

/// Code of an answer, and how many records it has.
fn code(answer: &[u8]) -> (u8, u16) {
    assert!(answer.len() >= 12, "{answer:?}");
    (answer[3] & 15, u16::from_be_bytes([answer[6], answer[7]]))
}

/// To each of these servers, over UDP and TCP.
const SERVERS: [&str; 5] = [
    "127.0.0.53",
    "127.0.0.1",
    "203.0.113.53",
    "198.51.100.1",
    "::1",
];

fn a_question_is_answered_the_same_whatever_server_it_is_put_to(world: &World) {
    let denied = format!("{}.elsewhere.example", marker());
    let shots: Vec<_> = SERVERS
        .iter()
        .flat_map(|server| {
            [&denied, "echo.example"].map(|name| {
                let query = query(name, A);
                [
                    Shot::datagram(server, 53, &query),
                    Shot::at(server, 53, over_tcp(&query)),
                ]
            })
        })
        .flatten()
        .collect();
    let (got, attack) = shoot(world, &["echo.example"], &shots);
    for (got, shot) in got.iter().zip(&shots) {
        let answer = if shot.datagrams {
            &got.bytes
        } else {
            &got.bytes[2..]
        };
        let allowed = shot.parts[0].windows(4).any(|it| it == b"echo");
        let expected = if allowed { (0, 1) } else { (3, 0) };
        assert_eq!(code(answer), expected, "{shot:?}");
        // 198.18.0.0/15
        let stands = allowed.then(|| (answer[answer.len() - 4], answer[answer.len() - 3] & 0xfe));
        assert_eq!(stands, allowed.then_some((198, 18)));
    }
    let told = format!("resolve {denied} (not in the allow list)");
    attack.assert_told(&[&told]);
    assert_eq!(attack.denials[&told], 2 * SERVERS.len() as u64);
    assert!(!world.was_asked_for(&denied));
    shoot_outside(&[Shot::datagram("203.0.113.53", 53, query(&denied, A))]);
    assert!(world.was_asked_for(&denied));
}

fn labels_below_an_allowed_name_do_not_leave_either(world: &World) {
    let kinds = [A, NS, CNAME, MX, TXT, AAAA, HTTPS, ANY];
    let name = format!("{}.echo.example", marker());
    let shots: Vec<_> = kinds
        .iter()
        .flat_map(|kind| {
            let query = query(&name, *kind);
            [
                Shot::datagram("203.0.113.53", 53, &query),
                Shot::at("203.0.113.53", 53, over_tcp(&query)),
            ]
        })
        .collect();
    let (got, attack) = shoot(world, &["echo.example"], &shots);
    for (got, shot) in got.iter().zip(&shots) {
        let answer = if shot.datagrams {
            &got.bytes
        } else {
            &got.bytes[2..]
        };
        assert_eq!(code(answer), (3, 0), "{shot:?}");
    }
    let told = format!("resolve {name} (not in the allow list)");
    attack.assert_told(&[&told]);
    assert_eq!(attack.denials[&told], shots.len() as u64);
    assert!(!world.was_asked_for(&name));
    shoot_outside(&shots);
    let asked = world.questions();
    let asked = asked.iter().filter(|(asked, _)| *asked == name).count();
    assert_eq!(asked, shots.len());
}

fn only_addresses_are_asked_of_the_world_for_an_allowed_name(world: &World) {
    // `none.example` has no addresses: only this test asks for it.
    let kinds = [NS, CNAME, MX, TXT, HTTPS, ANY];
    let shots = kinds.map(|kind| Shot::datagram("203.0.113.53", 53, query("none.example", kind)));
    let (got, attack) = shoot(world, &["none.example"], &shots);
    for got in &got {
        assert_eq!(code(&got.bytes), (0, 0));
    }
    attack.assert_told(NOTHING);
    let of_it = |world: &World| {
        let questions = world.questions();
        let kinds = questions
            .into_iter()
            .filter(|(name, _)| name == "none.example");
        kinds.map(|(_, kind)| kind).collect::<Vec<_>>()
    };
    assert!(
        of_it(world)
            .iter()
            .all(|kind| kind == "A" || kind == "AAAA")
    );
    shoot_outside(&shots);
    assert!(of_it(world).contains(&"TXT".to_owned()));
}

fn dns_over_tls_is_not_connected_to(world: &World) {
    let mark = marker();
    let shots = ["203.0.113.53", "203.0.113.19"].map(|server| Shot::at(server, 853, &mark));
    let (got, attack) = shoot(world, &["echo.example"], &shots);
    for got in &got {
        assert_eq!((got.bytes.len(), got.end.as_str()), (0, "EPERM"));
    }
    attack.assert_told(&[
        "connect 203.0.113.19:853 (network proxy)",
        "connect 203.0.113.53:853 (network proxy)",
    ]);
    assert!(arrived(world, &mark).is_empty());
    shoot_outside(&shots[1..]);
    assert_eq!(arrived(world, &mark).len(), 1);
}

fn dns_over_https_is_a_host_like_any_other(world: &World) {
    let path = format!("/dns-query?dns={}", marker());
    let ask = |target: &str| {
        format!(
            "curl -s -m 10 --cacert {}/tls/ca.pem -o /dev/null -w '%{{http_code}} ' https://{target}{path} || echo $?",
            crate::world::root().display()
        )
    };
    // By its name through the proxy, by its name, by its address.
    let proxied = ask("other.example");
    let plain = "unset HTTP_PROXY HTTPS_PROXY ALL_PROXY http_proxy https_proxy all_proxy";
    let script = format!(
        "{proxied}; {plain}; {}; {}",
        ask("other.example"),
        ask("203.0.113.10")
    );
    let attack = inside(world.daemon(), r#"allow = ["echo.example"]"#, &script);
    // No tunnel, no such name, no connection.
    assert_eq!(attack.printed, "000 56\n000 6\n000 7\n");
    attack.assert_told(&[
        "connect 203.0.113.10:443 (network proxy)",
        "connect other.example:443 (not in the allow list)",
        "resolve other.example (not in the allow list)",
    ]);
    assert!(!was_served(world, &path));
    let printed = outside(&format!(
        "{}; {}",
        ask("other.example"),
        ask("203.0.113.10")
    ));
    assert_eq!(printed, "200 200 ");
    assert!(was_served(world, &path));
}

fn an_address_in_the_range_of_names_that_nobody_was_given_is_refused(world: &World) {
    let request = format!("GET /{} HTTP/1.1\r\nHost: raw.example\r\n\r\n", marker());
    let addresses = ["198.18.0.1", "198.18.0.2", "198.18.77.7", "198.19.255.255"];
    let shots = addresses.map(|address| Shot::at(address, 80, &request));
    let (got, attack) = shoot(world, &["raw.example"], &shots);
    for got in &got {
        assert_eq!((got.bytes.len(), got.end.as_str()), (0, "reset"));
    }
    let told = addresses.map(|it| format!("connect {it}:80 (an address that stands for no name)"));
    attack.assert_told(&told);
    // At other ports nothing is waited for.
    let (got, attack) = shoot(world, &["raw.example"], &[Shot::at("198.18.77.7", 22, "")]);
    assert_eq!(got[0].end, "reset");
    attack.assert_told(&["connect 198.18.77.7:22 (an address that stands for no name)"]);
}

fn an_address_that_another_sandbox_was_given_is_refused(world: &World) {
    let mark = marker();
    let network = r#"allow = ["raw.example"]"#;
    let daemon = world.daemon();
    let ask = shooting(&[Shot::datagram("203.0.113.53", 53, query("raw.example", A))]);
    let given = inside(daemon, network, &ask);
    let answer = results(&given.printed).remove(0).bytes;
    let [.., a, b, c, d] = answer[..] else {
        panic!("{answer:?}")
    };
    let address = std::net::Ipv4Addr::new(a, b, c, d).to_string();
    let request = format!("GET /{mark} HTTP/1.1\r\nHost: raw.example\r\n\r\n");
    let (got, attack) = shoot(world, &["raw.example"], &[Shot::at(&address, 80, &request)]);
    assert_eq!((got[0].bytes.len(), got[0].end.as_str()), (0, "reset"));
    attack.assert_told(&[&format!(
        "connect {address}:80 (an address that stands for no name)"
    )]);
    assert!(arrived(world, &mark).is_empty());
    let (got, _) = shoot(
        world,
        &["raw.example"],
        &[Shot::at("raw.example", 80, &request)],
    );
    assert_eq!(got[0].answers(), ["200"]);
}

fn udp_to_the_address_of_an_allowed_name_is_refused(world: &World) {
    let mark = marker();
    // As QUIC begins.
    let mut initial = vec![0xc3, 0, 0, 0, 1, 8];
    initial.extend(mark.bytes());
    initial.resize(1200, 0);
    let shots = [
        Shot::datagram("raw.example", 443, &initial),
        Shot::datagram("203.0.113.19", 443, &initial),
    ];
    let (got, attack) = shoot(world, &["raw.example"], &shots);
    for got in &got {
        assert_eq!((got.bytes.len(), got.end.as_str()), (0, "EPERM"));
    }
    assert_eq!(attack.denials.len(), 2, "{attack:?}");
    for (told, how_often) in &attack.denials {
        assert!(
            told.starts_with("send 198.1") || told.starts_with("send 203.0.113.19:443 "),
            "{told}"
        );
        assert!(told.ends_with(":443 (network proxy)"), "{told}");
        assert_eq!(*how_often, 1);
    }
}
