//! What the proxy tells: refusals become events, traffic is added up.

use std::collections::{BTreeMap, HashSet};

use sandbox_proxy::{
    channel::{Decision, FromProxy, Operation, Refused, SandboxPolicy, ToProxy, Traffic},
    synthetic::MAX_NAMES,
};
use tokio::sync::mpsc;

use super::Egress;
use crate::chain::Chain;
use crate::events::{Object, Told, Verdict};

/// Hosts and rules of one sandbox that are kept apart.
const MAX_ROWS: usize = 4096;

/// The traffic of a sandbox, by host, port, rule and decision.
#[derive(Debug, Default)]
pub(super) struct Table(BTreeMap<(String, u16, String, Decision), [u64; 3]>);

/// What a sandbox's traffic was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// By host, port, rule and decision.
    pub rows: Vec<Row>,
    /// Rules of `allow` and `deny` that nothing ever used.
    pub unused: Vec<String>,
    /// Whether nothing was ever refused, of at least something.
    pub never_refused: bool,
}

/// What went to one host under one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Name, or what was given for one; `*`: all others.
    pub host: String,
    /// 0: none.
    pub port: u16,
    /// The rule that decided.
    pub rule: String,
    /// What it decided.
    pub decision: Decision,
    /// Connections, requests, queries.
    pub requests: u64,
    /// Bytes to the host.
    pub sent: u64,
    /// Bytes from the host.
    pub received: u64,
}

impl Table {
    fn add(&mut self, traffic: Vec<Traffic>) {
        for it in traffic {
            let mut column = (it.host, it.port, it.rule, it.decision);
            if self.0.len() >= MAX_ROWS && !self.0.contains_key(&column) {
                column.0 = "*".into();
                column.1 = 0;
            }
            if self.0.len() >= 2 * MAX_ROWS && !self.0.contains_key(&column) {
                // Names are in the reasons as well.
                column.2 = "*".into();
            }
            let sums = self.0.entry(column).or_default();
            for (sum, more) in sums.iter_mut().zip([it.requests, it.sent, it.received]) {
                *sum += more;
            }
        }
    }

    pub(super) fn report(&self, policy: &SandboxPolicy) -> Report {
        let used: HashSet<&str> = self.0.keys().map(|(_, _, rule, _)| rule.as_str()).collect();
        let denied = |label: &str| used.contains(format!("deny {label}").as_str());
        let allow = policy.allow.iter().map(|rule| &rule.label);
        let deny = policy.deny.iter().map(|rule| &rule.label);
        let unused = allow
            .filter(|label| !used.contains(label.as_str()))
            .cloned()
            .chain(
                deny.filter(|label| !denied(label))
                    .map(|label| format!("deny {label}")),
            )
            .collect();
        let rows = self
            .0
            .iter()
            .map(|((host, port, rule, decision), sums)| Row {
                host: host.clone(),
                port: *port,
                rule: rule.clone(),
                decision: *decision,
                requests: sums[0],
                sent: sums[1],
                received: sums[2],
            });
        Report {
            rows: rows.collect(),
            unused,
            never_refused: !self.0.is_empty()
                && self
                    .0
                    .keys()
                    .all(|(_, _, _, decision)| *decision == Decision::Allowed),
        }
    }
}

impl Egress {
    /// A proxy begins: all that is known is told to it first.
    pub(super) fn begin(&self, messages: mpsc::UnboundedSender<ToProxy>) {
        let mut inner = self.lock();
        for entry in inner.sandboxes.values() {
            for secret in self.secrets_of(&entry.policy) {
                match secret {
                    Ok(secret) => drop(messages.send(secret)),
                    // What it does not get it does not add.
                    Err(error) => {
                        let (sandbox, error) = (&entry.identity.id, Chain::of(&error));
                        tracing::error!(%error, sandbox, "a sandbox goes without a secret");
                    }
                }
            }
            let _ = messages.send(ToProxy::Policy(Box::new(entry.policy.clone())));
        }
        inner.proxy = Ok(messages);
    }

    pub(super) fn up(&self) {
        self.up.send_replace(true);
    }

    pub(super) fn away(&self, why: String) {
        let mut inner = self.lock();
        inner.proxy = Err(why);
        // Nobody will answer them.
        inner.waiting.clear();
        drop(inner);
        self.up.send_replace(false);
    }

