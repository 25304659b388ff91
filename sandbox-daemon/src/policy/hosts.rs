//! How a policy names what is on the network: host names and addresses.

use std::net::{IpAddr, Ipv4Addr};

use sandbox_proxy::{
    name::{Name, NameError},
    rule::{HostPattern, HostRule},
};

use super::diagnostic::Fault;
use super::model::Direct;

/// Top-level and other public suffixes under which anybody can register a
/// name: `*.com` is as good as `*`.
const PUBLIC_SUFFIXES: [&str; 40] = [
    "app",
    "azurewebsites.net",
    "blogspot.com",
    "ca",
    "cloud",
    "cloudfront.net",
    "co",
    "co.jp",
    "co.uk",
    "com",
    "com.au",
    "com.br",
    "de",
    "dev",
    "edu",
    "eu",
    "fr",
    "github.io",
    "gitlab.io",
    "gov",
    "herokuapp.com",
    "info",
    "io",
    "jp",
    "me",
    "net",
    "netlify.app",
    "ngrok-free.app",
    "ngrok.io",
    "online",
    "org",
    "pages.dev",
    "ru",
    "sh",
    "site",
    "uk",
    "us",
    "vercel.app",
    "workers.dev",
    "xyz",
];

/// Longest name, without a final dot.
const MAX_NAME: usize = 253;

/// Reads `example.com`, `*.example.com` or `*`, with or without `:PORT`.
pub(super) fn host(entry: &str) -> Result<HostRule, Fault> {
    if entry.is_empty() {
        return Err(Fault::new(
            "a host is empty",
            "name one, such as `example.com`",
        ));
    }
    if let Some(at) = entry.find("://") {
        let rest = entry[at + 3..].split('/').next().unwrap_or_default();
        return Err(
            Fault::new(format!("`{entry}` is a URL"), format!("write `{rest}`")).at(0..at + 3),
        );
    }
    if let Some(at) = entry.find('/') {
        let message = format!("`{entry}` has a path, and hosts are let through whole");
        return Err(Fault::new(message, format!("write `{}`", &entry[..at])).at(at..entry.len()));
    }
    let bare = entry
        .strip_prefix('[')
        .and_then(|rest| rest.split(']').next())
        .unwrap_or(entry);
    let (name, port) = match entry.rsplit_once(':') {
        Some((name, port)) if bare.parse::<IpAddr>().is_err() => {
            let at = name.len() + 1;
            let port = self::port(port).ok_or_else(|| {
                Fault::new(
                    format!("`{port}` is not a port"),
                    "a number from 1 to 65535",
                )
                .at(at..entry.len())
            })?;
            (name, Some(port))
        }
        _ => (entry, None),
    };
    if bare.parse::<IpAddr>().is_ok() || name.parse::<IpAddr>().is_ok() {
        let hint = "addresses go into `direct`; the proxy knows names";
        return Err(Fault::new(
            format!("`{entry}` is an address, not a host name"),
            hint,
        ));
    }
    let host = if name == "*" {
        HostPattern::Any
    } else if let Some(apex) = name.strip_prefix("*.") {
        HostPattern::Below(self::apex(apex)?)
    } else {
        HostPattern::Exact(domain(name, 0)?)
    };
    Ok(HostRule {
        host,
        port,
        label: entry.to_owned(),
    })
}

/// Reads `ADDRESS`, `IPV4:PORT` or `[IPV6]:PORT`.
pub(super) fn direct(entry: &str) -> Result<Direct, Fault> {
    if let Some(at) = entry.find('/') {
        let message = format!("`{entry}` is a range of addresses");
        let hint = "`direct` takes single addresses: list each that is needed";
        return Err(Fault::new(message, hint).at(at..entry.len()));
    }
    if entry.contains('%') {
        let hint = "leave the `%` and what follows it out";
        return Err(Fault::new("an address cannot name an interface", hint));
    }
    let (text, port_text) = split_port(entry);
    let Ok(address) = text.parse::<IpAddr>() else {
        let hint = if host(entry).is_ok() {
            "host names go into `allow`; `direct` takes addresses, such as `192.0.2.1:443`"
        } else {
            "an address, such as `192.0.2.1`, `192.0.2.1:443` or `[2001:db8::1]:443`"
        };
        return Err(Fault::new(format!("`{entry}` is not an address"), hint));
    };
    let port = match port_text {
        None => None,
        Some(text) => Some(port(text).ok_or_else(|| {
            let at = entry.len() - text.len();
            Fault::new(
                format!("`{text}` is not a port"),
                "a number from 1 to 65535",
            )
            .at(at..entry.len())
        })?),
    };
    if let IpAddr::V6(v6) = address
        && let Some(v4) = v6.to_ipv4_mapped()
    {
        return Err(Fault::new(
            format!("`{entry}` is an IPv4 address"),
            format!("write `{v4}`"),
        ));
    }
    if address.is_unspecified() {
        let hint = "write `127.0.0.1` or `[::1]` for this machine";
        return Err(Fault::new(
            format!("`{text}` is no address to connect to"),
            hint,
        ));
    }
    Ok(Direct {
        address,
        port,
        label: entry.to_owned(),
    })
}

