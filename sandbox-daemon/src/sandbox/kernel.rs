//! The kernel as the enforcer.

use std::{os::fd::BorrowedFd, sync::Arc};

use sandbox_common::{Counters, Entrances};

use super::{
    EnforceError, Enforcer, EnforcerState, FlowMaps, HookState, Installation, Installed, WallState,
};
use crate::chain::Chain;
use crate::kernel::{self, Circumstances, Class, Kernel, KernelError, Lower, Wall};

/// Programs in force.
pub struct KernelEnforcer(Arc<Kernel>);

impl KernelEnforcer {
    /// Enforces with these programs.
    #[must_use]
    pub fn new(kernel: Arc<Kernel>) -> Self {
        Self(kernel)
    }
}

impl Enforcer for KernelEnforcer {
    fn install(&self, installation: &Installation<'_>) -> Result<Installed, EnforceError> {
        let kernel = self.0.clone();
        let policy = installation.policy.clone();
        let generation = installation.generation;
        let mounts = installation.mounts.to_vec();
        let own = installation.own.cloned();
        let lower = installation.view.layers().zip(policy.workspace.clone());
        let lower = lower.map(|(layers, workspace)| Lower {
            workspace,
            directory: layers.lower.clone(),
        });
        let known = installation.known.cloned();
        let compiled = installation.view.call(move || {
            let circumstances = Circumstances {
                generation,
                seed: kernel.seed(),
                mounts: &mounts,
                own: own.as_ref(),
                lower: lower.as_ref(),
            };
            if let Some(known) = known
                && let Some(renewed) = kernel::renew(&known, circumstances, &*kernel)?
            {
                return Ok((renewed, true));
            }
            let compiled = kernel::compile(&policy, circumstances, &*kernel)?;
            Ok((compiled.share(), false))
        });
        let (compiled, renewed) = compiled.map_err(|error: KernelError| boxed(error))?;
        self.0
            .install(installation.sandbox, &compiled)
            .map_err(boxed)?;
        let own = compiled.own.clone();
        Ok(if renewed {
            Installed {
                watches: compiled.watches,
                own,
                compiled: None,
                renewed,
            }
        } else {
            Installed {
                watches: compiled.watches.clone(),
                own,
                compiled: Some(Arc::new(compiled)),
                renewed,
            }
        })
    }

    fn lend(&self, sandbox: u64, file: BorrowedFd<'_>) -> Result<(), EnforceError> {
        self.0.lend(sandbox, file).map_err(boxed)
    }

    fn remove(&self, sandbox: u64) {
        let kernel = self.0.clone();
        // Nobody waits for what the kernel waits for.
        let remove = move || {
            if let Err(error) = kernel.remove(sandbox) {
                tracing::error!(error = %Chain::of(&error), "cannot forget a sandbox");
            }
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(remove)),
            Err(_) => remove(),
        }
    }

    fn watch_exec(&self, exec: u64) -> Result<(), EnforceError> {
        self.0.watch_exec(exec).map_err(boxed)
    }

    fn counters(&self, exec: u64) -> Counters {
        self.0.counters(exec).unwrap_or_else(|error| {
            tracing::error!(error = %Chain::of(&error), "cannot read what was refused");
            Counters::default()
        })
    }

    fn unwatch_exec(&self, exec: u64) {
        if let Err(error) = self.0.unwatch_exec(exec) {
            tracing::error!(error = %Chain::of(&error), "cannot forget an exec");
        }
    }

    fn flows(&self) -> Result<FlowMaps, EnforceError> {
        let (flows, asked) = self.0.flows().map_err(boxed)?;
        Ok(FlowMaps { flows, asked })
    }

    fn admit(&self, entrances: &Entrances) -> Result<(), EnforceError> {
        self.0.admit(entrances).map_err(boxed)
    }

    fn state(&self) -> EnforcerState {
        let walls = WALLS.map(|(wall, name, detail)| WallState {
            name,
            in_force: self
                .0
                .hooks()
                .iter()
                .filter(|hook| hook.wall == wall && hook.class == Class::Required)
                .all(|hook| hook.loaded),
            detail: detail.into(),
        });
        let walls = walls.into();
        let hooks = self.0.hooks().iter().map(hook).collect();
        EnforcerState { walls, hooks }
    }
}

/// The walls, and what each is about.
const WALLS: [(Wall, &str, &str); 3] = [
    (
        Wall::Files,
        "files",
        "opening, changing and looking at files, by place",
    ),
    (
        Wall::Network,
        "network",
        "only what the policy names can be reached",
    ),
    (
        Wall::Scope,
        "scope",
        "no other processes, no privileges, no mounts",
    ),
];

fn hook(hook: &kernel::HookState) -> HookState {
    HookState {
        name: hook.name.clone(),
        kind: hook.kind,
        loaded: hook.loaded,
        class: match hook.class {
            Class::Required => "required",
            Class::Optional => "optional",
        },
        verified_instructions: hook.verified_instructions,
    }
}

fn boxed(error: impl std::error::Error + Send + Sync + 'static) -> EnforceError {
    EnforceError(Box::new(error))
}
