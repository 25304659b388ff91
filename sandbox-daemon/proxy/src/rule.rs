//! What a policy says about hosts: names with labels, never parts of labels.

use serde::{Deserialize, Serialize};

use crate::name::Name;

/// Which hosts a rule is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum HostPattern {
    /// `*`
    Any,
    /// `example.com`: that host.
    Exact(Name),
    /// `*.example.com`: any labels under it, not the host itself.
    Below(Name),
}

/// A rule of `allow` or `deny`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostRule {
    /// Which hosts.
    pub host: HostPattern,
    /// None: in `allow` 80 and 443, in `deny` all.
    pub port: Option<u16>,
    /// The entry as the policy has it.
    pub label: String,
}

impl HostPattern {
    /// Whether it is about this host.
    #[must_use]
    pub fn matches(&self, name: &Name) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(host) => host == name,
            Self::Below(apex) => name.is_below(apex),
        }
    }
}

impl HostRule {
    /// The ports that it allows.
    pub fn ports(&self) -> impl Iterator<Item = u16> {
        let ports = match self.port {
            Some(port) => [Some(port), None],
            None => [Some(80), Some(443)],
        };
        ports.into_iter().flatten()
    }

    /// Whether it lets this host through at this port, in `allow`.
    #[must_use]
    pub fn allows(&self, name: &Name, port: u16) -> bool {
        self.host.matches(name) && self.ports().any(|ruled| ruled == port)
    }

    /// Whether it refuses it, in `deny`: without a port at every port.
    #[must_use]
    pub fn denies(&self, name: &Name, port: u16) -> bool {
        self.host.matches(name) && self.port.is_none_or(|ruled| ruled == port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::parse(text).unwrap()
    }

    fn rule(host: HostPattern, port: Option<u16>) -> HostRule {
        HostRule {
            host,
            port,
            label: String::new(),
        }
    }

    #[test]
    fn a_star_host_means_any_labels_below_and_not_the_apex() {
        let rule = rule(HostPattern::Below(name("example.com")), None);
        assert!(rule.allows(&name("a.example.com"), 443));
        assert!(rule.allows(&name("a.b.example.com"), 80));
        assert!(!rule.allows(&name("example.com"), 443));
        assert!(!rule.allows(&name("badexample.com"), 443));
    }

    #[test]
    fn a_host_without_port_means_80_and_443() {
        let exact = HostPattern::Exact(name("example.com"));
        let matches = |port, asked| rule(exact.clone(), port).allows(&name("EXAMPLE.com."), asked);
        assert!(matches(None, 80) && matches(None, 443));
        assert!(!matches(None, 22));
        assert!(matches(Some(22), 22) && !matches(Some(22), 443));
    }

    #[test]
    fn a_host_without_port_is_denied_at_every_port() {
        let exact = HostPattern::Exact(name("example.com"));
        let denies = |port, asked| rule(exact.clone(), port).denies(&name("example.com"), asked);
        assert!(denies(None, 80) && denies(None, 8443));
        assert!(denies(Some(22), 22) && !denies(Some(22), 443));
    }

    #[test]
    fn a_lone_star_is_about_every_host_at_its_ports() {
        let rule = rule(HostPattern::Any, Some(22));
        assert!(rule.allows(&name("a.test"), 22));
        assert!(!rule.allows(&name("a.test"), 443));
    }
}
