//! What an ephemeral sandbox made of its workspace, for its owner: shown, exported
//! and applied.

use std::{path::PathBuf, sync::Arc};

use bytes::Bytes;
use tokio::{
    runtime::Handle,
    sync::{Mutex, mpsc, watch},
};

use super::{Caller, InForce, Registry, Sandbox, SandboxError, registry::flatten};
use crate::{
    launch::{Account, Layers},
    workspace::{
        Applied, Change, LeftOut, Lines, Piece, Selection, Step, Terms, Verdict, Watch, Workspace,
        WorkspaceError,
    },
};

/// What is asked of the changes of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// The list.
    List {
        /// Whether lines are counted.
        count_lines: bool,
    },
    /// A patch.
    Patch {
        /// Whether it carries what is no text.
        binary: bool,
    },
    /// That they be applied.
    Apply {
        /// Also over what changed meanwhile.
        force: bool,
        /// Only say what would be.
        dry_run: bool,
        /// Symbolic links that lead out of the workspace too.
        outside_links: bool,
    },
}

/// A part of the answer.
#[derive(Debug)]
pub enum Told {
    /// One change; where lines were asked for, with them.
    Change {
        /// It.
        change: Change,
        /// How many lines are others.
        lines: Option<Lines>,
        /// What of it is never applied; empty: all is.
        left_out: String,
    },
    /// Bytes of a patch.
    Patch(Bytes),
    /// Not carried out, or not in full.
    LeftOut(LeftOut),
    /// Written.
    Applied(Change),
    /// Files looked at or written so far.
    Progress(u64),
}

/// Where the answer goes.
pub type Answer = mpsc::Sender<Result<Told, SandboxError>>;

/// Files between two words of progress.
const PROGRESS: u64 = 256;

impl Registry {
    /// Looks for what a sandbox changed at these paths, all without any, and does
    /// with it what is wanted. Returns when that has begun; it ends when nobody
    /// takes the answer, or when the sandbox is deleted.
    pub async fn changes(
        self: &Arc<Self>,
        caller: &Caller,
        id: &str,
        paths: Vec<PathBuf>,
        wanted: Wanted,
        answer: Answer,
    ) -> Result<(), SandboxError> {
        let sandbox = self.get(caller, id)?;
        let selection = Selection::new(paths)?;
        if sandbox.view.layers().is_none() {
            let problem = "names a sandbox whose workspace is written directly: only an \
                           ephemeral one (`sandbox create --ephemeral`) keeps changes apart";
            return Err(SandboxError::invalid("sandbox_id", problem));
        }
        let (registry, caller) = (self.clone(), caller.clone());
        let prepared = tokio::task::spawn_blocking(move || {
            // Files are read and written outside of whatever confines the caller.
            registry.may_run(&caller)?;
            Look::new(&caller, &sandbox)
        });
        let look = flatten(prepared.await)?;
        tokio::spawn(async move {
            // Each compares with what the one before wrote. Who waits for another
            // keeps no thread, and may go away.
            let earlier = match wanted {
                Wanted::Apply { .. } => tokio::select! {
                    earlier = look.applied.clone().lock_owned() => Some(earlier),
                    () = answer.closed() => return,
                },
                Wanted::List { .. } | Wanted::Patch { .. } => None,
            };
            tokio::task::spawn_blocking(move || {
                let mut earlier = earlier;
                look.answer(&selection, &wanted, earlier.as_deref_mut(), answer);
            });
        });
        Ok(())
    }
}

/// What it takes to look at a sandbox's changes, also while it is deleted.
struct Look {
    id: String,
    layers: Arc<Layers>,
    account: Account,
    place: PathBuf,
    policy: Arc<InForce>,
    applied: Arc<Mutex<Applied>>,
    gone: watch::Receiver<bool>,
}

impl Look {
    fn new(caller: &Caller, sandbox: &Sandbox) -> Result<Self, SandboxError> {
        let layers = sandbox.view.layers().cloned();
        let (Some(layers), Some(place)) = (layers, sandbox.workspace.clone()) else {
            return Err(SandboxError::Internal);
        };
        let account = match &caller.peer {
            // With the groups that the caller has now.
            Some(peer) if peer.uid() == sandbox.account.uid => Account::of_peer(peer)?,
            _ => sandbox.account.clone(),
        };
        Ok(Self {
            id: sandbox.id.clone(),
            layers,
            account,
            place,
            policy: sandbox.policy(),
            applied: sandbox.changes.clone(),
            gone: sandbox.gone.subscribe(),
        })
    }

