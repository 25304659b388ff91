//! The maps that hold policies' entries. Filling one takes longer than all else
//! that putting a policy in force does, and most sandboxes have the same entries
//! but for a few: maps of sandboxes that are gone are kept for the next ones.

use std::{os::fd::AsFd, sync::Arc};

use aya::maps::{HashMap, IterableMap as _, MapData};
use sandbox_common::{Key, Value};

use super::{Compiled, KernelError, Shared, absent, failed, map};
use crate::sys;

/// So many are kept.
const SPARE: usize = 4;

/// A map with a policy's entries.
pub(super) struct Rules {
    map: HashMap<MapData, Key, Value>,
    /// Entries that it has room for.
    room: usize,
    shared: Arc<Shared>,
    own: Vec<Key>,
}

impl Rules {
    /// A map with the entries of a policy, made of one that has those which it
    /// shares.
    pub(super) fn new(compiled: &Compiled, spare: Option<Self>) -> Result<Self, KernelError> {
        let shared = &compiled.shared;
        let mut rules = if let Some(spare) = spare {
            spare
        } else {
            let room = shared.keys.len() + compiled.entries.len();
            let size = u32::try_from(room.max(1)).unwrap_or(u32::MAX);
            let rules = Self {
                map: HashMap::create(size, 0).map_err(map("make a policy"))?,
                room,
                shared: shared.clone(),
                own: Vec::new(),
            };
            rules.fill(&shared.keys, &shared.values)?;
            rules
        };
        let (keys, values): (Vec<Key>, Vec<Value>) = compiled.entries.iter().copied().unzip();
        rules.fill(&keys, &values)?;
        rules.own = keys;
        Ok(rules)
    }

    fn fill(&self, keys: &[Key], values: &[Value]) -> Result<(), KernelError> {
        sys::map_insert_all(self.fd(), keys, values).map_err(failed("fill a policy"))
    }

    pub(super) fn map(&self) -> &HashMap<MapData, Key, Value> {
        &self.map
    }

    pub(super) fn fd(&self) -> impl AsFd {
        self.map.map().fd()
    }

    /// Takes out what only its sandbox had, once no program reads it any more.
    /// None: there is nothing in it that another one has.
    pub(super) fn into_spare(mut self) -> Option<Self> {
        for key in std::mem::take(&mut self.own) {
            absent(self.map.remove(&key)).ok()?;
        }
        (!self.shared.keys.is_empty()).then_some(self)
    }
}

/// Nobody's, with their shared entries alone; the latest first.
#[derive(Default)]
pub(super) struct Spares(Vec<Rules>);

impl Spares {
    /// One with what a policy shares, and room for the rest.
    pub(super) fn take(&mut self, compiled: &Compiled) -> Option<Rules> {
        let needed = compiled.shared.keys.len() + compiled.entries.len();
        let fits =
            |spare: &Rules| Arc::ptr_eq(&spare.shared, &compiled.shared) && needed <= spare.room;
        let at = self.0.iter().position(fits)?;
        Some(self.0.remove(at))
    }

    pub(super) fn keep(&mut self, spare: Rules) {
        self.0.insert(0, spare);
        self.0.truncate(SPARE);
    }
}
