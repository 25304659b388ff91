//! How sandboxes end: deleted, idle for too long, with the daemon.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::task::JoinSet;

use super::{Caller, Cause, Registry, Sandbox, SandboxError, registry::flatten, run::sleep_until};
use crate::{chain::Chain, sys};

/// From the last change to giving back what the daemon does not need.
const REST: Duration = Duration::from_secs(1);

impl Registry {
    /// Kills what runs in it; returns when its cgroup is gone.
    pub async fn delete(self: &Arc<Self>, caller: &Caller, id: &str) -> Result<(), SandboxError> {
        let sandbox = self.get(caller, id)?;
        self.remove(sandbox, Cause::Request).await
    }

    /// Removes a sandbox, to the end even if nobody waits for it.
    pub(super) async fn remove(
        self: &Arc<Self>,
        sandbox: Arc<Sandbox>,
        cause: Cause,
    ) -> Result<(), SandboxError> {
        let registry = self.clone();
        flatten(tokio::spawn(async move { registry.remove_now(&sandbox, cause).await }).await)
    }

    async fn remove_now(&self, sandbox: &Arc<Sandbox>, cause: Cause) -> Result<(), SandboxError> {
        // After an update that is on its way, which needs the sandbox.
        let updating = sandbox.updating.lock().await;
        if *sandbox.gone.borrow() {
            return Ok(());
        }
        sandbox.lock().closing = true;
        for exec in sandbox.execs() {
            exec.kill(cause)?;
        }
        for exec in sandbox.execs() {
            exec.ended().await;
        }
        // By name: it is removed by value, and others still hold this one.
        let cgroup = self.slice().open(&sandbox.id)?;
        let id = cgroup.id();
        cgroup.remove_tree().await?;
        // Not before: it is behind its walls to the end.
        self.enforcer().remove(id);
        self.egress().forget(id);
        self.events().finish(id);
        self.forget(&sandbox.id);
        self.forget_jobs(sandbox);
        sandbox.gone.send_replace(true);
        drop(updating);
        self.idle_changed();
        Ok(())
    }

    /// Kills an exec.
    pub async fn kill(&self, caller: &Caller, exec: &str) -> Result<(), SandboxError> {
        let exec = self.get_exec(caller, exec)?;
        exec.kill(Cause::Request)?;
        exec.ended().await;
        Ok(())
    }

    /// Deletes sandboxes that are idle for too long, and gives back what the daemon
    /// does not need once it comes to rest, for ever.
    pub async fn expire(self: &Arc<Self>) {
        let mut rest = None;
        loop {
            let now = Instant::now();
            let mut next = None;
            for sandbox in self.sandboxes() {
                match sandbox.times_out() {
                    Some(deadline) if deadline <= now => {
                        self.time_out(sandbox);
                        continue;
                    }
                    Some(deadline) => next = Some(next.unwrap_or(deadline).min(deadline)),
                    None => {}
                }
                match sandbox.expires() {
                    Some(deadline) if deadline <= now => self.delete_idle(sandbox).await,
                    Some(deadline) => next = Some(next.unwrap_or(deadline).min(deadline)),
                    None => {}
                }
            }
            tokio::select! {
                () = self.until_idle_changes() => rest = Some(Instant::now() + REST),
                () = sleep_until(next) => {}
                () = sleep_until(rest) => {
                    rest = None;
                    drop(tokio::task::spawn_blocking(sys::trim));
                }
            }
        }
    }

    /// Ends what runs in a sandbox whose time is up, and removes it.
    fn time_out(self: &Arc<Self>, sandbox: Arc<Sandbox>) {
        tracing::info!(sandbox = sandbox.id, "the time of a sandbox is up");
        sandbox.lock().closing = true;
        let registry = self.clone();
        tokio::spawn(async move {
            let mut ending = JoinSet::new();
            for exec in sandbox.execs() {
                ending.spawn(exec.terminate(Cause::SandboxTimeout));
            }
            ending.join_all().await;
            let id = sandbox.id.clone();
            if let Err(error) = registry.remove(sandbox, Cause::SandboxTimeout).await {
                tracing::error!(sandbox = id, error = %Chain::of(&error), "cannot remove a sandbox");
            }
        });
    }

    async fn delete_idle(self: &Arc<Self>, sandbox: Arc<Sandbox>) {
        {
            let mut state = sandbox.lock();
            if !state.execs.is_empty() {
                return;
            }
            // Nothing can begin in it between this and its end.
            state.closing = true;
        }
        tracing::info!(sandbox = sandbox.id, "deleting an idle sandbox");
        if let Err(error) = self.remove(sandbox.clone(), Cause::Request).await {
            tracing::error!(sandbox = sandbox.id, error = %Chain::of(&error), "cannot delete it");
        }
    }

    /// Ends what `Run` started, and the sandboxes in which nothing else is.
    /// What was enrolled to stay goes on, behind the same walls.
    pub async fn shut_down(self: &Arc<Self>) {
        self.close();
        let sandboxes = self.sandboxes();
        let execs = sandboxes.iter().flat_map(|sandbox| sandbox.execs());
        for exec in execs.filter(|exec| !exec.stays) {
            if let Err(error) = exec.kill(Cause::Daemon) {
                tracing::error!(exec = exec.id, error = %Chain::of(&error), "cannot end an exec");
            }
        }
        for sandbox in sandboxes {
            if sandbox.execs().iter().any(|exec| exec.stays) {
                tracing::info!(sandbox = sandbox.id, "leaving what was enrolled to stay");
            } else if let Err(error) = self.remove(sandbox.clone(), Cause::Daemon).await {
                tracing::error!(sandbox = sandbox.id, error = %Chain::of(&error), "cannot remove a sandbox");
            }
        }
        self.events().journal().close();
    }
}
