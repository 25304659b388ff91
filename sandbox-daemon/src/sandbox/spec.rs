//! What a caller asks for.

use std::{path::PathBuf, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use super::{DEFAULT_IDLE, MAX_IDLE, SandboxError};
use crate::{
    launch::Peer,
    policy::{Limits, WorkspaceMode},
};

/// Who calls.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Whom it acts for.
    pub uid: u32,
    /// The process; none for a caller that is not local.
    pub peer: Option<Arc<Peer>>,
}

impl Caller {
    /// Whether it may see what belongs to `uid`.
    pub fn sees(&self, uid: u32) -> bool {
        self.uid == 0 || self.uid == uid
    }
}

/// A sandbox to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// The policy.
    pub policy: PolicySource,
    /// Absolute.
    pub workspace: Option<PathBuf>,
    /// For people.
    pub name: String,
    /// Deleted after so long without an exec.
    pub idle_timeout: Duration,
    /// For whom; the caller if absent.
    pub uid: Option<u32>,
    /// In place of the policy's.
    #[serde(default)]
    pub workspace_mode: Option<WorkspaceMode>,
    /// Each in place of the policy's.
    #[serde(default)]
    pub limits: Limits,
}

impl Spec {
    /// Checks what can be checked without touching anything.
    pub fn check(&self) -> Result<(), SandboxError> {
        let absolute = |path: &PathBuf| path.is_absolute();
        if self
            .workspace
            .as_ref()
            .is_some_and(|path| !path.is_absolute())
        {
            return Err(SandboxError::invalid(
                "workspace",
                "must be an absolute path",
            ));
        }
        if self.name.len() > 128 || self.name.chars().any(char::is_control) {
            let problem = "must be at most 128 bytes without control characters";
            return Err(SandboxError::invalid("name", problem));
        }
        if self.idle_timeout > MAX_IDLE {
            return Err(SandboxError::invalid(
                "idle_timeout",
                "must be at most 7 days",
            ));
        }
        if let Err((field, problem)) = self.limits.check() {
            return Err(SandboxError::invalid(field, problem));
        }
        let PolicySource {
            extra_read,
            extra_write,
            ..
        } = &self.policy;
        if !extra_read.iter().all(absolute) {
            return Err(SandboxError::invalid(
                "policy.extra_read",
                "must be absolute paths",
            ));
        }
        if !extra_write.iter().all(absolute) {
            return Err(SandboxError::invalid(
                "policy.extra_write",
                "must be absolute paths",
            ));
        }
        Ok(())
    }
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            policy: PolicySource::default(),
            workspace: None,
            name: String::new(),
            idle_timeout: DEFAULT_IDLE,
            uid: None,
            workspace_mode: None,
            limits: Limits::default(),
        }
    }
}

/// A policy, and places added to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicySource {
    /// Where it is from.
    pub from: PolicyFrom,
    /// Absolute.
    pub extra_read: Vec<PathBuf>,
    /// Absolute.
    pub extra_write: Vec<PathBuf>,
}

/// Where a policy is from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PolicyFrom {
    /// The host's policy of this name.
    Name(String),
    /// The caller.
    Text {
        /// What diagnostics call it.
        display_name: String,
        /// The document.
        toml: String,
        /// The file it was read from: read-only inside.
        origin: Option<PathBuf>,
    },
}

impl Default for PolicyFrom {
    fn default() -> Self {
        Self::Name("default".into())
    }
}

/// The sandbox for an exec.
#[derive(Clone, Debug)]
pub enum Target {
    /// One that is there.
    Existing(String),
    /// One that dies with the exec.
    OneShot(Box<Spec>),
}
