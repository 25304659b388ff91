//! The kernel as the enforcer.

use std::{os::fd::BorrowedFd, sync::Arc};

use sandbox_common::Counters;

use super::{EnforceError, Enforcer, EnforcerState, HookState, Installation, WallState};
use crate::chain::Chain;
use crate::kernel::{self, Class, Kernel};

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
    fn install(&self, installation: &Installation<'_>) -> Result<(), EnforceError> {
        let mounts = installation.view.mounts().map_err(boxed)?;
        let kernel = self.0.clone();
        let policy = installation.policy.clone();
        let generation = installation.generation;
        let compiled = installation
            .view
            .call(move || kernel::compile(&policy, generation, kernel.seed(), &mounts, &*kernel));
        let compiled = compiled.map_err(boxed)?;
        self.0
            .install(installation.sandbox, &compiled)
            .map_err(boxed)
    }

    fn lend(&self, sandbox: u64, file: BorrowedFd<'_>) -> Result<(), EnforceError> {
        self.0.lend(sandbox, file).map_err(boxed)
    }

    fn remove(&self, sandbox: u64) {
        if let Err(error) = self.0.remove(sandbox) {
            tracing::error!(error = %Chain::of(&error), "cannot forget a sandbox");
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

    fn state(&self) -> EnforcerState {
        let hooks: Vec<HookState> = self.0.hooks().iter().map(hook).collect();
        let stands = |kind| {
            hooks
                .iter()
                .filter(|hook| hook.kind == kind && hook.class == "required")
                .all(|hook| hook.loaded)
        };
        let walls = vec![
            WallState {
                name: "files",
                in_force: stands("lsm"),
                detail: "opening, changing and looking at files, by place".into(),
            },
            WallState {
                name: "network",
                in_force: stands("cgroup"),
                detail: "IPv4 and IPv6: only addresses that the policy names".into(),
            },
            WallState {
                name: "scope",
                in_force: false,
                detail: "not in this version: other processes of the user can be reached".into(),
            },
        ];
        EnforcerState { walls, hooks }
    }
}

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
