//! A directory tree as it is reached from one descriptor: never above it, never
//! through a symbolic link, never onto another mount.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::{OsStrExt as _, OsStringExt as _},
    },
    path::{Path, PathBuf},
};

use nix::{
    dir::Dir,
    errno::Errno,
    fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat2, readlinkat},
    sys::stat::{FileStat, SFlag, fstat},
    unistd::{AccessFlags, faccessat},
};

use super::change::{Meta, Stamp};

/// The root of a tree.
#[derive(Clone, Copy)]
pub(super) struct Tree<'a>(BorrowedFd<'a>);

const BENEATH: ResolveFlag = ResolveFlag::RESOLVE_BENEATH
    .union(ResolveFlag::RESOLVE_NO_SYMLINKS)
    .union(ResolveFlag::RESOLVE_NO_XDEV);

impl<'a> Tree<'a> {
    pub(super) fn new(root: &'a impl AsFd) -> Self {
        Self(root.as_fd())
    }

    /// What is there; none: nothing, or what leads there is no directory.
    pub(super) fn stat(self, path: &Path) -> io::Result<Option<Meta>> {
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW;
        match self.open_as(path, flags) {
            Ok(fd) => Ok(Some(Meta::of(&fd)?)),
            Err(error) if absent(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The names in a directory, in their order.
    pub(super) fn list(self, path: &Path) -> io::Result<Vec<OsString>> {
        let fd = self.open_as(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
        let mut names = Vec::new();
        for entry in Dir::from_fd(fd)?.iter() {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name));
            }
        }
        names.sort();
        Ok(names)
    }

    /// Opens a file or directory to read it. What is put in its place is not
    /// waited for.
    pub(super) fn open(self, path: &Path) -> io::Result<File> {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        self.open_as(path, flags).map(File::from)
    }

    /// Opens a directory to work in it by name.
    pub(super) fn directory(self, path: &Path) -> io::Result<OwnedFd> {
        self.open_as(path, OFlag::O_PATH | OFlag::O_DIRECTORY)
    }

    /// A file without the rights to read or write it.
    pub(super) fn place(self, path: &Path) -> io::Result<OwnedFd> {
        self.open_as(path, OFlag::O_PATH | OFlag::O_NOFOLLOW)
    }

    /// What a symbolic link says.
    pub(super) fn link(self, path: &Path) -> io::Result<OsString> {
        let fd = self.place(path)?;
        Ok(readlinkat(&fd, "")?)
    }

    /// Whether the calling thread may add to and remove from a directory.
    pub(super) fn writable(self, path: &Path) -> io::Result<bool> {
        let fd = self.directory(path)?;
        let access = AccessFlags::W_OK | AccessFlags::X_OK;
        match faccessat(&fd, ".", access, AtFlags::AT_EACCESS) {
            Ok(()) => Ok(true),
            Err(Errno::EACCES | Errno::EPERM | Errno::EROFS) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    fn open_as(self, path: &Path, flags: OFlag) -> io::Result<OwnedFd> {
        let path = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        let how = OpenHow::new()
            .flags(flags | OFlag::O_CLOEXEC)
            .resolve(BENEATH);
        Ok(openat2(self.0, path, how)?)
    }
}

impl Meta {
    pub(super) fn of(file: &impl AsFd) -> io::Result<Self> {
        Ok(Self::from(&fstat(file)?))
    }
}

impl From<&FileStat> for Meta {
    #[expect(
        clippy::cast_sign_loss,
        reason = "the kernel has no file of a negative size"
    )]
    fn from(stat: &FileStat) -> Self {
        Self {
            mode: stat.st_mode,
            uid: stat.st_uid,
            gid: stat.st_gid,
            size: if stat.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFDIR.bits() {
                0
            } else {
                stat.st_size as u64
            },
            device: stat.st_rdev,
            modified: (stat.st_mtime, stat.st_mtime_nsec),
            stamp: Stamp {
                dev: stat.st_dev,
                ino: stat.st_ino,
                changed: (stat.st_ctime, stat.st_ctime_nsec),
            },
        }
    }
}

/// Nothing is there: also where a directory on the way became something else.
pub(super) fn absent(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    [libc::ENOENT, libc::ENOTDIR, libc::ELOOP]
        .into_iter()
        .any(|it| errno == Some(it))
}

/// A path as directory and name.
pub(super) fn split(path: &Path) -> (PathBuf, &OsStr) {
    let parent = path.parent().unwrap_or(Path::new("")).to_path_buf();
    (parent, path.file_name().unwrap_or_default())
}

/// The bytes of a path.
pub(super) fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}
