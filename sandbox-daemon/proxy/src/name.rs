//! Host names as rules see them, whatever way they were written.

use std::{fmt, net::Ipv4Addr};

/// A host name: lower case, in its `xn--` form, without a final dot; labels of
/// letters, digits, hyphens and underscores. Never an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
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
        let bare = text.strip_prefix('[').unwrap_or(text);
        if bare.contains(':') {
            return Err(NameError::Address);
        }
        let text = text.strip_suffix('.').unwrap_or(text);
        let ascii = idna::domain_to_ascii(text).map_err(|_| NameError::Malformed)?;
        let ldh =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
        let valid = |label: &str| (1..=63).contains(&label.len()) && label.bytes().all(ldh);
        if ascii.len() > 253 || !ascii.split('.').all(valid) {
            return Err(NameError::Malformed);
        }
        let last = ascii.rsplit('.').next().unwrap_or_default();
        if ascii.parse::<Ipv4Addr>().is_ok()
            || last.bytes().all(|byte| byte.is_ascii_digit())
            || last.starts_with("0x")
        {
            return Err(NameError::Address);
        }
        Ok(Self(ascii.into()))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
