//! What one sandbox may reach, by name.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use crate::{
    channel::SandboxPolicy,
    credential::{Credential, meets},
    dummies::Dummies,
    host::Host,
    name::Name,
    rule::{HostPattern, HostRule},
};

/// A policy that decides.
#[derive(Debug)]
pub struct Policy {
    observe: bool,
    generation: u32,
    allow: Rules,
    deny: Rules,
    direct: Vec<(IpAddr, Option<u16>)>,
    uid: u32,
    credentials: Vec<Arc<Credential>>,
    untouched: Vec<HostRule>,
    dummies: Arc<Dummies>,
}

/// Rules, of which those about one host are found without a look at the others.
#[derive(Debug)]
struct Rules {
    all: Vec<HostRule>,
    /// By the name that they have, whether it is the host's or what is below it.
    named: HashMap<String, Vec<usize>>,
    /// Those that have none.
    any: Vec<usize>,
}

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
        let credentials: Vec<_> = policy.credentials.into_iter().map(Arc::new).collect();
        Self {
            uid: policy.uid,
            dummies: Arc::new(Dummies::new(&credentials)),
            credentials,
            untouched: policy.untouched,
            observe: policy.observe,
            generation: policy.generation,
            allow: Rules::new(policy.allow),
            deny: Rules::new(policy.deny),
            direct: policy.direct,
        }
    }

    /// Whether everything is let through, and only told.
    #[must_use]
    pub fn observes(&self) -> bool {
        self.observe
    }

    /// See [`SandboxPolicy::generation`].
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Whose secrets its credentials name.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// The credentials for a host, in the order of the policy; none: what goes there
    /// passes untouched.
    #[must_use]
    pub fn credentials(&self, host: &Host, port: u16) -> Vec<Arc<Credential>> {
        let Host::Name(name) = host else {
            return Vec::new();
        };
        if self.untouched.iter().any(|rule| meets(rule, name, port)) {
            return Vec::new();
        }
        let credentials = self.credentials.iter();
        credentials
            .filter(|it| it.is_for(name, port))
            .cloned()
            .collect()
    }

    /// What the sandbox has in the place of secrets.
    #[must_use]
    pub fn dummies(&self) -> &Arc<Dummies> {
        &self.dummies
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
        let denied = self.deny.about(name).find(|rule| rule.denies(name, port));
        let allowed = self.allow.about(name).find(|rule| rule.allows(name, port));
        match (denied, allowed) {
            (Some(denied), _) => Verdict::Refused(format!("deny {}", denied.label)),
            (None, Some(allowed)) => Verdict::Allowed(allowed.label.clone()),
            (None, None) => Verdict::Refused(UNLISTED.into()),
        }
    }

    /// Whether this host may be asked for: whether it may be reached at any port.
    #[must_use]
    pub fn resolve(&self, name: &Name) -> Verdict {
        let mut refused = Verdict::Refused(UNLISTED.into());
        for rule in self.allow.about(name) {
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
        let mut entries = self.direct.iter();
        let (address, port) = entries
            .find(|(named, ports)| *named == address && ports.is_none_or(|it| it == port))?;
        Some(match port {
            Some(port) => SocketAddr::new(*address, *port).to_string(),
            None => address.to_string(),
        })
    }
}

impl Rules {
    fn new(all: Vec<HostRule>) -> Self {
        let mut named: HashMap<_, Vec<_>> = HashMap::new();
        let mut any = Vec::new();
        for (index, rule) in all.iter().enumerate() {
            match &rule.host {
                HostPattern::Any => any.push(index),
                HostPattern::Exact(name) | HostPattern::Below(name) => {
                    named.entry(name.to_string()).or_default().push(index);
                }
            }
        }
        Self { all, named, any }
    }

    /// Those that are about this host, in their order.
    fn about(&self, name: &Name) -> impl Iterator<Item = &HostRule> {
        let mut found = self.any.clone();
        let mut ending = Some(name.as_str());
        while let Some(name) = ending {
            found.extend(self.named.get(name).into_iter().flatten());
            ending = name.split_once('.').map(|(_, parent)| parent);
        }
        found.sort_unstable();
        let found = found.into_iter().map(|index| &self.all[index]);
        found.filter(|rule| rule.host.matches(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{name, rule};

    const ENTRIES: &[&str] = &[
        "a.test",
        "*.a.test",
        "b.a.test:22",
        "*.test:8443",
        "*:25",
        "a.test:22",
        "c.b.a.test",
        "xa.test:22",
    ];

    fn policy(allow: &[&str], deny: &[&str]) -> Policy {
        let rules = |entries: &[&str]| entries.iter().copied().map(rule).collect();
        Policy::new(SandboxPolicy {
            allow: rules(allow),
            deny: rules(deny),
            ..SandboxPolicy::default()
        })
    }

    #[test]
    fn the_first_rule_about_a_host_and_port_decides() {
        let backwards: Vec<_> = ENTRIES.iter().rev().copied().collect();
        for entries in [ENTRIES, &backwards] {
            let policy = policy(entries, &[]);
            for host in ["a.test", "b.a.test", "c.b.a.test", "xa.test", "test", "a"] {
                for port in [22, 25, 443, 8443] {
                    let rules = entries.iter().copied().map(rule);
                    let first = rules.clone().find(|it| it.allows(&name(host), port));
                    let expected = match first {
                        Some(rule) => Verdict::Allowed(rule.label),
                        None => Verdict::Refused(UNLISTED.into()),
                    };
                    let verdict = policy.reach(&name(host).into(), port);
                    assert_eq!(verdict, expected, "{host}:{port}");
                }
            }
        }
    }

    #[test]
    fn what_is_denied_is_denied_whatever_is_allowed() {
        let allow = ["*.a.test", "b.a.test:22", "d.a.test:22"];
        let policy = policy(&allow, &["*.a.test:443", "b.a.test"]);
        let reach = |host, port| policy.reach(&name(host).into(), port);
        let denied = |rule: &str| Verdict::Refused(format!("deny {rule}"));
        assert_eq!(reach("b.a.test", 443), denied("*.a.test:443"));
        assert_eq!(reach("b.a.test", 80), denied("b.a.test"));
        assert_eq!(reach("b.a.test", 22), denied("b.a.test"));
        let allowed = Verdict::Allowed("d.a.test:22".into());
        assert_eq!(reach("d.a.test", 22), allowed);
        assert_eq!(reach("c.a.test", 80), Verdict::Allowed("*.a.test".into()));
        let resolve = |host| policy.resolve(&name(host));
        assert_eq!(resolve("b.a.test"), denied("b.a.test"));
        assert_eq!(resolve("d.a.test"), Verdict::Allowed("*.a.test".into()));
        assert_eq!(resolve("a.test"), Verdict::Refused(UNLISTED.into()));
    }
}
