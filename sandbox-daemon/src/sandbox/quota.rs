//! What each user has, and may have.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use super::SandboxError;
use crate::config::Quotas;

/// Counts what each user has.
pub(super) struct Usage {
    limits: Quotas,
    counts: Mutex<HashMap<(u32, Kind), u32>>,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// Sandboxes.
    Sandbox,
    /// Running execs.
    Exec,
    /// Open streams.
    Stream,
    /// Connections.
    Connection,
}

/// One of them; given back when dropped.
pub struct Share {
    usage: Arc<Usage>,
    key: (u32, Kind),
}

impl Usage {
    /// Nobody has anything.
    #[must_use]
    pub(super) fn new(limits: Quotas) -> Arc<Self> {
        Arc::new(Self {
            limits,
            counts: Mutex::default(),
        })
    }

    /// One more for this user, unless that is too many.
    pub(super) fn take(self: &Arc<Self>, uid: u32, kind: Kind) -> Result<Share, SandboxError> {
        let (what, limit) = match kind {
            Kind::Sandbox => ("sandboxes", self.limits.sandboxes),
            Kind::Exec => ("execs", self.limits.execs),
            Kind::Stream => ("streams", self.limits.streams),
            Kind::Connection => ("connections", self.limits.connections),
        };
        let key = (uid, kind);
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(key).or_default();
        if *count >= limit {
            return Err(SandboxError::Quota { uid, what, limit });
        }
        *count += 1;
        Ok(Share {
            usage: self.clone(),
            key,
        })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut counts = self
            .usage
            .counts
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_gets_what_the_quota_says_and_again_what_was_given_back() {
        let usage = Usage::new(Quotas {
            execs: 2,
            ..Quotas::default()
        });
        let first = usage.take(1000, Kind::Exec).unwrap();
        let _second = usage.take(1000, Kind::Exec).unwrap();
        let refused = usage.take(1000, Kind::Exec).map(drop).unwrap_err();
        assert!(refused.to_string().contains("2 execs"), "{refused}");
        assert!(usage.take(1001, Kind::Exec).is_ok());
        assert!(usage.take(1000, Kind::Sandbox).is_ok());
        drop(first);
        assert!(usage.take(1000, Kind::Exec).is_ok());
    }
}
