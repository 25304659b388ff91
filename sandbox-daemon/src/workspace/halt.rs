//! Why something is not gone on with.

use std::io;

use nix::errno::Errno;

use super::WorkspaceError;

pub(super) enum Halt {
    /// All of it.
    Ended(WorkspaceError),
    /// One file could not be read or written.
    Io(io::Error),
}

impl From<io::Error> for Halt {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Errno> for Halt {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

impl From<WorkspaceError> for Halt {
    fn from(error: WorkspaceError) -> Self {
        Self::Ended(error)
    }
}
