//! Making sandboxes, and putting policies in force for them.

use std::{
    collections::{BTreeSet, VecDeque},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Instant, SystemTime},
};

use tokio::sync::watch;

use super::{
    Enforcer, Installation, PolicySource, SandboxError, Spec,
    known::Known,
    lately::{Lately, Question, Resolved},
    policies::{Loaded, Policies},
    quota::Share,
    sandbox::{Applied, Held, InForce, Sandbox, State, bounds},
    watches::ToWatch,
};
use crate::{
    cgroup::{Bounds, Cgroup},
    chain::Chain,
    egress::{Egress, Identity},
    events::{Mounts, Rules},
    kernel::Compiled,
    launch::{
        Account, Ephemeral, LaunchError, PRIVATE_PLACES, View, ViewSpec, cache_dir, cache_path,
        open_workspace,
    },
    policy::{Access, Additions, Expansion, FileRule, OWN, Place, Policy, WorkspaceMode},
    steps,
    sys::Mount,
};

/// What sandboxes are made with.
pub(super) struct Ground {
    pub(super) enforcer: Arc<dyn Enforcer>,
    pub(super) egress: Arc<Egress>,
    pub(super) policies: Policies,
    pub(super) lately: Lately,
    pub(super) known: Known,
    pub(super) cache_directory: PathBuf,
    pub(super) epoch: String,
}

/// What one sandbox is made of.
pub(super) struct Parts {
    pub(super) id: String,
    pub(super) spec: Spec,
    pub(super) account: Account,
    pub(super) cgroup: Cgroup,
    pub(super) generation: u32,
    pub(super) one_shot: bool,
    pub(super) created: SystemTime,
    pub(super) share: Share,
}

impl Ground {
    /// Makes a sandbox in a cgroup that is there. If it fails, the cgroup is
    /// the caller's to remove; nothing else is left.
    pub(super) fn build(&self, parts: Parts) -> Result<(Sandbox, ToWatch), SandboxError> {
        let account = parts.account;
        let workspace = parts
            .spec
            .workspace
            .as_deref()
            .map(|path| open_workspace(&account, path))
            .transpose()?;
        let source = parts.spec.policy.clone();
        let resolved = self.resolve(&source, &account, workspace.as_deref())?;
        let policy = resolved.policy.clone();
        steps::done("resolved");
        // Before anything is made: this host may not have what they need.
        let limits = parts.spec.limits.or(policy.limits);
        parts.cgroup.bound(&Bounds::default(), &bounds(&limits))?;
        let cache = self.make_cache(&policy, &account, workspace.as_deref())?;
        let ephemeral = ephemeral(&parts.spec, &policy, workspace.as_deref())?;
        let effective = resolved.effective(ephemeral.is_some());
        let given = self.known.give(&effective, &parts.id);
        let keep = given
            .as_ref()
            .map_or(&resolved.granted, |given| &given.keep);
        let view = View::new(ViewSpec {
            account: account.clone(),
            keep: keep.clone(),
            private_places: true,
            ephemeral,
        })?;
        let mounts = view
            .call(|| std::fs::File::open("/proc/thread-self/mountinfo").and_then(Mounts::new))
            .map_err(LaunchError::Mounts)?;
        steps::done("viewed");
        let rules = Arc::new(Rules::default());
        name_rules(&rules, parts.generation, &resolved);
        let identity = Identity {
            id: parts.id.clone(),
            uid: account.uid,
        };
        self.egress
            .put(parts.cgroup.id(), &identity, &policy, parts.generation)?;
        let attempt = self.known.attempt(&effective);
        let applied = self.apply(Application {
            sandbox: parts.cgroup.id(),
            policy: &effective,
            view: &view,
            mounts: mounts.list().to_vec(),
            generation: parts.generation,
            own: None,
            known: given.as_ref().map(|given| &given.compiled),
        });
        let (applied, watches, compiled) = applied.inspect_err(|_| {
            self.egress.forget(parts.cgroup.id());
        })?;
        steps::done("ruled");
        if let Some(compiled) = compiled {
            self.known.learn(attempt, &effective, &resolved, compiled);
        }
        let in_force = InForce {
            policy,
            source,
            etag: self.etag(parts.generation),
            cache,
        };
        let sandbox = Sandbox {
            id: parts.id,
            spec: parts.spec,
            account,
            workspace,
            created: parts.created,
            begun: Instant::now()
                .checked_sub(parts.created.elapsed().unwrap_or_default())
                .unwrap_or_else(Instant::now),
            one_shot: parts.one_shot,
            cgroup: parts.cgroup,
            view: Held(Some(view)),
            mounts: Arc::new(Mutex::new(mounts)),
            rules,
            state: Mutex::new(State {
                policy: Arc::new(in_force),
                execs: Vec::new(),
                jobs: VecDeque::new(),
                idle_since: Instant::now(),
                denied: 0,
                lost: 0,
                closing: false,
                applied,
            }),
            updating: tokio::sync::Mutex::new(()),
            changes: Arc::default(),
            gone: watch::Sender::new(false),
            _share: parts.share,
        };
        Ok((sandbox, watches))
    }

