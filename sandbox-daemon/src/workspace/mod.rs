//! What an ephemeral sandbox made of its workspace: found, shown as a patch, and
//! written to the real one.
//!
//! The upper layer of the overlay only says where to look. What is different is
//! told by comparing what the sandbox sees with what is really there, so that
//! nothing depends on how overlayfs keeps it, and what is the same again is no
//! change. All of it is read and written with the rights of the sandbox's user.

mod apply;
mod binary;
mod change;
mod check;
mod compare;
mod contents;
mod halt;
mod lines;
mod patch;
mod quote;
mod renames;
mod rules;
mod settle;
mod temporary;
mod tree;
mod walk;
mod write;

use std::{io, path::PathBuf};

pub use apply::{Applied, Step, Terms};
pub use change::{Change, FileType, Kind, LeftOut, Meta, Selection, Stamp};
pub use lines::Lines;
pub use patch::Piece;
pub use rules::{Rules, Verdict};

use crate::{
    launch::{Account, Layers, as_user},
    policy::Policy,
};

/// So many changes are told of at a time: each is held in memory.
pub const MAX_CHANGES: usize = 1_000_000;

/// A path, and what is to be said about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Relative to the workspace.
    pub path: PathBuf,
    /// Why, as a sentence goes on after the path.
    pub reason: &'static str,
}

/// Why changes could not be found, shown or applied.
#[derive(Debug, thiserror::Error)]
pub enum WorkspaceError {
    /// Whoever asked has gone.
    #[error("nobody waits for it any more")]
    Cancelled,
    /// A path of the request.
    #[error(
        "`{}` is not a path in the workspace",
        crate::escape::display(tree::bytes(path))
    )]
    Selection {
        /// Which.
        path: PathBuf,
    },
    /// More than is held in memory.
    #[error("the sandbox changed more than {MAX_CHANGES} files")]
    TooMany,
    /// A layer.
    #[error(
        "what the sandbox made cannot be read at `{}`",
        crate::escape::display(tree::bytes(path))
    )]
    Look {
        /// Where.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The daemon cannot act for the user.
    #[error("cannot act as user `{user}`")]
    Act {
        /// Name of the user.
        user: String,
        /// Why not.
        source: io::Error,
    },
    /// A file became another while it was read.
    #[error(
        "`{}` changed while it was read",
        crate::escape::display(tree::bytes(path))
    )]
    Unsettled {
        /// Which.
        path: PathBuf,
        /// What was seen.
        source: io::Error,
    },
    /// The real workspace has changed where the sandbox did.
    #[error("{} of the real workspace changed since the sandbox began; nothing was applied", files(.0.len()))]
    Conflict(Vec<Refusal>),
    /// The user may not write there.
    #[error("{} cannot be written by the sandbox's user; nothing was applied", files(.0.len()))]
    NotWritable(Vec<Refusal>),
    /// What was renamed inside needs room to be kept for the sandbox.
    #[error(
        "the sandbox has no room left for `{}`, which it renamed; nothing was applied",
        crate::escape::display(tree::bytes(path))
    )]
    Room {
        /// What.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The real workspace, half way.
    #[error(
        "cannot write `{}`; {written} of the changes are applied",
        crate::escape::display(tree::bytes(path))
    )]
    Write {
        /// Where.
        path: PathBuf,
        /// How many were applied before.
        written: u64,
        /// Why not.
        source: io::Error,
    },
}

impl WorkspaceError {
    /// What to do about it, where that is known.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::Selection { .. } => "name paths from the workspace on, without `..`",
            Self::TooMany => "name the paths that matter",
            Self::Unsettled { .. } => "do it again when what writes to it has ended",
            Self::Conflict(_) => {
                "look at both, then name the other paths, or apply with `--force`, which \
                 overwrites what is there"
            }
            Self::NotWritable(_) => "change the permissions, or name the other paths",
            Self::Room { .. } => "end what fills the workspace, or export a patch",
            Self::Write { .. } => "when that is mended, apply again: what is there is no conflict",
            _ => return None,
        })
    }
}

