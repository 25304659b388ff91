//! One exec: a child cgroup of a sandbox's, from before its first process
//! until after its last refusal was told.

use std::{
    fs::File,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use sandbox_common::Counters;
use tokio::{
    sync::watch,
    time::{Interval, MissedTickBehavior},
};
use tokio_util::task::AbortOnDropHandle;

use super::{
    Enforcer, Registry, Sandbox, SandboxError, Usage, quota::Share, shelf::SavedExec, stuck::Stuck,
    usage,
};
use crate::{
    cgroup::{Bounds, Cgroup, CgroupError},
    chain::Chain,
    events::{Filter, LossReason, Mounts, Owner, Scope, SharedMounts, Subscription},
    launch::{ExitStatus, signal_all},
    policy::Limits,
};

/// From SIGTERM to SIGKILL.
const GRACE: Duration = Duration::from_secs(10);

/// How often it is looked at while it runs.
const LOOK: Duration = Duration::from_secs(1);

/// How long records that were emitted may take to arrive.
const DRAIN: Duration = Duration::from_secs(10);

/// One command, or one process that was enrolled, and all that they start.
pub struct Exec {
    /// 12 hexadecimal digits, also the name of its cgroup.
    pub id: String,
    /// What runs, for people.
    pub argv: Vec<String>,
    /// Since when.
    pub started: SystemTime,
    /// Whether it ran before it was placed here.
    pub enrolled: bool,
    /// Whether it outlives the call that placed it, and the daemon.
    pub stays: bool,
    /// Where.
    pub sandbox: Arc<Sandbox>,
    pid: AtomicU32,
    cgroup: Cgroup,
    scope: Arc<Scope>,
    cause: Mutex<Option<Cause>>,
    told: Mutex<Told>,
    ended: watch::Sender<Option<Ending>>,
    /// Its own, of those that each exec has.
    timeout: Option<Duration>,
    output: Option<u64>,
    /// What the sandbox's limit on processes had refused before.
    refused_before: u64,
    /// How often its limit on memory had been reached before.
    exhausted_before: u64,
    stuck: Stuck,
    _share: Share,
}

/// How a command came into a sandbox.
pub(super) enum Kind {
    /// It was started there.
    Run {
        /// In place of that of the sandbox's limits.
        timeout: Option<Duration>,
    },
    /// It was moved there, with the mounts that it sees.
    Enrolled {
        /// See [`Exec::stays`].
        stays: bool,
        /// Of its own mount namespace.
        mounts: SharedMounts,
    },
}

/// Why an exec was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// On request, or because the client went away.
    Request,
    /// Its deadline passed.
    Timeout,
    /// The daemon ends.
    Daemon,
    /// The kernel killed it: `memory` was reached.
    Memory,
    /// The kernel killed it: the machine had no more, or what is above all sandboxes.
    MachineMemory,
    /// It wrote more than `output`.
    Output,
    /// The time of its sandbox was up.
    SandboxTimeout,
}

impl Cause {
    /// Whether this is why it ended so. What is told to end may do so as it likes;
    /// what is killed may have ended by itself at the same time.
    pub(super) fn explains(self, status: ExitStatus) -> bool {
        match self {
            Self::Timeout | Self::SandboxTimeout | Self::Output => true,
            Self::Request | Self::Daemon | Self::Memory | Self::MachineMemory => {
                status == ExitStatus::Signal(libc::SIGKILL)
            }
        }
    }
}

/// What became of an exec's refusals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ending {
    /// All of them.
    pub denied: u64,
    /// Those without an event.
    pub lost: u64,
    /// What it took.
    pub usage: Usage,
}

/// What subscribers were told is lost.
#[derive(Default)]
struct Told {
    limited: u64,
    dropped: u64,
}

impl Exec {
    /// Prepares an exec in a sandbox; nothing runs yet.
    pub(super) fn begin(
        registry: &Registry,
        sandbox: &Arc<Sandbox>,
        argv: Vec<String>,
        kind: Kind,
    ) -> Result<(Arc<Self>, Subscription), SandboxError> {
        let share = registry.share_exec(sandbox.account.uid)?;
        let id = super::new_id();
        let denials = registry.events().journal().follow(Filter {
            exec: Some(id.clone()),
            ..Filter::default()
        });
        let cgroup = sandbox.cgroup.child(&id)?;
        let started = SystemTime::now();
        let path = cgroup.path().to_path_buf();
        match Self::watch(registry, sandbox, id, argv, started, cgroup, kind, share) {
            Ok(exec) => Ok((exec, denials)),
            Err(error) => {
                // Nothing ever ran in it.
                drop(std::fs::remove_dir(path));
                Err(error)
            }
        }
    }

