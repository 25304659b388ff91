//! What a policy says about hosts: names with labels, never parts of labels.

use serde::{Deserialize, Serialize};

use crate::name::Name;

/// Which hosts a rule is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum HostPattern {
    /// `*`
    Any,
    /// `example.com`: that host.
    Exact(String),
    /// `*.example.com`: any labels under it, not the host itself.
    Below(String),
}

/// A rule of `allow` or `deny`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostRule {
    /// Which hosts.
    pub host: HostPattern,
    /// None: 80 and 443.
    pub port: Option<u16>,
    /// The entry as the policy has it.
    pub label: String,
}

impl HostPattern {
    /// Whether it is about this host.
    #[must_use]
    pub fn matches(&self, name: &Name) -> bool {
        let name = name.as_str();
        match self {
            Self::Any => true,
            Self::Exact(host) => host == name,
            Self::Below(apex) => name
                .strip_suffix(apex.as_str())
                .and_then(|labels| labels.strip_suffix('.'))
                .is_some_and(|labels| !labels.is_empty()),
        }
    }
}

impl HostRule {
    /// The ports that it is about.
    pub fn ports(&self) -> impl Iterator<Item = u16> {
        let ports = match self.port {
            Some(port) => [Some(port), None],
            None => [Some(80), Some(443)],
        };
        ports.into_iter().flatten()
    }

    /// Whether it is about this host at this port.
    #[must_use]
    pub fn matches(&self, name: &Name, port: u16) -> bool {
        self.host.matches(name) && self.ports().any(|ruled| ruled == port)
    }
}
