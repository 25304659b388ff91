//! The process at the other end of the daemon's socket.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::{
        fd::{AsFd, OwnedFd, RawFd},
        unix::fs::MetadataExt as _,
    },
    path::{Path, PathBuf},
    sync::OnceLock,
};

use nix::sys::socket::{getsockopt, sockopt};

use super::LaunchError;
use crate::{
    cgroup::{CgroupError, Slice},
    sys::{self, Status},
};

/// A caller, held by a pidfd so that its number cannot come to mean another
/// process.
#[derive(Debug)]
pub struct Peer {
    pid: u32,
    uid: u32,
    gid: u32,
    pidfd: OwnedFd,
    start_time: u64,
}

/// Why a process may not start commands through the daemon: they would have
/// more than it has itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Confinement {
    /// It runs in a sandbox already.
    #[error("it runs in sandbox `{0}`")]
    Sandbox(String),
    /// It sees other mounts.
    #[error("it has a mount namespace of its own")]
    MountNamespace,
    /// Its ids mean something else.
    #[error("it has a user namespace of its own")]
    UserNamespace,
    /// It has another network.
    #[error("it has a network namespace of its own")]
    NetworkNamespace,
    /// It does not see the host's processes.
    #[error("it has a pid namespace of its own")]
    PidNamespace,
    /// It sees a part of the file system only.
    #[error("its root directory is not the host's")]
    Root,
    /// System calls are filtered.
    #[error("it is under seccomp")]
    Seccomp,
    /// Set-user-ID programs give it nothing; so does Landlock's set-up.
    #[error("it has `no_new_privs` set")]
    NoNewPrivileges,
    /// Root without what root has.
    #[error("it is root without all of root's capabilities")]
    Capabilities,
}

/// What is wrong with a caller, or what of it could not be learnt.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The socket has no peer that it can name.
    #[error("the caller cannot be identified")]
    Identify(#[source] io::Error),
    /// It is in a pid namespace that is not below the daemon's.
    #[error("the caller has no pid here: it is in another pid namespace")]
    NoPid,
    /// It ended.
    #[error("process {pid} is gone")]
    Gone {
        /// The process.
        pid: u32,
    },
    /// Its number names another process now, or it changed its ids.
    #[error("process {pid} is not the caller any more: its {what} differs")]
    Changed {
        /// The process.
        pid: u32,
        /// What differs.
        what: &'static str,
    },
    /// A file of `/proc`.
    #[error("`{path}` cannot be read")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Its cgroup.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// Its user.
    #[error(transparent)]
    Account(LaunchError),
    /// One of its descriptors.
    #[error("descriptor {fd} of process {pid} cannot be taken")]
    Descriptor {
        /// The process.
        pid: u32,
        /// The descriptor.
        fd: RawFd,
        /// Why.
        source: io::Error,
    },
}

impl Peer {
    /// Who connected this socket. To be called when the connection is
    /// accepted: before Linux 6.5 the socket does not hold the process.
    pub fn of_socket(socket: impl AsFd) -> Result<Self, PeerError> {
        let identify = |errno: nix::Error| PeerError::Identify(errno.into());
        let credentials = getsockopt(&socket, sockopt::PeerCredentials).map_err(identify)?;
        let pid = u32::try_from(credentials.pid()).map_err(|_| PeerError::NoPid)?;
        let pidfd = match getsockopt(&socket, sockopt::PeerPidfd) {
            Ok(pidfd) => Some(pidfd),
            Err(nix::Error::ENOPROTOOPT) => None,
            Err(_) => return Err(PeerError::Gone { pid }),
        };
        Self::open(pid, credentials.uid(), credentials.gid(), pidfd)
    }

    /// The process of this number, which is taken to have these ids.
    pub fn of_process(pid: u32, uid: u32, gid: u32) -> Result<Self, PeerError> {
        Self::open(pid, uid, gid, None)
    }

