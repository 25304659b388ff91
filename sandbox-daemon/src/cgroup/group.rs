//! One cgroup: its directory, held open.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
    time::Duration,
};

use nix::errno::Errno;
use tokio::{io::Interest, time::timeout};

use super::CgroupError;
use crate::sys::Watched;

/// A cgroup. Dropping it leaves the cgroup as it is.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    dir: OwnedFd,
    id: u64,
    level: u32,
}

/// After so long without a signal a cgroup is looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// An rmdir says EBUSY while the last process is on its way out.
const REMOVE_ATTEMPTS: u32 = 100;
const REMOVE_PAUSE: Duration = Duration::from_millis(5);

impl Cgroup {
    pub(super) fn open(path: PathBuf, level: u32) -> Result<Self, CgroupError> {
        let open = || -> io::Result<(OwnedFd, u64)> {
            let dir = OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW)
                .open(&path)?;
            // The inode number is the kernfs id, which is the cgroup's id.
            let id = dir.metadata()?.ino();
            Ok((dir.into(), id))
        };
        match open() {
            Ok((dir, id)) => Ok(Self {
                path,
                dir,
                id,
                level,
            }),
            Err(source) => Err(CgroupError::Open { path, source }),
        }
    }

    /// Its id, as the kernel has it.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Its level below the host's root, which has level 0.
    pub fn level(&self) -> u32 {
        self.level
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its directory, to start a command in it.
    pub fn try_clone_dir(&self) -> io::Result<OwnedFd> {
        self.dir.try_clone()
    }

    /// Makes a cgroup below this one.
    pub fn child(&self, name: &str) -> Result<Cgroup, CgroupError> {
        check_name(name)?;
        let path = self.path.join(name);
        fs::create_dir(&path).map_err(|source| CgroupError::Create {
            path: path.clone(),
            source,
        })?;
        Self::open(path, self.level + 1)
    }

    /// Opens a cgroup below this one.
    pub fn open_child(&self, name: &str) -> Result<Cgroup, CgroupError> {
        check_name(name)?;
        Self::open(self.path.join(name), self.level + 1)
    }

    /// Names of the cgroups below this one.
    pub fn children(&self) -> Result<Vec<String>, CgroupError> {
        let read = || -> io::Result<Vec<String>> {
            let mut names = Vec::new();
            for entry in fs::read_dir(&self.path)? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    names.push(entry.file_name().to_string_lossy().into_owned());
                }
            }
            names.sort();
            Ok(names)
        };
        read().map_err(|source| CgroupError::Read {
            path: self.path.clone(),
            source,
        })
    }

    /// Moves a process with all its threads into it.
    pub fn attach(&self, pid: u32) -> Result<(), CgroupError> {
        fs::write(self.path.join("cgroup.procs"), pid.to_string()).map_err(|source| {
            CgroupError::Attach {
                pid,
                path: self.path.clone(),
                source,
            }
        })
    }

    /// The processes directly in it, not those of cgroups below.
    pub fn pids(&self) -> Result<Vec<u32>, CgroupError> {
        let path = self.path.join("cgroup.procs");
        let text = fs::read_to_string(&path).map_err(|source| CgroupError::Read {
            path: path.clone(),
            source,
        })?;
        Ok(text.lines().filter_map(|pid| pid.parse().ok()).collect())
    }

    /// Sends SIGKILL to every process in it and below, at once and without a
    /// way for a fork to slip through (Linux 5.14).
    pub fn kill(&self) -> Result<(), CgroupError> {
        fs::write(self.path.join("cgroup.kill"), "1").map_err(|source| CgroupError::Kill {
            path: self.path.clone(),
            source,
        })
    }

    /// Stops what is in it or comes into it, or lets it go on.
    pub fn freeze(&self, frozen: bool) -> Result<(), CgroupError> {
        let word = if frozen { "1" } else { "0" };
        fs::write(self.path.join("cgroup.freeze"), word).map_err(|source| CgroupError::Freeze {
            path: self.path.clone(),
            source,
        })
    }

    /// Whether a process is in it or below.
    pub fn populated(&self) -> Result<bool, CgroupError> {
        self.read_populated(self.events()?)
    }

    /// Returns once no process is in it or below.
    pub async fn wait_empty(&self) -> Result<(), CgroupError> {
        let watched = Watched::new(self.events()?, Interest::PRIORITY)
            .map_err(|source| self.read_error(source))?;
        // The kernel signals a change since the last read, so read first. It
        // signals by a worker, and no more once the cgroup is gone, which
        // somebody else who waited may see to: so look again now and then.
        while self.read_populated(watched.fd().get_ref())? {
            match timeout(LOOK_AGAIN, watched.ready(Interest::PRIORITY)).await {
                Ok(ready) => ready.map_err(|source| self.read_error(source))?,
                Err(_elapsed) => {}
            }
        }
        Ok(())
    }

    /// Kills what runs in it and below, waits for the end, and removes it with
    /// all below. That somebody else did so meanwhile is as good.
    pub async fn remove_tree(self) -> Result<(), CgroupError> {
        match self.end().await {
            Err(error) if error.is_gone() => Ok(()),
            ended => ended,
        }
    }

    async fn end(&self) -> Result<(), CgroupError> {
        self.kill()?;
        self.wait_empty().await?;
        for path in descendants(&self.path).map_err(|source| self.read_error(source))? {
            remove_dir(&path).await?;
        }
        remove_dir(&self.path).await
    }

    fn events(&self) -> Result<File, CgroupError> {
        File::open(self.path.join("cgroup.events")).map_err(|source| self.read_error(source))
    }

    fn read_populated(&self, events: impl AsFd) -> Result<bool, CgroupError> {
        let mut text = [0; 256];
        let length = match nix::sys::uio::pread(events, &mut text, 0) {
            Ok(length) => length,
            // It is gone, and so was empty.
            Err(Errno::ENODEV) => 0,
            Err(errno) => return Err(self.read_error(errno.into())),
        };
        Ok(text[..length]
            .split(|byte| *byte == b'\n')
            .any(|line| line == b"populated 1"))
    }

    fn read_error(&self, source: io::Error) -> CgroupError {
        CgroupError::Read {
            path: self.path.join("cgroup.events"),
            source,
        }
    }
}

impl AsFd for Cgroup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }
}

/// One component that means no other directory and no file of cgroupfs.
pub(super) fn check_name(name: &str) -> Result<(), CgroupError> {
    let plain = name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    let reserved = name.starts_with('.') || name.starts_with("cgroup.");
    if plain && !reserved && !name.is_empty() && name.len() <= 200 {
        Ok(())
    } else {
        Err(CgroupError::Name(name.escape_debug().to_string()))
    }
}

async fn remove_dir(path: &Path) -> Result<(), CgroupError> {
    for attempt in 1.. {
        match fs::remove_dir(path) {
            Ok(()) => break,
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            Err(error)
                if error.raw_os_error() == Some(libc::EBUSY) && attempt < REMOVE_ATTEMPTS =>
            {
                tokio::time::sleep(REMOVE_PAUSE).await;
            }
            Err(source) => {
                return Err(CgroupError::Remove {
                    path: path.to_owned(),
                    source,
                });
            }
        }
    }
    Ok(())
}

/// Directories below, the deepest first.
fn descendants(path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.extend(descendants(&entry.path())?);
            found.push(entry.path());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_plain_component() {
        for good in ["a", "sandboxd.slice", "0f3-b_c"] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "cgroup.procs", "a\nb", ".hidden", "é"] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }
}
