//! Why a request about a sandbox was not carried out.

use std::{io, path::PathBuf, time::Duration};

use super::EnforceError;
use crate::{
    cgroup::CgroupError,
    egress::EgressError,
    launch::{EnrollError, LaunchError, PeerError},
    policy::Diagnostics,
    secrets::SecretError,
    workspace::WorkspaceError,
};

/// Why a request about a sandbox was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// There is none, or it is another user's.
    #[error("no sandbox `{0}`")]
    NoSandbox(String),
    /// There is none, or it is another user's.
    #[error("no running exec `{0}`")]
    NoExec(String),
    /// There is none, or it is another user's.
    #[error("no detached exec `{0}`")]
    NoJob(String),
    /// Its streams are another call's.
    #[error("exec `{0}` was not detached: its streams belong to the call that started it")]
    NotDetached(String),
    /// Its output is not relayed, and so not counted.
    #[error("the output is limited, and what goes to the caller's own descriptors is not counted")]
    Uncounted,
    /// It is being deleted.
    #[error("sandbox `{0}` is being deleted")]
    Closing(String),
    /// A field of the request.
    #[error("`{field}` {problem}")]
    Invalid {
        /// Which.
        field: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// The policy.
    #[error("the policy is not valid\n\n{0}")]
    Policy(Diagnostics),
    /// No file of that name.
    #[error("no policy `{name}` in {searched}")]
    NoPolicy {
        /// As asked for.
        name: String,
        /// Directories.
        searched: String,
    },
    /// A policy or set file of the host.
    #[error("cannot read `{path}`")]
    ReadPolicy {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// For another user.
    #[error("only root may act for another user (uid {0})")]
    ForeignUid(u32),
    /// A quota.
    #[error("user {uid} has {limit} {what} already, which is the limit")]
    Quota {
        /// Whose.
        uid: u32,
        /// sandboxes, execs, streams
        what: &'static str,
        /// How many.
        limit: u32,
    },
    /// The policy was changed since.
    #[error("sandbox `{id}` has etag `{current}`, not `{asked}`: its policy was changed since")]
    Etag {
        /// The sandbox.
        id: String,
        /// As asked for.
        asked: String,
        /// What there is.
        current: String,
    },
    /// The same `request_id` with another spec.
    #[error("request id `{0}` was used for a sandbox with another spec")]
    RequestReused(String),
    /// Sandboxed processes may not call.
    #[error("this process is in sandbox `{0}`; a sandboxed process cannot call the daemon")]
    InSandbox(String),
    /// The caller may not start commands on the host.
    #[error("the caller is confined itself ({0}) and may not run commands outside of that")]
    Confined(String),
    /// The caller may not say what is added to others' requests.
    #[error("the caller is confined itself ({0}) and may not change secrets")]
    ConfinedKeeper(String),
    /// What a sandbox made of its workspace.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    /// Secrets.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The calling process.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// The daemon.
    #[error("the daemon is shutting down")]
    ShuttingDown,
    /// Starting a command.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// Enrolling a process.
    #[error(transparent)]
    Enroll(#[from] EnrollError),
    /// Cgroups.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The kernel.
    #[error("the policy cannot be put in force")]
    Enforce(#[from] EnforceError),
    /// The way out.
    #[error("the policy's `mode = \"proxy\"` cannot be put in force")]
    Egress(#[source] EgressError),
    /// A secret that the policy names.
    #[error("the policy's credentials cannot be put in force")]
    Credential(#[source] EgressError),
    /// A secret was changed, and the proxy has it as it was.
    #[error("the secret is changed, but running sandboxes may still use it as it was")]
    Rotation(#[source] EgressError),
    /// A step of the daemon's own.
    #[error("cannot {what}")]
    Step {
        /// Which step.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// A request that never came to an end.
    #[error("the daemon failed to carry out the request; its log says why")]
    Internal,
}

impl SandboxError {
    /// A field of the request that is wrong.
    pub fn invalid(field: &'static str, problem: impl Into<String>) -> Self {
        Self::Invalid {
            field,
            problem: problem.into(),
        }
    }
}

/// Longest time without an exec that a sandbox may ask for.
pub const MAX_IDLE: Duration = Duration::from_hours(168);

/// What it gets if it does not ask.
pub const DEFAULT_IDLE: Duration = Duration::from_hours(1);

impl From<EgressError> for SandboxError {
    fn from(error: EgressError) -> Self {
        match error {
            EgressError::Unset { .. } | EgressError::TooShort { .. } | EgressError::Trust(_) => {
                Self::Credential(error)
            }
            EgressError::Secret(error) => Self::Secret(error),
            _ => Self::Egress(error),
        }
    }
}
