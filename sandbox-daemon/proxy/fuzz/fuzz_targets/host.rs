//! Names, authorities and rules: whatever is read is what a rule is about, and
//! nothing else is.

#![no_main]

use std::net::IpAddr;

use libfuzzer_sys::fuzz_target;
use sandbox_proxy::{
    host::Host,
    name::Name,
    rule::{HostPattern, HostRule},
};

fuzz_target!(|text: &str| {
    let (first, second) = text.split_once('\n').unwrap_or((text, "example.com"));
    authority(first);
    let Ok(name) = Name::parse(first) else { return };
    normal(&name);
    // What a browser or resolver would map differently must not be a name.
    let [upper, dotted] = [first.to_ascii_uppercase(), format!("{name}.")];
    assert_eq!(Name::parse(&upper).as_ref(), Ok(&name));
    assert_eq!(Name::parse(&dotted).as_ref(), Ok(&name));
    if let Ok(other) = Name::parse(second) {
        matching(&name, &other);
    }
});

fn normal(name: &Name) {
    let text = name.as_str();
    assert_eq!(Name::parse(text).as_ref(), Ok(name), "not idempotent");
    assert!((1..=253).contains(&text.len()));
    for label in text.split('.') {
        assert!((1..=63).contains(&label.len()));
        let known = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_');
        assert!(label.bytes().all(known));
    }
    assert!(text.parse::<IpAddr>().is_err());
    // All digits and dots: `getaddrinfo` reads nothing else as an address without
    // asking a server, but hexadecimal.
    let numeric = text
        .bytes()
        .all(|byte| byte.is_ascii_hexdigit() || b".xX".contains(&byte));
    if numeric && text.starts_with(|first: char| first.is_ascii_digit()) {
        let last = text.rsplit('.').next().unwrap_or_default();
        assert!(!last.bytes().all(|byte| byte.is_ascii_digit()));
        assert!(!is_hexadecimal(last));
    }
}

fn is_hexadecimal(label: &str) -> bool {
    label.starts_with("0x") && u128::from_str_radix(&label[2..], 16).is_ok()
}

fn authority(text: &str) {
    match Host::authority(text) {
        Ok((host, None)) => same(text, &host),
        Ok((host, Some(port))) => {
            assert_ne!(port, 0);
            let (text, digits) = text.rsplit_once(':').expect("a port without a colon");
            assert_eq!(digits.parse(), Ok(port));
            same(text, &host);
            let again = Host::authority(&format!("{host}:{port}"));
            assert_eq!(again, Ok((host, Some(port))));
        }
        Err(_) => assert!(Host::parse(text).is_err()),
    }
}

/// An address is what every reader makes of it.
fn same(text: &str, host: &Host) {
    assert_eq!(Host::parse(text).as_ref(), Ok(host));
    match host {
        Host::Name(name) => assert_eq!(Name::parse(text).as_ref(), Ok(name)),
        Host::Address(IpAddr::V4(address)) => assert_eq!(text, address.to_string()),
        Host::Address(IpAddr::V6(address)) => {
            let bare = text.trim_start_matches('[').trim_end_matches(']');
            assert_eq!(bare.parse(), Ok(*address));
            assert_eq!(address.to_ipv4_mapped(), None);
        }
    }
}

fn matching(name: &Name, other: &Name) {
    let rule = |host| HostRule {
        host,
        port: None,
        label: String::new(),
    };
    let below = rule(HostPattern::Below(other.clone())).allows(name, 443);
    let labels = |name: &Name| {
        let labels = name.as_str().rsplit('.').map(str::to_owned);
        labels.collect::<Vec<_>>()
    };
    let (inner, outer) = (labels(name), labels(other));
    assert_eq!(
        below,
        inner.len() > outer.len() && inner.starts_with(&outer)
    );
    let exact = rule(HostPattern::Exact(other.clone()));
    assert_eq!(exact.allows(name, 443), inner == outer);
    assert!(!exact.allows(name, 22));
}
