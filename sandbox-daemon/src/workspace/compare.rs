//! What the sandbox sees beside what is really there, as the sandbox's user may
//! see them.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs::File,
    io,
    path::{Path, PathBuf},
};

use xattr::FileExt as _;

use super::{
    Change, FileType, Kind, MAX_CHANGES, Meta, Selection, Watch, Workspace, WorkspaceError,
    contents,
    tree::{self, Tree},
};

/// Longer ones no system call takes.
const MAX_PATH: usize = 4095;

const UNREADABLE: &str = "cannot be read by the sandbox's user";

pub(super) struct Comparison<'a, 'w> {
    old: Tree<'a>,
    new: Tree<'a>,
    selection: &'a Selection,
    attributes: bool,
    watch: &'a mut Watch<'w>,
    pub(super) found: Vec<Change>,
}

/// One side of a path.
enum Side {
    Known(Option<Meta>),
    /// It is not to be seen; why.
    Hidden(&'static str),
}

/// What differs in two files of one type.
#[derive(Default)]
struct Difference {
    contents: bool,
    xattrs: Vec<OsString>,
    unknown: Option<&'static str>,
}

impl<'a, 'w> Comparison<'a, 'w> {
    pub(super) fn new(
        workspace: &Workspace<'a>,
        selection: &'a Selection,
        attributes: bool,
        watch: &'a mut Watch<'w>,
    ) -> Self {
        Self {
            old: workspace.lower(),
            new: workspace.merged(),
            selection,
            attributes,
            watch,
            found: Vec::new(),
        }
    }

    /// A directory without what is in it. False: it is not one on both sides.
    pub(super) fn directory(&mut self, path: &Path) -> Result<bool, WorkspaceError> {
        let (Side::Known(Some(old)), Side::Known(Some(new))) =
            (side(self.old, path), side(self.new, path))
        else {
            return Ok(false);
        };
        let both = old.is(FileType::Directory) && new.is(FileType::Directory);
        // The workspace itself is whose it was.
        if both && !path.as_os_str().is_empty() {
            self.watch.file()?;
            self.differ(path, old, new)?;
        }
        Ok(both)
    }

    /// A path and all that is below it.
    pub(super) fn whole(&mut self, path: PathBuf) -> Result<(), WorkspaceError> {
        let mut paths = vec![path];
        while let Some(path) = paths.pop() {
            if !self.selection.leads_to(&path) {
                continue;
            }
            self.watch.file()?;
            let (old, new) = (side(self.old, &path), side(self.new, &path));
            let (old, new) = match (old, new) {
                (Side::Known(old), Side::Known(new)) => (old, new),
                (Side::Hidden(why), Side::Known(meta)) => {
                    self.unknown(path, None, meta, why)?;
                    continue;
                }
                (Side::Known(meta), Side::Hidden(why)) => {
                    self.unknown(path, meta, None, why)?;
                    continue;
                }
                (Side::Hidden(why), Side::Hidden(_)) => {
                    self.unknown(path, None, None, why)?;
                    continue;
                }
            };
            let below = self.below(&path, old, new);
            self.at(path.clone(), old, new)?;
            match below {
                Ok(names) => paths.extend(names.into_iter().rev()),
                Err(why) => match self.found.last_mut().filter(|it| it.path == path) {
                    Some(change) => change.unknown = Some(why),
                    None => self.unknown(path, old, new, why)?,
                },
            }
        }
        Ok(())
    }

    /// What lies in a directory of either side.
    fn below(
        &self,
        path: &Path,
        old: Option<Meta>,
        new: Option<Meta>,
    ) -> Result<BTreeSet<PathBuf>, &'static str> {
        let mut paths = BTreeSet::new();
        for (tree, meta) in [(self.old, old), (self.new, new)] {
            if !meta.is_some_and(|it| it.is(FileType::Directory)) {
                continue;
            }
            match tree.list(path) {
                Ok(names) => paths.extend(names.into_iter().map(|name| path.join(name))),
                Err(error) if tree::absent(&error) => {}
                Err(error) => return Err(why(&error)),
            }
        }
        Ok(paths)
    }

    fn at(
        &mut self,
        path: PathBuf,
        old: Option<Meta>,
        new: Option<Meta>,
    ) -> Result<(), WorkspaceError> {
        let (kind, side) = match (old, new) {
            (None, None) => return Ok(()),
            (Some(old), Some(new)) if old.file_type() == new.file_type() => {
                return self.differ(&path, old, new);
            }
            (Some(_), Some(_)) => (Kind::TypeChanged, self.new),
            (None, Some(_)) => (Kind::Added, self.new),
            (Some(_), None) => (Kind::Deleted, self.old),
        };
        let meta = new.or(old);
        let regular = meta.is_some_and(|it| it.is(FileType::Regular));
        let opened = regular.then(|| side.open(&path));
        let holds = meta.is_some_and(|it| it.is(FileType::Regular) || it.is(FileType::Link));
        let mut change = Change {
            contents: holds || kind == Kind::TypeChanged,
            ..change(kind, path, old, new)
        };
        match opened {
            Some(Ok(file)) if kind != Kind::Deleted && self.attributes => {
                change.xattrs = attributes(&file).into_keys().collect();
            }
            Some(Err(error)) => change.unknown = Some(why(&error)),
            _ => {}
        }
        self.put(change)
    }

