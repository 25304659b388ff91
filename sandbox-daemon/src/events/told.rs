//! What the proxy refused: told by it, counted here, folded and numbered like
//! the kernel's records.

use std::{
    fs,
    net::SocketAddr,
    path::Path,
    sync::{Arc, PoisonError},
    time::{Instant, SystemTime},
};

use sandbox_common::Counters;

use super::{Events, Object, Owner, Refusal, Right, Scope, Verdict, fold::Folded};

/// Refusals of one exec that are told each at once, and in a second after that.
/// They come slower than the kernel's: each takes the proxy a connection, a
/// request or a query.
pub(super) const BURST: u32 = 1024;
const RATE: u32 = 128;

/// A refusal by the proxy.
#[derive(Clone, Debug)]
pub struct Told {
    /// Cgroup id of the sandbox.
    pub sandbox: u64,
    /// Cgroup id of the exec; 0: none.
    pub exec: u64,
    /// Generation of the policy that decided.
    pub generation: u32,
    /// Process.
    pub pid: u32,
    /// Its real user id.
    pub uid: u32,
    /// `task_struct.comm`.
    pub comm: [u8; 16],
    /// `connect`, `resolve`, `request`.
    pub operation: &'static str,
    /// What was refused.
    pub object: Object,
    /// Why.
    pub rule: String,
    /// Refused, or only noted.
    pub verdict: Verdict,
    /// How many identical ones.
    pub count: u64,
}

/// What the proxy told of an exec.
#[derive(Debug, Default)]
pub(super) struct Bucket {
    counters: Counters,
    spent: u32,
    filled: Option<Instant>,
}

impl Bucket {
    /// Counts refusals, or uses; whether they are to be told.
    pub(super) fn admit(&mut self, count: u64, now: Instant) -> bool {
        let filled = *self.filled.get_or_insert(now);
        let elapsed = now.duration_since(filled).as_millis();
        let refill = u32::try_from(elapsed.saturating_mul(RATE.into()) / 1000).unwrap_or(u32::MAX);
        if refill > 0 {
            self.spent = self.spent.saturating_sub(refill);
            self.filled = Some(now);
        }
        self.counters.denied += count;
        if self.spent >= BURST {
            self.counters.limited += count;
            return false;
        }
        self.spent += 1;
        self.counters.emitted += count;
        true
    }
}

/// Who called the proxy from no sandbox.
#[derive(Debug, Default)]
pub(super) struct Strangers {
    bucket: Bucket,
    untold: u64,
}

impl Strangers {
    /// How many are to be told now, with those that were not; none: not now.
    fn admit(&mut self, count: u64, now: Instant) -> Option<u64> {
        self.untold += count;
        let admitted = self.bucket.admit(count, now);
        admitted.then(|| std::mem::take(&mut self.untold))
    }
}

impl Scope {
    /// What the proxy refused.
    pub fn told(&self) -> Counters {
        self.told
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .counters
    }
}

impl Events {
    /// Takes a refusal by the proxy.
    pub fn told(&self, told: Told) {
        let Some(scope) = self.scope(told.sandbox, told.exec) else {
            tracing::warn!(
                object = told.object.display(),
                "a refusal of no known sandbox"
            );
            return;
        };
        let now = Instant::now();
        let admitted = {
            let mut bucket = scope.told.lock().unwrap_or_else(PoisonError::into_inner);
            bucket.admit(told.count, now)
        };
        if !admitted {
            return;
        }
        let refusal = Refusal {
            exe: executable(told.pid, &scope.owner, told.comm),
            pid: told.pid,
            uid: told.uid,
            right: Right::Connect,
            operation: told.operation,
            object: told.object,
            rule: told.rule.into(),
            policy_digest: scope.rules.digest(told.generation),
            errno: 0,
            verdict: told.verdict,
        };
        let mut fold = scope.fold.lock().unwrap_or_else(PoisonError::into_inner);
        for folded in fold.add_many(refusal, told.count, SystemTime::now(), now) {
            self.journal.publish(scope.owner.clone(), folded);
        }
        drop(fold);
        self.pending.notify_one();
    }

    /// Counts refusals that the proxy did not keep.
    pub fn untold(&self, sandbox: u64, exec: u64, count: u64) {
        if let Some(scope) = self.scope(sandbox, exec) {
            let mut bucket = scope.told.lock().unwrap_or_else(PoisonError::into_inner);
            bucket.counters.denied += count;
            bucket.counters.limited += count;
        }
    }

    /// Somebody who is in no sandbox called the proxy: for root's eyes. A flood of
    /// them must not take the place of other events.
    pub fn stranger(&self, from: SocketAddr, count: u64) {
        let Some(count) = self
            .strangers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .admit(count, Instant::now())
        else {
            return;
        };
        tracing::warn!(%from, count, "refused by the proxy: not in a sandbox");
        let owner = Owner {
            uid: 0,
            sandbox: String::new(),
            exec: String::new(),
        };
        let now = SystemTime::now();
        let refusal = Refusal {
            pid: 0,
            uid: 0,
            exe: Vec::new(),
            right: Right::Connect,
            operation: "connect",
            object: Object::Address(from.to_string()),
            rule: "the proxy serves sandboxes only".into(),
            policy_digest: "".into(),
            errno: 0,
            verdict: Verdict::Denied,
        };
        let folded = Folded {
            refusal: Arc::new(refusal),
            count,
            first: now,
            last: now,
        };
        self.journal.publish(Arc::new(owner), folded);
    }
}

/// The executable of a process of that exec, or its comm where it has ended.
pub(super) fn executable(pid: u32, owner: &Owner, comm: [u8; 16]) -> Vec<u8> {
    let process = Path::new("/proc").join(pid.to_string());
    let link = fs::read_link(process.join("exe"));
    // Another process may have the number by now.
    let cgroup = fs::read_to_string(process.join("cgroup")).unwrap_or_default();
    match link {
        Ok(path) if !owner.exec.is_empty() && cgroup.contains(&owner.exec) => {
            path.into_os_string().into_encoded_bytes()
        }
        _ => {
            let name = comm.split(|&byte| byte == 0).next();
            name.unwrap_or_default().to_vec()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_flood_is_counted_and_told_slowly() {
        let mut bucket = Bucket::default();
        let start = Instant::now();
        let told = (0..2 * BURST).filter(|_| bucket.admit(1, start)).count();
        assert_eq!(told, BURST as usize);
        assert_eq!(bucket.counters.denied, u64::from(2 * BURST));
        assert_eq!(bucket.counters.limited, u64::from(BURST));
        let later = start + Duration::from_secs(1);
        let told = (0..2 * BURST).filter(|_| bucket.admit(1, later)).count();
        assert_eq!(told, RATE as usize);
    }

    #[test]
    fn a_flood_of_strangers_is_told_slowly_and_none_is_left_out() {
        let mut strangers = Strangers::default();
        let start = Instant::now();
        let told: Vec<_> = (0..2 * BURST)
            .filter_map(|_| strangers.admit(1, start))
            .collect();
        assert_eq!(told, vec![1; BURST as usize]);
        let later = start + Duration::from_secs(1);
        assert_eq!(strangers.admit(1, later), Some(u64::from(BURST) + 1));
    }
}
