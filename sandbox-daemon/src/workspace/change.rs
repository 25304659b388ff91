//! What became of a workspace, one path at a time.

use std::{
    ffi::OsString,
    path::{Component, Path, PathBuf},
    time::SystemTime,
};

use nix::sys::stat::SFlag;

use super::WorkspaceError;

/// What happened at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It is new.
    Added,
    /// Its contents, permissions or attributes are others.
    Modified,
    /// It is gone.
    Deleted,
    /// A regular file that was elsewhere before.
    Renamed,
    /// It is another type of file.
    TypeChanged,
}

/// The types of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileType {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A device, pipe or socket.
    Special,
}

/// Which state of a file it is: every change of it changes this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stamp {
    pub(super) dev: u64,
    pub(super) ino: u64,
    /// Seconds and nanoseconds.
    pub(super) changed: (i64, i64),
}

impl Stamp {
    /// Whether it was made or changed at that time or later.
    pub(super) fn since(&self, time: SystemTime) -> bool {
        let since = time
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
        self.changed >= (seconds, i64::from(since.subsec_nanos()))
    }
}

/// What stat(2) says of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta {
    /// Type and permissions.
    pub mode: u32,
    /// Bytes; of a directory none.
    pub size: u64,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) device: u64,
    pub(super) modified: (i64, i64),
    pub(super) stamp: Stamp,
}

impl Meta {
    /// Its type.
    pub fn file_type(&self) -> FileType {
        match SFlag::from_bits_truncate(self.mode & SFlag::S_IFMT.bits()) {
            SFlag::S_IFREG => FileType::Regular,
            SFlag::S_IFDIR => FileType::Directory,
            SFlag::S_IFLNK => FileType::Link,
            _ => FileType::Special,
        }
    }

    /// Its permissions, set-user-ID and the like included.
    pub fn permissions(&self) -> u32 {
        self.mode & 0o7777
    }

    pub(super) fn is(&self, file_type: FileType) -> bool {
        self.file_type() == file_type
    }

    /// The same file with the same contents, as far as that can be told from here;
    /// moving a file changes its time of change.
    pub(super) fn same_file(&self, other: &Self) -> bool {
        self.stamp.dev == other.stamp.dev
            && self.stamp.ino == other.stamp.ino
            && self.mode == other.mode
            && self.size == other.size
            && self.modified == other.modified
    }
}

/// One change. Paths are relative to the workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// What happened.
    pub kind: Kind,
    /// Where.
    pub path: PathBuf,
    /// Where it was; of [`Kind::Renamed`] alone.
    pub old_path: Option<PathBuf>,
    /// What is in the real workspace.
    pub old: Option<Meta>,
    /// What the sandbox has.
    pub new: Option<Meta>,
    /// Whether the contents differ (of a link: where it leads).
    pub contents: bool,
    /// Names of the user.* attributes that differ.
    pub xattrs: Vec<OsString>,
    /// Why its contents are not known.
    pub unknown: Option<&'static str>,
}

impl Change {
    /// Whether either side is of that type.
    pub(super) fn involves(&self, file_type: FileType) -> bool {
        let mut sides = self.old.iter().chain(&self.new);
        sides.any(|meta| meta.is(file_type))
    }

    /// The type that it has in the sandbox.
    pub(super) fn new_type(&self) -> Option<FileType> {
        self.new.as_ref().map(Meta::file_type)
    }

    /// The type that it has in the real workspace.
    pub(super) fn old_type(&self) -> Option<FileType> {
        self.old.as_ref().map(Meta::file_type)
    }
}

/// Something that is not carried out, or not in full.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// What.
    pub path: PathBuf,
    /// Why, as a sentence goes on after the path.
    pub reason: String,
}

/// Which paths are asked for, with all that is below them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selection(Vec<PathBuf>);

impl Selection {
    /// All of the workspace where none is named.
    pub fn new(paths: impl IntoIterator<Item = PathBuf>) -> Result<Self, WorkspaceError> {
        let mut chosen = Vec::new();
        let mut all = false;
        for path in paths {
            let mut normal = PathBuf::new();
            for component in path.components() {
                match component {
                    Component::CurDir => {}
                    Component::Normal(name) => normal.push(name),
                    _ => return Err(WorkspaceError::Selection { path }),
                }
            }
            let nul = super::tree::bytes(&path).contains(&0);
            if nul || path.as_os_str().is_empty() {
                return Err(WorkspaceError::Selection { path });
            }
            all |= normal.as_os_str().is_empty();
            chosen.push(normal);
        }
        if all {
            chosen.clear();
        }
        Ok(Self(chosen))
    }

    /// Whether it is asked for.
    pub(super) fn has(&self, path: &Path) -> bool {
        self.0.is_empty() || self.0.iter().any(|chosen| path.starts_with(chosen))
    }

    /// Whether something below it may be.
    pub(super) fn leads_to(&self, path: &Path) -> bool {
        self.has(path) || self.0.iter().any(|chosen| chosen.starts_with(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_stands_for_what_is_below_it() {
        let chosen = Selection::new(["./a/b".into(), "c".into()]).unwrap();
        for path in ["a/b", "a/b/x", "c/d/e"] {
            assert!(chosen.has(Path::new(path)), "{path}");
        }
        for path in ["a", "a/bc", "d", ""] {
            assert!(!chosen.has(Path::new(path)), "{path}");
        }
        assert!(chosen.leads_to(Path::new("a")) && chosen.leads_to(Path::new("")));
        assert!(!chosen.leads_to(Path::new("d")));
        assert!(
            Selection::new([".".into(), "a".into()])
                .unwrap()
                .has(Path::new("z"))
        );
    }

    #[test]
    fn a_path_never_leads_out() {
        for path in ["..", "a/../../b", "/etc", ""] {
            assert!(Selection::new([path.into()]).is_err(), "{path}");
        }
    }
}
