//! What a request asks for: a name, or an address where one is meant as such.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use crate::name::{Name, NameError};

/// A host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    /// By its name.
    Name(Name),
    /// By its address. Written `[::1]` if it is of IPv6.
    Address(IpAddr),
}

impl Host {
    /// Reads a host, without a port. An address is one only in the notation that
    /// everybody reads in the same way: four decimal numbers, or IPv6 in brackets.
    ///
    /// # Errors
    /// It is an address in another notation, or no host at all.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        match Name::parse(text) {
            Ok(name) => Ok(Self::Name(name)),
            Err(NameError::Address) => address(text).map(Self::Address).ok_or(NameError::Address),
            Err(error) => Err(error),
        }
    }

    /// Reads `host` or `host:port`, as a request has it.
    ///
    /// # Errors
    /// It is neither, or the port is 0.
    pub fn authority(text: &str) -> Result<(Self, Option<u16>), NameError> {
        let end = match (text.find(']'), text.find(':')) {
            (Some(bracket), _) if text.starts_with('[') => bracket + 1,
            (_, Some(colon)) if !text[colon + 1..].contains(':') => colon,
            _ => text.len(),
        };
        let (host, rest) = text.split_at(end);
        let host = Self::parse(host)?;
        if rest.is_empty() {
            return Ok((host, None));
        }
        let port = rest.strip_prefix(':').and_then(port);
        Ok((host, Some(port.ok_or(NameError::Malformed)?)))
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Address(IpAddr::V4(address)) => address.fmt(f),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

impl From<Name> for Host {
    fn from(name: Name) -> Self {
        Self::Name(name)
    }
}

fn address(text: &str) -> Option<IpAddr> {
    let bare = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    let address: IpAddr = match bare {
        Some(bare) => bare.parse::<Ipv6Addr>().ok()?.into(),
        None => text.parse::<Ipv4Addr>().ok()?.into(),
    };
    // A mapped one is another notation of what it stands for.
    (address == address.to_canonical()).then_some(address)
}

fn port(digits: &str) -> Option<u16> {
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.starts_with('0');
    digits.parse().ok().filter(|_| plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<(String, Option<u16>), NameError> {
        Host::authority(text).map(|(host, port)| (host.to_string(), port))
    }

    #[test]
    fn an_authority_is_a_name_and_perhaps_a_port() {
        let name = "a.test".to_owned();
        assert_eq!(read("A.test"), Ok((name.clone(), None)));
        assert_eq!(read("a.test:443"), Ok((name.clone(), Some(443))));
        assert_eq!(read("a.test.:65535"), Ok((name, Some(65535))));
        for text in [
            "",
            ":",
            ":443",
            "a.test:",
            "a.test:0",
            "a.test:+1",
            "a.test:-1",
            "a.test:1 ",
            "a.test: 1",
            "a.test:65536",
            "a.test:080",
            "a.test:\u{663}",
            "u@a.test:1",
            "u:p@a.test",
            "192.0.2.1:",
            "192.0.2.1:0",
            "[::1]:",
            "[::1]:0",
            "[::1]80",
            "[::1]:80:80",
        ] {
            assert_eq!(read(text), Err(NameError::Malformed), "{text}");
        }
    }

    #[test]
    fn an_address_is_a_host_in_one_notation() {
        for (text, host) in [
            ("192.0.2.1", "192.0.2.1"),
            ("0.0.0.0", "0.0.0.0"),
            ("[::1]", "[::1]"),
            ("[2001:DB8:0::1]", "[2001:db8::1]"),
        ] {
            let parsed = Host::parse(text).unwrap();
            assert!(matches!(parsed, Host::Address(_)), "{text}");
            assert_eq!(read(text), Ok((host.into(), None)));
            let port = format!("{text}:443");
            assert_eq!(read(&port), Ok((host.into(), Some(443))));
        }
    }

    #[test]
    fn an_address_in_another_notation_is_no_host() {
        for host in [
            "127.1",
            "2130706433",
            "0x7f000001",
            "0x7f.0.0.1",
            "0177.0.0.1",
            "127.0.0.01",
            "127.0.0.1.",
            "127.0.0.256",
            "\u{ff11}27.0.0.1",
            "[127.0.0.1]",
            "[::1",
            "[::1%25eth0]",
            "[fe80::1%eth0]",
            "[::ffff:127.0.0.1]",
            "[::ffff:7f00:1]",
            "[a.test]",
            "[]",
        ] {
            assert_eq!(read(host), Err(NameError::Address), "{host}");
            let port = format!("{host}:80");
            assert_eq!(read(&port), Err(NameError::Address), "{port}");
        }
        for text in ["::1", "::", "a:1:2", "fe80::1%eth0"] {
            assert_eq!(read(text), Err(NameError::Address), "{text}");
        }
    }
}