    fn open(pid: u32, uid: u32, gid: u32, pidfd: Option<OwnedFd>) -> Result<Self, PeerError> {
        if pid == 0 {
            return Err(PeerError::NoPid);
        }
        let gone = |_| PeerError::Gone { pid };
        let pidfd = match pidfd {
            Some(pidfd) => pidfd,
            None => sys::pidfd_open(pid).map_err(gone)?,
        };
        let start_time = sys::start_time(pid).map_err(gone)?;
        let peer = Self {
            pid,
            uid,
            gid,
            pidfd,
            start_time,
        };
        // Alive after the start time was read: it was this process's.
        peer.alive()?;
        Ok(peer)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The user it acts for.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// The group it acts for.
    pub fn gid(&self) -> u32 {
        self.gid
    }

    /// When it started, in clock ticks since boot.
    pub fn start_time(&self) -> u64 {
        self.start_time
    }

    /// Makes sure that it lives and still has the ids it connected with.
    pub fn verify(&self) -> Result<Status, PeerError> {
        let status =
            sys::process_status(self.pid).map_err(|_| PeerError::Gone { pid: self.pid })?;
        self.alive()?;
        let changed = |what| PeerError::Changed {
            pid: self.pid,
            what,
        };
        if !status.uid.all(self.uid) {
            return Err(changed("user id"));
        }
        if !status.gid.all(self.gid) {
            return Err(changed("group id"));
        }
        Ok(status)
    }

    /// Copies of its own descriptors 0 to 2; one that it has closed becomes
    /// `/dev/null`. `start_time` is what the caller says of itself.
    pub fn take_stdio(&self, start_time: u64) -> Result<[OwnedFd; 3], PeerError> {
        let changed = |what| PeerError::Changed {
            pid: self.pid,
            what,
        };
        if start_time != self.start_time {
            return Err(changed("start time"));
        }
        self.verify()?;
        // A program with more rights than its caller is not dumpable, and its
        // files in /proc are root's then.
        let owner = self.read("", |path| fs::metadata(path))?.uid();
        if owner != self.uid {
            return Err(changed("owner in `/proc`"));
        }
        Ok([self.take(0)?, self.take(1)?, self.take(2)?])
    }

    /// The sandbox it runs in, if it does.
    pub fn sandbox(&self, slice: &Slice) -> Result<Option<String>, PeerError> {
        let membership = slice.membership(self.pid)?;
        self.alive()?;
        Ok(membership.map(|membership| membership.sandbox))
    }

    /// Why it may not start commands; empty if it may.
    pub fn confinement(&self, slice: &Slice) -> Result<Vec<Confinement>, PeerError> {
        let mut found = Vec::new();
        if let Some(sandbox) = self.sandbox(slice)? {
            found.push(Confinement::Sandbox(sandbox));
        }
        for ((name, confinement), ours) in PLACES.into_iter().zip(own_places()?) {
            if self.read(name, place)? != *ours {
                found.push(confinement);
            }
        }
        let status =
            sys::process_status(self.pid).map_err(|_| PeerError::Gone { pid: self.pid })?;
        if status.seccomp != 0 {
            found.push(Confinement::Seccomp);
        }
        if status.no_new_privileges {
            found.push(Confinement::NoNewPrivileges);
        }
        if self.uid == 0 {
            let own = own("status", |_| sys::process_status(std::process::id()))?;
            if own.effective & !status.effective != 0 {
                found.push(Confinement::Capabilities);
            }
        }
        self.alive()?;
        Ok(found)
    }

    fn alive(&self) -> Result<(), PeerError> {
        sys::pidfd_send_signal(&self.pidfd, 0).map_err(|_| PeerError::Gone { pid: self.pid })
    }

    fn take(&self, fd: RawFd) -> Result<OwnedFd, PeerError> {
        let taken = match sys::pidfd_getfd(&self.pidfd, fd) {
            Err(error) if error.raw_os_error() == Some(libc::EBADF) => open_null(),
            other => other,
        };
        taken.map_err(|source| PeerError::Descriptor {
            pid: self.pid,
            fd,
            source,
        })
    }

    fn read<T>(
        &self,
        name: &str,
        read: impl FnOnce(&Path) -> io::Result<T>,
    ) -> Result<T, PeerError> {
        let path = PathBuf::from(format!("/proc/{}/{name}", self.pid));
        read(&path).map_err(|source| PeerError::Read { path, source })
    }
}

impl AsFd for Peer {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

/// Links in `/proc/PID` that lead where the daemon's own lead, or mean this.
const PLACES: [(&str, Confinement); 5] = [
    ("ns/mnt", Confinement::MountNamespace),
    ("ns/user", Confinement::UserNamespace),
    ("ns/net", Confinement::NetworkNamespace),
    ("ns/pid", Confinement::PidNamespace),
    ("root", Confinement::Root),
];

/// Where the daemon's own lead, which it never changes.
fn own_places() -> Result<&'static [(u64, u64)], PeerError> {
    static OWN: OnceLock<Vec<(u64, u64)>> = OnceLock::new();
    if let Some(found) = OWN.get() {
        return Ok(found);
    }
    let found: Result<_, _> = PLACES.iter().map(|(name, _)| own(name, place)).collect();
    let found = found?;
    Ok(OWN.get_or_init(|| found))
}

/// What tells the file that a path leads to from all others.
fn place(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Reads a file of the daemon's own in `/proc`.
fn own<T>(name: &str, read: impl FnOnce(&Path) -> io::Result<T>) -> Result<T, PeerError> {
    let path = Path::new("/proc/self").join(name);
    read(&path).map_err(|source| PeerError::Read { path, source })
}

fn open_null() -> io::Result<OwnedFd> {
    let null: File = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    Ok(null.into())
}