    /// Takes over an exec that an earlier daemon left.
    pub(super) fn resume(
        registry: &Registry,
        sandbox: &Arc<Sandbox>,
        saved: SavedExec,
    ) -> Result<Arc<Self>, SandboxError> {
        let share = registry.share_exec(sandbox.account.uid)?;
        let cgroup = sandbox.cgroup.open_child(&saved.id)?;
        let mounts = File::open(format!("/proc/{}/mountinfo", saved.pid)).and_then(Mounts::new);
        let kind = Kind::Enrolled {
            stays: true,
            // The process that was named may have ended, others go on.
            mounts: match mounts {
                Ok(mounts) => Arc::new(Mutex::new(mounts)),
                Err(_) => sandbox.mounts.clone(),
            },
        };
        let SavedExec {
            id,
            argv,
            pid,
            started,
        } = saved;
        let exec = Self::watch(registry, sandbox, id, argv, started, cgroup, kind, share)?;
        exec.set_pid(pid);
        Ok(exec)
    }

    #[expect(clippy::too_many_arguments, reason = "they are its fields")]
    fn watch(
        registry: &Registry,
        sandbox: &Arc<Sandbox>,
        id: String,
        argv: Vec<String>,
        started: SystemTime,
        cgroup: Cgroup,
        kind: Kind,
        share: Share,
    ) -> Result<Arc<Self>, SandboxError> {
        let limits = sandbox.limits();
        bound_exec(&cgroup, &Limits::default(), &limits)?;
        cgroup.die_together();
        registry.enforcer().watch_exec(cgroup.id())?;
        let owner = Owner {
            uid: sandbox.account.uid,
            sandbox: sandbox.id.clone(),
            exec: id.clone(),
        };
        let (enrolled, stays, mounts, timeout) = match kind {
            Kind::Run { timeout } => (false, false, sandbox.mounts.clone(), timeout),
            Kind::Enrolled { stays, mounts } => (true, stays, mounts, None),
        };
        let scope = Scope::new(owner, sandbox.rules.clone(), mounts);
        let exec = Arc::new(Self {
            id,
            argv,
            started,
            enrolled,
            stays,
            sandbox: sandbox.clone(),
            pid: AtomicU32::new(0),
            scope: registry.events().expect(cgroup.id(), scope),
            cgroup,
            cause: Mutex::default(),
            told: Mutex::default(),
            ended: watch::Sender::new(None),
            timeout: timeout.or(limits.timeout),
            output: limits.output,
            refused_before: limits.pids.map_or(0, |_| usage::refused(&sandbox.cgroup)),
            exhausted_before: limits
                .memory
                .map_or(0, |_| usage::exhausted(&sandbox.cgroup)),
            stuck: Stuck::default(),
            _share: share,
        });
        let mut state = sandbox.lock();
        if state.closing {
            drop(state);
            registry.events().finish(exec.cgroup.id());
            registry.enforcer().unwatch_exec(exec.cgroup.id());
            return Err(SandboxError::Closing(sandbox.id.clone()));
        }
        state.execs.push(exec.clone());
        drop(state);
        registry.add_exec(&exec);
        // An update that did not see this exec was seen by it.
        exec.rebound(&limits, &sandbox.limits());
        Ok(exec)
    }

    /// As it is written down.
    pub(super) fn saved(&self) -> SavedExec {
        SavedExec {
            id: self.id.clone(),
            argv: self.argv.clone(),
            pid: self.pid(),
            started: self.started,
        }
    }

    /// Kills what runs in it; the first cause is the one that is told.
    pub fn kill(&self, cause: Cause) -> Result<(), SandboxError> {
        self.note(cause);
        self.kill_all()
    }

