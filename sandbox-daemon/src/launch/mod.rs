//! Starting commands and placing running processes: who may ask, as whom,
//! with which view of the file system, in which cgroup.

mod account;
mod cache;
mod child;
mod command;
mod enroll;
mod identity;
mod inherited;
mod limits;
mod overlay;
mod peer;
mod search;
mod terminal;
mod view;
mod workspace;

use std::{io, path::PathBuf};

pub use account::Account;
pub use cache::{cache_dir, cache_environment, cache_path};
pub use command::{Child, Command, signal_all, signal_group};
pub use enroll::{EnrollError, Enrolled, Enrollment, enroll};
pub use identity::as_user;
pub use inherited::Inherited;
pub use limits::Limits;
pub use overlay::{Ephemeral, Layers};
pub use peer::{Confinement, Peer, PeerError};
pub use terminal::{Pty, Size, foreground_group, open_pty};
pub use view::{PRIVATE_PLACES, View, ViewSpec};
pub use workspace::open_workspace;

pub use crate::sys::ExitStatus;

/// Why a command was not started.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The password database has no such user.
    #[error("there is no user with uid {uid} in the password database")]
    UnknownUser {
        /// The uid.
        uid: u32,
    },
    /// The password or group database did not answer.
    #[error("user {uid} cannot be looked up")]
    AccountDatabase {
        /// The uid.
        uid: u32,
        /// Why.
        source: io::Error,
    },
    /// A command without a name.
    #[error("no command was given")]
    NoCommand,
    /// No file of that name in any directory of `PATH`, or at that path.
    #[error("command `{command}` was not found")]
    CommandNotFound {
        /// As it was asked for, escaped.
        command: String,
    },
    /// The file is there, what runs it is not.
    #[error("`{path}` is there, but its interpreter or loader is not, or the policy hides it")]
    InterpreterNotFound {
        /// The file, escaped.
        path: String,
    },
    /// It is there and cannot be executed.
    #[error("`{path}` cannot be executed")]
    NotExecutable {
        /// The file, escaped.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// The working directory cannot be entered by the user.
    #[error("the working directory `{path}` cannot be entered as user `{user}`")]
    WorkingDirectory {
        /// The directory, escaped.
        path: String,
        /// Name of the user.
        user: String,
        /// Why.
        source: io::Error,
    },
    /// The workspace is not an absolute path.
    #[error("workspace `{path}` is not an absolute path")]
    WorkspaceRelative {
        /// The path.
        path: PathBuf,
    },
    /// The user cannot reach the workspace.
    #[error("workspace `{path}` cannot be opened as user `{user}`")]
    Workspace {
        /// The path.
        path: PathBuf,
        /// Name of the user.
        user: String,
        /// Why.
        source: io::Error,
    },
    /// The workspace is too much.
    #[error("`{path}` cannot be a workspace: {why}")]
    WorkspaceRefused {
        /// The path.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// An overlay would not show what is mounted there.
    #[error(
        "`{path}` cannot be ephemeral: `{point}` is mounted below it, and an overlay would not show that"
    )]
    MountedBelow {
        /// The workspace.
        path: PathBuf,
        /// What is below it.
        point: PathBuf,
    },
    /// The overlay over an ephemeral workspace.
    #[error("no overlay can be laid over `{path}`: cannot {step}")]
    Overlay {
        /// The workspace.
        path: PathBuf,
        /// What was tried.
        step: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The thread that holds a mount namespace could not be started.
    #[error("the launch thread cannot be started")]
    Thread(#[source] io::Error),
    /// A step in making a mount namespace.
    #[error("a mount namespace cannot be set up: {step}")]
    Namespace {
        /// What was tried.
        step: &'static str,
        /// Why.
        source: io::Error,
    },
    /// A private directory could not be mounted.
    #[error("a private `{place}` cannot be mounted")]
    PrivatePlace {
        /// Where.
        place: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A path below a private place could not be carried into it.
    #[error("`{path}` cannot be kept visible as user `{user}`")]
    Keep {
        /// The path.
        path: PathBuf,
        /// Name of the user.
        user: String,
        /// Why.
        source: io::Error,
    },
    /// The mounts of the namespace could not be listed.
    #[error("the mounts of the sandbox cannot be listed")]
    Mounts(#[source] io::Error),
    /// Something that the child needs could not be prepared.
    #[error("the command cannot be prepared: {step}")]
    Prepare {
        /// What was tried.
        step: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The kernel would not make the process.
    #[error("a process cannot be started in the sandbox's cgroup")]
    Clone(#[source] io::Error),
    /// A step of the child before it became the command.
    #[error("the command cannot be started: {step}")]
    Child {
        /// What was tried.
        step: &'static str,
        /// Why.
        source: io::Error,
    },
    /// A pseudo-terminal could not be made.
    #[error("a pseudo-terminal cannot be made: {step}")]
    Terminal {
        /// What was tried.
        step: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The cache directory could not be made.
    #[error("cache directory `{path}` cannot be made")]
    Cache {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl LaunchError {
    /// What to do about it, where that is known.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::CommandNotFound { .. } => Some(
                "`PATH` inside is the one that the policy lets in; give the command's full path",
            ),
            Self::InterpreterNotFound { .. } => {
                Some("see the file's first line, and `sandbox events` for what was hidden")
            }
            Self::WorkspaceRefused { .. } => {
                Some("make a directory for the work and name it with `-w DIR`")
            }
            Self::MountedBelow { .. } => {
                Some("unmount it, or name a directory without one with `-w DIR`")
            }
            Self::Overlay { source, .. } if source.raw_os_error() == Some(libc::ENODEV) => {
                Some("the kernel has no overlayfs: load it with `modprobe overlay`")
            }
            Self::WorkspaceRelative { .. } => Some("name it from `/` on"),
            Self::Clone(_) => {
                Some("is the sandbox being deleted, or the limit on processes reached?")
            }
            _ => None,
        }
    }
}
