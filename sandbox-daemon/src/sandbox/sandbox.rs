//! One sandbox: its cgroup, its view of the file system, the policy in force.

use std::{
    collections::{BTreeSet, VecDeque},
    ops::Deref,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant, SystemTime},
};

use tokio::sync::watch;

use super::{Enforcer, Exec, Job, PolicySource, SandboxError, Spec, quota::Share};
use crate::{
    cgroup::{Bounds, Cgroup},
    chain::Chain,
    events::{Rules, SharedMounts},
    launch::{Account, View},
    policy::{Limits, Policy, WorkspaceMode},
    sys::Mount,
    workspace,
};

/// A sandbox that is there.
pub struct Sandbox {
    /// 12 hexadecimal digits, also the name of its cgroup.
    pub id: String,
    /// As asked for.
    pub spec: Spec,
    /// Whose it is.
    pub account: Account,
    /// The real path of its workspace.
    pub workspace: Option<PathBuf>,
    /// Since when.
    pub created: SystemTime,
    /// Whether it dies with its only exec.
    pub one_shot: bool,
    /// The same as `created`, for a clock that nobody sets.
    pub(super) begun: Instant,
    pub(super) cgroup: Cgroup,
    pub(super) view: Held,
    pub(super) mounts: SharedMounts,
    pub(super) rules: Arc<Rules>,
    pub(super) state: Mutex<State>,
    /// One update at a time.
    pub(super) updating: tokio::sync::Mutex<()>,
    /// What was applied of an ephemeral workspace; one call at a time.
    pub(super) changes: Arc<tokio::sync::Mutex<workspace::Applied>>,
    pub(super) gone: watch::Sender<bool>,
    pub(super) _share: Share,
}

/// A view that ends on a thread of its own: its end waits for the launch
/// thread, and that one for the mounts, while whoever drops a sandbox has
/// other things to do.
pub(super) struct Held(pub(super) Option<View>);

impl Deref for Held {
    type Target = View;

    fn deref(&self) -> &View {
        self.0.as_ref().expect("it is there until it is dropped")
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let view = self.0.take();
        thread::spawn(move || drop(view));
    }
}

/// What of a sandbox changes.
pub(super) struct State {
    pub(super) policy: Arc<InForce>,
    pub(super) execs: Vec<Arc<Exec>>,
    /// Execs that were detached, also those that have ended; the oldest first.
    pub(super) jobs: VecDeque<Arc<Job>>,
    /// When the last exec ended; meaningless while there are execs.
    pub(super) idle_since: Instant,
    /// Of execs that have ended.
    pub(super) denied: u64,
    pub(super) lost: u64,
    pub(super) closing: bool,
    pub(super) applied: Applied,
}

/// How the policy in force was put in force.
pub(super) struct Applied {
    /// See [`super::lately::Resolved::effective`].
    pub(super) policy: Arc<Policy>,
    pub(super) generation: u32,
    /// The view's mounts then.
    pub(super) mounts: Vec<Mount>,
    /// See [`super::Installed::own`].
    pub(super) own: BTreeSet<u32>,
}

/// A policy in force.
pub struct InForce {
    /// What it says.
    pub policy: Arc<Policy>,
    /// Where it is from.
    pub source: PolicySource,
    /// Changes with every update.
    pub etag: String,
    /// `${cache}`, if it is granted.
    pub cache: Option<PathBuf>,
}

impl Sandbox {
    /// The policy in force.
    pub fn policy(&self) -> Arc<InForce> {
        self.lock().policy.clone()
    }

    /// Time and resources that it may take.
    pub fn limits(&self) -> Limits {
        self.spec.limits.or(self.policy().policy.limits)
    }

    /// Changes what the kernel holds it to: all of it or nothing.
    pub(super) fn bound(&self, from: &Limits, to: &Limits) -> Result<(), SandboxError> {
        let (from, to) = (bounds(from), bounds(to));
        let changed = self.cgroup.bound(&from, &to);
        if changed.is_err()
            && let Err(error) = self.cgroup.bound(&to, &from)
        {
            // What could not be set was not changed either.
            tracing::debug!(sandbox = self.id, error = %Chain::of(&error), "cannot set a limit back");
        }
        Ok(changed?)
    }

    /// When its time is up; none: never, or it is being removed.
    pub(super) fn times_out(&self) -> Option<Instant> {
        let timeout = self.limits().sandbox_timeout?;
        let closing = self.lock().closing;
        (!closing).then(|| self.begun + timeout)
    }

    /// What becomes of what it writes to its workspace. It is decided when the
    /// sandbox is made.
    pub fn workspace_mode(&self) -> WorkspaceMode {
        match self.view.layers() {
            Some(_) => WorkspaceMode::Ephemeral,
            None => WorkspaceMode::Direct,
        }
    }

    /// What runs in it.
    pub fn execs(&self) -> Vec<Arc<Exec>> {
        self.lock().execs.clone()
    }

    /// What was detached in it, also what has ended.
    pub fn jobs(&self) -> Vec<Arc<Job>> {
        self.lock().jobs.iter().cloned().collect()
    }

    /// When it is to be deleted, unless something is run in it until then or its
    /// time is up before; on the clock of the wall.
    pub fn expire_time(&self) -> Option<SystemTime> {
        let first = self.expires().into_iter().chain(self.times_out()).min()?;
        let left = first.saturating_duration_since(Instant::now());
        SystemTime::now().checked_add(left)
    }

    /// Refused and lost since it was made.
    pub fn counts(&self, enforcer: &dyn Enforcer) -> (u64, u64) {
        let state = self.lock();
        let mut counts = (state.denied, state.lost);
        for exec in &state.execs {
            let counters = exec.counters(enforcer);
            counts.0 += counters.denied;
            counts.1 += counters.limited + counters.dropped;
        }
        counts
    }

    /// When it is to be deleted unless something is run in it until then.
    pub(super) fn expires(&self) -> Option<Instant> {
        let state = self.lock();
        let idle = state.execs.is_empty() && !state.closing && !self.one_shot;
        let timeout: Duration = self.spec.idle_timeout;
        idle.then(|| state.idle_since + timeout)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn bounds(limits: &Limits) -> Bounds {
    Bounds {
        memory: limits.memory,
        cpu_millis: limits.cpu_millis,
        pids: limits.pids,
    }
}
