//! All sandboxes: made, found, changed, removed. Who may see which is decided
//! here; another user's do not exist.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::SystemTime,
};

use sandbox_common::Counters;
use tokio::sync::{Notify, OnceCell};

use super::{
    Caller, Enforcer, EnforcerState, Exec, PolicySource, Sandbox, SandboxError, Spec,
    ground::{Ground, Parts},
    jobs::Jobs,
    known::Known,
    lately::Lately,
    policies::Policies,
    quota::{Kind, Share, Usage},
    shelf::Shelf,
    watches::{ToWatch, Watches},
};
use crate::{
    cgroup::{Cgroup, CgroupError, Slice},
    chain::Chain,
    config::Config,
    egress::{Egress, Report},
    events::{Events, Owner, Scope},
    launch::Account,
    policy::{Diagnostics, Policy},
    steps,
};

/// All sandboxes of one daemon.
pub struct Registry {
    ground: Arc<Ground>,
    events: Arc<Events>,
    slice: Arc<Slice>,
    usage: Arc<Usage>,
    jobs: Jobs,
    shelf: Shelf,
    watches: Arc<Watches>,
    generation: AtomicU32,
    inner: Mutex<Inner>,
    /// A deadline of an idle sandbox may have changed.
    idle: Notify,
    closing: AtomicBool,
}

#[derive(Default)]
struct Inner {
    sandboxes: HashMap<String, Arc<Sandbox>>,
    execs: HashMap<String, Arc<Exec>>,
    requests: HashMap<(u32, String), Arc<Request>>,
    /// Of execs that have ended.
    ended: Counted,
}

/// Refusals since the daemon started.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    /// All of them.
    pub denied: u64,
    /// Those with an event.
    pub emitted: u64,
    /// Those without.
    pub lost: u64,
}

impl Counted {
    fn add(&mut self, counters: &Counters) {
        self.denied += counters.denied;
        self.emitted += counters.emitted;
        self.lost += counters.limited + counters.dropped;
    }
}

/// How things are.
pub struct Info {
    /// What is loaded.
    pub enforcer: EnforcerState,
    /// How many there are.
    pub sandboxes: usize,
    /// How many run.
    pub execs: usize,
    /// What they were refused.
    pub counted: Counted,
    /// Why the proxy does not run; none: it does.
    pub proxy_trouble: Option<String>,
}

/// A `CreateSandbox` with a request id.
struct Request {
    spec: Spec,
    made: OnceCell<Arc<Sandbox>>,
}

impl Registry {
    /// No sandboxes.
    #[must_use]
    pub fn new(
        config: &Config,
        slice: Slice,
        enforcer: Arc<dyn Enforcer>,
        egress: Arc<Egress>,
        events: Arc<Events>,
    ) -> Arc<Self> {
        let watches = Arc::new(Watches::new());
        Arc::new(Self {
            ground: Arc::new(Ground {
                enforcer,
                egress,
                policies: Policies::new(config),
                lately: Lately::default(),
                known: Known::new(watches.clone()),
                cache_directory: config.cache_directory.clone(),
                epoch: events.journal().epoch().to_owned(),
            }),
            events,
            slice: Arc::new(slice),
            usage: Usage::new(config.quotas),
            jobs: Jobs::new(config.quotas.log_bytes()),
            shelf: Shelf::new(config.runtime_directory()),
            watches,
            // Records of an earlier daemon's policies are not of this one's.
            generation: AtomicU32::new(super::random_generation()),
            inner: Mutex::default(),
            idle: Notify::new(),
            closing: AtomicBool::new(false),
        })
    }

    /// Makes a sandbox; the same `request_id` again gives the same one.
    pub async fn create(
        self: &Arc<Self>,
        caller: &Caller,
        spec: Spec,
        request_id: &str,
    ) -> Result<Arc<Sandbox>, SandboxError> {
        if request_id.is_empty() {
            return self.make(caller, spec, false).await;
        }
        if request_id.len() > 128 {
            return Err(SandboxError::invalid(
                "request_id",
                "must be at most 128 bytes",
            ));
        }
        let key = (caller.uid, request_id.to_owned());
        let request = self
            .lock()
            .requests
            .entry(key.clone())
            .or_insert_with(|| {
                Arc::new(Request {
                    spec: spec.clone(),
                    made: OnceCell::new(),
                })
            })
            .clone();
        if request.spec != spec {
            return Err(SandboxError::RequestReused(request_id.into()));
        }
        let made = request
            .made
            .get_or_try_init(|| self.make(caller, spec, false))
            .await
            .cloned();
        let mut inner = self.lock();
        // Forgotten with its sandbox, and at once if there is none.
        let forget = match &made {
            Ok(sandbox) => !inner.sandboxes.contains_key(&sandbox.id),
            Err(_) => request.made.get().is_none(),
        };
        if forget {
            inner.requests.remove(&key);
        }
        made
    }

