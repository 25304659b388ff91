//! Attributes records to the sandbox and exec they come from, and knows when
//! all of an exec's records have arrived.

use std::{
    collections::{HashMap, VecDeque},
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::{Duration, Instant, SystemTime},
};

use nix::time::{ClockId, clock_gettime};
use sandbox_common::{Facility, builtin, builtin_label, capability_name};
use tokio::sync::{Notify, watch};

use super::{
    Journal, LossReason, Mounts, Object, Refusal, SharedMounts,
    decode::{Record, Target, decode},
    fold::Fold,
    told::{Bucket, Strangers},
    used::Uses,
};

/// Generations of a policy of which records may still be on their way.
const GENERATIONS: usize = 8;

/// How often windows of repetitions are looked at.
const TICK: Duration = Duration::from_millis(250);

/// Whose refusals they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Whose sandbox it is.
    pub uid: u32,
    /// Id of the sandbox.
    pub sandbox: String,
    /// Id of the exec; empty: of none.
    pub exec: String,
}

/// What the rules of a sandbox's policy are called, by generation.
#[derive(Default)]
pub struct Rules {
    generations: RwLock<VecDeque<Generation>>,
}

struct Generation {
    number: u32,
    digest: Arc<str>,
    network: Arc<str>,
    labels: Arc<[Arc<str>]>,
}

impl Rules {
    /// Adds a generation: the names of rules 1, 2, ..., and of the network's
    /// mode.
    pub fn put(&self, number: u32, digest: &str, network: &str, labels: Arc<[Arc<str>]>) {
        let mut generations = self
            .generations
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if generations.len() == GENERATIONS {
            generations.pop_front();
        }
        generations.push_back(Generation {
            number,
            digest: digest.into(),
            network: network.into(),
            labels,
        });
    }

    /// Digest of the policy.
    pub(super) fn digest(&self, generation: u32) -> Arc<str> {
        self.name(generation, builtin::NONE).1
    }

    /// Label of the rule and digest of the policy.
    fn name(&self, generation: u32, rule: u32) -> (Arc<str>, Arc<str>) {
        let generations = self
            .generations
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let policy = generations
            .iter()
            .rev()
            .find(|policy| policy.number == generation);
        let digest = policy.map_or_else(|| "".into(), |policy| policy.digest.clone());
        let stated = policy.and_then(|policy| match rule {
            builtin::NETWORK => Some(policy.network.clone()),
            rule => policy.labels.get((rule as usize).checked_sub(1)?).cloned(),
        });
        let label = stated
            .or_else(|| builtin_label(rule).map(Arc::from))
            .unwrap_or_else(|| format!("rule {rule}").into());
        (label, digest)
    }
}

/// A cgroup whose records are expected: an exec's, or a sandbox's own.
pub struct Scope {
    pub(super) owner: Arc<Owner>,
    pub(super) rules: Arc<Rules>,
    mounts: SharedMounts,
    pub(super) fold: Mutex<Fold>,
    pub(super) told: Mutex<Bucket>,
    pub(super) uses: Mutex<Uses>,
    arrived: watch::Sender<u64>,
}

impl Scope {
    /// A scope of which nothing has arrived.
    #[must_use]
    pub fn new(owner: Owner, rules: Arc<Rules>, mounts: SharedMounts) -> Self {
        Self {
            owner: Arc::new(owner),
            rules,
            mounts,
            fold: Mutex::default(),
            told: Mutex::default(),
            uses: Mutex::default(),
            arrived: watch::Sender::new(0),
        }
    }

    /// Whose it is.
    pub fn owner(&self) -> &Arc<Owner> {
        &self.owner
    }

    /// Waits until `emitted` records have arrived; returns how many did not.
    pub async fn drained(&self, emitted: u64, bound: Duration) -> u64 {
        let mut arrived = self.arrived.subscribe();
        let all = arrived.wait_for(|&arrived| arrived >= emitted);
        match tokio::time::timeout(bound, all).await {
            Ok(_) => 0,
            Err(_) => emitted.saturating_sub(*self.arrived.borrow()),
        }
    }

    /// The record in the user's terms.
    fn refusal(&self, record: Record) -> Refusal {
        let mut mounts = self.mounts.lock().unwrap_or_else(PoisonError::into_inner);
        let (rule, policy_digest) = self.rules.name(record.generation, record.rule);
        Refusal {
            pid: record.pid,
            uid: record.uid,
            exe: match &record.exe {
                Some(place) => mounts.locate(place),
                None => record.comm,
            },
            right: record.right,
            operation: record.operation.as_str(),
            object: object(record.target, &mut mounts),
            rule,
            policy_digest,
            errno: record.errno,
            verdict: record.verdict,
        }
    }
}

