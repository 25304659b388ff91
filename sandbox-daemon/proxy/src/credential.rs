//! What a policy says about credentials: which secret goes to which host, in which
//! place of which requests.

use std::fmt;

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::{name::Name, rule::HostRule};

/// The port of `hosts` that name none: credentials go over TLS alone.
pub const PORT: u16 = 443;

/// An entry of `[[credential]]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credential {
    /// What events call it.
    pub name: String,
    /// The name of its secret.
    pub secret: String,
    /// Where it goes. No port: 443.
    pub hosts: Vec<HostRule>,
    /// Its place in a request.
    pub scheme: Scheme,
    /// In capitals; none: all.
    pub methods: Vec<String>,
    /// Patterns of paths, in which `*` is a segment and a last `**` all that follow;
    /// none: all.
    pub paths: Vec<String>,
    /// What the sandbox has in its place; none: it goes to every request that is
    /// covered, without being asked for.
    pub dummy: Option<String>,
    /// What git may do with it; none: requests are requests.
    pub git: Option<GitRule>,
}

/// The place of a credential in a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scheme {
    /// `Authorization: Bearer SECRET`.
    Bearer,
    /// `Authorization: Basic`, with this user name.
    Basic {
        /// Anything but a colon.
        username: String,
    },
    /// `NAME: SECRET`.
    Header {
        /// In small letters.
        name: String,
    },
    /// `?NAME=SECRET`.
    Query {
        /// As it is, not encoded.
        name: String,
    },
}

/// What git may do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitRule {
    /// Repositories that may be fetched from: paths without the first slash and
    /// without `.git`, of which a segment may be `*`.
    pub repositories: Vec<String>,
    /// References that may be pushed, with at most one `*`, which stands for
    /// anything; none: nothing is pushed.
    pub push: Vec<String>,
    /// Whether a reference may be set to what does not come after its old value.
    pub force: bool,
    /// Whether a reference may be deleted.
    pub delete: bool,
}

/// The value of a secret: visible ASCII and spaces. It is not printed, and its
/// memory is overwritten when it is dropped.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretValue(Zeroizing<String>);

/// Longest secret.
pub const MAX_SECRET: usize = 16 << 10;

/// Longest name of a credential or a secret.
pub const MAX_NAME: usize = 64;

/// Whether a credential or a secret may be called so. A secret's file is.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=MAX_NAME).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(plain)
}

impl Credential {
    /// Whether it goes to this host.
    #[must_use]
    pub fn is_for(&self, host: &Name, port: u16) -> bool {
        self.hosts.iter().any(|rule| meets(rule, host, port))
    }
}

/// Whether an entry of `hosts` is about this host and port.
#[must_use]
pub fn meets(rule: &HostRule, host: &Name, port: u16) -> bool {
    rule.host.matches(host) && rule.port.unwrap_or(PORT) == port
}

impl SecretValue {
    /// Takes a value; none: it could not be sent as it is.
    #[must_use]
    pub fn new(value: String) -> Option<Self> {
        let value = Zeroizing::new(value);
        let visible = value.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        let good = visible && value.trim() == value.as_str();
        (good && (1..=MAX_SECRET).contains(&value.len())).then_some(Self(value))
    }

    /// The value itself.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretValue")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_no_path() {
        for good in [
            "a",
            "GITHUB_TOKEN",
            "npm.example-1",
            "0",
            &"a".repeat(MAX_NAME),
        ] {
            assert!(is_name(good), "{good}");
        }
        let long = "a".repeat(MAX_NAME + 1);
        for bad in [
            "", ".", "..", ".new", "a/b", "../a", "a b", "a\0", "\u{e9}", &long,
        ] {
            assert!(!is_name(bad), "{bad}");
        }
    }

    #[test]
    fn a_secret_is_never_printed() {
        let secret = SecretValue::new("hunter2".into()).unwrap();
        assert!(!format!("{secret:?}").contains("hunter2"));
        assert_eq!(secret.expose(), "hunter2");
    }

    #[test]
    fn what_could_not_be_sent_is_no_secret() {
        for bad in ["", " a", "a\n", "a\r\nb: c", "a\0", "caf\u{e9}"] {
            assert!(SecretValue::new(bad.into()).is_none(), "{bad:?}");
        }
        assert!(SecretValue::new("a".repeat(MAX_SECRET + 1)).is_none());
        assert!(SecretValue::new("a b~".into()).is_some());
    }
}