    /// Makes a sandbox, and leaves nothing if it fails.
    pub(super) async fn make(
        self: &Arc<Self>,
        caller: &Caller,
        spec: Spec,
        one_shot: bool,
    ) -> Result<Arc<Sandbox>, SandboxError> {
        spec.check()?;
        let uid = spec.uid.unwrap_or(caller.uid);
        if !caller.sees(uid) {
            return Err(SandboxError::ForeignUid(uid));
        }
        let share = self.usage.take(uid, Kind::Sandbox)?;
        let (registry, caller) = (self.clone(), caller.clone());
        // To its end even if the caller goes away, so that nothing is left
        // half made.
        let made = tokio::task::spawn_blocking(move || {
            let account = caller.account(uid)?;
            let id = super::new_id();
            let cgroup = registry.slice.create(&id)?;
            steps::done("placed");
            let litter = Litter::new(registry.clone(), &cgroup);
            let sandbox = registry.build(Parts {
                id,
                spec,
                account,
                cgroup,
                generation: registry.next_generation(),
                one_shot,
                created: SystemTime::now(),
                share,
            })?;
            litter.keep();
            Ok(sandbox)
        });
        flatten(made.await)
    }

    /// Makes a sandbox in a cgroup that is the caller's to remove if it fails.
    pub(super) fn build(self: &Arc<Self>, parts: Parts) -> Result<Arc<Sandbox>, SandboxError> {
        let id = parts.id.clone();
        // It may have been given what another one's policy came to.
        let built = self.try_build(parts);
        built.inspect_err(|_| self.watches.forget(&id))
    }

    fn try_build(self: &Arc<Self>, parts: Parts) -> Result<Arc<Sandbox>, SandboxError> {
        let (sandbox, watches) = self.ground.build(parts)?;
        let owner = Owner {
            uid: sandbox.account.uid,
            sandbox: sandbox.id.clone(),
            exec: String::new(),
        };
        let sandbox = Arc::new(sandbox);
        let mut inner = self.lock();
        if self.closing.load(Ordering::Acquire) {
            return Err(SandboxError::ShuttingDown);
        }
        let scope = Scope::new(owner, sandbox.rules.clone(), sandbox.mounts.clone());
        self.events.expect(sandbox.cgroup.id(), scope);
        inner.sandboxes.insert(sandbox.id.clone(), sandbox.clone());
        drop(inner);
        self.idle.notify_one();
        self.watch(&sandbox, watches);
        Ok(sandbox)
    }

    /// A sandbox that the caller may see.
    pub fn get(&self, caller: &Caller, id: &str) -> Result<Arc<Sandbox>, SandboxError> {
        self.lock()
            .sandboxes
            .get(id)
            .filter(|sandbox| caller.sees(sandbox.account.uid))
            .cloned()
            .ok_or_else(|| SandboxError::NoSandbox(id.into()))
    }

    /// A running exec that the caller may see.
    pub fn get_exec(&self, caller: &Caller, id: &str) -> Result<Arc<Exec>, SandboxError> {
        self.lock()
            .execs
            .get(id)
            .filter(|exec| caller.sees(exec.sandbox.account.uid))
            .cloned()
            .ok_or_else(|| SandboxError::NoExec(id.into()))
    }

    /// All that the caller may see, the oldest first.
    pub fn list(&self, caller: &Caller) -> Vec<Arc<Sandbox>> {
        let mut sandboxes: Vec<_> = self
            .lock()
            .sandboxes
            .values()
            .filter(|sandbox| caller.sees(sandbox.account.uid))
            .cloned()
            .collect();
        sandboxes.sort_by(|one, other| (one.created, &one.id).cmp(&(other.created, &other.id)));
        sandboxes
    }