    fn kill_all(&self) -> Result<(), SandboxError> {
        self.stuck.killed();
        match self.cgroup.kill() {
            Err(error) if !error.is_gone() => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn note(&self, cause: Cause) {
        let mut first = self.cause.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(cause);
    }

    /// Tells what runs in it to end, and kills what has not after [`GRACE`].
    pub(super) async fn terminate(self: Arc<Self>, cause: Cause) {
        self.note(cause);
        let exec = self.clone();
        // What is stopped takes no signal until it goes on.
        let signals = [libc::SIGTERM, libc::SIGCONT];
        let signalled =
            tokio::task::spawn_blocking(move || signal_all(&exec.cgroup, &signals)).await;
        if let Ok(Err(error)) = signalled
            && !error.is_gone()
        {
            tracing::error!(exec = self.id, error = %Chain::of(&error), "cannot signal an exec");
        }
        if tokio::time::timeout(GRACE, self.ended()).await.is_err()
            && let Err(error) = self.kill(cause)
        {
            tracing::error!(exec = self.id, error = %Chain::of(&error), "cannot kill an exec");
        }
    }

    /// Ends it when its time is up, unless this is dropped before; none: it has all
    /// the time that it likes.
    pub(super) fn keep_time(self: &Arc<Self>) -> Option<AbortOnDropHandle<()>> {
        let passed = self.started.elapsed().unwrap_or_default();
        let left = self.timeout?.saturating_sub(passed);
        let exec = self.clone();
        Some(AbortOnDropHandle::new(tokio::spawn(async move {
            tokio::time::sleep(left).await;
            exec.terminate(Cause::Timeout).await;
        })))
    }

    /// Time and resources that it may take.
    pub(super) fn limits(&self) -> Limits {
        Limits {
            timeout: self.timeout,
            output: self.output,
            ..self.sandbox.limits()
        }
    }

    /// Follows a change of the sandbox's limits, which hold without it.
    pub(super) fn rebound(&self, from: &Limits, to: &Limits) {
        match bound_exec(&self.cgroup, from, to) {
            Err(error) if !error.is_gone() => {
                tracing::error!(exec = self.id, error = %Chain::of(&error), "cannot limit an exec");
            }
            _ => {}
        }
    }

    /// What was killed and cannot end; changes while it is waited for.
    pub(super) fn stuck(&self) -> watch::Receiver<Vec<u32>> {
        self.stuck.subscribe()
    }

    /// Once a second: tells what was lost since the last time, and what cannot end.
    pub(super) fn look(&self, registry: &Registry) {
        self.tell_losses(registry);
        if let Some(pids) = self.stuck.look(&self.cgroup) {
            tracing::warn!(
                exec = self.id,
                sandbox = self.sandbox.id,
                ?pids,
                "waiting for processes that were killed and cannot end"
            );
        }
    }

    /// Returns once nothing runs in it.
    pub(super) async fn until_empty(&self, registry: &Registry) -> Result<(), CgroupError> {
        let mut moments = interval();
        let empty = self.cgroup.wait_empty();
        tokio::pin!(empty);
        loop {
            tokio::select! {
                result = &mut empty => return result,
                _ = moments.tick() => self.look(registry),
            }
        }
    }

    /// Why it was killed, if it was.
    pub fn cause(&self) -> Option<Cause> {
        *self.cause.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its first process; 0 before it is started.
    pub fn pid(&self) -> u32 {
        self.pid.load(Ordering::Relaxed)
    }

    pub(super) fn set_pid(&self, pid: u32) {
        self.pid.store(pid, Ordering::Relaxed);
    }

    /// Its cgroup's id.
    pub fn cgroup_id(&self) -> u64 {
        self.cgroup.id()
    }

    /// What it was refused, by the kernel and by the proxy.
    pub fn counters(&self, enforcer: &dyn Enforcer) -> Counters {
        let (recorded, told) = (enforcer.counters(self.cgroup.id()), self.scope.told());
        Counters {
            denied: recorded.denied + told.denied,
            emitted: recorded.emitted + told.emitted,
            limited: recorded.limited + told.limited,
            ..recorded
        }
    }

    /// Its cgroup.
    pub(super) fn cgroup(&self) -> &Cgroup {
        &self.cgroup
    }

    /// Returns when it has ended.
    pub async fn ended(&self) -> Ending {
        let mut ended = self.ended.subscribe();
        // The sender lives as long as `self`.
        match ended.wait_for(Option::is_some).await {
            Ok(ending) => ending.unwrap_or_default(),
            Err(_) => Ending::default(),
        }
    }

    /// Tells subscribers what was lost since the last time.
    pub(super) fn tell_losses(&self, registry: &Registry) {
        let counters = self.counters(registry.enforcer());
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let (limited, dropped) = (
            counters.limited.saturating_sub(told.limited),
            counters.dropped.saturating_sub(told.dropped),
        );
        told.limited += limited;
        told.dropped += dropped;
        let (events, owner) = (registry.events(), self.scope.owner());
        events.lost(owner, LossReason::Rate, limited);
        events.lost(owner, LossReason::RingBuffer, dropped);
        events.tell_untold(&self.scope);
    }

    /// Ends it: nothing of it survives, every refusal has been told or is
    /// counted as lost, its cgroup is gone.
    pub(super) async fn end(&self, registry: &Registry) -> Ending {
        let emptied = async {
            self.kill_all()?;
            Ok::<_, SandboxError>(self.until_empty(registry).await?)
        };
        if let Err(error) = emptied.await {
            tracing::error!(exec = self.id, error = %Chain::of(&error), "cannot empty an exec's cgroup");
        }
        let usage = self.usage();
        let recorded = registry.enforcer().counters(self.cgroup.id()).emitted;
        let missing = self.scope.drained(recorded, DRAIN).await;
        registry.egress().drain(self.sandbox.cgroup.id()).await;
        let counters = self.counters(registry.enforcer());
        if missing > 0 {
            tracing::error!(exec = self.id, missing, "events did not arrive");
        }
        registry.events().finish(self.cgroup.id());
        self.tell_losses(registry);
        let owner = self.scope.owner();
        registry
            .events()
            .lost(owner, LossReason::RingBuffer, missing);
        let ending = Ending {
            denied: counters.denied,
            lost: counters.limited + counters.dropped + missing,
            usage,
        };
        registry.enforcer().unwatch_exec(self.cgroup.id());
        let removed = async {
            self.sandbox
                .cgroup
                .open_child(&self.id)?
                .remove_tree()
                .await
        };
        if let Err(error) = removed.await {
            tracing::error!(exec = self.id, error = %Chain::of(&error), "cannot remove an exec's cgroup");
        }
        registry.remove_exec(&self.id, &counters);
        let mut state = self.sandbox.lock();
        state.execs.retain(|exec| exec.id != self.id);
        state.idle_since = Instant::now();
        state.denied += ending.denied;
        state.lost += ending.lost;
        drop(state);
        if self.stays
            && let Err(error) = registry.save(&self.sandbox)
        {
            tracing::error!(exec = self.id, error = %Chain::of(&error), "cannot strike off an exec");
        }
        self.ended.send_replace(Some(ending));
        registry.idle_changed();
        ending
    }

    /// What it took, now that nothing runs in it.
    fn usage(&self) -> Usage {
        let of_sandbox = usage::exhausted(&self.sandbox.cgroup);
        let exhausted =
            usage::exhausted(&self.cgroup) + of_sandbox.saturating_sub(self.exhausted_before);
        if let Some(cause) = usage::out_of_memory(&self.cgroup, exhausted) {
            self.note(cause);
        }
        let mut usage = Usage::of(&self.cgroup);
        // Where the sandbox's own limit was reached and not the same one of this
        // exec (Linux 6.11): those of others at the same time are among them.
        if self.sandbox.limits().pids.is_some() {
            let refused = usage::refused(&self.sandbox.cgroup);
            usage.refused_forks += refused.saturating_sub(self.refused_before);
        }
        usage
    }
}

/// Sets what the kernel holds each exec to by itself. The limits are the sandbox's;
/// an exec alone has the same ones, so that it is the one that dies of them, and so
/// that its own cgroup counts what was refused, and no more than it had.
fn bound_exec(cgroup: &Cgroup, from: &Limits, to: &Limits) -> Result<(), CgroupError> {
    let bounds = |limits: &Limits| Bounds {
        memory: limits.memory,
        cpu_millis: None,
        pids: limits.pids,
    };
    cgroup.bound(&bounds(from), &bounds(to))
}

/// The moments to look at an exec.
pub(super) fn interval() -> Interval {
    let mut interval = tokio::time::interval(LOOK);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}