    /// Looks a policy's places up and puts it in force.
    fn apply(&self, application: Application<'_>) -> Result<Outcome, SandboxError> {
        let Application {
            sandbox,
            policy,
            view,
            mounts,
            generation,
            own,
            known,
        } = application;
        let installed = self.enforcer.install(&Installation {
            sandbox,
            policy,
            view,
            mounts: &mounts,
            generation,
            own,
            known,
        })?;
        let applied = Applied {
            policy: policy.clone(),
            generation,
            mounts,
            own: installed.own,
        };
        let watches = ToWatch {
            watches: installed.watches,
            stays: installed.renewed,
        };
        Ok((applied, watches, installed.compiled))
    }

    /// Looks the places of the policy in force up again, because one may have
    /// become another, or if the mounts did; none: they did not.
    pub(super) fn reapply(
        &self,
        sandbox: &Sandbox,
        places: bool,
    ) -> Result<Option<ToWatch>, SandboxError> {
        let (policy, generation, own) = {
            let state = sandbox.lock();
            let applied = &state.applied;
            let (policy, own) = (applied.policy.clone(), applied.own.clone());
            (policy, applied.generation, own)
        };
        if !places && sandbox.view.mounts()? == sandbox.lock().applied.mounts {
            return Ok(None);
        }
        let (applied, watches, _) = self.apply(Application {
            sandbox: sandbox.cgroup.id(),
            policy: &policy,
            view: &sandbox.view,
            // What changes later is told of.
            mounts: sandbox.view.mounts()?,
            generation,
            own: Some(&own),
            known: None,
        })?;
        sandbox.lock().applied = applied;
        let mut mounts = sandbox
            .mounts
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        mounts.refresh().map_err(LaunchError::Mounts)?;
        Ok(Some(watches))
    }

    /// Puts another policy in force.
    pub(super) fn update(
        &self,
        sandbox: &Sandbox,
        source: PolicySource,
        generation: u32,
    ) -> Result<ToWatch, SandboxError> {
        let account = &sandbox.account;
        let workspace = sandbox.workspace.as_deref();
        let resolved = self.resolve(&source, account, workspace)?;
        let policy = resolved.policy.clone();
        let mode = sandbox.spec.workspace_mode.unwrap_or(policy.workspace_mode);
        if mode != sandbox.workspace_mode() {
            let problem = "has another workspace mode, which a running sandbox keeps";
            return Err(SandboxError::invalid("policy", problem));
        }
        let cache = self.make_cache(&policy, account, workspace)?;
        // Before the first record of this generation can come.
        name_rules(&sandbox.rules, generation, &resolved);
        let id = sandbox.cgroup.id();
        let identity = Identity {
            id: sandbox.id.clone(),
            uid: account.uid,
        };
        let mounts = sandbox.view.mounts()?;
        let limits = sandbox.spec.limits.or(policy.limits);
        let limits_before = sandbox.limits();
        sandbox.bound(&limits_before, &limits)?;
        let back = |_: &SandboxError| {
            if let Err(error) = sandbox.bound(&limits, &limits_before) {
                tracing::error!(sandbox = sandbox.id, error = %Chain::of(&error), "cannot set limits back");
            }
        };
        let earlier = self.egress.put(id, &identity, &policy, generation);
        let earlier = earlier.map_err(SandboxError::from).inspect_err(back)?;
        let applied = self.apply(Application {
            sandbox: id,
            policy: &resolved.effective(sandbox.view.layers().is_some()),
            view: &sandbox.view,
            mounts,
            generation,
            own: None,
            known: None,
        });
        // All of a policy, or nothing of it.
        let (applied, watches, _) = applied
            .inspect_err(|_| self.egress.restore(id, earlier))
            .inspect_err(back)?;
        let mut state = sandbox.lock();
        state.policy = Arc::new(InForce {
            policy,
            source,
            etag: self.etag(generation),
            cache,
        });
        state.applied = applied;
        drop(state);
        for exec in sandbox.execs() {
            exec.rebound(&limits_before, &limits);
        }
        Ok(watches)
    }

