//! What policies came to in the kernel lately: most sandboxes are like the one
//! before, and what theirs comes to is the same until something is mounted, or a
//! name comes or goes that their places depend on.

use std::{
    fs::File,
    os::fd::AsFd as _,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{lately::Resolved, watches::Watches};
use crate::{kernel::Compiled, policy::Policy};

/// So many are kept; each takes a descriptor for every directory that is looked
/// into.
const KEPT: usize = 4;

/// What some policies came to.
pub(super) struct Known {
    watches: Arc<Watches>,
    inner: Mutex<Inner>,
}

struct Inner {
    /// The host's, which views are copies of; its poll(2) tells of changes.
    mounts: Option<File>,
    /// The most recent first.
    entries: Vec<Entry>,
}

#[derive(Clone)]
struct Entry {
    policy: Arc<Policy>,
    compiled: Arc<Compiled>,
    group: Arc<str>,
    /// It was compiled while all of it was watched.
    sure: bool,
    /// Of what is granted, what may lie below a sandbox's own mounts.
    keep: Arc<[PathBuf]>,
}

/// What a new sandbox can be given.
pub(super) struct Given {
    pub(super) compiled: Arc<Compiled>,
    /// See [`crate::launch::ViewSpec::keep`].
    pub(super) keep: Vec<PathBuf>,
}

/// A compilation that may become known.
pub(super) struct Attempt {
    steady: Option<Entry>,
}

impl Known {
    pub(super) fn new(watches: Arc<Watches>) -> Self {
        Self {
            watches,
            inner: Mutex::new(Inner {
                mounts: File::open("/proc/self/mountinfo").ok(),
                entries: Vec::new(),
            }),
        }
    }

    /// What a policy came to, if it would still. The sandbox is told of changes
    /// from now on.
    pub(super) fn give(&self, policy: &Arc<Policy>, sandbox: &str) -> Option<Given> {
        let entry = self.find(policy).filter(|entry| entry.sure)?;
        if !self.watches.join(&entry.group, sandbox) {
            self.forget(&entry);
            return None;
        }
        Some(Given {
            compiled: entry.compiled,
            keep: entry.keep.to_vec(),
        })
    }

    /// Before a policy is compiled.
    pub(super) fn attempt(&self, policy: &Arc<Policy>) -> Attempt {
        let steady = self
            .find(policy)
            .filter(|entry| self.watches.is_steady(&entry.group));
        Attempt { steady }
    }

    /// After it was. The first time it is only known what is to be watched; what
    /// it comes to while that is watched is what is given. Blocks.
    pub(super) fn learn(
        &self,
        attempt: Attempt,
        policy: &Arc<Policy>,
        resolved: &Resolved,
        compiled: Arc<Compiled>,
    ) {
        let Some(lookups) = &compiled.lookups else {
            return;
        };
        if let Some(entry) = attempt.steady {
            let before = entry.compiled.lookups.as_ref();
            let same = before.is_some_and(|before| before.are_those_of(lookups));
            if same && self.watches.is_steady(&entry.group) {
                let keep = resolved.granted.iter();
                let keep = keep.filter(|path| lookups.leads_to_own(path));
                self.put(&Entry {
                    keep: keep.cloned().collect(),
                    sure: true,
                    compiled: compiled.clone(),
                    ..entry
                });
                return;
            }
            self.forget(&entry);
        }
        let shared = compiled.shared_watches().chain(&lookups.watches);
        if let Some(group) = self.watches.open_group(shared.cloned().collect()) {
            self.put(&Entry {
                policy: policy.clone(),
                compiled,
                group,
                sure: false,
                keep: Arc::new([]),
            });
        }
    }

    fn find(&self, policy: &Arc<Policy>) -> Option<Entry> {
        let mut inner = self.lock();
        if inner.mounts_changed() {
            self.close(std::mem::take(&mut inner.entries));
            return None;
        }
        let mut entries = inner.entries.iter();
        let at = entries.position(|entry| Arc::ptr_eq(&entry.policy, policy))?;
        let entry = inner.entries.remove(at);
        inner.entries.insert(0, entry.clone());
        Some(entry)
    }

    fn put(&self, entry: &Entry) {
        let mut inner = self.lock();
        let same = |kept: &Entry| Arc::ptr_eq(&kept.policy, &entry.policy);
        let (gone, mut kept): (Vec<_>, Vec<_>) = std::mem::take(&mut inner.entries)
            .into_iter()
            .partition(same);
        kept.insert(0, entry.clone());
        let over = kept.split_off(kept.len().min(KEPT));
        inner.entries = kept;
        let gone = gone.into_iter().filter(|gone| gone.group != entry.group);
        self.close(gone.chain(over).collect());
    }

    fn forget(&self, entry: &Entry) {
        let mut inner = self.lock();
        inner.entries.retain(|kept| kept.group != entry.group);
        self.watches.close_group(&entry.group);
    }

    fn close(&self, entries: Vec<Entry>) {
        for entry in entries {
            self.watches.close_group(&entry.group);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Whether something was mounted or unmounted since the last call.
    fn mounts_changed(&self) -> bool {
        let Some(mounts) = &self.mounts else {
            return true;
        };
        let mut ready = [PollFd::new(mounts.as_fd(), PollFlags::POLLPRI)];
        let count = poll(&mut ready, PollTimeout::ZERO);
        count != Ok(0)
    }
}