    /// Takes what the proxy tells.
    pub(super) fn take(&self, message: FromProxy) {
        match message {
            FromProxy::Ready { .. } => {}
            FromProxy::Used(used) => self.events.used(used),
            FromProxy::Done { serial } => {
                if let Some(done) = self.lock().waiting.remove(&serial) {
                    let _ = done.send(());
                }
            }
            FromProxy::Refused(refused) => self.refused(refused),
            FromProxy::Lost {
                sandbox,
                exec,
                count,
            } => self.events.untold(sandbox, exec, count),
            FromProxy::Named { sandbox, name } => {
                if let Some(entry) = self.lock().sandboxes.get_mut(&sandbox)
                    && entry.policy.names.len() < MAX_NAMES
                {
                    entry.policy.names.push(name);
                }
            }
            FromProxy::Traffic { sandbox, traffic } => {
                if let Some(entry) = self.lock().sandboxes.get_mut(&sandbox) {
                    entry.table.add(traffic);
                }
            }
            FromProxy::Stranger { from, count } => self.events.stranger(from, count),
        }
    }

    fn refused(&self, refused: Refused) {
        let operation = match refused.operation {
            Operation::Connect => "connect",
            Operation::Resolve => "resolve",
            Operation::Request => "request",
        };
        let host = match refused.port {
            0 => refused.host,
            port => format!("{}:{port}", refused.host),
        };
        self.events.told(Told {
            sandbox: refused.sandbox,
            exec: refused.exec,
            generation: refused.generation,
            pid: refused.pid,
            uid: refused.uid,
            comm: refused.comm,
            operation,
            object: Object::Host(host),
            rule: refused.rule,
            verdict: if refused.observed {
                Verdict::Observed
            } else {
                Verdict::Denied
            },
            count: refused.count,
        });
    }
}

#[cfg(test)]
mod tests {
    use sandbox_proxy::{
        name::Name,
        rule::{HostPattern, HostRule},
    };

    use super::*;

    fn traffic(host: &str, rule: &str, decision: Decision) -> Traffic {
        Traffic {
            host: host.into(),
            port: 443,
            rule: rule.into(),
            decision,
            requests: 1,
            sent: 10,
            received: 100,
        }
    }

    fn policy(allow: &[&str], deny: &[&str]) -> SandboxPolicy {
        let rules = |labels: &[&str]| {
            let rule = |label: &&str| HostRule {
                host: HostPattern::Exact(Name::parse(label).unwrap()),
                port: None,
                label: (*label).into(),
            };
            labels.iter().map(rule).collect()
        };
        SandboxPolicy {
            allow: rules(allow),
            deny: rules(deny),
            ..SandboxPolicy::default()
        }
    }

    #[test]
    fn traffic_is_added_up_and_unused_rules_are_named() {
        let mut table = Table::default();
        table.add(vec![traffic("a.example", "a.example", Decision::Allowed)]);
        table.add(vec![traffic("a.example", "a.example", Decision::Allowed)]);
        let report = table.report(&policy(&["a.example", "b.example"], &["c.example"]));
        assert_eq!(report.rows.len(), 1);
        assert_eq!((report.rows[0].requests, report.rows[0].received), (2, 200));
        assert_eq!(report.unused, ["b.example", "deny c.example"]);
        assert!(report.never_refused);

        table.add(vec![traffic(
            "c.example",
            "deny c.example",
            Decision::Denied,
        )]);
        let report = table.report(&policy(&["a.example"], &["c.example"]));
        assert!(report.unused.is_empty() && !report.never_refused);
    }

    #[test]
    fn ever_other_hosts_do_not_fill_the_memory() {
        let mut table = Table::default();
        for number in 0..2 * MAX_ROWS {
            let host = format!("{number}.example");
            table.add(vec![traffic(
                &host,
                "not in the allow list",
                Decision::Denied,
            )]);
        }
        let rows = table.report(&SandboxPolicy::default()).rows;
        assert!(rows.len() <= MAX_ROWS + 1);
        let requests: u64 = rows.iter().map(|row| row.requests).sum();
        assert_eq!(requests, 2 * MAX_ROWS as u64);
    }
}
