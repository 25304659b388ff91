//! Placing a process that already runs, and its descendants, into a sandbox.
//! All of them move, or none stays.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use super::inherited::{self, Inherited, refuse_inherited};
use crate::{
    cgroup::{Cgroup, CgroupError, Slice},
    sys::{self, ProcessStat},
};

/// What to enroll.
#[derive(Debug, Clone, Copy)]
pub struct Enrollment {
    /// The process.
    pub pid: u32,
    /// Whose it and its descendants must be.
    pub uid: u32,
    /// When it started, as its owner saw it; without, it is not compared.
    pub start_time: Option<u64>,
    /// Accept what it holds open.
    pub allow_inherited: bool,
}

/// Processes that are in the sandbox now.
#[derive(Debug)]
pub struct Enrolled {
    /// The one that was named.
    pub leader: OwnedFd,
    /// All that were moved, the named one first.
    pub pids: Vec<u32>,
}

/// Why nothing was enrolled.
#[derive(Debug, thiserror::Error)]
pub enum EnrollError {
    /// There is no such process, or not any more.
    #[error("process {pid} is gone")]
    Gone {
        /// The process.
        pid: u32,
    },
    /// The number names another process than was meant.
    #[error("process {pid} is not the one that was meant: it started at another time")]
    StartTime {
        /// The process.
        pid: u32,
    },
    /// Another user's, or one with more than its user's rights.
    #[error("process {pid} does not run as user {uid} alone")]
    NotOwned {
        /// The process.
        pid: u32,
        /// The user.
        uid: u32,
    },
    /// Never to be moved.
    #[error("process {pid} is {what} and cannot be enrolled")]
    Refused {
        /// The process.
        pid: u32,
        /// What it is.
        what: &'static str,
    },
    /// Nothing leaves a sandbox.
    #[error("process {pid} is in sandbox `{sandbox}` already")]
    InSandbox {
        /// The process.
        pid: u32,
        /// The sandbox.
        sandbox: String,
    },
    /// It holds what the walls cannot take back.
    #[error("it holds what the walls cannot take back: {}", inherited::list(.0))]
    Inherited(Vec<Inherited>),
    /// It forks faster than it can be moved.
    #[error("process {pid} keeps making processes outside the sandbox")]
    Unsettled {
        /// The process.
        pid: u32,
    },
    /// A file of `/proc`.
    #[error("`{path}` cannot be read")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Moving.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
}

/// How often the table of processes is read until nothing is found outside.
const PASSES: u32 = 200;

/// How often the list of processes is read for one table.
const LISTS: u32 = 4;

/// Moves a process and its descendants into `target`, the empty cgroup of an
/// exec.
///
/// A descendant whose parents all ended before is not found: nothing in the
/// kernel says whose it was. What is inside stands still until all of it is, so
/// that nothing new hides what is left outside.
pub fn enroll(
    enrollment: &Enrollment,
    slice: &Slice,
    target: &Cgroup,
) -> Result<Enrolled, EnrollError> {
    let mut move_ = Move {
        enrollment,
        slice,
        target,
        moved: BTreeMap::new(),
    };
    let all = target.freeze(true).map_err(EnrollError::from);
    let all = all.and_then(|()| move_.all());
    let all = all.and_then(|leader| Ok(target.freeze(false).map(|()| leader)?));
    match all {
        Ok(leader) => {
            let others = move_.moved.keys().filter(|pid| **pid != enrollment.pid);
            Ok(Enrolled {
                leader,
                pids: std::iter::once(&enrollment.pid)
                    .chain(others)
                    .copied()
                    .collect(),
            })
        }
        Err(error) => {
            move_.back();
            Err(error)
        }
    }
}

/// A move under way.
struct Move<'a> {
    enrollment: &'a Enrollment,
    slice: &'a Slice,
    target: &'a Cgroup,
    /// Who was moved, from where.
    moved: BTreeMap<u32, Origin>,
}

struct Origin {
    pidfd: OwnedFd,
    /// `cgroup.procs` of the cgroup it was in.
    procs: PathBuf,
}

