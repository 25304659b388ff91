//! What the registry needs of the kernel. A trait, so that everything above
//! it is tested on machines that refuse LSM programs.

use std::{
    collections::BTreeSet,
    error::Error,
    os::fd::{BorrowedFd, OwnedFd},
    sync::Arc,
};

use sandbox_common::{Counters, Entrances};

use crate::{
    kernel::{Compiled, Watch},
    launch::View,
    policy::Policy,
    sys::Mount,
};

/// Carries out policies.
pub trait Enforcer: Send + Sync + 'static {
    /// Puts a policy in force, in the place of an earlier one: when it
    /// returns, every later check uses the new one.
    fn install(&self, installation: &Installation<'_>) -> Result<Installed, EnforceError>;

    /// Lets a sandbox look at a file that it is given open.
    fn lend(&self, sandbox: u64, file: BorrowedFd<'_>) -> Result<(), EnforceError>;

    /// Forgets the policy of a sandbox that is gone.
    fn remove(&self, sandbox: u64);

    /// Counts the refusals of an exec from now on.
    fn watch_exec(&self, exec: u64) -> Result<(), EnforceError>;

    /// What was counted.
    fn counters(&self, exec: u64) -> Counters;

    /// Stops counting.
    fn unwatch_exec(&self, exec: u64);

    /// The maps by which the proxy knows its callers.
    fn flows(&self) -> Result<FlowMaps, EnforceError>;

    /// Leads sandboxes to these sockets from now on; to none: they are refused.
    fn admit(&self, entrances: &Entrances) -> Result<(), EnforceError>;

    /// What is loaded.
    fn state(&self) -> EnforcerState;
}

/// The maps by which the proxy knows its callers.
#[derive(Debug)]
pub struct FlowMaps {
    /// `FLOWS`
    pub flows: OwnedFd,
    /// `ASKED`
    pub asked: OwnedFd,
}

/// A policy to be put in force.
pub struct Installation<'a> {
    /// Cgroup id of the sandbox.
    pub sandbox: u64,
    /// What to enforce.
    pub policy: &'a Arc<Policy>,
    /// Where its places are looked up.
    pub view: &'a View,
    /// The view's mounts.
    pub mounts: &'a [Mount],
    /// Names this policy in records.
    pub generation: u32,
    /// Of a policy that is in force and is applied anew: its [`Installed::own`].
    pub own: Option<&'a BTreeSet<u32>>,
    /// What the same policy came to for another sandbox, if that is still so.
    pub known: Option<&'a Arc<Compiled>>,
}

/// What became of a policy's places.
#[derive(Debug, Default)]
pub struct Installed {
    /// What would lead them elsewhere.
    pub watches: Vec<Watch>,
    /// Rules that make something read-only which did not exist, nor its
    /// directories: it is the sandbox's own if it makes it.
    pub own: BTreeSet<u32>,
    /// What the next sandbox may be given as [`Installation::known`].
    pub compiled: Option<Arc<Compiled>>,
    /// It was made of [`Installation::known`]: `watches` are only those of the
    /// sandbox's own mounts.
    pub renewed: bool,
}

/// Why a policy is not in force.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct EnforceError(pub Box<dyn Error + Send + Sync>);

/// What is loaded.
#[derive(Clone, Debug, Default)]
pub struct EnforcerState {
    /// The walls.
    pub walls: Vec<WallState>,
    /// The programs.
    pub hooks: Vec<HookState>,
}

/// One side of the boundary.
#[derive(Clone, Debug)]
pub struct WallState {
    /// files, network, scope
    pub name: &'static str,
    /// Whether it stands.
    pub in_force: bool,
    /// What it does, or why it does not stand.
    pub detail: String,
}

/// One program.
#[derive(Clone, Debug)]
pub struct HookState {
    /// Of the hook.
    pub name: String,
    /// lsm, cgroup
    pub kind: &'static str,
    /// Whether it is attached.
    pub loaded: bool,
    /// required, optional
    pub class: &'static str,
    /// What the verifier walked through.
    pub verified_instructions: u32,
}
