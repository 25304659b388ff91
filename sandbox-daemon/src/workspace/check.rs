//! Whether changes can be applied: looked at before anything is written.

use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use super::{
    FileType, Meta, Refusal, Watch, WorkspaceError,
    apply::{Applied, Operation},
    tree::{Tree, absent},
};

const CHANGED: &str = "was made or changed in the real workspace since the sandbox began";
const NO_DIRECTORY: &str = "lies below something that is no directory in the real workspace";
const NOT_WRITABLE: &str = "lies in a directory that the sandbox's user may not write to";
const NOT_OWNED: &str = "belongs to another user in the real workspace";

pub(super) struct Check<'a> {
    pub(super) lower: Tree<'a>,
    pub(super) since: SystemTime,
    pub(super) uid: u32,
    pub(super) force: bool,
    pub(super) applied: &'a Applied,
}

/// What stands against it.
#[derive(Default)]
struct Found {
    conflicts: Vec<Refusal>,
    not_writable: Vec<Refusal>,
}

impl Check<'_> {
    /// Looks at all operations. Runs as the user.
    pub(super) fn all(
        &self,
        operations: &[Operation<'_>],
        watch: &mut Watch<'_>,
    ) -> Result<(), WorkspaceError> {
        let mut found = Found::default();
        // What becomes of directories, and of what is to be one.
        let directories: HashMap<&Path, &Operation<'_>> = operations
            .iter()
            .filter(|it| it.change.involves(FileType::Directory))
            .map(|it| (&*it.change.path, it))
            .collect();
        let mut parents = HashMap::new();
        for operation in operations {
            watch.file()?;
            let change = operation.change;
            if operation.put {
                let at_new_path = change.old.filter(|_| change.old_path.is_none());
                self.state(&change.path, at_new_path.as_ref(), &mut found);
                let in_place = change.old.is_some_and(|old| {
                    change.old_path.is_none()
                        && !change.contents
                        && Some(old.file_type()) == change.new_type()
                });
                if !in_place {
                    self.parent(&change.path, &directories, &mut parents, &mut found);
                } else if change.old.is_some_and(|old| old.uid != self.uid) {
                    found.not_writable.push(refusal(&change.path, NOT_OWNED));
                }
            }
            if let Some(path) = operation.remove {
                self.state(path, change.old.as_ref(), &mut found);
                self.parent(path, &directories, &mut parents, &mut found);
            }
        }
        if !found.conflicts.is_empty() {
            return Err(WorkspaceError::Conflict(found.conflicts));
        }
        if !found.not_writable.is_empty() {
            return Err(WorkspaceError::NotWritable(found.not_writable));
        }
        Ok(())
    }

    fn state(&self, path: &Path, old: Option<&Meta>, found: &mut Found) {
        if self.changed(path, old) {
            found.conflicts.push(refusal(path, CHANGED));
        }
    }

    /// Whether a file is not as it was when the sandbox began, nor as an earlier call
    /// left it.
    fn changed(&self, path: &Path, old: Option<&Meta>) -> bool {
        if self.force {
            return false;
        }
        let now = self.lower.stat(path).ok().flatten();
        // That of a directory tells only of what is in it, which is looked at too.
        let file = |meta: Option<&Meta>| {
            meta.filter(|it| !it.is(FileType::Directory))
                .map(|it| it.stamp)
        };
        let stamp = file(now.as_ref());
        let changed = stamp
            .is_some_and(|stamp| stamp.since(self.since) && self.applied.get(path) != Some(stamp));
        changed || stamp != file(old)
    }

    /// Whether it is git's index, and another one by now. git writes it anew also when
    /// it only looks, so this is no conflict; it can be made again.
    pub(super) fn stale_index(&self, operation: &Operation<'_>) -> bool {
        let change = operation.change;
        change.path.ends_with(".git/index") && self.changed(&change.path, change.old.as_ref())
    }

    /// Whether something can be put into a directory, or be removed from it.
    fn parent(
        &self,
        path: &Path,
        directories: &HashMap<&Path, &Operation<'_>>,
        known: &mut HashMap<PathBuf, Option<(bool, &'static str)>>,
        found: &mut Found,
    ) {
        let parent = path.parent().unwrap_or(Path::new("")).to_path_buf();
        let trouble = *known
            .entry(parent)
            .or_insert_with_key(|parent| self.directory(parent, directories));
        match trouble {
            None => {}
            Some((true, why)) => found.conflicts.push(refusal(path, why)),
            Some((false, why)) => found.not_writable.push(refusal(path, why)),
        }
    }

    /// What stands against working in a directory, and whether it is a conflict.
    fn directory(
        &self,
        parent: &Path,
        directories: &HashMap<&Path, &Operation<'_>>,
    ) -> Option<(bool, &'static str)> {
        for above in parent.ancestors() {
            let operation = directories.get(above);
            let meta = match self.lower.place(above).and_then(|it| Meta::of(&it)) {
                Ok(meta) => meta,
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => continue,
                Err(error) if absent(&error) => continue,
                Err(_) => return Some((false, NOT_WRITABLE)),
            };
            if !meta.is(FileType::Directory) {
                let replaced = operation
                    .is_some_and(|it| it.put && it.change.new_type() == Some(FileType::Directory));
                if replaced {
                    continue;
                }
                return Some((true, NO_DIRECTORY));
            }
            let writable = self.lower.writable(above).unwrap_or(false);
            // It is made writable first.
            let opened = operation.is_some() && meta.uid == self.uid;
            return (!writable && !opened).then_some((false, NOT_WRITABLE));
        }
        None
    }
}

fn refusal(path: &Path, reason: &'static str) -> Refusal {
    Refusal {
        path: path.to_owned(),
        reason,
    }
}

/// Whether it is refused because a right is missing.
pub(super) fn not_permitted(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM))
}