fn object(target: Target, mounts: &mut Mounts) -> Object {
    match target {
        Target::File(place) => Object::Path(mounts.locate(&place)),
        Target::Address(address, port) => Object::Address(address_port(address, port)),
        Target::Socket(family, protocol) => {
            Object::Address(format!("family {family} protocol {protocol}"))
        }
        Target::UnixPath(place) => Object::UnixSocket(mounts.locate(&place)),
        Target::UnixName(name) => Object::UnixSocket(name),
        Target::Process(pid, comm) => Object::Process(pid, comm),
        Target::Facility(Facility::Capability, number) => {
            let name = capability_name(number).map(str::to_owned);
            Object::Capability(name.unwrap_or_else(|| format!("capability {number}")))
        }
        Target::Facility(Facility::Ipc, id) => {
            Object::Facility(format!("{} {id}", Facility::Ipc.as_str()))
        }
        Target::Facility(facility @ Facility::SignalOwner, to) if to != 0 => {
            Object::Facility(format!("{} {}", facility.as_str(), to.cast_signed()))
        }
        Target::Facility(facility, _) => Object::Facility(facility.as_str().into()),
    }
}

fn address_port(address: IpAddr, port: u16) -> String {
    match (address, port) {
        (address, 0) => address.to_string(),
        (IpAddr::V4(address), port) => format!("{address}:{port}"),
        (IpAddr::V6(address), port) => format!("[{address}]:{port}"),
    }
}

/// All records of one run of the daemon.
pub struct Events {
    pub(super) journal: Journal,
    scopes: RwLock<HashMap<u64, Arc<Scope>>>,
    pub(super) pending: Notify,
    pub(super) strangers: Mutex<Strangers>,
}

impl Events {
    /// Hands denials to `journal`.
    #[must_use]
    pub fn new(journal: Journal) -> Self {
        Self {
            journal,
            scopes: RwLock::default(),
            pending: Notify::new(),
            strangers: Mutex::default(),
        }
    }

    /// Where denials end up.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Expects records of a cgroup.
    pub fn expect(&self, cgroup: u64, scope: Scope) -> Arc<Scope> {
        let scope = Arc::new(scope);
        self.scopes
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(cgroup, scope.clone());
        scope
    }

    /// Passes on what is left of a cgroup, of which no more records come.
    pub fn finish(&self, cgroup: u64) {
        let scope = self
            .scopes
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&cgroup);
        if let Some(scope) = scope {
            // The fold's lock is held until they are published: `tick` must
            // not publish some of them after this returned.
            let mut fold = scope.fold.lock().unwrap_or_else(PoisonError::into_inner);
            for folded in fold.flush() {
                self.journal.publish(scope.owner.clone(), folded);
            }
            self.tell_untold(&scope);
        }
    }

    /// Takes a raw record.
    pub fn accept(&self, raw: &[u8]) {
        let record = match decode(raw) {
            Ok(record) => record,
            Err(error) => {
                // Its exec will find it missing when it ends, and say so.
                tracing::error!(%error, "dropped an event");
                return;
            }
        };
        let Some(scope) = self.scope(record.sandbox, record.exec) else {
            tracing::warn!(
                sandbox = record.sandbox,
                exec = record.exec,
                "an event of no known sandbox"
            );
            return;
        };
        let time = wall_time(record.time_ns);
        let refusal = scope.refusal(record);
        let mut fold = scope.fold.lock().unwrap_or_else(PoisonError::into_inner);
        for folded in fold.add(refusal, time, Instant::now()) {
            self.journal.publish(scope.owner.clone(), folded);
        }
        drop(fold);
        scope.arrived.send_modify(|arrived| *arrived += 1);
        self.pending.notify_one();
    }

    /// Tells of refusals of an exec that have no denial.
    pub fn lost(&self, owner: &Arc<Owner>, reason: LossReason, count: u64) {
        self.journal.lost(owner.clone(), reason, count);
    }

    /// Closes windows of repetitions, for ever. Sleeps while there are none.
    pub async fn close_windows(&self) {
        loop {
            self.pending.notified().await;
            while self.tick() {
                tokio::time::sleep(TICK).await;
            }
        }
    }

    /// Whether there are windows left.
    fn tick(&self) -> bool {
        let scopes: Vec<_> = {
            let scopes = self.scopes.read().unwrap_or_else(PoisonError::into_inner);
            scopes.values().cloned().collect()
        };
        let mut open = false;
        for scope in scopes {
            let mut fold = scope.fold.lock().unwrap_or_else(PoisonError::into_inner);
            for folded in fold.due(Instant::now()) {
                self.journal.publish(scope.owner.clone(), folded);
            }
            open |= !fold.is_empty();
        }
        open
    }

    /// Of an exec, or of its sandbox where the exec is gone.
    pub(super) fn scope(&self, sandbox: u64, exec: u64) -> Option<Arc<Scope>> {
        let scopes = self.scopes.read().unwrap_or_else(PoisonError::into_inner);
        scopes.get(&exec).or_else(|| scopes.get(&sandbox)).cloned()
    }
}

