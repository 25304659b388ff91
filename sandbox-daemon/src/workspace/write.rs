//! One change at a time, whole or not at all. All of it runs as the user.

use std::{
    collections::HashSet,
    ffi::OsString,
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::RenameFlags,
    sys::stat::{Mode, fchmod, mkdirat},
    unistd::{Gid, UnlinkatFlags, fchown, symlinkat, unlinkat},
};
use xattr::FileExt as _;

use super::{
    Change, FileType, Kind, Meta, Terms, Verdict, Watch, Workspace,
    apply::Operation,
    check::not_permitted,
    compare::attributes,
    contents,
    halt::Halt,
    temporary::{Temporary, unknown},
    tree::{Tree, absent, split},
};

/// How often a file that is being written to is read.
const TRIES: usize = 3;

const CHANGED: &str = "was changed in the real workspace just now";
const CHANGED_INSIDE: &str = "was changed by the sandbox just now";

/// What became of one change.
pub(super) enum Outcome {
    Done,
    /// All but this.
    Partly(&'static str),
    Skipped(&'static str),
}

pub(super) struct Writer<'a> {
    merged: Tree<'a>,
    lower: Tree<'a>,
    terms: Terms<'a>,
    /// Whether the sandbox's files have their user.* attributes.
    attributes: bool,
    /// Directories that go.
    going: HashSet<PathBuf>,
    /// Directories that get these permissions at the end: until then something may
    /// have to be put into them.
    modes: Vec<(PathBuf, u32)>,
}

impl<'a> Writer<'a> {
    pub(super) fn new(
        workspace: &Workspace<'a>,
        terms: Terms<'a>,
        attributes: bool,
        operations: &[Operation<'_>],
    ) -> Self {
        let going = operations.iter().filter(|it| {
            it.change.old_type() == Some(FileType::Directory)
                && it.change.new_type() != Some(FileType::Directory)
        });
        Self {
            merged: workspace.merged(),
            lower: workspace.lower(),
            terms,
            attributes,
            going: going.map(|it| it.change.path.clone()).collect(),
            modes: Vec::new(),
        }
    }

    /// Writes what the sandbox has at a path.
    pub(super) fn put(&mut self, change: &Change, watch: &mut Watch<'_>) -> Result<Outcome, Halt> {
        let now = self.merged.stat(&change.path)?.map(|it| it.file_type());
        if now.is_none() || now != change.new_type() {
            return Ok(Outcome::Skipped(CHANGED_INSIDE));
        }
        match now {
            Some(FileType::Directory) => self.directory(change),
            Some(FileType::Link) => self.link(change),
            Some(FileType::Regular) if in_place(change) => self.attributes_alone(change),
            Some(FileType::Regular) => self.file(change, watch),
            Some(FileType::Special) | None => Ok(Outcome::Skipped(CHANGED_INSIDE)),
        }
    }

    /// Removes what is in the real workspace.
    pub(super) fn remove(&self, path: &Path, old: &Meta) -> io::Result<Outcome> {
        let Some(now) = self.lower.stat(path)? else {
            return Ok(Outcome::Done);
        };
        let directory = old.is(FileType::Directory);
        let same = directory || self.terms.force || now.stamp == old.stamp;
        if now.is(FileType::Directory) != directory || !same {
            return Ok(Outcome::Skipped(CHANGED));
        }
        let (parent, name) = split(path);
        let flags = if directory {
            UnlinkatFlags::RemoveDir
        } else {
            UnlinkatFlags::NoRemoveDir
        };
        let unlink = || -> io::Result<()> {
            let parent = self.lower.directory(&parent)?;
            Ok(unlinkat(&parent, name, flags)?)
        };
        let mut unlinked = unlink();
        if let Err(error) = &unlinked
            && not_permitted(error)
            && self.going.contains(&parent)
        {
            let directory = self.lower.open(&parent)?;
            fchmod(&directory, Mode::S_IRWXU)?;
            unlinked = unlink();
        }
        match unlinked {
            Ok(()) => Ok(Outcome::Done),
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTEMPTY | libc::EEXIST)) => {
                Ok(Outcome::Skipped("is not empty in the real workspace"))
            }
            Err(error) => Err(error),
        }
    }

