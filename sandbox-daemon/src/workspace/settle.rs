//! Keeps for the sandbox what it renamed. A directory that was renamed inside has
//! its contents where they were, in the real workspace: before anything is written
//! there, they are copied up, and the directory is made anew. Left as it is, it would
//! seem empty as soon as the real one is removed.

use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    io,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{AtFlags, renameat},
    sys::stat::{Mode, fchmod, mkdirat},
    unistd::{Gid, Uid, UnlinkatFlags, fchown, fchownat, unlinkat},
};
use xattr::FileExt as _;

use super::{
    FileType, Meta, Watch, Workspace, WorkspaceError,
    compare::attributes,
    temporary::unused_name,
    tree::{Tree, absent, split},
    walk::{REDIRECT, look},
};

/// Makes what the sandbox sees independent of real files at and below these paths.
pub(super) fn settle(
    workspace: &Workspace<'_>,
    touched: &BTreeSet<&Path>,
    watch: &mut Watch<'_>,
) -> Result<(), WorkspaceError> {
    for Redirected { path, source } in redirected(workspace.upper(), watch)? {
        let depends = source.is_none_or(|source| {
            let below = touched.range(&*source..).next();
            below.is_some_and(|it| it.starts_with(&source))
                || source.ancestors().any(|above| touched.contains(above))
        });
        if depends {
            let room = |(path, source)| WorkspaceError::Room { path, source };
            let merged = workspace.merged();
            copy_up(merged, path.clone(), watch)?;
            let there = merged.stat(&path).is_ok_and(|it| it.is_some());
            if there {
                make_anew(merged, &path).map_err(room)?;
            }
        }
    }
    Ok(())
}

/// A directory that was renamed.
struct Redirected {
    path: PathBuf,
    /// Where its contents really are; none: it was renamed more than once.
    source: Option<PathBuf>,
}

fn redirected(upper: Tree<'_>, watch: &mut Watch<'_>) -> Result<Vec<Redirected>, WorkspaceError> {
    let mut found = Vec::new();
    // With whether it is where it was.
    let mut directories = vec![(PathBuf::new(), true)];
    while let Some((directory, in_place)) = directories.pop() {
        let names = match upper.list(&directory) {
            Ok(names) => names,
            Err(error) if absent(&error) => continue,
            Err(source) => return Err(look(&directory, source)),
        };
        for name in names {
            watch.go_on()?;
            let path = directory.join(name);
            match redirect(upper, &path) {
                Ok(Entry::Other) => {}
                Ok(Entry::Directory(None)) => directories.push((path, in_place)),
                Ok(Entry::Directory(Some(to))) => {
                    let source = match to.strip_prefix(b"/") {
                        Some(from_root) => Some(PathBuf::from(OsStr::from_bytes(from_root))),
                        None => in_place.then(|| directory.join(OsStr::from_bytes(&to))),
                    };
                    directories.push((path.clone(), false));
                    found.push(Redirected { path, source });
                }
                Err(source) => return Err(look(&path, source)),
            }
        }
    }
    Ok(found)
}

/// Something in the upper layer.
enum Entry {
    /// With where it is redirected to.
    Directory(Option<Vec<u8>>),
    Other,
}

fn redirect(upper: Tree<'_>, path: &Path) -> io::Result<Entry> {
    let meta = upper.stat(path)?;
    if !meta.is_some_and(|it| it.is(FileType::Directory)) {
        return Ok(Entry::Other);
    }
    match upper.open(path) {
        Ok(directory) => Ok(Entry::Directory(directory.get_xattr(REDIRECT)?)),
        Err(error) if absent(&error) => Ok(Entry::Other),
        Err(error) => Err(error),
    }
}

/// Puts a directory of the upper layer alone in the place of one that shows another.
fn make_anew(merged: Tree<'_>, path: &Path) -> Result<(), (PathBuf, io::Error)> {
    let failed = |error: io::Error| (path.to_owned(), error);
    let (above, name) = split(path);
    let parent = merged.directory(&above).map_err(failed)?;
    let new = above.join(unused_name());
    let mut moved = Vec::new();
    // All directories are there before the first file is moved.
    let mut directories = vec![(path.to_owned(), new.clone())];
    while let Some((from, to)) = directories.pop() {
        let step = || -> io::Result<Vec<OsString>> {
            make_like(merged, &from, &to)?;
            merged.list(&from)
        };
        for name in step().map_err(|error| (from.clone(), error))? {
            let (from, to) = (from.join(&name), to.join(&name));
            let meta = merged.stat(&from).map_err(failed)?;
            if meta.is_some_and(|it| it.is(FileType::Directory)) {
                directories.push((from, to));
            } else {
                moved.push((from, to));
            }
        }
    }
    for (from, to) in moved {
        rename(merged, &from, &to).map_err(|error| (from.clone(), error))?;
    }
    remove_empty(merged, path).map_err(failed)?;
    let (_, new_name) = split(&new);
    renameat(&parent, new_name, &parent, name).map_err(|errno| failed(errno.into()))
}

/// A directory with owner, permissions and attributes of another.
fn make_like(merged: Tree<'_>, from: &Path, to: &Path) -> io::Result<()> {
    let (above, name) = split(to);
    mkdirat(&merged.directory(&above)?, name, Mode::S_IRWXU)?;
    let (old, new) = (merged.open(from)?, merged.open(to)?);
    let meta = Meta::of(&old)?;
    let (uid, gid) = (Uid::from_raw(meta.uid), Gid::from_raw(meta.gid));
    fchown(&new, Some(uid), Some(gid))?;
    for (name, value) in attributes(&old) {
        new.set_xattr(name, &value)?;
    }
    Ok(fchmod(&new, Mode::from_bits_truncate(meta.permissions()))?)
}

fn rename(merged: Tree<'_>, from: &Path, to: &Path) -> io::Result<()> {
    let ((from, old), (to, new)) = (split(from), split(to));
    let (from, to) = (merged.directory(&from)?, merged.directory(&to)?);
    match renameat(&from, old, &to, new) {
        // The sandbox was quicker.
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Removes what is below a directory that holds no files any more.
fn remove_empty(merged: Tree<'_>, path: &Path) -> io::Result<()> {
    for name in merged.list(path)? {
        let path = path.join(name);
        remove_empty(merged, &path)?;
        let (above, name) = split(&path);
        unlinkat(&merged.directory(&above)?, name, UnlinkatFlags::RemoveDir)?;
    }
    Ok(())
}

fn copy_up(merged: Tree<'_>, path: PathBuf, watch: &mut Watch<'_>) -> Result<(), WorkspaceError> {
    let mut paths = vec![path];
    while let Some(path) = paths.pop() {
        watch.go_on()?;
        let mut step = || -> io::Result<()> {
            let file = merged.place(&path)?;
            // Changes nothing, which overlayfs does in the upper layer.
            fchownat(&file, "", None, None, AtFlags::AT_EMPTY_PATH)?;
            if Meta::of(&file)?.is(FileType::Directory) {
                let names = merged.list(&path)?;
                paths.extend(names.into_iter().map(|name| path.join(name)));
            }
            Ok(())
        };
        match step() {
            Ok(()) => {}
            Err(error) if absent(&error) => {}
            Err(source) => return Err(WorkspaceError::Room { path, source }),
        }
    }
    Ok(())
}
