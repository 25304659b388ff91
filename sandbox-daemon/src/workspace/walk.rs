//! Where to look: the upper layer of the overlay holds everything that the sandbox
//! touched.

use std::{
    io,
    path::{Path, PathBuf},
};

use xattr::FileExt as _;

use super::{
    Change, FileType, Selection, Watch, Workspace, WorkspaceError, compare::Comparison, tree::Tree,
};

/// A directory that hides what is below it, and one whose lower directory is
/// elsewhere.
const MARKS: [&str; 2] = ["trusted.overlay.opaque", REDIRECT];
pub(super) const REDIRECT: &str = "trusted.overlay.redirect";

/// What is still to be looked at.
enum Task {
    /// A directory of both layers: what is in the upper one says where.
    Both(PathBuf),
    /// Anything else, with all that is below it, on both sides.
    Whole(Vec<PathBuf>),
}

/// All changes that are asked for, in the order of the paths, renames as what was
/// added and what was deleted.
pub(super) fn changes(
    workspace: &Workspace<'_>,
    selection: &Selection,
    watch: &mut Watch<'_>,
) -> Result<Vec<Change>, WorkspaceError> {
    let attributes = has_attributes(workspace.upper())?;
    let mut comparison = Comparison::new(workspace, selection, attributes, watch);
    let mut tasks = vec![Task::Both(PathBuf::new())];
    while let Some(task) = tasks.pop() {
        match task {
            Task::Whole(paths) => {
                workspace
                    .as_user(|| paths.into_iter().try_for_each(|it| comparison.whole(it)))??;
            }
            Task::Both(path) => {
                if workspace.as_user(|| comparison.directory(&path))?? {
                    below(workspace.upper(), &path, selection, &mut tasks)?;
                } else {
                    tasks.push(Task::Whole(vec![path]));
                }
            }
        }
    }
    Ok(comparison.found)
}

/// What is in a directory of the upper layer, as tasks: the first comes last.
fn below(
    upper: Tree<'_>,
    path: &Path,
    selection: &Selection,
    tasks: &mut Vec<Task>,
) -> Result<(), WorkspaceError> {
    let names = match upper.list(path) {
        Ok(names) => names,
        // It was moved away just now.
        Err(error) if super::tree::absent(&error) => return Ok(()),
        Err(source) => return Err(look(path, source)),
    };
    let mut whole = Vec::new();
    let first = tasks.len();
    for name in names {
        let path = path.join(name);
        if !selection.leads_to(&path) {
            continue;
        }
        if merges(upper, &path).map_err(|source| look(&path, source))? {
            if !whole.is_empty() {
                tasks.push(Task::Whole(std::mem::take(&mut whole)));
            }
            tasks.push(Task::Both(path));
        } else {
            whole.push(path);
        }
    }
    if !whole.is_empty() {
        tasks.push(Task::Whole(whole));
    }
    tasks[first..].reverse();
    Ok(())
}

/// Whether it is a directory through which the one below at the same path shows.
fn merges(upper: Tree<'_>, path: &Path) -> io::Result<bool> {
    let directory = upper
        .stat(path)?
        .is_some_and(|it| it.is(FileType::Directory));
    if !directory {
        return Ok(false);
    }
    let opened = match upper.open(path) {
        Ok(opened) => opened,
        Err(error) if super::tree::absent(&error) => return Ok(false),
        Err(error) => return Err(error),
    };
    for mark in MARKS {
        if opened.get_xattr(mark)?.is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether the upper layer keeps user.* attributes. A tmpfs does from 6.6 on;
/// before, what is copied up loses them, which is no change of the sandbox's.
pub(super) fn has_attributes(upper: Tree<'_>) -> Result<bool, WorkspaceError> {
    let root = Path::new("");
    let opened = upper.open(root).map_err(|source| look(root, source))?;
    match opened.get_xattr("user.sandboxd") {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(false),
        Err(source) => Err(look(root, source)),
    }
}

pub(super) fn look(path: &Path, source: io::Error) -> WorkspaceError {
    WorkspaceError::Look {
        path: path.to_owned(),
        source,
    }
}