fn files(count: usize) -> String {
    match count {
        1 => "a file".to_owned(),
        count => format!("{count} files"),
    }
}

/// Counts files, says so, and learns whether anybody still wants to know.
pub struct Watch<'a> {
    files: u64,
    tell: &'a mut dyn FnMut(u64) -> bool,
}

impl<'a> Watch<'a> {
    /// `tell` is given the number of files so far, also again and again while one
    /// is looked at, must not wait, and says whether to go on.
    pub fn new(tell: &'a mut dyn FnMut(u64) -> bool) -> Self {
        Self { files: 0, tell }
    }

    fn file(&mut self) -> Result<(), WorkspaceError> {
        self.files += 1;
        self.go_on()
    }

    fn go_on(&mut self) -> Result<(), WorkspaceError> {
        if (self.tell)(self.files) {
            Ok(())
        } else {
            Err(WorkspaceError::Cancelled)
        }
    }
}

/// An ephemeral workspace, as its user may see it. What is done with it blocks.
#[derive(Clone, Copy)]
pub struct Workspace<'a> {
    layers: &'a Layers,
    account: &'a Account,
}

impl<'a> Workspace<'a> {
    /// The layers of a sandbox, and its user.
    pub fn new(layers: &'a Layers, account: &'a Account) -> Self {
        Self { layers, account }
    }

    /// What is different, in the order of the paths.
    pub fn changes(
        &self,
        selection: &Selection,
        watch: &mut Watch<'_>,
    ) -> Result<Vec<Change>, WorkspaceError> {
        let found = walk::changes(self, selection, watch)?;
        self.as_user(|| renames::pair(self, found, watch))?
    }

    /// Lines that were added and removed; none: not a text, or not to be read.
    pub fn lines(&self, change: &Change, watch: &mut Watch<'_>) -> Result<Lines, WorkspaceError> {
        lines::count(self, change, watch)
    }

    /// The changes as a patch that `git apply` takes, piece by piece. `put` may
    /// wait. Without `binary`, of what is no text it says only that it differs.
    pub fn patch(
        &self,
        changes: &[Change],
        binary: bool,
        watch: &mut Watch<'_>,
        put: &mut dyn FnMut(Piece) -> Result<(), WorkspaceError>,
    ) -> Result<(), WorkspaceError> {
        patch::write(self, changes, binary, watch, put)
    }

    /// What of the policy and of prudence stands against applying changes.
    pub fn rules(
        &self,
        policy: &Policy,
        place: &std::path::Path,
        outside_links: bool,
    ) -> Result<Rules<'a>, WorkspaceError> {
        let this = *self;
        self.as_user(move || Rules::new(this, policy, place, outside_links))
    }

    /// What of a change is applied.
    pub fn verdict(&self, rules: &Rules<'_>, change: &Change) -> Result<Verdict, WorkspaceError> {
        self.as_user(|| rules.verdict(change))
    }

    /// Writes changes to the real workspace. All are checked before the first is
    /// written, and each is written whole or not at all. `put` may wait.
    pub fn apply(
        &self,
        changes: &[Change],
        terms: Terms<'_>,
        applied: &mut Applied,
        watch: &mut Watch<'_>,
        put: &mut dyn FnMut(Step<'_>) -> Result<(), WorkspaceError>,
    ) -> Result<(), WorkspaceError> {
        apply::apply(self, changes, terms, applied, watch, put)
    }

    /// What the sandbox sees.
    fn merged(&self) -> tree::Tree<'a> {
        tree::Tree::new(&self.layers.merged)
    }

    /// What is really there.
    fn lower(&self) -> tree::Tree<'a> {
        tree::Tree::new(&*self.layers.lower)
    }

    /// Where to look; for root alone.
    fn upper(&self) -> tree::Tree<'a> {
        tree::Tree::new(&self.layers.upper)
    }

    /// `f` must not wait for other threads.
    fn as_user<T>(&self, f: impl FnOnce() -> T) -> Result<T, WorkspaceError> {
        as_user(self.account, f).map_err(|source| WorkspaceError::Act {
            user: self.account.name.clone(),
            source,
        })
    }
}
