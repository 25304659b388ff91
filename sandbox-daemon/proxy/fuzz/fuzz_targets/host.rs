//! Names, authorities and rules: whatever is read is what a rule is about, and
//! nothing else is.

#![no_main]

use std::net::IpAddr;

use libfuzzer_sys::fuzz_target;
use sandbox_proxy::{
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
    match Name::authority(text) {
        Ok((name, None)) => assert_eq!(Name::parse(text), Ok(name)),
        Ok((name, Some(port))) => {
            assert_ne!(port, 0);
            let (host, digits) = text.rsplit_once(':').expect("a port without a colon");
            assert_eq!(digits.parse(), Ok(port));
            assert_eq!(Name::parse(host), Ok(name.clone()));
            let again = Name::authority(&format!("{name}:{port}"));
            assert_eq!(again, Ok((name, Some(port))));
        }
        Err(_) => assert!(Name::parse(text).is_err()),
    }
}

fn matching(name: &Name, other: &Name) {
    let rule = |host| HostRule {
        host,
        port: None,
        label: String::new(),
    };
    let below = rule(HostPattern::Below(other.clone())).matches(name, 443);
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
    assert_eq!(exact.matches(name, 443), inner == outer);
    assert!(!exact.matches(name, 22));
}
