//! Writing changes to the real workspace.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::{Path, PathBuf},
};

use super::{
    Change, FileType, Kind, LeftOut, Meta, Rules, Stamp, Verdict, Watch, Workspace, WorkspaceError,
    check::Check,
    halt::Halt,
    settle::settle,
    walk,
    write::{Outcome, Writer},
};

/// How changes are applied.
#[derive(Clone, Copy)]
pub struct Terms<'t> {
    /// What is never applied.
    pub rules: &'t Rules<'t>,
    /// Also over what changed meanwhile.
    pub force: bool,
    /// Only say what would be.
    pub dry_run: bool,
}

/// What is told while changes are applied.
#[derive(Debug)]
pub enum Step<'c> {
    /// It is written.
    Applied(&'c Change),
    /// It is not, or not in full.
    LeftOut(LeftOut),
}

/// What earlier calls wrote for a sandbox: no conflict.
#[derive(Debug, Default)]
pub struct Applied(HashMap<PathBuf, Stamp>);

impl Applied {
    pub(super) fn get(&self, path: &Path) -> Option<Stamp> {
        self.0.get(path).copied()
    }
}

/// What is to be done for one change.
pub(super) struct Operation<'c> {
    pub(super) change: &'c Change,
    /// Whether something is written to its path.
    pub(super) put: bool,
    /// What is removed.
    pub(super) remove: Option<&'c Path>,
}

const STALE_INDEX: &str = "was written by git in the real workspace too; `git reset` makes it \
                           anew";

type Put<'p> = dyn FnMut(Step<'_>) -> Result<(), WorkspaceError> + 'p;

pub(super) fn apply(
    workspace: &Workspace<'_>,
    changes: &[Change],
    terms: Terms<'_>,
    applied: &mut Applied,
    watch: &mut Watch<'_>,
    put: &mut Put<'_>,
) -> Result<(), WorkspaceError> {
    let mut left_out = Vec::new();
    let mut operations = workspace.as_user(|| plan(changes, terms.rules, &mut left_out))?;
    let check = Check {
        lower: workspace.lower(),
        since: workspace.layers.since,
        uid: workspace.account.uid,
        force: terms.force,
        applied,
    };
    let checked = workspace.as_user(|| {
        operations.retain(|operation| {
            let stale = check.stale_index(operation);
            if stale {
                left_out.push(LeftOut {
                    path: operation.change.path.clone(),
                    reason: STALE_INDEX.to_owned(),
                });
            }
            !stale
        });
        check.all(&operations, watch)
    })?;
    for left_out in left_out {
        put(Step::LeftOut(left_out))?;
    }
    checked?;
    if terms.dry_run {
        let changes = operations.iter().map(|it| it.change);
        return changes.map(Step::Applied).try_for_each(put);
    }
    let touched: BTreeSet<&Path> = operations
        .iter()
        .flat_map(|it| [it.put.then_some(&*it.change.path), it.remove])
        .flatten()
        .collect();
    settle(workspace, &touched, watch)?;
    let attributes = walk::has_attributes(workspace.upper())?;
    Application {
        workspace,
        writer: Writer::new(workspace, terms, attributes, &operations),
        removals: removals(&operations),
        applied,
        watch,
        put,
        written: 0,
    }
    .run(&operations)
}

/// What is to be done, without what is never applied. Runs as the user.
fn plan<'c>(
    changes: &'c [Change],
    rules: &Rules<'_>,
    left_out: &mut Vec<LeftOut>,
) -> Vec<Operation<'c>> {
    let mut operations = Vec::new();
    let mut leave = |path: &Path, reason| {
        left_out.push(LeftOut {
            path: path.to_owned(),
            reason,
        });
    };
    for change in changes {
        match rules.verdict(change) {
            Verdict::Whole => {}
            Verdict::Partly(reason) => leave(&change.path, reason),
            Verdict::Nothing(reason) => {
                leave(&change.path, reason);
                continue;
            }
        }
        let remove = match change.kind {
            Kind::Deleted => Some(&*change.path),
            Kind::Renamed => change.old_path.as_deref().filter(|path| {
                let reason = rules.removal(path, true);
                reason.map(|reason| leave(path, reason)).is_none()
            }),
            Kind::Added | Kind::Modified | Kind::TypeChanged => None,
        };
        operations.push(Operation {
            change,
            put: change.kind != Kind::Deleted,
            remove,
        });
    }
    operations
}

