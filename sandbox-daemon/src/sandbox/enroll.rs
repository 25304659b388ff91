//! Placing what already runs into a sandbox: the life of an `Enroll` stream.

use std::{
    fs::{self, File},
    sync::{Arc, Mutex},
};

use tokio::sync::mpsc;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{
    Caller, Cause, Ending, Exec, Registry, Sandbox, SandboxError, Target, exec::Kind,
    registry::flatten, run::tell,
};
use crate::{
    chain::Chain,
    escape,
    events::{Item, Mounts, SharedMounts, Subscription},
    launch::{EnrollError, Enrolled, Enrollment, enroll},
    policy::{Limits, WorkspaceMode},
    sys::process_status,
};

/// A process to enroll.
#[derive(Clone, Debug)]
pub struct EnrollSpec {
    /// Where.
    pub target: Target,
    /// The process.
    pub pid: u32,
    /// When it started, field 22 of `/proc/PID/stat`; `None`: not compared.
    pub start_time: Option<u64>,
    /// Accept what it holds open.
    pub allow_inherited: bool,
    /// It outlives this call.
    pub stay: bool,
}

/// What an enrolled process sends.
#[derive(Clone, Debug)]
pub enum EnrollOutput {
    /// First.
    Enrolled {
        /// Where.
        sandbox: String,
        /// Its exec.
        exec: String,
        /// All that were moved.
        pids: Vec<u32>,
    },
    /// What it was refused.
    Item(Item),
    /// Last.
    Ended {
        /// Its refusals, and what it took.
        ending: Ending,
        /// Why it was killed, if it was.
        cause: Option<Cause>,
        /// In force when it ended.
        limits: Limits,
    },
}

impl Registry {
    /// Moves a process and its descendants into a sandbox; returns once they
    /// are in it, or are not. Unless it stays, it is killed when nobody can
    /// receive from `output` any more.
    pub async fn enroll(
        self: &Arc<Self>,
        caller: &Caller,
        spec: EnrollSpec,
        output: mpsc::Sender<EnrollOutput>,
    ) -> Result<(), SandboxError> {
        let (registry, caller) = (self.clone(), caller.clone());
        let placed = tokio::spawn(async move {
            let (sandbox, one_shot) = registry.target(&caller, &spec.target).await?;
            match registry.place(&spec, &sandbox).await {
                Ok((exec, denials, enrolled)) => {
                    let life = Life {
                        registry,
                        exec,
                        denials,
                        pids: enrolled.pids,
                        output,
                        one_shot,
                    };
                    tokio::spawn(life.live());
                    Ok(())
                }
                Err(error) => {
                    if one_shot {
                        registry.remove(sandbox, Cause::Request).await?;
                    }
                    Err(error)
                }
            }
        });
        flatten(placed.await)
    }

    async fn place(
        self: &Arc<Self>,
        spec: &EnrollSpec,
        sandbox: &Arc<Sandbox>,
    ) -> Result<(Arc<Exec>, Subscription, Enrolled), SandboxError> {
        if sandbox.workspace_mode() == WorkspaceMode::Ephemeral {
            let problem = "is ephemeral, but a process that runs keeps the mounts that it sees";
            return Err(SandboxError::invalid("sandbox", problem));
        }
        let (pid, uid) = (spec.pid, sandbox.account.uid);
        // Reading of a process may take as long as that process likes.
        let seen = tokio::task::spawn_blocking(move || {
            // Nothing of another user's is read, not even for a moment.
            let status = process_status(pid).map_err(|_| EnrollError::Gone { pid })?;
            if !status.uid.all(uid) {
                return Err(EnrollError::NotOwned { pid, uid }.into());
            }
            Ok((command_line(pid), mounts_of(pid)?))
        });
        let (argv, mounts) = flatten(seen.await)?;
        let kind = Kind::Enrolled {
            stays: spec.stay,
            mounts,
        };
        let (exec, denials) = Exec::begin(self, sandbox, argv, kind)?;
        exec.set_pid(pid);
        let enrollment = Enrollment {
            pid,
            uid,
            start_time: spec.start_time,
            allow_inherited: spec.allow_inherited,
        };
        let (registry, placing) = (self.clone(), exec.clone());
        let placed = tokio::task::spawn_blocking(move || {
            // Before there is anything that would have to be taken over.
            registry.save(&placing.sandbox)?;
            Ok(enroll(&enrollment, registry.slice(), placing.cgroup())?)
        });
        let placed = flatten(placed.await).and_then(|enrolled| {
            if exec.cause().is_some() {
                // It was killed before there was anything to kill.
                exec.cgroup().kill()?;
            }
            Ok(enrolled)
        });
        match placed {
            Ok(enrolled) => Ok((exec, denials, enrolled)),
            Err(error) => {
                exec.end(self).await;
                Err(error)
            }
        }
    }
}