    /// Parses a policy for a user and a workspace, or remembers what it came to.
    pub(super) fn resolve(
        &self,
        source: &PolicySource,
        account: &Account,
        workspace: Option<&Path>,
    ) -> Result<Arc<Resolved>, SandboxError> {
        let question = Question {
            source: source.clone(),
            uid: account.uid,
            home: account.home.clone(),
            workspace: workspace.map(Path::to_path_buf),
            trust: self.egress.trust_directory().map(Path::to_path_buf),
        };
        if let Some(resolved) = self.lately.find(&question) {
            return Ok(resolved);
        }
        let Loaded {
            document,
            file,
            looked,
        } = self.policies.load(source)?;
        let expansion = Expansion {
            home: account.home.clone(),
            workspace: workspace.map(Path::to_path_buf),
            tmp: PRIVATE_PLACES.iter().map(PathBuf::from).collect(),
            cache: cache_path(&self.cache_directory, account.uid, workspace),
        };
        let additions = Additions {
            read: source.extra_read.clone(),
            write: source.extra_write.clone(),
            origin: file,
            state: Some(self.egress.secrets().state().to_path_buf()),
        };
        let mut policy = document
            .resolve(&expansion, &additions)
            .map_err(SandboxError::Policy)?;
        if !policy.credentials.is_empty()
            && let Some(directory) = &question.trust
        {
            // Programs have to see whose certificates they should believe.
            policy.files.push(FileRule {
                place: Place::Path(directory.clone()),
                access: Access::Read,
                label: OWN.to_owned(),
            });
        }
        let labels = policy.files.iter().map(|rule| rule.label.as_str().into());
        let resolved = Arc::new(Resolved {
            labels: labels.collect(),
            granted: granted(&policy, workspace),
            policy: Arc::new(policy),
            ephemeral: OnceLock::new(),
            warnings: document.warnings().clone(),
        });
        self.lately.keep(question, looked, &resolved);
        Ok(resolved)
    }

    /// Makes `${cache}` if the policy grants it.
    fn make_cache(
        &self,
        policy: &Policy,
        account: &Account,
        workspace: Option<&Path>,
    ) -> Result<Option<PathBuf>, SandboxError> {
        let cache = cache_path(&self.cache_directory, account.uid, workspace);
        let granted = policy.files.iter().any(|rule| {
            rule.access == Access::Write
                && matches!(&rule.place, Place::Path(path) if path.starts_with(&cache))
        });
        if !granted {
            return Ok(None);
        }
        Ok(Some(cache_dir(&self.cache_directory, account, workspace)?))
    }

    fn etag(&self, generation: u32) -> String {
        format!("{}-{generation}", self.epoch)
    }
}

/// A policy that is to be put in force.
struct Application<'a> {
    sandbox: u64,
    policy: &'a Arc<Policy>,
    view: &'a View,
    /// The view's.
    mounts: Vec<Mount>,
    generation: u32,
    /// See [`Installation::own`].
    own: Option<&'a BTreeSet<u32>>,
    known: Option<&'a Arc<Compiled>>,
}

/// And what it came to, where that is new.
type Outcome = (Applied, ToWatch, Option<Arc<Compiled>>);

/// The workspace that an overlay is laid over; none: it is worked in directly.
fn ephemeral(
    spec: &Spec,
    policy: &Policy,
    workspace: Option<&Path>,
) -> Result<Option<Ephemeral>, SandboxError> {
    if spec.workspace_mode.unwrap_or(policy.workspace_mode) == WorkspaceMode::Direct {
        return Ok(None);
    }
    let Some(workspace) = workspace else {
        let problem = "is missing: without a workspace nothing can be ephemeral";
        return Err(SandboxError::invalid("workspace", problem));
    };
    Ok(Some(Ephemeral {
        workspace: workspace.to_owned(),
        disk: spec.limits.or(policy.limits).disk,
    }))
}

/// Places that have to be seen inside although they are below a directory
/// that is private there.
fn granted(policy: &Policy, workspace: Option<&Path>) -> Vec<PathBuf> {
    let granted = |access: Access| {
        let rules = policy.files.iter();
        rules.filter_map(move |rule| match &rule.place {
            Place::Path(path) if rule.access == access => Some(path.as_path()),
            _ => None,
        })
    };
    // What is below one that may be written comes with it; if it does not, it
    // is a link, and perhaps the sandbox's own.
    let doubtful: Vec<&Path> = granted(Access::Write)
        .chain(workspace)
        .filter(|path| path.parent().is_some())
        .filter(|path| !PRIVATE_PLACES.iter().any(|place| Path::new(place) == *path))
        .collect();
    let within = |path: &Path| {
        let mut above = path.ancestors().skip(1);
        above.any(|above| doubtful.contains(&above))
    };
    [Access::Read, Access::Write]
        .into_iter()
        .flat_map(granted)
        .chain(workspace)
        .filter(|path| !within(path))
        .map(Path::to_path_buf)
        .collect()
}

fn name_rules(rules: &Rules, generation: u32, resolved: &Resolved) {
    let Resolved { policy, labels, .. } = resolved;
    let network = format!("network {}", policy.network.mode.as_str());
    rules.put(generation, &policy.digest, &network, labels.clone());
}
