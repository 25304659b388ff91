//! What was killed and cannot end: in the kernel, uninterruptible.

use std::{
    sync::OnceLock,
    time::{Duration, Instant},
};

use tokio::sync::watch;

use crate::cgroup::Cgroup;

/// What was killed is gone at once, unless it cannot be.
const STUCK_AFTER: Duration = Duration::from_secs(3);

/// Processes that were killed and have not ended.
pub(super) struct Stuck {
    since: OnceLock<Instant>,
    told: watch::Sender<Vec<u32>>,
}

impl Stuck {
    /// All of them were just told to end at once.
    pub(super) fn killed(&self) {
        self.since.get_or_init(Instant::now);
    }

    /// Changes while they are waited for.
    pub(super) fn subscribe(&self) -> watch::Receiver<Vec<u32>> {
        self.told.subscribe()
    }

    /// Those that there are, if they are others than at the last time.
    pub(super) fn look(&self, cgroup: &Cgroup) -> Option<Vec<u32>> {
        if self.since.get()?.elapsed() < STUCK_AFTER {
            return None;
        }
        let mut pids = cgroup.pids().ok()?;
        pids.sort_unstable();
        if pids.is_empty() || *self.told.borrow() == pids {
            return None;
        }
        self.told.send_replace(pids.clone());
        Some(pids)
    }
}

impl Default for Stuck {
    fn default() -> Self {
        Self {
            since: OnceLock::new(),
            told: watch::Sender::new(Vec::new()),
        }
    }
}