/// Whether a host pattern lets through names that anybody can register.
pub(super) fn is_public(host: &HostPattern) -> bool {
    match host {
        HostPattern::Any => true,
        HostPattern::Below(apex) => PUBLIC_SUFFIXES.contains(&apex.as_str()),
        HostPattern::Exact(_) => false,
    }
}

/// Whether the first is about every host that the other is about.
pub(super) fn covers(one: &HostPattern, other: &HostPattern) -> bool {
    match (one, other) {
        (HostPattern::Any, _) => true,
        (_, HostPattern::Exact(name)) => one.matches(name),
        (HostPattern::Below(apex), HostPattern::Below(other)) => {
            apex == other || other.is_below(apex)
        }
        _ => false,
    }
}

/// Whether an address serves credentials to whoever asks on cloud machines.
pub(super) fn is_metadata(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4 == Ipv4Addr::new(168, 63, 129, 16),
        IpAddr::V6(v6) => {
            v6.segments()[..6] == [0xfd00, 0xec2, 0, 0, 0, 0] || v6.is_unicast_link_local()
        }
    }
}

fn split_port(entry: &str) -> (&str, Option<&str>) {
    if let Some((address, rest)) = entry
        .strip_prefix('[')
        .and_then(|rest| rest.split_once(']'))
    {
        return match rest.strip_prefix(':') {
            Some(port) => (address, Some(port)),
            // Not an address with anything else behind the bracket.
            None if rest.is_empty() => (address, None),
            None => (entry, None),
        };
    }
    match entry.rsplit_once(':') {
        Some((address, port)) if !address.contains(':') => (address, Some(port)),
        _ => (entry, None),
    }
}

fn port(text: &str) -> Option<u16> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|port| digits && *port != 0)
}

/// What is below a name, which has to leave place for a label.
fn apex(name: &str) -> Result<Name, Fault> {
    const OFFSET: usize = "*.".len();
    let apex = domain(name, OFFSET)?;
    if apex.as_str().len() + "a.".len() > MAX_NAME {
        let message = format!("no name is short enough to be below `{name}`");
        return Err(Fault::new(message, "no such name exists").at(OFFSET..OFFSET + name.len()));
    }
    Ok(apex)
}

