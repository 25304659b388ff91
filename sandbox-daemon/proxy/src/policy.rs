//! What one sandbox may reach, by name.

use std::net::{IpAddr, SocketAddr};

use crate::{channel::SandboxPolicy, host::Host, name::Name, rule::HostRule};

/// A policy that decides.
#[derive(Debug)]
pub struct Policy(SandboxPolicy);

/// What a policy says about a host, and the rule that says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Let through.
    Allowed(String),
    /// Not.
    Refused(String),
}

/// The rule for hosts that no rule names.
pub const UNLISTED: &str = "not in the allow list";

/// The rule for addresses that the policy does not name.
const ADDRESS: &str = "an address instead of a name";

impl Policy {
    /// Decides by this.
    #[must_use]
    pub fn new(policy: SandboxPolicy) -> Self {
        Self(policy)
    }

    /// Whether everything is let through, and only told.
    #[must_use]
    pub fn observes(&self) -> bool {
        self.0.observe
    }

    /// See [`SandboxPolicy::generation`].
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.0.generation
    }

    /// Whether this host may be reached at this port.
    #[must_use]
    pub fn reach(&self, host: &Host, port: u16) -> Verdict {
        match host {
            Host::Name(name) => self.reach_name(name, port),
            Host::Address(address) => match self.direct(*address, port) {
                Some(label) => Verdict::Allowed(label),
                None => Verdict::Refused(ADDRESS.into()),
            },
        }
    }

    fn reach_name(&self, name: &Name, port: u16) -> Verdict {
        let of = |rules: &[HostRule]| {
            let mut rules = rules.iter();
            let rule = rules.find(|rule| rule.matches(name, port))?;
            Some(rule.label.clone())
        };
        match (of(&self.0.deny), of(&self.0.allow)) {
            (Some(denied), _) => Verdict::Refused(format!("deny {denied}")),
            (None, Some(allowed)) => Verdict::Allowed(allowed),
            (None, None) => Verdict::Refused(UNLISTED.into()),
        }
    }

    /// Whether this host may be asked for: whether it may be reached at any port.
    #[must_use]
    pub fn resolve(&self, name: &Name) -> Verdict {
        let mut refused = Verdict::Refused(UNLISTED.into());
        for rule in self.0.allow.iter().filter(|rule| rule.host.matches(name)) {
            for port in rule.ports() {
                match self.reach_name(name, port) {
                    Verdict::Allowed(_) => return Verdict::Allowed(rule.label.clone()),
                    denied @ Verdict::Refused(_) => refused = denied,
                }
            }
        }
        refused
    }

    /// Whether the policy itself names this address.
    #[must_use]
    pub fn names(&self, address: IpAddr, port: u16) -> bool {
        self.direct(address, port).is_some()
    }

    /// The entry that names it, as the policy has it.
    fn direct(&self, address: IpAddr, port: u16) -> Option<String> {
        let mut entries = self.0.direct.iter();
        let (address, port) = entries
            .find(|(named, ports)| *named == address && ports.is_none_or(|it| it == port))?;
        Some(match port {
            Some(port) => SocketAddr::new(*address, *port).to_string(),
            None => address.to_string(),
        })
    }
}
