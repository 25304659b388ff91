//! What was decided, on its way to the daemon: refusals one by one, identical
//! ones folded while they wait; everything counted by host and rule.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::sync::Notify;

use crate::channel::{Decision, FromProxy, Refused, Traffic, Used};

/// Refusals of different kinds that wait at a time, of each sandbox.
const MAX_WAITING: usize = 4096;

/// Uses of credentials of different kinds that wait at a time. Those beyond are
/// told one by one: none is left out.
const MAX_USES: usize = 4096;

/// Strangers that wait, each with an address of its own; the last one stands for
/// more.
const MAX_STRANGERS: usize = 64;

/// Hosts and rules of one sandbox that are counted apart between two reports.
const MAX_TALLIES: usize = 4096;

/// Messages for the daemon.
#[derive(Debug, Default)]
pub struct Outbox {
    waiting: Mutex<Waiting>,
    ready: Notify,
    /// There is something that others like it may still join.
    soon: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    messages: Vec<FromProxy>,
    /// How often each of the refusals among them happened.
    refused: HashMap<Refused, u64>,
    /// How often each of these uses happened.
    used: HashMap<Used, u64>,
    /// From where, and how often.
    strangers: Vec<(SocketAddr, u64)>,
    /// How many of the refusals are of a sandbox.
    kinds: HashMap<u64, usize>,
    /// By sandbox and exec.
    lost: HashMap<(u64, u64), u64>,
}

impl Outbox {
    /// Sends a message.
    pub fn send(&self, message: FromProxy) {
        lock(&self.waiting).messages.push(message);
        self.ready.notify_one();
    }

    /// Tells of somebody who is in no sandbox.
    pub fn stranger(&self, from: SocketAddr) {
        let mut waiting = lock(&self.waiting);
        let full = waiting.strangers.len() >= MAX_STRANGERS;
        match waiting.strangers.last_mut().filter(|_| full) {
            Some((_, count)) => *count += 1,
            None => waiting.strangers.push((from, 1)),
        }
        drop(waiting);
        self.ready.notify_one();
    }

    /// Tells of a refusal; its count does not matter.
    pub fn refused(&self, refused: Refused) {
        let mut waiting = lock(&self.waiting);
        let refused = Refused {
            count: 0,
            ..refused
        };
        let Waiting {
            refused: known,
            kinds,
            lost,
            ..
        } = &mut *waiting;
        if let Some(count) = known.get_mut(&refused) {
            *count += 1;
        } else {
            let kinds = kinds.entry(refused.sandbox).or_default();
            if *kinds < MAX_WAITING {
                *kinds += 1;
                known.insert(refused, 1);
            } else {
                *lost.entry((refused.sandbox, refused.exec)).or_default() += 1;
            }
        }
        drop(waiting);
        self.ready.notify_one();
    }

    /// Tells of a use of a credential; its count does not matter.
    pub fn used(&self, used: Used) {
        let mut waiting = lock(&self.waiting);
        let used = Used { count: 0, ..used };
        if waiting.used.len() < MAX_USES || waiting.used.contains_key(&used) {
            *waiting.used.entry(used).or_default() += 1;
        } else {
            waiting
                .messages
                .push(FromProxy::Used(Used { count: 1, ..used }));
        }
        drop(waiting);
        self.soon.notify_one();
    }

    /// Waits until there is something to take.
    pub async fn ready(&self) {
        self.ready.notified().await;
    }

    /// Waits until there are uses to take; those that follow each other closely are
    /// less work together.
    pub async fn soon(&self) {
        self.soon.notified().await;
    }

    /// All that waits.
    pub fn take(&self) -> Vec<FromProxy> {
        let Waiting {
            mut messages,
            refused,
            used,
            kinds: _,
            strangers,
            lost,
        } = std::mem::take(&mut *lock(&self.waiting));
        messages.extend(
            refused
                .into_iter()
                .map(|(refused, count)| FromProxy::Refused(Refused { count, ..refused })),
        );
        messages.extend(
            used.into_iter()
                .map(|(used, count)| FromProxy::Used(Used { count, ..used })),
        );
        messages.extend(
            strangers
                .into_iter()
                .map(|(from, count)| FromProxy::Stranger { from, count }),
        );
        messages.extend(
            lost.into_iter()
                .map(|((sandbox, exec), count)| FromProxy::Lost {
                    sandbox,
                    exec,
                    count,
                }),
        );
        messages
    }
}

/// What went to one host under one rule.
#[derive(Debug, Default)]
pub struct Tally {
    /// Connections, requests, queries.
    pub requests: AtomicU64,
    /// Bytes to the host.
    pub sent: AtomicU64,
    /// Bytes from the host.
    pub received: AtomicU64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Column {
    host: String,
    port: u16,
    rule: String,
    decision: Decision,
}

/// The traffic of one sandbox.
#[derive(Debug, Default)]
pub struct Ledger(Mutex<HashMap<Column, Arc<Tally>>>);

impl Ledger {
    /// Counts one connection, request or query; its bytes are counted by whoever
    /// keeps the tally.
    pub fn count(&self, host: &str, port: u16, rule: &str, decision: Decision) -> Arc<Tally> {
        let mut columns = lock(&self.0);
        let mut column = Column {
            host: host.into(),
            port,
            rule: rule.into(),
            decision,
        };
        if columns.len() >= MAX_TALLIES && !columns.contains_key(&column) {
            // A sandbox that asks for ever other names.
            column.host = "*".into();
            column.port = 0;
        }
        if columns.len() >= 2 * MAX_TALLIES && !columns.contains_key(&column) {
            // Names are in the reasons as well.
            column.rule = "*".into();
        }
        let tally = columns.entry(column).or_default().clone();
        drop(columns);
        tally.requests.fetch_add(1, Ordering::Relaxed);
        tally
    }

