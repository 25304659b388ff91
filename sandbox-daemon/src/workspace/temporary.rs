//! What is made beside the place that it is for, and takes that in one step. All of
//! it runs as the user.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::fd::OwnedFd,
};

use nix::{
    errno::Errno,
    fcntl::{AtFlags, OFlag, RenameFlags, openat, renameat, renameat2},
    sys::stat::{Mode, fstatat},
    unistd::{UnlinkatFlags, unlinkat},
};

use super::Meta;

/// A file or link beside the place that it is for. Dropping it removes what has
/// its name then.
pub(super) struct Temporary {
    pub(super) parent: OwnedFd,
    pub(super) name: OsString,
    there: bool,
}

impl Temporary {
    pub(super) fn name(parent: OwnedFd) -> Self {
        Self {
            parent,
            name: unused_name(),
            there: false,
        }
    }

    pub(super) fn made(mut self) -> Self {
        self.there = true;
        self
    }

    pub(super) fn file(parent: OwnedFd) -> io::Result<(Self, File)> {
        let new = Self::name(parent);
        let flags =
            OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        let file = openat(&new.parent, &*new.name, flags, mode)?;
        Ok((new.made(), file.into()))
    }

    pub(super) fn stat(&self) -> io::Result<Meta> {
        let flags = AtFlags::AT_SYMLINK_NOFOLLOW;
        Ok(Meta::from(&fstatat(&self.parent, &*self.name, flags)?))
    }

    /// Gives it another name in its directory.
    pub(super) fn rename(&mut self, name: &OsStr, how: RenameFlags) -> nix::Result<()> {
        let exchange = how.contains(RenameFlags::RENAME_EXCHANGE);
        match renameat2(&self.parent, &*self.name, &self.parent, name, how) {
            // A file system that knows of neither.
            Err(errno) if unknown(errno) && !exchange => {
                let flags = AtFlags::AT_SYMLINK_NOFOLLOW;
                match fstatat(&self.parent, name, flags) {
                    Ok(_) => return Err(Errno::EEXIST),
                    Err(Errno::ENOENT) => {}
                    Err(errno) => return Err(errno),
                }
                return self.rename_over(name);
            }
            result => result?,
        }
        self.there = exchange;
        Ok(())
    }

    /// Gives it another name, in the place of what has that.
    pub(super) fn rename_over(&mut self, name: &OsStr) -> nix::Result<()> {
        renameat(&self.parent, &*self.name, &self.parent, name)?;
        self.there = false;
        Ok(())
    }

    /// Undoes an exchange.
    pub(super) fn exchange_back(&mut self, name: &OsStr) -> nix::Result<()> {
        // Whatever happens: what has this name is not ours to remove.
        self.there = false;
        let how = RenameFlags::RENAME_EXCHANGE;
        renameat2(&self.parent, &*self.name, &self.parent, name, how)?;
        self.there = true;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if self.there {
            // The user's directory: what cannot be removed is seen there.
            let _ = unlinkat(&self.parent, &*self.name, UnlinkatFlags::NoRemoveDir);
        }
    }
}

/// The file system knows of no such rename.
pub(super) fn unknown(errno: Errno) -> bool {
    matches!(errno, Errno::EINVAL | Errno::ENOSYS | Errno::EOPNOTSUPP)
}

/// A name that nothing has.
pub(super) fn unused_name() -> OsString {
    let mut bytes = [0; 8];
    // Names that can be guessed are still never followed.
    let _ = getrandom::fill(&mut bytes);
    format!(".sandboxd-{:016x}.tmp", u64::from_ne_bytes(bytes)).into()
}
