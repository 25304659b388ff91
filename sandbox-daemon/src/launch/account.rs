//! The user that a command runs as.

use std::{ffi::CString, io, path::PathBuf};

use nix::unistd::{Gid, Uid, User, getgrouplist};

use super::{LaunchError, Peer, PeerError};

/// A user with everything a process of theirs has by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// User id.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Home directory.
    pub home: PathBuf,
    /// Login name.
    pub name: String,
    /// Login shell.
    pub shell: PathBuf,
}

impl Account {
    /// Looks a user up in the password and group databases. This may ask the
    /// network where these come from there.
    pub fn by_uid(uid: u32) -> Result<Self, LaunchError> {
        let failed = |source: io::Error| LaunchError::AccountDatabase { uid, source };
        let user = User::from_uid(Uid::from_raw(uid))
            .map_err(|errno| failed(errno.into()))?
            .ok_or(LaunchError::UnknownUser { uid })?;
        let name = CString::new(user.name.as_str()).map_err(|error| failed(error.into()))?;
        let groups = getgrouplist(&name, user.gid).map_err(|errno| failed(errno.into()))?;
        Ok(Self {
            uid,
            gid: user.gid.as_raw(),
            groups: groups.into_iter().map(Gid::as_raw).collect(),
            home: user.dir,
            name: user.name,
            shell: user.shell,
        })
    }

    /// The caller, with the groups that it has now: these may be fewer than
    /// the database's, and a command must not have more than its caller.
    pub fn of_peer(peer: &Peer) -> Result<Self, PeerError> {
        let status = peer.verify()?;
        let account = Self::by_uid(peer.uid()).map_err(PeerError::Account)?;
        Ok(Self {
            gid: status.gid.effective,
            groups: status.groups,
            ..account
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_has_a_name_and_a_home() {
        let root = Account::by_uid(0).unwrap();
        assert_eq!((root.name.as_str(), root.gid), ("root", 0));
        assert!(root.home.is_absolute());
        assert!(root.groups.contains(&0));
    }

    #[test]
    fn a_uid_nobody_has_is_a_clear_error() {
        let error = Account::by_uid(4_000_000_001).unwrap_err();
        assert!(matches!(
            error,
            LaunchError::UnknownUser { uid: 4_000_000_001 }
        ));
    }
}
