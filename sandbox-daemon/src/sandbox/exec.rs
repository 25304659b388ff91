//! One exec: a child cgroup of a sandbox's, from before its first process
//! until after its last refusal was told.

use std::{
    fs::File,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, SystemTime},
};

use sandbox_common::Counters;
use tokio::sync::watch;

use super::{Enforcer, Registry, Sandbox, SandboxError, quota::Share, shelf::SavedExec};
use crate::{
    cgroup::Cgroup,
    chain::Chain,
    events::{Filter, LossReason, Mounts, Owner, Scope, SharedMounts, Subscription},
};

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
    _share: Share,
}

/// How a command came into a sandbox.
pub(super) enum Kind {
    /// It was started there.
    Run,
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
    /// It wrote more than `output`.
    Output,
    /// The time of its sandbox was up.
    SandboxTimeout,
}

/// What became of an exec's refusals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ending {
    /// All of them.
    pub denied: u64,
    /// Those without an event.
    pub lost: u64,
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
        registry.enforcer().watch_exec(cgroup.id())?;
        let owner = Owner {
            uid: sandbox.account.uid,
            sandbox: sandbox.id.clone(),
            exec: id.clone(),
        };
        let (enrolled, stays, mounts) = match kind {
            Kind::Run => (false, false, sandbox.mounts.clone()),
            Kind::Enrolled { stays, mounts } => (true, stays, mounts),
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
        let mut first = self.cause.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(cause);
        Ok(self.cgroup.kill()?)
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
            self.cgroup.kill()?;
            self.cgroup.wait_empty().await
        };
        if let Err(error) = emptied.await {
            tracing::error!(exec = self.id, error = %Chain::of(&error), "cannot empty an exec's cgroup");
        }
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
        state.idle_since = std::time::Instant::now();
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
}
