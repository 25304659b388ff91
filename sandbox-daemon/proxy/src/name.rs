//! Host names as rules see them, whatever way they were written.

use std::{borrow::Cow, fmt};

use idna::AsciiDenyList;
use serde::{Deserialize, Serialize};

/// Longest name (RFC 1035), without a final dot.
const MAX_BYTES: usize = 253;

/// What is longer in any writing is not even looked at: mapping takes time.
const MAX_WRITTEN: usize = 1024;

/// A host name: lower case, in its `xn--` form, without a final dot; labels of
/// letters, digits, hyphens inside and underscores. Never an address, in any
/// notation that a resolver or a browser reads as one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(Box<str>);

/// Why something is no host name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// It is an address, in some notation: `127.1`, `0x7f000001`, `[::1]`, ...
    #[error("an address instead of a name")]
    Address,
    /// It is anything else.
    #[error("not a host name")]
    Malformed,
}

impl Name {
    /// Reads a name, without a port.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        if text.len() > MAX_WRITTEN {
            return Err(NameError::Malformed);
        }
        // IPv6, with a zone too; a port is not enough.
        if text.starts_with('[') || text.bytes().filter(|byte| *byte == b':').count() > 1 {
            return Err(NameError::Address);
        }
        let ascii = mapped(text)?;
        let name = ascii.strip_suffix('.').unwrap_or(&ascii);
        if name.len() > MAX_BYTES || !name.split('.').all(is_label) {
            return Err(NameError::Malformed);
        }
        if name.rsplit('.').next().is_some_and(is_number) {
            return Err(NameError::Address);
        }
        Ok(Self(name.into()))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is so many labels, and then `apex`.
    #[must_use]
    pub fn is_below(&self, apex: &Self) -> bool {
        self.0
            .strip_suffix(apex.as_str())
            .and_then(|labels| labels.strip_suffix('.'))
            .is_some_and(|labels| !labels.is_empty())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Name {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        Self::parse(&text)
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0.into()
    }
}

/// The name in ASCII, as browsers map it (UTS #46). What is in ASCII is the same
/// in lower case, and wrong where an `xn--` label stands for nothing.
fn mapped(text: &str) -> Result<Cow<'_, str>, NameError> {
    idna::domain_to_ascii_cow(text.as_bytes(), AsciiDenyList::URL).map_err(|_| NameError::Malformed)
}

fn is_label(label: &str) -> bool {
    let ldh =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
    (1..=63).contains(&label.len())
        && label.bytes().all(ldh)
        && !label.starts_with('-')
        && !label.ends_with('-')
}

