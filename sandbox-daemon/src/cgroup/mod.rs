//! Cgroups of sandboxes: a slice at the top of the cgroup2 hierarchy, in it a
//! cgroup for every sandbox, in that one for every exec.

mod controllers;
mod group;
mod hierarchy;

use std::{io, path::PathBuf};

pub use controllers::{Bounds, Controllers, missing as missing_controller};
pub use group::Cgroup;
pub use hierarchy::{Hierarchy, Membership, Slice};

use crate::sys::ParseMountError;

/// What went wrong with cgroups.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// No cgroup2 file system is mounted.
    #[error(
        "no cgroup2 file system is mounted\n\nhint: mount it: `mount -t cgroup2 cgroup2 /sys/fs/cgroup`"
    )]
    NotMounted,
    /// The table of mounts.
    #[error("`/proc/self/mountinfo` cannot be read")]
    ReadMounts(#[source] io::Error),
    /// The table of mounts.
    #[error("`/proc/self/mountinfo` cannot be understood")]
    ParseMounts(#[from] ParseMountError),
    /// Only the host's hierarchy has the levels that the kernel counts.
    #[error(
        "this is a cgroup namespace of its own\n\nhint: run it in the host's (`--cgroupns=host`)"
    )]
    Namespace,
    /// `/proc/self/ns/cgroup` and the like.
    #[error("`{path}` cannot be read")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A cgroup could not be made.
    #[error("cgroup `{path}` cannot be created")]
    Create {
        /// Its directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A cgroup could not be opened.
    #[error("cgroup `{path}` cannot be opened")]
    Open {
        /// Its directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Not a name that a cgroup of ours may have.
    #[error("`{0}` is not a name for a cgroup: letters, digits, `-`, `_` and `.` inside")]
    Name(String),
    /// A process could not be moved.
    #[error("process {pid} cannot be moved into cgroup `{path}`")]
    Attach {
        /// The process.
        pid: u32,
        /// Where to.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The kernel would not stop them, or let them go on.
    #[error("the processes of cgroup `{path}` cannot be frozen and thawed")]
    Freeze {
        /// Its directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The kernel would not kill.
    #[error("the processes of cgroup `{path}` cannot be killed")]
    Kill {
        /// Its directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A controller that a limit needs.
    #[error(
        "`{name}` cannot be limited here: cgroup2 has no such controller, {why}\n\nhint: {remedy}"
    )]
    NoController {
        /// As cgroup2 has it.
        name: &'static str,
        /// Why not.
        why: &'static str,
        /// What to do about it.
        remedy: String,
    },
    /// The kernel would not take a limit.
    #[error("`{path}` cannot be set")]
    Bound {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A cgroup could not be removed.
    #[error("cgroup `{path}` cannot be removed")]
    Remove {
        /// Its directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl CgroupError {
    /// Whether it failed because the cgroup has been removed.
    pub fn is_gone(&self) -> bool {
        match self {
            Self::Read { source, .. }
            | Self::Open { source, .. }
            | Self::Kill { source, .. }
            | Self::Bound { source, .. } => {
                source.kind() == io::ErrorKind::NotFound
                    || source.raw_os_error() == Some(libc::ENODEV)
            }
            _ => false,
        }
    }
}