    /// Puts another policy in force.
    pub async fn update(
        self: &Arc<Self>,
        caller: &Caller,
        id: &str,
        source: PolicySource,
        etag: &str,
    ) -> Result<Arc<Sandbox>, SandboxError> {
        let sandbox = self.get(caller, id)?;
        let registry = self.clone();
        let etag = etag.to_owned();
        let update = tokio::spawn(async move {
            let updating = sandbox.updating.lock().await;
            let current = sandbox.policy().etag.clone();
            if !etag.is_empty() && etag != current {
                return Err(SandboxError::Etag {
                    id: sandbox.id.clone(),
                    asked: etag,
                    current,
                });
            }
            if sandbox.lock().closing {
                return Err(SandboxError::Closing(sandbox.id.clone()));
            }
            let generation = registry.next_generation();
            let (ground, target) = (registry.ground.clone(), sandbox.clone());
            let updated =
                tokio::task::spawn_blocking(move || ground.update(&target, source, generation));
            let watches = flatten(updated.await)?;
            registry.watch(&sandbox, watches);
            // A later daemon must not fall back to the policy before.
            registry.save(&sandbox)?;
            drop(updating);
            // Its time may be another one.
            registry.idle_changed();
            Ok(sandbox)
        });
        flatten(update.await)
    }

    /// Parses and resolves a policy without applying it. Without a workspace
    /// `${workspace}` stands for a directory that need not exist.
    pub async fn check(
        self: &Arc<Self>,
        caller: &Caller,
        source: PolicySource,
        workspace: Option<std::path::PathBuf>,
    ) -> Result<(Policy, Diagnostics), SandboxError> {
        Spec {
            policy: source.clone(),
            workspace: workspace.clone(),
            ..Spec::default()
        }
        .check()?;
        let (ground, caller) = (self.ground.clone(), caller.clone());
        let checked = tokio::task::spawn_blocking(move || {
            let account = caller.account(caller.uid)?;
            let workspace = workspace.unwrap_or_else(|| "/workspace".into());
            let resolved = ground.resolve(&source, &account, Some(&workspace))?;
            Ok(((*resolved.policy).clone(), resolved.warnings.clone()))
        });
        flatten(checked.await)
    }

    /// Whether the caller may call at all.
    pub fn may_call(&self, caller: &Caller) -> Result<(), SandboxError> {
        let Some(peer) = &caller.peer else {
            return Ok(());
        };
        match peer.sandbox(&self.slice)? {
            Some(sandbox) => Err(SandboxError::InSandbox(sandbox)),
            None => Ok(()),
        }
    }

    /// The cgroup that holds every sandbox.
    pub fn slice(&self) -> &Slice {
        &self.slice
    }

    /// Where refusals go.
    pub fn events(&self) -> &Events {
        &self.events
    }

    /// What carries policies out.
    pub fn enforcer(&self) -> &dyn Enforcer {
        &*self.ground.enforcer
    }

    /// The way out.
    pub fn egress(&self) -> &Egress {
        &self.ground.egress
    }

    /// What went out of a sandbox that the caller may see, or saw it end.
    pub async fn traffic(&self, caller: &Caller, id: &str) -> Result<Report, SandboxError> {
        if let Ok(sandbox) = self.get(caller, id) {
            self.egress().drain(sandbox.cgroup.id()).await;
        }
        let found = self.egress().report(id);
        match found.filter(|(identity, _)| caller.sees(identity.uid)) {
            Some((_, report)) => Ok(report),
            // One whose way out is not the proxy.
            None => self.get(caller, id).map(|_| Report::default()),
        }
    }

    /// How things are.
    pub fn info(&self) -> Info {
        let inner = self.lock();
        let mut counted = inner.ended;
        for exec in inner.execs.values() {
            counted.add(&exec.counters(self.enforcer()));
        }
        Info {
            enforcer: self.enforcer().state(),
            sandboxes: inner.sandboxes.len(),
            execs: inner.execs.len(),
            counted,
            proxy_trouble: self.egress().trouble(),
        }
    }

    /// One more open stream of a user.
    pub fn share_stream(&self, uid: u32) -> Result<Share, SandboxError> {
        if self.closing.load(Ordering::Acquire) {
            return Err(SandboxError::ShuttingDown);
        }
        self.usage.take(uid, Kind::Stream)
    }

    /// One more connection of a user.
    pub fn share_connection(&self, uid: u32) -> Result<Share, SandboxError> {
        self.usage.take(uid, Kind::Connection)
    }