/// A domain name, as the proxy reads names, so that a rule is about something.
/// `offset` is where it stands in its entry.
fn domain(name: &str, offset: usize) -> Result<Name, Fault> {
    let fault = |message: String, hint: &str| {
        Err(Fault::new(message, hint).at(offset..offset + name.len()))
    };
    if name.contains('*') {
        let hint = "`*.` at the beginning stands for any labels: `*.example.com`";
        return fault(
            format!("`{name}`: `*` does not stand for part of a name"),
            hint,
        );
    }
    if name.len() > MAX_NAME {
        return fault(
            "a host name of more than 253 bytes".to_owned(),
            "no such name exists",
        );
    }
    match Name::parse(name) {
        // Letters that look alike are not to be told apart by reviewers.
        Ok(ascii) if !name.is_ascii() => fault(
            format!("`{name}` is not in ASCII"),
            &format!("write `{ascii}`"),
        ),
        Ok(_) if name.ends_with('.') => fault(
            format!("`{name}` ends with a dot"),
            "leave the final dot out",
        ),
        Ok(name) => Ok(name),
        Err(NameError::Address) => fault(
            format!("`{name}` looks like an address"),
            "addresses go into `direct`; the proxy knows names",
        ),
        Err(NameError::Malformed) => fault(
            format!("`{name}` is not a host name"),
            "labels of letters, digits and hyphens, with dots between: `example.com`",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::parse(text).unwrap()
    }

    #[test]
    fn a_pattern_covers_what_is_about_no_other_host() {
        let pattern = |entry: &str| host(entry).unwrap().host;
        for (one, other) in [
            ("*", "*"),
            ("*", "*.a.test"),
            ("*.a.test", "*.a.test"),
            ("*.a.test", "*.b.a.test"),
            ("*.a.test", "b.a.test"),
            ("a.test", "A.test"),
        ] {
            assert!(covers(&pattern(one), &pattern(other)), "{one} {other}");
        }
        for (one, other) in [
            ("*.a.test", "*"),
            ("a.test", "*"),
            ("*.b.a.test", "*.a.test"),
            ("*.a.test", "*.ba.test"),
            ("*.a.test", "a.test"),
            ("b.a.test", "*.a.test"),
            ("a.test", "b.test"),
        ] {
            assert!(!covers(&pattern(one), &pattern(other)), "{one} {other}");
        }
    }

    #[test]
    fn hosts_have_an_optional_star_and_port() {
        let parsed = |entry: &str| {
            let rule = host(entry).unwrap();
            (rule.host, rule.port)
        };
        assert_eq!(
            parsed("Example.COM"),
            (HostPattern::Exact(name("example.com")), None)
        );
        assert_eq!(
            parsed("example.com:8443"),
            (HostPattern::Exact(name("example.com")), Some(8443))
        );
        assert_eq!(
            parsed("*.example.com"),
            (HostPattern::Below(name("example.com")), None)
        );
        assert_eq!(parsed("*"), (HostPattern::Any, None));
        assert_eq!(
            parsed("_srv.example.com").0,
            HostPattern::Exact(name("_srv.example.com"))
        );
    }

    #[test]
    fn what_is_not_a_host_is_refused_with_the_remedy() {
        let hint = |entry: &str| host(entry).unwrap_err().hint.unwrap();
        assert_eq!(hint("https://example.com/x"), "write `example.com`");
        assert_eq!(hint("example.com/x"), "write `example.com`");
        assert_eq!(
            hint("192.0.2.1"),
            "addresses go into `direct`; the proxy knows names"
        );
        assert_eq!(
            hint("192.0.2.1:443"),
            "addresses go into `direct`; the proxy knows names"
        );
        assert_eq!(
            hint("[::1]:443"),
            "addresses go into `direct`; the proxy knows names"
        );
        assert_eq!(
            hint("::1"),
            "addresses go into `direct`; the proxy knows names"
        );
        assert_eq!(
            hint("127.1"),
            "addresses go into `direct`; the proxy knows names"
        );
        assert_eq!(hint("example.com:0"), "a number from 1 to 65535");
        assert_eq!(hint("example.com:+1"), "a number from 1 to 65535");
        assert_eq!(hint("example.com."), "leave the final dot out");
        assert_eq!(hint("bücher.example"), "write `xn--bcher-kva.example`");
        assert_eq!(hint("*.bücher.example"), "write `xn--bcher-kva.example`");
        for bad in [
            "", "a..b", "-a.com", "a b.com", "a.*.com", "ex*.com", "*.", "*.*", "a\0.com",
        ] {
            assert!(host(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_rule_that_no_name_ever_equals_is_refused() {
        let long = format!("{0}.{0}.{0}.{1}", "a".repeat(63), "b".repeat(60));
        assert!(host(&long).is_ok());
        for dead in [
            "xn--a.com",
            "*.xn--.com",
            "a-.com",
            "0x7f.1",
            "example.0x7F",
            "*.1",
            "%61.com",
            &format!("*.{long}"),
        ] {
            assert!(host(dead).is_err(), "{dead}");
        }
    }

    #[test]
    fn direct_takes_exact_addresses() {
        let parsed = |entry: &str| {
            let direct = direct(entry).unwrap();
            (direct.address.to_string(), direct.port)
        };
        assert_eq!(parsed("192.0.2.1:443"), ("192.0.2.1".into(), Some(443)));
        assert_eq!(parsed("192.0.2.7"), ("192.0.2.7".into(), None));
        assert_eq!(parsed("[2001:db8::1]:53"), ("2001:db8::1".into(), Some(53)));
        assert_eq!(parsed("2001:db8::1"), ("2001:db8::1".into(), None));
        assert_eq!(parsed("[2001:db8::1]"), ("2001:db8::1".into(), None));
    }

    #[test]
    fn what_is_not_one_address_is_refused_with_the_remedy() {
        let of = |entry: &str| direct(entry).unwrap_err();
        assert_eq!(
            of("10.0.0.0/8").message,
            "`10.0.0.0/8` is a range of addresses"
        );
        assert_eq!(of("10.0.0.0/8").part, Some(8..10));
        assert!(
            of("example.com:443")
                .hint
                .unwrap()
                .starts_with("host names go into `allow`")
        );
        assert_eq!(of("::ffff:192.0.2.1").hint.unwrap(), "write `192.0.2.1`");
        assert_eq!(of("192.0.2.1:70000").part, Some(10..15));
        for bad in [
            "0.0.0.0:80",
            "::",
            "fe80::1%eth0",
            "[::1]x",
            "[::1",
            "1.2.3",
            "",
            "1.2.3.4:",
        ] {
            assert!(direct(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn stars_over_public_suffixes_are_known() {
        assert!(is_public(&host("*").unwrap().host));
        assert!(is_public(&host("*.com").unwrap().host));
        assert!(!is_public(&host("*.example.com").unwrap().host));
        assert!(is_metadata("169.254.169.254".parse().unwrap()));
        assert!(is_metadata("fd00:ec2::254".parse().unwrap()));
        assert!(!is_metadata("192.0.2.1".parse().unwrap()));
    }
}