/// Enrolled processes, and the call that placed them.
struct Life {
    registry: Arc<Registry>,
    exec: Arc<Exec>,
    denials: Subscription,
    pids: Vec<u32>,
    output: mpsc::Sender<EnrollOutput>,
    one_shot: bool,
}

impl Life {
    async fn live(self) {
        let timer = self.exec.keep_time();
        let enrolled = EnrollOutput::Enrolled {
            sandbox: self.exec.sandbox.id.clone(),
            exec: self.exec.id.clone(),
            pids: self.pids,
        };
        // Nobody receiving is noticed below.
        let _ = self.output.send(enrolled).await;
        let ended = CancellationToken::new();
        let told = self.output.clone();
        let telling = tell(self.denials, ended.clone(), move |item| {
            let told = told.clone();
            async move { told.send(EnrollOutput::Item(item)).await.is_ok() }
        });
        let telling = AbortOnDropHandle::new(tokio::spawn(telling));
        until_empty(&self.registry, &self.exec, &self.output).await;
        drop(timer);
        let ending = self.exec.end(&self.registry).await;
        if self.one_shot {
            let sandbox = self.exec.sandbox.clone();
            if let Err(error) = self.registry.remove(sandbox, Cause::Request).await {
                tracing::error!(exec = self.exec.id, error = %Chain::of(&error), "cannot remove a sandbox");
            }
        }
        ended.cancel();
        let _ = telling.await;
        let ended = EnrollOutput::Ended {
            ending,
            cause: self.exec.cause(),
            limits: self.exec.limits(),
        };
        let _ = self.output.send(ended).await;
    }
}

async fn until_empty(registry: &Registry, exec: &Exec, output: &mpsc::Sender<EnrollOutput>) {
    let empty = exec.until_empty(registry);
    tokio::pin!(empty);
    let mut gone = false;
    loop {
        tokio::select! {
            result = &mut empty => {
                if let Err(error) = result {
                    tracing::error!(exec = exec.id, error = %Chain::of(&error), "cannot wait for enrolled processes");
                }
                return;
            }
            () = output.closed(), if !gone => {
                gone = true;
                if !exec.stays && let Err(error) = exec.kill(Cause::Request) {
                    tracing::error!(exec = exec.id, error = %Chain::of(&error), "cannot kill an exec");
                }
            }
        }
    }
}

/// An enrolled process keeps its own mount namespace.
fn mounts_of(pid: u32) -> Result<SharedMounts, SandboxError> {
    let mounts = File::open(format!("/proc/{pid}/mountinfo"))
        .and_then(Mounts::new)
        .map_err(|_| EnrollError::Gone { pid })?;
    Ok(Arc::new(Mutex::new(mounts)))
}

/// For people; a process may write what it likes there.
fn command_line(pid: u32) -> Vec<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = line.strip_suffix(b"\0").unwrap_or(&line);
    line.split(|&byte| byte == 0)
        .take(64)
        .map(|argument| escape::display(&argument[..argument.len().min(1024)]))
        .collect()
}