    /// Gives directories the permissions that they are to have.
    pub(super) fn finish(&mut self) -> Result<(), (PathBuf, io::Error)> {
        while let Some((path, mode)) = self.modes.pop() {
            let step = || -> io::Result<()> {
                let directory = match self.lower.open(&path) {
                    Ok(directory) => directory,
                    Err(error) if absent(&error) => return Ok(()),
                    Err(error) => return Err(error),
                };
                let special = Meta::of(&directory)?.permissions() & !0o777;
                chmod(&directory, mode & 0o777 | special)
            };
            step().map_err(|source| (path.clone(), source))?;
        }
        Ok(())
    }

    fn directory(&mut self, change: &Change) -> Result<Outcome, Halt> {
        let path = &change.path;
        let inside = self.merged.open(path)?;
        let mode = Meta::of(&inside)?.permissions();
        let (above, name) = split(path);
        if change.old_type() != Some(FileType::Directory) {
            let parent = self.parent(&above)?;
            if let Some(old) = &change.old {
                match self.remove(path, old)? {
                    Outcome::Done => {}
                    other => return Ok(other),
                }
            }
            match mkdirat(&parent, name, Mode::S_IRWXU) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        let directory = match self.lower.open(path) {
            Ok(directory) => directory,
            Err(error) if absent(&error) => return Ok(Outcome::Skipped(CHANGED)),
            Err(error) => return Err(error.into()),
        };
        let now = Meta::of(&directory)?;
        if !now.is(FileType::Directory) {
            return Ok(Outcome::Skipped(CHANGED));
        }
        if now.permissions() & 0o777 != mode & 0o777 {
            let special = now.permissions() & !0o777;
            chmod(&directory, mode & 0o777 | 0o700 | special)?;
            self.modes.push((path.clone(), mode));
        }
        Ok(Self::give(&directory, &inside, &change.xattrs))
    }

    /// The directory of a path, made where it is missing.
    fn parent(&mut self, path: &Path) -> io::Result<OwnedFd> {
        match self.lower.directory(path) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            found => return found,
        }
        let (above, name) = split(path);
        let parent = self.parent(&above)?;
        let mode = match self.merged.stat(path)? {
            Some(meta) if meta.is(FileType::Directory) => meta.permissions(),
            _ => 0o700,
        };
        mkdirat(&parent, name, Mode::S_IRWXU)?;
        self.modes.push((path.to_owned(), mode));
        self.lower.directory(path)
    }

    fn link(&mut self, change: &Change) -> Result<Outcome, Halt> {
        let target = self.merged.link(&change.path)?;
        if self.terms.rules.link(&change.path, &target) != Verdict::Whole {
            return Ok(Outcome::Skipped(CHANGED_INSIDE));
        }
        let (above, _) = split(&change.path);
        let parent = self.parent(&above)?;
        let new = Temporary::name(parent);
        symlinkat(&*target, &new.parent, &*new.name)?;
        self.place(new.made(), change)
    }

    fn file(&mut self, change: &Change, watch: &mut Watch<'_>) -> Result<Outcome, Halt> {
        let (above, _) = split(&change.path);
        for _ in 0..TRIES {
            let from = self.merged.open(&change.path)?;
            let before = Meta::of(&from)?;
            if !before.is(FileType::Regular) {
                return Ok(Outcome::Skipped(CHANGED_INSIDE));
            }
            let parent = self.parent(&above)?;
            let (new, to) = Temporary::file(parent)?;
            contents::copy(&from, &to, before.size, watch)??;
            let after = Meta::of(&from)?;
            if (after.size, after.modified) != (before.size, before.modified) {
                continue;
            }
            if Meta::of(&to)?.gid != before.gid {
                // The group that the file has, if it is one of the user's.
                let _ = fchown(&to, None, Some(Gid::from_raw(before.gid)));
            }
            chmod(&to, before.permissions() & 0o777)?;
            let given = if self.attributes {
                let names: Vec<_> = attributes(&from).into_keys().collect();
                Self::give(&to, &from, &names)
            } else {
                self.keep(&to, change)
            };
            return Ok(match self.place(new, change)? {
                Outcome::Done => given,
                other => other,
            });
        }
        Ok(Outcome::Skipped("is being written to in the sandbox"))
    }

