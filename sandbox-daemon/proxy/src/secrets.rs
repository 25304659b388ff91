//! The secrets that policies name, as the daemon has told them.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
};

use crate::credential::SecretValue;

/// Secrets, by whose they are and how policies name them.
#[derive(Debug, Default)]
pub struct Secrets(RwLock<HashMap<(u32, String), Arc<SecretValue>>>);

impl Secrets {
    /// Puts one in the place of an earlier value, or takes it away. From the next
    /// request on.
    pub fn put(&self, uid: u32, name: String, value: Option<SecretValue>) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        match value {
            Some(value) => all.insert((uid, name), Arc::new(value)),
            None => all.remove(&(uid, name)),
        };
    }

    /// None: it is not set.
    #[must_use]
    pub fn get(&self, uid: u32, name: &str) -> Option<Arc<SecretValue>> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        all.get(&(uid, name.to_owned())).cloned()
    }
}