    /// Two files of one type.
    fn differ(&mut self, path: &Path, old: Meta, new: Meta) -> Result<(), WorkspaceError> {
        let difference = match old.file_type() {
            FileType::Special => Difference {
                contents: old.device != new.device || (old.mode ^ new.mode) & !0o7777 != 0,
                ..Difference::default()
            },
            FileType::Link => match (self.old.link(path), self.new.link(path)) {
                (Ok(one), Ok(other)) => Difference {
                    contents: one != other,
                    ..Difference::default()
                },
                (Err(error), _) | (_, Err(error)) => doubtful(old, new, &error),
            },
            FileType::Directory if !self.attributes => Difference::default(),
            FileType::Regular | FileType::Directory => self.opened(path, old, new)?,
        };
        let permissions = !new.is(FileType::Link) && old.permissions() != new.permissions();
        let same = !difference.contents && !permissions && difference.xattrs.is_empty();
        if same {
            return Ok(());
        }
        self.put(Change {
            contents: difference.contents,
            xattrs: difference.xattrs,
            unknown: difference.unknown,
            ..change(Kind::Modified, path.to_owned(), Some(old), Some(new))
        })
    }

    fn opened(&mut self, path: &Path, old: Meta, new: Meta) -> Result<Difference, WorkspaceError> {
        let (one, other) = match (self.old.open(path), self.new.open(path)) {
            (Ok(one), Ok(other)) => (one, other),
            (Err(error), _) | (_, Err(error)) => return Ok(doubtful(old, new, &error)),
        };
        let contents = if new.is(FileType::Directory) {
            false
        } else if old.size == new.size {
            match contents::same(&one, &other, new.size, self.watch)? {
                Ok(same) => !same,
                Err(error) => return Ok(doubtful(old, new, &error)),
            }
        } else {
            true
        };
        let xattrs = if self.attributes {
            let (before, after) = (attributes(&one), attributes(&other));
            let names: BTreeSet<_> = before.keys().chain(after.keys()).cloned().collect();
            names
                .into_iter()
                .filter(|name| before.get(name) != after.get(name))
                .collect()
        } else {
            Vec::new()
        };
        Ok(Difference {
            contents,
            xattrs,
            unknown: None,
        })
    }

    fn unknown(
        &mut self,
        path: PathBuf,
        old: Option<Meta>,
        new: Option<Meta>,
        why: &'static str,
    ) -> Result<(), WorkspaceError> {
        self.put(Change {
            contents: true,
            unknown: Some(why),
            ..change(Kind::Modified, path, old, new)
        })
    }

    fn put(&mut self, change: Change) -> Result<(), WorkspaceError> {
        if !self.selection.has(&change.path) {
            return Ok(());
        }
        if self.found.len() == MAX_CHANGES {
            return Err(WorkspaceError::TooMany);
        }
        self.found.push(change);
        Ok(())
    }
}

fn change(kind: Kind, path: PathBuf, old: Option<Meta>, new: Option<Meta>) -> Change {
    Change {
        kind,
        path,
        old_path: None,
        old,
        new,
        contents: false,
        xattrs: Vec::new(),
        unknown: None,
    }
}

fn side(tree: Tree<'_>, path: &Path) -> Side {
    if tree::bytes(path).len() > MAX_PATH {
        return Side::Hidden("has a path that is too long");
    }
    match tree.stat(path) {
        Ok(meta) => Side::Known(meta),
        Err(error) => Side::Hidden(why(&error)),
    }
}

fn why(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EXDEV) => "is on another file system",
        Some(libc::EACCES | libc::EPERM) => UNREADABLE,
        Some(libc::ENAMETOOLONG) => "has a path that is too long",
        _ => "cannot be read",
    }
}

/// Files that cannot be read: what was copied up and not written to is as large and
/// as old as it was.
fn doubtful(old: Meta, new: Meta, error: &io::Error) -> Difference {
    let touched = old.size != new.size || old.modified != new.modified;
    Difference {
        contents: touched && !new.is(FileType::Directory),
        xattrs: Vec::new(),
        unknown: Some(why(error)),
    }
}

/// What of a file's attributes is the user's. What cannot be read is as if it were
/// not there.
pub(super) fn attributes(file: &File) -> BTreeMap<OsString, Vec<u8>> {
    let names = file.list_xattr().into_iter().flatten();
    names
        .filter(|name| name.as_encoded_bytes().starts_with(b"user."))
        .filter_map(|name| {
            let value = file.get_xattr(&name).ok().flatten()?;
            Some((name, value))
        })
        .collect()
}