    /// Permissions and attributes of a file whose contents are the same.
    fn attributes_alone(&mut self, change: &Change) -> Result<Outcome, Halt> {
        let inside = self.merged.open(&change.path)?;
        let real = match self.lower.open(&change.path) {
            Ok(real) => real,
            Err(error) if absent(&error) => return Ok(Outcome::Skipped(CHANGED)),
            Err(error) => return Err(error.into()),
        };
        let now = Meta::of(&real)?;
        let same = change.old.is_some_and(|old| old.stamp == now.stamp);
        if !now.is(FileType::Regular) || !(same || self.terms.force) {
            return Ok(Outcome::Skipped(CHANGED));
        }
        let given = Self::give(&real, &inside, &change.xattrs);
        let mode = Meta::of(&inside)?.permissions() & (0o777 | now.permissions());
        if mode != now.permissions() {
            chmod(&real, mode)?;
        }
        Ok(given)
    }

    /// Makes these attributes of a real file those of the sandbox's.
    fn give(real: &File, inside: &File, names: &[OsString]) -> Outcome {
        let mut lost = false;
        for name in names {
            let given = match inside.get_xattr(name) {
                Ok(Some(value)) => real.set_xattr(name, &value),
                Ok(None) if real.get_xattr(name).is_ok_and(|it| it.is_some()) => {
                    real.remove_xattr(name)
                }
                Ok(None) => Ok(()),
                Err(error) => Err(error),
            };
            lost |= given.is_err();
        }
        without(lost)
    }

    /// Leaves a file the attributes that it has, which the sandbox could not see.
    fn keep(&self, to: &File, change: &Change) -> Outcome {
        let path = change.old_path.as_ref().unwrap_or(&change.path);
        let regular = change.old_type() == Some(FileType::Regular);
        let Some(real) = regular.then(|| self.lower.open(path).ok()).flatten() else {
            return Outcome::Done;
        };
        let given = attributes(&real)
            .into_iter()
            .map(|(name, value)| to.set_xattr(name, &value));
        without(given.fold(false, |lost, given| lost | given.is_err()))
    }

    /// Puts what was made in its place.
    fn place(&self, mut new: Temporary, change: &Change) -> Result<Outcome, Halt> {
        let (_, name) = split(&change.path);
        let old = change
            .old
            .filter(|old| change.old_path.is_none() && !old.is(FileType::Directory));
        if old.is_none() {
            match new.rename(name, RenameFlags::RENAME_NOREPLACE) {
                Ok(()) => return Ok(Outcome::Done),
                Err(Errno::EEXIST) if self.terms.force => {}
                Err(Errno::EEXIST) => return Ok(Outcome::Skipped(CHANGED)),
                Err(errno) => return Err(errno.into()),
            }
        }
        match new.rename(name, RenameFlags::RENAME_EXCHANGE) {
            Ok(()) => {}
            // It is gone.
            Err(Errno::ENOENT) if self.terms.force => {
                return match new.rename(name, RenameFlags::RENAME_NOREPLACE) {
                    Ok(()) => Ok(Outcome::Done),
                    Err(errno) => Err(errno.into()),
                };
            }
            Err(Errno::ENOENT) => return Ok(Outcome::Skipped(CHANGED)),
            Err(errno) if unknown(errno) => return self.replace(new, change),
            Err(errno) => return Err(errno.into()),
        }
        // Under the temporary name is now what was there.
        let replaced = new.stat()?;
        let expected = old.is_some_and(|old| old.same_file(&replaced));
        let may = expected || self.terms.force && !replaced.is(FileType::Directory);
        if !may {
            new.exchange_back(name)?;
            return Ok(Outcome::Skipped(CHANGED));
        }
        // Dropped, it is removed.
        Ok(Outcome::Done)
    }

    /// The same where the file system cannot exchange two files.
    fn replace(&self, mut new: Temporary, change: &Change) -> Result<Outcome, Halt> {
        let now = self.lower.stat(&change.path)?;
        let same = now.map(|it| it.stamp) == change.old.map(|it| it.stamp);
        if !same && !self.terms.force {
            return Ok(Outcome::Skipped(CHANGED));
        }
        let (_, name) = split(&change.path);
        new.rename_over(name)?;
        Ok(Outcome::Done)
    }
}

/// Whether the file itself stays.
fn in_place(change: &Change) -> bool {
    change.kind == Kind::Modified && !change.contents
}

fn without(lost: bool) -> Outcome {
    if lost {
        Outcome::Partly("is applied without some of its extended attributes")
    } else {
        Outcome::Done
    }
}

fn chmod(file: &impl AsFd, mode: u32) -> io::Result<()> {
    Ok(fchmod(file, Mode::from_bits_truncate(mode))?)
}
