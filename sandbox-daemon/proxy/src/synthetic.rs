//! Addresses that stand for names: what a sandbox that asks for a name is
//! given, and what its connection to it means.

use std::{collections::HashMap, net::Ipv4Addr};

use crate::name::Name;

/// Names of one sandbox, in the order in which they were asked for.
#[derive(Debug)]
pub struct Names {
    first: u32,
    ordered: Vec<Name>,
    places: HashMap<Name, u32>,
}

/// How many names a sandbox may ask for.
pub const MAX_NAMES: usize = 16_384;

/// 198.18.1.0: what is below is the proxy's own.
const LOWEST: u32 = u32::from_be_bytes([198, 18, 1, 0]);

/// How many places there are for a first address: behind each there is room for
/// all names.
pub const FIRST_ADDRESSES: u32 = (2 << 16) - 256 - 16_384;

impl Names {
    /// None yet. Where the first one begins is chosen at random: what an earlier
    /// daemon's addresses stood for, nothing should stand for now.
    #[must_use]
    pub fn new(first: u32) -> Self {
        Self {
            first: LOWEST + first % FIRST_ADDRESSES,
            ordered: Vec::new(),
            places: HashMap::new(),
        }
    }

    /// The address of a name, and whether it is a new one; none: there are too
    /// many.
    pub fn address(&mut self, name: &Name) -> Option<(Ipv4Addr, bool)> {
        if let Some(place) = self.places.get(name) {
            return Some((Ipv4Addr::from(self.first + place), false));
        }
        if self.ordered.len() >= MAX_NAMES {
            return None;
        }
        let place = u32::try_from(self.ordered.len()).ok()?;
        self.ordered.push(name.clone());
        self.places.insert(name.clone(), place);
        Some((Ipv4Addr::from(self.first + place), true))
    }

    /// The name that an address stands for.
    #[must_use]
    pub fn name(&self, address: Ipv4Addr) -> Option<&Name> {
        let place = u32::from(address).checked_sub(self.first)?;
        self.ordered.get(usize::try_from(place).ok()?)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ordered.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ordered.is_empty()
    }
}