/// Whether a name that ends with this is an address to `inet_aton` and browsers,
/// or a wrong one: `127.0.0.1`, `127.1`, `2130706433`, `0177.0.0.0x1`, `1.2.3.4.5`.
fn is_number(label: &str) -> bool {
    match label.strip_prefix("0x") {
        Some(digits) => digits.bytes().all(|byte| byte.is_ascii_hexdigit()),
        None => label.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_the_same_however_it_is_written() {
        let long = format!("{0}.{0}.{0}.{1}", "a".repeat(63), "b".repeat(61));
        for (text, name) in [
            ("example.com", "example.com"),
            ("EXAMPLE.Com", "example.com"),
            ("example.com.", "example.com"),
            ("localhost", "localhost"),
            ("_srv._tcp.a-b.test", "_srv._tcp.a-b.test"),
            ("r3---sn-x.test", "r3---sn-x.test"),
            ("3com.test", "3com.test"),
            ("1.2.3.4.test", "1.2.3.4.test"),
            ("0x7f.test", "0x7f.test"),
            ("0xyz", "0xyz"),
            ("bücher.test", "xn--bcher-kva.test"),
            ("BÜCHER.test", "xn--bcher-kva.test"),
            ("bu\u{308}cher.test", "xn--bcher-kva.test"),
            ("XN--BCHER-KVA.test", "xn--bcher-kva.test"),
            ("faß.test", "xn--fa-hia.test"),
            ("ｅｘａｍｐｌｅ。ｃｏｍ", "example.com"),
            ("example.com。", "example.com"),
            ("exam\u{ad}ple.com", "example.com"),
            ("ⓔxample.com", "example.com"),
            // Kelvin.
            ("\u{212a}.test", "k.test"),
            (&long, &long),
            (&format!("{long}."), &long),
        ] {
            assert_eq!(
                Name::parse(text).as_ref().map(Name::as_str),
                Ok(name),
                "{text}"
            );
            assert_eq!(
                Name::parse(name).as_ref().map(Name::as_str),
                Ok(name),
                "{text}"
            );
        }
    }

    #[test]
    fn an_address_is_not_a_name_in_any_notation() {
        for text in [
            "127.0.0.1",
            "127.0.0.1.",
            "127.1",
            "127.0.1",
            "2130706433",
            "0",
            "0x7f000001",
            "0X7F.0.0.1",
            "0x7f.1",
            "0x",
            "0177.0.0.1",
            "017700000001",
            "08.0.0.1",
            "1.2.3.4.5",
            "256.256.256.256",
            "99999999999999999999",
            "a.0x1",
            "a.1",
            "１２７.0.0.1",
            "127。0。0。1",
            "①②⑦.1",
            "::1",
            "::",
            "[::1]",
            "[::1",
            "fe80::1%eth0",
            "[fe80::1%25eth0]",
            "::ffff:127.0.0.1",
            "[::ffff:7f00:1]",
            "[127.0.0.1]",
            "1:2:3:4:5:6:7:8",
        ] {
            assert_eq!(Name::parse(text), Err(NameError::Address), "{text}");
        }
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for text in [
            "",
            ".",
            "..",
            ".com",
            "a..com",
            "example.com..",
            "a.com\0",
            "a.com\0.b.com",
            " a.com",
            "a.com ",
            "a b.com",
            "a.com\t",
            "a.com\r\n",
            "a.com\u{7f}",
            "a%2ecom",
            "%61.com",
            "a.com:80",
            "user@a.com",
            "a.com/b",
            "a.com?b",
            "a.com#b",
            "a.com\\b",
            "*.a.com",
            "a,b.com",
            "a;b.com",
            "-a.com",
            "a-.com",
            "xn--.com",
            "xn--a.com",
            "xn--a-ecp.ru",
            // `example`, which has no such form.
            "xn--example-.com",
            "\u{200d}a.com",
            "a\u{2100}b.com",
            "\u{fffd}.com",
            "\u{ad}.com",
        ] {
            assert_eq!(Name::parse(text), Err(NameError::Malformed), "{text:?}");
        }
        let label = format!("{}.com", "a".repeat(64));
        let name = ["a".repeat(63).as_str(); 4].join(".");
        let one_too_many = format!("{0}.{0}.{0}.{1}", "a".repeat(63), "b".repeat(62));
        let unicode = format!("{}.com", "ü".repeat(60));
        for text in [label, name, one_too_many, unicode, "a.".repeat(10_000)] {
            assert_eq!(Name::parse(&text), Err(NameError::Malformed), "{text}");
        }
    }

    #[test]
    fn below_means_at_the_border_of_a_label() {
        let below = |name: &str, apex: &str| {
            Name::parse(name)
                .unwrap()
                .is_below(&Name::parse(apex).unwrap())
        };
        assert!(below("a.example.com", "example.com"));
        assert!(below("a.b.example.com", "Example.com."));
        assert!(!below("example.com", "example.com"));
        assert!(!below("badexample.com", "example.com"));
        assert!(!below("a.example.com", "b.example.com"));
        assert!(!below("com", "example.com"));
    }

    #[test]
    fn a_name_comes_out_of_a_message_as_it_went_in() {
        let name = Name::parse("Bücher.test").unwrap();
        let text = serde_json::to_string(&name).unwrap();
        assert_eq!(text, "\"xn--bcher-kva.test\"");
        assert_eq!(serde_json::from_str::<Name>(&text).unwrap(), name);
        assert!(serde_json::from_str::<Name>("\"127.0.0.1\"").is_err());
    }
}