/// Paths that go, with what is there and the change that is done with it.
type Removals<'c> = BTreeMap<&'c Path, (Meta, Option<&'c Change>)>;

fn removals<'c>(operations: &[Operation<'c>]) -> Removals<'c> {
    let removed = operations.iter().filter_map(|it| {
        let done = (!it.put).then_some(it.change);
        Some((it.remove?, (it.change.old?, done)))
    });
    removed.collect()
}

struct Application<'p, 'a, 'c, 'w> {
    workspace: &'p Workspace<'a>,
    writer: Writer<'p>,
    removals: Removals<'c>,
    applied: &'p mut Applied,
    watch: &'p mut Watch<'w>,
    put: &'p mut Put<'p>,
    written: u64,
}

impl<'c> Application<'_, '_, 'c, '_> {
    fn run(mut self, operations: &[Operation<'c>]) -> Result<(), WorkspaceError> {
        for operation in operations.iter().filter(|it| it.put) {
            let change = operation.change;
            let emptied = change.old_type() == Some(FileType::Directory)
                && change.new_type() != Some(FileType::Directory);
            if emptied && !self.empty(change)? {
                continue;
            }
            self.watch.file()?;
            let (workspace, writer, watch) = (self.workspace, &mut self.writer, &mut *self.watch);
            let (outcome, now) = workspace.as_user(|| {
                let outcome = writer.put(change, watch);
                (outcome, workspace.lower().stat(&change.path))
            })?;
            let done = self.settle(&change.path, outcome)?;
            if done {
                if let Ok(Some(meta)) = now {
                    self.applied.0.insert(change.path.clone(), meta.stamp);
                }
                self.tell(change)?;
            } else if let Some(old_path) = &change.old_path {
                self.removals.remove(&**old_path);
            }
        }
        while let Some((path, removal)) = self.removals.pop_last() {
            self.remove(path, removal)?;
        }
        let (workspace, writer) = (self.workspace, &mut self.writer);
        let finished = workspace.as_user(|| writer.finish())?;
        finished.map_err(|(path, source)| self.failed(&path, source))
    }

    /// Removes what is in a directory that becomes a file, and the directory.
    fn empty(&mut self, change: &'c Change) -> Result<bool, WorkspaceError> {
        let below = self.removals.range(&*change.path..);
        let below: Vec<&Path> = below
            .map(|(path, _)| *path)
            .take_while(|path| path.starts_with(&change.path))
            .collect();
        for path in below.into_iter().rev() {
            if let Some(removal) = self.removals.remove(path) {
                self.remove(path, removal)?;
            }
        }
        let Some(old) = change.old else {
            return Ok(true);
        };
        let (workspace, writer) = (self.workspace, &self.writer);
        let outcome = workspace.as_user(|| writer.remove(&change.path, &old))?;
        self.settle(&change.path, outcome.map_err(Halt::Io))
    }

    fn remove(
        &mut self,
        path: &Path,
        (old, change): (Meta, Option<&'c Change>),
    ) -> Result<(), WorkspaceError> {
        self.watch.file()?;
        let (workspace, writer) = (self.workspace, &self.writer);
        let outcome = workspace.as_user(|| writer.remove(path, &old))?;
        if self.settle(path, outcome.map_err(Halt::Io))? {
            self.applied.0.remove(path);
            if let Some(change) = change {
                self.tell(change)?;
            }
        }
        Ok(())
    }

    /// Says what was not done. Whether it was.
    fn settle(
        &mut self,
        path: &Path,
        outcome: Result<Outcome, Halt>,
    ) -> Result<bool, WorkspaceError> {
        let (done, reason) = match outcome {
            Ok(Outcome::Done) => return Ok(true),
            Ok(Outcome::Partly(reason)) => (true, reason),
            Ok(Outcome::Skipped(reason)) => (false, reason),
            Err(Halt::Ended(error)) => return Err(error),
            Err(Halt::Io(source)) => return Err(self.failed(path, source)),
        };
        (self.put)(Step::LeftOut(LeftOut {
            path: path.to_owned(),
            reason: reason.to_owned(),
        }))?;
        Ok(done)
    }

    fn tell(&mut self, change: &Change) -> Result<(), WorkspaceError> {
        self.written += 1;
        (self.put)(Step::Applied(change))
    }

    fn failed(&self, path: &Path, source: std::io::Error) -> WorkspaceError {
        WorkspaceError::Write {
            path: path.to_owned(),
            written: self.written,
            source,
        }
    }
}
