//! What has to survive the daemon: the sandboxes in which something was
//! enrolled to stay. Everything else ends with it.

use std::{
    fs::{self, DirBuilder, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use serde::{Deserialize, Serialize};

use super::{Cause, Exec, PolicySource, Registry, Sandbox, SandboxError, Spec, ground::Parts};
use crate::chain::Chain;
use crate::{cgroup::Cgroup, launch::Account};

/// A sandbox as it is written down.
#[derive(Serialize, Deserialize)]
struct Saved {
    spec: Spec,
    uid: u32,
    /// In force, where it was updated since.
    policy: PolicySource,
    one_shot: bool,
    #[serde(default = "SystemTime::now")]
    created: SystemTime,
    execs: Vec<SavedExec>,
}

/// An exec that stays.
#[derive(Serialize, Deserialize)]
pub(super) struct SavedExec {
    pub(super) id: String,
    pub(super) argv: Vec<String>,
    pub(super) pid: u32,
    pub(super) started: SystemTime,
}

/// Where sandboxes are written down.
pub(super) struct Shelf(PathBuf);

impl Shelf {
    pub(super) fn new(runtime_directory: &Path) -> Self {
        Self(runtime_directory.join("sandboxes"))
    }

    /// Writes a sandbox down, or strikes it off if nothing in it stays.
    pub(super) fn save(&self, sandbox: &Sandbox) -> io::Result<()> {
        let staying: Vec<_> = sandbox
            .execs()
            .into_iter()
            .filter(|exec| exec.stays)
            .collect();
        let path = self.path(&sandbox.id);
        if staying.is_empty() {
            return match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
        }
        let saved = Saved {
            spec: sandbox.spec.clone(),
            uid: sandbox.account.uid,
            policy: sandbox.policy().source.clone(),
            one_shot: sandbox.one_shot,
            created: sandbox.created,
            execs: staying.iter().map(|exec| exec.saved()).collect(),
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.0)?;
        let draft = path.with_extension("new");
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&draft)?;
        file.write_all(&serde_json::to_vec(&saved)?)?;
        fs::rename(draft, path)
    }

    fn load(&self, id: &str) -> io::Result<Option<Saved>> {
        match fs::read(self.path(id)) {
            Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn forget(&self, id: &str) {
        // It may never have been there.
        let _ = fs::remove_file(self.path(id));
    }

    fn path(&self, id: &str) -> PathBuf {
        self.0.join(format!("{id}.json"))
    }
}

impl Registry {
    /// Writes down what of a sandbox stays.
    pub(super) fn save(&self, sandbox: &Sandbox) -> Result<(), SandboxError> {
        self.shelf()
            .save(sandbox)
            .map_err(|source| SandboxError::Step {
                what: "write a sandbox down",
                source,
            })
    }

    /// Takes over what an earlier daemon left: enrolled processes go on behind
    /// their walls, all else is ended.
    pub async fn recover(self: &Arc<Self>) -> Result<(), SandboxError> {
        for id in self.slice().leftovers()? {
            match self.adopt(&id).await {
                Ok(true) => tracing::info!(sandbox = id, "took over a sandbox"),
                Ok(false) => self.clear(&id).await?,
                Err(error) => {
                    // Not weaker than it was: what cannot be kept is ended.
                    let error = &error as &dyn std::error::Error;
                    tracing::error!(sandbox = id, error, "cannot take over a sandbox; ending it");
                    self.clear(&id).await?;
                }
            }
        }
        Ok(())
    }

    async fn clear(&self, id: &str) -> Result<(), SandboxError> {
        tracing::info!(sandbox = id, "removing what an earlier daemon left");
        let cgroup = self.slice().open(id)?;
        let number = cgroup.id();
        cgroup.remove_tree().await?;
        self.enforcer().remove(number);
        self.shelf().forget(id);
        Ok(())
    }

    /// Whether there is anything to adopt.
    async fn adopt(self: &Arc<Self>, id: &str) -> Result<bool, SandboxError> {
        let saved = self.shelf().load(id).map_err(|source| SandboxError::Step {
            what: "read what an earlier daemon wrote down",
            source,
        })?;
        let Some(mut saved) = saved else {
            return Ok(false);
        };
        let cgroup = self.slice().adopt(id)?;
        saved.execs.retain(|exec| {
            let there = cgroup.open_child(&exec.id);
            there.is_ok_and(|there| there.populated().unwrap_or(false))
        });
        if saved.execs.is_empty() {
            return Ok(false);
        }
        end_others(&cgroup, &saved.execs).await?;
        let share = self.share_sandbox(saved.uid)?;
        let mut spec = saved.spec;
        spec.policy = saved.policy;
        let parts = Parts {
            id: id.to_owned(),
            spec,
            account: Account::by_uid(saved.uid)?,
            cgroup,
            generation: self.next_generation(),
            one_shot: saved.one_shot,
            created: saved.created,
            share,
        };
        let registry = self.clone();
        let built = tokio::task::spawn_blocking(move || registry.build(parts));
        let sandbox = super::registry::flatten(built.await)?;
        for exec in saved.execs {
            let exec = Exec::resume(self, &sandbox, exec)?;
            tokio::spawn(outlive(self.clone(), exec));
        }
        Ok(true)
    }
}

/// Ends what `Run` started: its pipes are gone.
async fn end_others(cgroup: &Cgroup, stay: &[SavedExec]) -> Result<(), SandboxError> {
    for child in cgroup.children()? {
        if !stay.iter().any(|exec| exec.id == child) {
            match cgroup.open_child(&child) {
                Ok(child) => child.remove_tree().await?,
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

/// The life of an exec whose call ended with an earlier daemon.
async fn outlive(registry: Arc<Registry>, exec: Arc<Exec>) {
    let timer = exec.keep_time();
    if let Err(error) = exec.until_empty(&registry).await {
        tracing::error!(exec = exec.id, error = %Chain::of(&error), "cannot wait for enrolled processes");
    }
    drop(timer);
    exec.end(&registry).await;
    if exec.sandbox.one_shot
        && let Err(error) = registry.remove(exec.sandbox.clone(), Cause::Request).await
    {
        tracing::error!(exec = exec.id, error = %Chain::of(&error), "cannot remove a sandbox");
    }
}