    pub(super) fn share_exec(&self, uid: u32) -> Result<Share, SandboxError> {
        self.usage.take(uid, Kind::Exec)
    }

    pub(super) fn jobs(&self) -> &Jobs {
        &self.jobs
    }

    pub(super) fn add_exec(&self, exec: &Arc<Exec>) {
        self.lock().execs.insert(exec.id.clone(), exec.clone());
    }

    pub(super) fn remove_exec(&self, id: &str, counters: &Counters) {
        let mut inner = self.lock();
        inner.execs.remove(id);
        inner.ended.add(counters);
    }

    pub(super) fn idle_changed(&self) {
        self.idle.notify_one();
    }

    /// Returns when a deadline of an idle sandbox may have changed.
    pub(super) async fn until_idle_changes(&self) {
        self.idle.notified().await;
    }

    /// From now on nothing is made and nothing begins.
    pub(super) fn close(&self) {
        // Under the lock: what is made now is either seen or refused.
        let _inner = self.lock();
        self.closing.store(true, Ordering::Release);
    }

    /// Takes a sandbox that is gone off the list.
    pub(super) fn forget(&self, id: &str) {
        let mut inner = self.lock();
        inner.sandboxes.remove(id);
        inner
            .requests
            .retain(|_, request| request.made.get().is_none_or(|made| made.id != id));
        drop(inner);
        self.watches.forget(id);
    }

    /// A sandbox that is there, and perhaps closing.
    pub(super) fn find(&self, id: &str) -> Option<Arc<Sandbox>> {
        self.lock().sandboxes.get(id).cloned()
    }

    /// What sandboxes are made with.
    pub(super) fn ground(&self) -> &Arc<Ground> {
        &self.ground
    }

    /// What changes policies' places.
    pub(super) fn watches(&self) -> &Arc<Watches> {
        &self.watches
    }

    /// Watches what would make the rules of a sandbox others. Does not wait for
    /// that: meanwhile nothing is open that should not be.
    pub(super) fn watch(self: &Arc<Self>, sandbox: &Sandbox, watches: ToWatch) {
        let (registry, id) = (self.clone(), sandbox.id.clone());
        let turn = self.watches.turn();
        tokio::task::spawn_blocking(move || {
            registry.watches.place(&id, turn, watches);
            if registry.find(&id).is_none() {
                registry.watches.forget(&id);
            }
        });
    }

    pub(super) fn sandboxes(&self) -> Vec<Arc<Sandbox>> {
        self.lock().sandboxes.values().cloned().collect()
    }

    pub(super) fn share_sandbox(&self, uid: u32) -> Result<Share, SandboxError> {
        self.usage.take(uid, Kind::Sandbox)
    }

    /// Where sandboxes are written down.
    pub(super) fn shelf(&self) -> &Shelf {
        &self.shelf
    }

    pub(super) fn next_generation(&self) -> u32 {
        self.generation.fetch_add(1, Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A cgroup that is removed again unless the sandbox in it comes to be.
struct Litter {
    registry: Arc<Registry>,
    id: u64,
    path: Option<std::path::PathBuf>,
}

impl Litter {
    fn new(registry: Arc<Registry>, cgroup: &Cgroup) -> Self {
        Self {
            registry,
            id: cgroup.id(),
            path: Some(cgroup.path().to_path_buf()),
        }
    }

    fn keep(mut self) {
        self.path = None;
    }
}

impl Drop for Litter {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // Nothing ever ran in it.
            if let Err(source) = std::fs::remove_dir(path) {
                let path = path.clone();
                tracing::error!(error = %CgroupError::Remove { path, source }, "litter");
            }
            self.registry.ground.enforcer.remove(self.id);
        }
    }
}

/// A task's result; that it panicked is in the log.
pub(super) fn flatten<T>(
    joined: Result<Result<T, SandboxError>, tokio::task::JoinError>,
) -> Result<T, SandboxError> {
    joined.unwrap_or_else(|error| {
        tracing::error!(error = %Chain::of(&error), "a request panicked");
        Err(SandboxError::Internal)
    })
}

impl Caller {
    /// The account of a user that the caller may act for. Its own has the
    /// groups that the caller has now.
    pub(super) fn account(&self, uid: u32) -> Result<Account, SandboxError> {
        match &self.peer {
            Some(peer) if peer.uid() == uid => Ok(Account::of_peer(peer)?),
            _ => Ok(Account::by_uid(uid)?),
        }
    }
}
