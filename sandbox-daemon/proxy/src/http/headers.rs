//! Headers on their way through: those that are about one connection stay
//! behind (RFC 9110, 7.6.1), the others keep their order.

use hyper::{
    HeaderMap, StatusCode, Version,
    header::{self, HeaderName, HeaderValue},
};

use super::authority::Authority;

/// Headers that are about one connection, beside those that `Connection` names
/// and those that begin with `proxy-`.
const HOP_BY_HOP: [HeaderName; 5] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// For a server, from a client that speaks `version`. What the client wants to
/// speak from now on stays, if it may have it.
#[must_use]
pub(super) fn for_host(headers: &HeaderMap, version: Version, host: &Authority) -> HeaderMap {
    let mut kept = end_to_end(headers);
    let canonical = host.text();
    let same = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(canonical.as_bytes());
    if !kept.get(header::HOST).is_some_and(same)
        && let Ok(value) = HeaderValue::try_from(canonical)
    {
        // A server need not read another spelling in the same way.
        kept.insert(header::HOST, value);
    }
    if version == Version::HTTP_2 {
        join_cookies(&mut kept);
    }
    if version == Version::HTTP_10 {
        kept.remove(header::EXPECT);
    }
    if names(headers, &header::TE, "trailers") {
        kept.insert(header::TE, HeaderValue::from_static("trailers"));
        kept.insert(header::CONNECTION, HeaderValue::from_static("TE"));
    }
    if let Some(upgrade) = upgrade(headers).filter(|_| version == Version::HTTP_11) {
        kept.insert(header::UPGRADE, upgrade.clone());
        kept.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    }
    kept
}

/// What was for a server that speaks HTTP/1.1, for one that speaks HTTP/2: there,
/// connections have no headers, and the host is in the address.
pub(super) fn for_http2(headers: &mut HeaderMap) {
    for name in [
        header::HOST,
        header::CONNECTION,
        header::UPGRADE,
        header::EXPECT,
    ] {
        headers.remove(name);
    }
}

/// For a client, from a server.
#[must_use]
pub(super) fn for_client(headers: &HeaderMap, status: StatusCode) -> HeaderMap {
    let mut kept = end_to_end(headers);
    if status == StatusCode::SWITCHING_PROTOCOLS
        && let Some(upgrade) = headers.get(header::UPGRADE)
    {
        kept.insert(header::UPGRADE, upgrade.clone());
        kept.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    }
    kept
}

/// What a client wants to speak instead. HTTP and TLS it may not: requests and
/// names in it would not be looked at.
#[must_use]
pub(super) fn upgrade(headers: &HeaderMap) -> Option<&HeaderValue> {
    if !names(headers, &header::CONNECTION, "upgrade") {
        return None;
    }
    let value = headers.get(header::UPGRADE)?;
    let hidden = |protocol: &str| {
        let protocol = protocol.trim().to_ascii_lowercase();
        ["h2", "http", "tls"]
            .iter()
            .any(|it| protocol.starts_with(it))
    };
    let several = headers.get_all(header::UPGRADE).iter().count() > 1;
    (!several && !value.to_str().ok()?.split(',').any(hidden)).then_some(value)
}

/// Whether that is a WebSocket and nothing else.
#[must_use]
pub(super) fn is_websocket(headers: &HeaderMap) -> bool {
    let protocol = upgrade(headers).map(HeaderValue::as_bytes);
    protocol.is_some_and(|it| it.trim_ascii().eq_ignore_ascii_case(b"websocket"))
}

fn end_to_end(headers: &HeaderMap) -> HeaderMap {
    let named = |name: &HeaderName| names(headers, &header::CONNECTION, name.as_str());
    let mut kept = HeaderMap::with_capacity(headers.len() + 2);
    for (name, value) in headers {
        let hop = HOP_BY_HOP.contains(name)
            || name.as_str().starts_with("proxy-")
            || name == "http2-settings"
            || named(name);
        if !hop {
            kept.append(name, value.clone());
        }
    }
    kept
}

/// Whether a list has this member.
fn names(headers: &HeaderMap, list: &HeaderName, member: &str) -> bool {
    headers.get_all(list).iter().any(|value| {
        value
            .as_bytes()
            .split(|byte| *byte == b',')
            .any(|it| it.trim_ascii().eq_ignore_ascii_case(member.as_bytes()))
    })
}

/// HTTP/2 may have several where HTTP/1 has one (RFC 9113, 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let crumbs: Vec<_> = headers
        .get_all(header::COOKIE)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    if crumbs.len() > 1
        && let Ok(cookie) = HeaderValue::from_bytes(&crumbs.join(&b"; "[..]))
    {
        headers.insert(header::COOKIE, cookie);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Host;

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            let name: HeaderName = name.parse().unwrap();
            headers.append(name, value.parse().unwrap());
        }
        headers
    }

    fn passed(lines: &[(&str, &str)], version: Version) -> Vec<String> {
        let host = Authority {
            host: Host::parse("a.example").unwrap(),
            port: 80,
            secure: false,
        };
        for_host(&headers(lines), version, &host)
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect()
    }

    #[test]
    fn headers_about_the_connection_stay_behind_and_the_others_keep_their_order() {
        let lines = [
            ("host", "a.example"),
            ("x-z", "1"),
            ("connection", "close, X-Secret"),
            ("x-a", "2"),
            ("x-secret", "3"),
            ("proxy-authorization", "Basic x"),
            ("keep-alive", "timeout=5"),
            ("upgrade", "websocket"),
            ("x-m", "4"),
        ];
        assert_eq!(
            passed(&lines, Version::HTTP_11),
            ["host: a.example", "x-z: 1", "x-a: 2", "x-m: 4"]
        );
    }

    #[test]
    fn crumbs_of_cookies_become_one() {
        let lines = [("cookie", "a=1"), ("cookie", "b=2")];
        assert!(passed(&lines, Version::HTTP_2).contains(&"cookie: a=1; b=2".into()));
    }

    #[test]
    fn an_upgrade_passes_unless_it_would_hide_requests() {
        let with = |protocol| {
            let lines = [("connection", "Upgrade"), ("upgrade", protocol)];
            upgrade(&headers(&lines)).is_some()
        };
        assert!(with("websocket"));
        for protocol in ["h2c", "websocket, H2C", "TLS/1.2", "HTTP/2.0"] {
            assert!(!with(protocol), "{protocol}");
        }
    }

    #[test]
    fn a_host_that_is_spelt_in_another_way_is_spelt_out() {
        let lines = [("host", "b\u{fc}cher.example")];
        let host = Authority {
            host: Host::parse("xn--bcher-kva.example").unwrap(),
            port: 8080,
            secure: false,
        };
        let passed = for_host(&headers(&lines), Version::HTTP_11, &host);
        assert_eq!(passed[header::HOST], "xn--bcher-kva.example:8080");
    }
}