impl Move<'_> {
    fn all(&mut self) -> Result<OwnedFd, EnrollError> {
        let pid = self.enrollment.pid;
        let gone = |_| EnrollError::Gone { pid };
        let leader = sys::pidfd_open(pid).map_err(gone)?;
        let started = sys::start_time(pid).map_err(gone)?;
        sys::pidfd_send_signal(&leader, 0).map_err(gone)?;
        if self
            .enrollment
            .start_time
            .is_some_and(|time| time != started)
        {
            return Err(EnrollError::StartTime { pid });
        }
        for _ in 0..PASSES {
            let (outside, whole) = self.outside(started)?;
            if outside.is_empty() && whole {
                return Ok(leader);
            }
            // Everything is checked before anything is moved.
            let checked = outside
                .into_iter()
                .filter_map(|pid| Some((pid, self.check(pid).transpose()?)))
                .map(|(pid, pidfd)| Ok((pid, pidfd?)))
                .collect::<Result<Vec<_>, EnrollError>>()?;
            if !self.enrollment.allow_inherited {
                refuse_inherited(checked.iter().map(|(pid, _)| *pid))?;
            }
            for (pid, pidfd) in checked {
                self.place(pid, pidfd)?;
            }
        }
        Err(EnrollError::Unsettled { pid })
    }

    /// The leader and its descendants that are not in the target yet, parents
    /// first: what they fork once they are inside is inside as well. And whether
    /// these are all.
    fn outside(&self, started: u64) -> Result<(Vec<u32>, bool), EnrollError> {
        let pid = self.enrollment.pid;
        let (table, whole) = processes()?;
        if table
            .get(&pid)
            .is_none_or(|stat| stat.start_time != started || stat.is_dead())
        {
            return Err(EnrollError::Gone { pid });
        }
        let inside: BTreeSet<u32> = self.target.pids()?.into_iter().collect();
        let mut outside = tree(pid, &table);
        outside.retain(|pid| !inside.contains(pid) && !table[pid].is_dead());
        Ok((outside, whole))
    }

    /// Whether this process may be moved; `None` if it ended or is inside.
    fn check(&self, pid: u32) -> Result<Option<OwnedFd>, EnrollError> {
        let Ok(pidfd) = sys::pidfd_open(pid) else {
            return Ok(None);
        };
        let refused = |what| Err(EnrollError::Refused { pid, what });
        if pid == INIT {
            return refused("the host's first process");
        }
        if pid == std::process::id() {
            return refused("the daemon itself");
        }
        let (Ok(stat), Ok(status)) = (sys::process_stat(pid), sys::process_status(pid)) else {
            return Ok(None);
        };
        if stat.is_headless() && !stat.is_dead() {
            // It stays where it was, and what it has open is not to be seen.
            return refused("a process whose first thread has ended");
        }
        if stat.is_kernel_thread() {
            return refused("a thread of the kernel");
        }
        if !status.uid.all(self.enrollment.uid) {
            return Err(EnrollError::NotOwned {
                pid,
                uid: self.enrollment.uid,
            });
        }
        let membership = match self.slice.membership(pid) {
            Err(_) if !lives(&pidfd) => return Ok(None),
            membership => membership?,
        };
        if let Some(membership) = membership {
            // Forked by one that is inside by now. It need not be in the list
            // of processes there: it may have ended.
            if self.slice.is_at(&membership, self.target) {
                return Ok(None);
            }
            return Err(EnrollError::InSandbox {
                pid,
                sandbox: membership.sandbox,
            });
        }
        // Alive after all was read: it was this process's.
        Ok(lives(&pidfd).then_some(pidfd))
    }

    fn place(&mut self, pid: u32, pidfd: OwnedFd) -> Result<(), EnrollError> {
        let procs = match self.slice.hierarchy().cgroup_of(pid) {
            Ok(path) => path.join("cgroup.procs"),
            Err(_) if !lives(&pidfd) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        match self.target.attach(pid) {
            Ok(()) if lives(&pidfd) => {
                self.moved.insert(pid, Origin { pidfd, procs });
                Ok(())
            }
            // It ended, and its number may have been another's by then.
            Ok(()) => self.return_stranger(pid),
            Err(_) if !lives(&pidfd) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn return_stranger(&self, pid: u32) -> Result<(), EnrollError> {
        if !self.target.pids()?.contains(&pid) {
            return Ok(());
        }
        let Ok(stat) = sys::process_stat(pid) else {
            return Ok(());
        };
        let home = self.slice.hierarchy().cgroup_of(stat.parent)?;
        write_procs(&home.join("cgroup.procs"), pid)
    }

    /// Undoes the move, of what was forked meanwhile as well.
    fn back(&self) {
        for _ in 0..PASSES {
            let Ok(pids) = self.target.pids() else {
                return;
            };
            if pids.is_empty() {
                return;
            }
            for pid in pids {
                let own = self.moved.get(&pid).filter(|origin| lives(&origin.pidfd));
                let Some(origin) = own.or_else(|| self.moved.get(&self.enrollment.pid)) else {
                    continue;
                };
                if let Err(error) = write_procs(&origin.procs, pid) {
                    tracing::debug!(pid, %error, "not moved back");
                }
            }
        }
        tracing::error!(
            pid = self.enrollment.pid,
            cgroup = %self.target.path().display(),
            "an enrollment that failed could not be undone"
        );
    }
}

fn lives(pidfd: &OwnedFd) -> bool {
    sys::pidfd_send_signal(pidfd, 0).is_ok()
}

fn write_procs(procs: &Path, pid: u32) -> Result<(), EnrollError> {
    fs::write(procs, pid.to_string()).map_err(|source| {
        CgroupError::Attach {
            pid,
            path: procs.to_owned(),
            source,
        }
        .into()
    })
}

/// The processes that there are, and whether that is all of them. A list is old
/// when what it names has been looked at: one of them may have made another and
/// ended in between, and neither is found. So a list is looked through until the
/// next one names nobody who is new.
fn processes() -> Result<(BTreeMap<u32, ProcessStat>, bool), EnrollError> {
    let mut table: BTreeMap<u32, ProcessStat> = BTreeMap::new();
    let mut known = BTreeSet::new();
    for _ in 0..LISTS {
        let mut whole = true;
        for pid in list()? {
            // Whoever is orphaned has another parent by now.
            if descends(pid, &table, &mut known) {
                continue;
            }
            whole = false;
            if let Ok(stat) = sys::process_stat(pid) {
                table.insert(pid, stat);
            }
        }
        if whole {
            return Ok((table, true));
        }
    }
    Ok((table, false))
}

/// The host's first process, and the parent of the kernel's own.
const INIT: u32 = 1;
const KTHREADD: u32 = 2;

/// Whether all ancestors of a process are in the table. Those of `known` are,
/// which spares the way up in a long line of descent.
fn descends(pid: u32, table: &BTreeMap<u32, ProcessStat>, known: &mut BTreeSet<u32>) -> bool {
    let mut line = Vec::new();
    let mut pid = pid;
    while !known.contains(&pid) {
        let Some(stat) = table.get(&pid) else {
            return false;
        };
        line.push(pid);
        // No more than there are: numbers are used again.
        if line.len() > table.len() {
            return false;
        }
        if stat.parent == 0 {
            // Those two have none, and nobody else: 0 is also what the kernel says of
            // a process that has just ended, whose children are another's by now.
            if !matches!(pid, INIT | KTHREADD) {
                return false;
            }
            break;
        }
        pid = stat.parent;
    }
    known.extend(line);
    true
}

/// The numbers of processes.
fn list() -> Result<Vec<u32>, EnrollError> {
    let read_error = |source| EnrollError::Read {
        path: "/proc".into(),
        source,
    };
    let mut pids = Vec::new();
    for entry in fs::read_dir("/proc").map_err(read_error)? {
        let name = entry.map_err(read_error)?.file_name();
        pids.extend(name.to_str().and_then(|name| name.parse::<u32>().ok()));
    }
    Ok(pids)
}

/// A process and its descendants, parents first.
fn tree(root: u32, table: &BTreeMap<u32, ProcessStat>) -> Vec<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (pid, stat) in table {
        children.entry(stat.parent).or_default().push(*pid);
    }
    let mut found = vec![root];
    let mut next = 0;
    while let Some(pid) = found.get(next) {
        let below = children.remove(pid).unwrap_or_default();
        found.extend(below);
        next += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(parent: u32) -> ProcessStat {
        ProcessStat {
            state: 'S',
            parent,
            group: 1,
            threads: 1,
            flags: 0,
            start_time: 1,
        }
    }

    #[test]
    fn a_tree_has_parents_first_and_no_strangers() {
        let table = BTreeMap::from([
            (1, stat(0)),
            (10, stat(1)),
            (5, stat(10)),
            (11, stat(10)),
            (12, stat(5)),
            (20, stat(1)),
        ]);
        assert_eq!(tree(10, &table), [10, 5, 11, 12]);
        assert_eq!(tree(20, &table), [20]);
    }

    #[test]
    fn who_has_an_ancestor_that_is_not_in_the_table_is_not_known() {
        let table = BTreeMap::from([(1, stat(0)), (5, stat(1)), (8, stat(7)), (9, stat(8))]);
        let mut known = BTreeSet::new();
        assert!(descends(5, &table, &mut known));
        assert!(!descends(9, &table, &mut known));
        assert!(!descends(7, &table, &mut known));
        assert_eq!(known, BTreeSet::from([1, 5]));
    }

    #[test]
    fn who_is_the_child_of_one_that_has_just_ended_is_not_known() {
        let table = BTreeMap::from([(1, stat(0)), (5, stat(1)), (7, stat(0)), (8, stat(7))]);
        let mut known = BTreeSet::new();
        assert!(descends(5, &table, &mut known));
        assert!(!descends(7, &table, &mut known));
        assert!(!descends(8, &table, &mut known));
    }

    #[test]
    fn parents_that_go_round_end() {
        let table = BTreeMap::from([(1, stat(0)), (5, stat(6)), (6, stat(5))]);
        assert!(!descends(5, &table, &mut BTreeSet::new()));
    }

    #[test]
    fn this_process_is_in_the_table() {
        assert!(processes().unwrap().0.contains_key(&std::process::id()));
    }
}