/// The wall-clock time of a moment of the boot clock.
fn wall_time(boot_ns: u64) -> SystemTime {
    let now = SystemTime::now();
    let Ok(boot) = clock_gettime(ClockId::CLOCK_BOOTTIME) else {
        return now;
    };
    let age = Duration::from(boot).saturating_sub(Duration::from_nanos(boot_ns));
    now.checked_sub(age).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use sandbox_common::{EventHeader, Operation, Right};

    use super::{
        super::{Filter, Item, Mounts, Since, decode::tests::Raw},
        *,
    };

    const MOUNTINFO: &[u8] = b"21 1 8:1 / / rw - ext4 /dev/sda1 rw\n";
    const DEV: u32 = 8 << 20 | 1;

    fn events() -> Events {
        Events::new(Journal::new("e".into(), 100))
    }

    fn expect(events: &Events, cgroup: u64, exec: &str) -> Arc<Scope> {
        let rules = Rules::default();
        let labels = vec!["credentials".into(), "~/.bashrc".into()];
        rules.put(3, "digest", "network none", labels.into());
        let owner = Owner {
            uid: 1000,
            sandbox: "s".into(),
            exec: exec.into(),
        };
        let mounts = Arc::new(Mutex::new(Mounts::parse(MOUNTINFO).unwrap()));
        events.expect(cgroup, Scope::new(owner, rules.into(), mounts))
    }

    fn raw(exec: u64, rule: u32) -> Vec<u8> {
        let mut raw = Raw::new(Operation::Open, Right::Read)
            .by(1, exec)
            .path(DEV, b".netrc\0dev\0home\0");
        raw.put(offset_of!(EventHeader, rule), &rule.to_ne_bytes());
        raw.put(offset_of!(EventHeader, generation), &3u32.to_ne_bytes());
        raw.0
    }

    fn denials(events: &Events) -> Vec<(String, String, u64)> {
        let mut all = events
            .journal
            .subscribe(Filter::default(), &Since::Oldest)
            .unwrap();
        std::iter::from_fn(|| all.try_next())
            .map(|item| match item {
                Item::Denial(denial) => (
                    denial.owner.exec.clone(),
                    format!(
                        "{} {}",
                        denial.refusal.rule,
                        denial.refusal.object.display()
                    ),
                    denial.count,
                ),
                Item::Lost(_) | Item::Used(_) => panic!("no denial"),
            })
            .collect()
    }

    #[test]
    fn a_record_becomes_a_denial_of_its_exec_and_rule() {
        let events = events();
        expect(&events, 10, "x");
        expect(&events, 11, "y");
        events.accept(&raw(10, 1));
        events.accept(&raw(11, builtin::NONE));
        let path = "/home/dev/.netrc";
        assert_eq!(
            denials(&events),
            [
                ("x".into(), format!("credentials {path}"), 1),
                ("y".into(), format!("not allowed {path}"), 1),
            ]
        );
    }

    #[test]
    fn finishing_an_exec_passes_on_what_was_folded() {
        let events = events();
        expect(&events, 10, "x");
        for _ in 0..5 {
            events.accept(&raw(10, 1));
        }
        events.finish(10);
        let counts: Vec<_> = denials(&events).iter().map(|denial| denial.2).collect();
        assert_eq!(counts, [1, 4]);
    }

    #[tokio::test]
    async fn draining_waits_for_all_records_that_were_emitted() {
        let events = Arc::new(events());
        let scope = expect(&events, 10, "x");
        let feeder = events.clone();
        tokio::spawn(async move {
            for _ in 0..20 {
                tokio::time::sleep(Duration::from_millis(1)).await;
                feeder.accept(&raw(10, 1));
            }
        });
        assert_eq!(scope.drained(20, Duration::from_secs(30)).await, 0);
        assert_eq!(scope.drained(23, Duration::from_millis(5)).await, 3);
    }

    #[tokio::test]
    async fn repetitions_are_passed_on_although_nothing_follows() {
        let events = Arc::new(events());
        expect(&events, 10, "x");
        let mut reader = events
            .journal
            .subscribe(Filter::default(), &Since::Now)
            .unwrap();
        let windows = events.clone();
        let closer = tokio::spawn(async move { windows.close_windows().await });
        for _ in 0..3 {
            events.accept(&raw(10, 1));
        }
        let mut counts = Vec::new();
        while counts.len() < 2 {
            let item = tokio::time::timeout(Duration::from_secs(30), reader.next()).await;
            let Ok(Some(Item::Denial(denial))) = item else {
                panic!("no denial");
            };
            counts.push(denial.count);
        }
        assert_eq!(counts, [1, 2]);
        closer.abort();
    }
}