    /// What was counted since the last time.
    pub fn take(&self) -> Vec<Traffic> {
        let take = |counter: &AtomicU64| counter.swap(0, Ordering::Relaxed);
        let mut columns = lock(&self.0);
        let traffic = columns
            .iter()
            .map(|(column, tally)| Traffic {
                host: column.host.clone(),
                port: column.port,
                rule: column.rule.clone(),
                decision: column.decision,
                requests: take(&tally.requests),
                sent: take(&tally.sent),
                received: take(&tally.received),
            })
            .filter(|it| it.requests + it.sent + it.received > 0)
            .collect();
        // Connections that are still open hold theirs.
        columns.retain(|_, tally| Arc::strong_count(tally) > 1);
        traffic
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;
    use crate::channel::Operation;

    fn refused(sandbox: u64, host: &str) -> Refused {
        Refused {
            sandbox,
            exec: 0,
            generation: 0,
            pid: 0,
            uid: 0,
            comm: [0; 16],
            operation: Operation::Connect,
            host: host.into(),
            port: 443,
            rule: String::new(),
            observed: false,
            count: 0,
        }
    }

    #[test]
    fn a_sandbox_that_is_refused_all_the_time_does_not_hide_another_ones_refusals() {
        let outbox = Outbox::default();
        for number in 0..MAX_WAITING + 7 {
            outbox.refused(refused(1, &format!("{number}.test")));
        }
        outbox.refused(refused(2, "a.test"));
        let told = outbox.take();
        let lost = |it: &FromProxy| {
            matches!(
                it,
                FromProxy::Lost {
                    sandbox: 1,
                    count: 7,
                    ..
                }
            )
        };
        let other = |it: &FromProxy| matches!(it, FromProxy::Refused(it) if it.sandbox == 2);
        assert!(told.iter().any(lost) && told.iter().any(other));
        assert_eq!(told.len(), MAX_WAITING + 2);
    }

    fn used(path: &str) -> Used {
        Used {
            sandbox: 1,
            exec: 0,
            generation: 0,
            pid: 0,
            uid: 0,
            comm: [0; 16],
            credential: "bench".into(),
            rule: "a.test".into(),
            host: "a.test".into(),
            port: 443,
            method: "GET".into(),
            path: path.into(),
            repository: String::new(),
            refs: Vec::new(),
            further_refs: 0,
            count: 1,
        }
    }

    #[tokio::test]
    async fn uses_wait_for_others_like_them_and_refusals_do_not() {
        let outbox = Outbox::default();
        for path in ["/a", "/b", "/a"] {
            outbox.used(used(path));
        }
        timeout(Duration::ZERO, outbox.ready()).await.unwrap_err();
        timeout(Duration::ZERO, outbox.soon()).await.unwrap();
        let mut counts: Vec<_> = outbox
            .take()
            .into_iter()
            .map(|message| match message {
                FromProxy::Used(used) => (used.path, used.count),
                other => panic!("{other:?}"),
            })
            .collect();
        counts.sort();
        assert_eq!(counts, [("/a".into(), 2), ("/b".into(), 1)]);
        outbox.refused(refused(1, "a.test"));
        timeout(Duration::ZERO, outbox.ready()).await.unwrap();
    }

    #[test]
    fn ever_other_hosts_and_reasons_do_not_fill_the_memory() {
        let ledger = Ledger::default();
        for number in 0..4 * MAX_TALLIES {
            let text = number.to_string();
            ledger.count(&text, 443, &text, Decision::Denied);
        }
        let traffic = ledger.take();
        assert!(traffic.len() <= 2 * MAX_TALLIES + 1);
        let requests: u64 = traffic.iter().map(|it| it.requests).sum();
        assert_eq!(requests, 4 * MAX_TALLIES as u64);
    }

    #[test]
    fn ever_more_strangers_are_counted_and_do_not_fill_the_memory() {
        let outbox = Outbox::default();
        for port in 1..=10_000 {
            outbox.stranger(([127, 0, 0, 1], port).into());
        }
        let told: Vec<_> = outbox
            .take()
            .into_iter()
            .filter_map(|message| match message {
                FromProxy::Stranger { from, count } => Some((from.port(), count)),
                _ => None,
            })
            .collect();
        assert_eq!(told.len(), MAX_STRANGERS);
        assert_eq!(told[..2], [(1, 1), (2, 1)]);
        assert_eq!(told.iter().map(|(_, count)| count).sum::<u64>(), 10_000);
        assert!(outbox.take().is_empty());
    }
}