    /// `applied`: to apply, what was applied before.
    fn answer(
        &self,
        selection: &Selection,
        wanted: &Wanted,
        applied: Option<&mut Applied>,
        answer: Answer,
    ) {
        let mut channel = Channel {
            answer,
            gone: self.gone.clone(),
            runtime: Handle::current(),
        };
        if let Err(error) = self.run(selection, wanted, applied, &mut channel) {
            // Nobody reads it where the caller has gone.
            let _ = channel.answer.blocking_send(Err(self.why(error)));
        }
    }

    fn run(
        &self,
        selection: &Selection,
        wanted: &Wanted,
        applied: Option<&mut Applied>,
        channel: &mut Channel,
    ) -> Result<(), WorkspaceError> {
        let workspace = Workspace::new(&self.layers, &self.account);
        let mut observer = channel.observer();
        let mut watch = Watch::new(&mut observer);
        let changes = workspace.changes(selection, &mut watch)?;
        match *wanted {
            Wanted::List { count_lines } => {
                let rules = workspace.rules(&self.policy.policy, &self.place, false)?;
                for change in changes {
                    let left_out = match workspace.verdict(&rules, &change)? {
                        Verdict::Whole => String::new(),
                        Verdict::Partly(reason) | Verdict::Nothing(reason) => reason,
                    };
                    let lines = count_lines
                        .then(|| workspace.lines(&change, &mut watch))
                        .transpose()?;
                    channel.send(Told::Change {
                        change,
                        lines,
                        left_out,
                    })?;
                }
                Ok(())
            }
            Wanted::Patch { binary } => {
                workspace.patch(&changes, binary, &mut watch, &mut |piece| {
                    channel.send(match piece {
                        Piece::Patch(bytes) => Told::Patch(bytes),
                        Piece::LeftOut(left_out) => Told::LeftOut(left_out),
                    })
                })
            }
            Wanted::Apply {
                force,
                dry_run,
                outside_links,
            } => {
                let rules = workspace.rules(&self.policy.policy, &self.place, outside_links)?;
                let terms = Terms {
                    rules: &rules,
                    force,
                    dry_run,
                };
                let mut put = |step: Step<'_>| {
                    channel.send(match step {
                        Step::Applied(change) => Told::Applied(change.clone()),
                        Step::LeftOut(left_out) => Told::LeftOut(left_out),
                    })
                };
                match applied {
                    Some(applied) => {
                        workspace.apply(&changes, terms, applied, &mut watch, &mut put)
                    }
                    None => Ok(()),
                }
            }
        }
    }

    fn why(&self, error: WorkspaceError) -> SandboxError {
        if *self.gone.borrow() {
            SandboxError::Closing(self.id.clone())
        } else {
            error.into()
        }
    }
}

/// The way to the caller.
struct Channel {
    answer: Answer,
    gone: watch::Receiver<bool>,
    runtime: Handle,
}

impl Channel {
    /// Tells how far it is, where that does not have to wait, and notices when it
    /// is over.
    fn observer(&self) -> impl FnMut(u64) -> bool + use<> {
        let (answer, gone) = (self.answer.clone(), self.gone.clone());
        let mut said = 0;
        move |files| {
            if files >= said + PROGRESS && answer.try_send(Ok(Told::Progress(files))).is_ok() {
                said = files;
            }
            !answer.is_closed() && !*gone.borrow()
        }
    }

    /// Waits for room.
    fn send(&mut self, told: Told) -> Result<(), WorkspaceError> {
        let (answer, gone) = (&self.answer, &mut self.gone);
        let sent = match answer.try_send(Ok(told)) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Closed(_)) => false,
            Err(mpsc::error::TrySendError::Full(told)) => self.runtime.block_on(async {
                tokio::select! {
                    sent = answer.send(told) => sent.is_ok(),
                    _ = gone.wait_for(|gone| *gone) => false,
                }
            }),
        };
        if sent && !*self.gone.borrow() {
            Ok(())
        } else {
            Err(WorkspaceError::Cancelled)
        }
    }
}
