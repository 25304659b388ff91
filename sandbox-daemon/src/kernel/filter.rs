//! The filter that all policies share: which places some policy may have.

use std::{collections::HashMap, os::fd::OwnedFd, sync::Arc};

use aya::maps::{Array, MapData};
use sandbox_common::{FILTER_WORDS, filter_bits};

use super::{Compiled, KernelError, Shared, failed, map};
use crate::sys;

/// The filter of all policies, with a count for every bit.
pub(super) struct Filter {
    map: OwnedFd,
    words: Box<[u64]>,
    /// They are not in the map: it could not be written.
    unwritten: bool,
    counts: Vec<u16>,
    /// Bits that no policy has any more. They are cleared with the next that are
    /// set: until then they cost a look at a policy, and nothing else.
    stale: Vec<u32>,
    /// The bits of each sandbox's policy.
    bits: HashMap<u64, Bits>,
    /// How many policies have shared entries, by address.
    shared: HashMap<usize, u32>,
    /// Shared entries that no policy has any more, and the next may have again.
    resting: Option<Arc<Shared>>,
}

/// The bits of one policy.
pub(super) struct Bits {
    own: Vec<u32>,
    /// Counted once for all policies that have them.
    shared: Arc<Shared>,
}

/// One value, so that programs find it once and then index into it.
pub(super) type FilterMap = Array<MapData, [u64; FILTER_WORDS]>;

impl Filter {
    pub(super) fn new(map: OwnedFd) -> Self {
        Self {
            map,
            words: vec![0; FILTER_WORDS].into_boxed_slice(),
            unwritten: false,
            counts: vec![0; FILTER_WORDS * 64],
            stale: Vec::new(),
            bits: HashMap::new(),
            shared: HashMap::new(),
            resting: None,
        }
    }

    /// Takes over the bits of an earlier filter, for good: whose they are is
    /// not known.
    pub(super) fn adopt(&mut self, earlier: &FilterMap) -> Result<(), KernelError> {
        let words = earlier.get(&0, 0).map_err(map("read the filter"))?;
        let bits = words.iter().zip(0..).flat_map(|(word, at)| {
            let set = (0..64).filter(move |bit| word >> bit & 1 == 1);
            set.map(move |bit| at * 64 + bit)
        });
        let bits: Vec<u32> = bits.collect();
        self.add(&bits)
    }

    /// Sets the bits of a policy.
    pub(super) fn raise(&mut self, compiled: &Compiled) -> Result<Bits, KernelError> {
        let shared = compiled.shared.clone();
        let users = self.shared.entry(Arc::as_ptr(&shared).addr()).or_default();
        *users += 1;
        let rests = |resting: &mut Arc<Shared>| Arc::ptr_eq(resting, &shared);
        if *users == 1 && self.resting.take_if(rests).is_none() {
            let bits: Vec<u32> = shared.filter_bits().collect();
            self.add(&bits)?;
        }
        let own = compiled
            .entries
            .iter()
            .flat_map(|(key, value)| filter_bits(key, value));
        let own: Vec<u32> = own.collect();
        self.add(&own)?;
        Ok(Bits { own, shared })
    }

    /// Says whose bits they are, in the place of those before.
    pub(super) fn assign(&mut self, sandbox: u64, bits: Option<Bits>) {
        let before = match bits {
            Some(bits) => self.bits.insert(sandbox, bits),
            None => self.bits.remove(&sandbox),
        };
        if let Some(before) = before {
            self.lower(before);
        }
    }

    /// Whether some policy of a sandbox has bits here.
    pub(super) fn knows(&self, sandbox: u64) -> bool {
        self.bits.contains_key(&sandbox)
    }

    /// Takes the bits of a policy back.
    pub(super) fn lower(&mut self, bits: Bits) {
        for bit in bits.own {
            self.subtract(bit);
        }
        let shared = Arc::as_ptr(&bits.shared).addr();
        if let Some(users) = self.shared.get_mut(&shared) {
            *users -= 1;
            if *users == 0 {
                self.shared.remove(&shared);
                if let Some(rested) = self.resting.replace(bits.shared) {
                    for bit in rested.filter_bits() {
                        self.subtract(bit);
                    }
                }
            }
        }
    }

    fn subtract(&mut self, bit: u32) {
        let count = &mut self.counts[bit as usize];
        // What cannot be counted any more stays.
        if *count < u16::MAX {
            *count -= 1;
        }
        if *count == 0 {
            self.stale.push(bit);
        }
    }

    fn add(&mut self, bits: &[u32]) -> Result<(), KernelError> {
        let mut missing = self.unwritten;
        for bit in bits {
            let count = &mut self.counts[*bit as usize];
            *count = count.saturating_add(1);
            let (word, mask) = (*bit as usize / 64, 1 << (bit % 64));
            missing |= self.words[word] & mask == 0;
            self.words[word] |= mask;
        }
        if !missing {
            return Ok(());
        }
        for bit in std::mem::take(&mut self.stale) {
            if self.counts[bit as usize] == 0 {
                self.words[bit as usize / 64] &= !(1 << (bit % 64));
            }
        }
        self.write()
    }

    /// In one piece. A program that reads meanwhile sees each word as it was or
    /// as it will be, and those of the policies in force do not change.
    fn write(&mut self) -> Result<(), KernelError> {
        let written = sys::map_set_first(&self.map, &self.words);
        self.unwritten = written.is_err();
        written.map_err(failed("write the filter"))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use sandbox_common::{Key, Value, bits, kind};

    use super::*;

    #[test]
    fn what_could_not_be_written_is_written_with_the_next_policy() {
        let null = File::open("/dev/null").unwrap();
        let mut filter = Filter::new(null.into());
        let key = Key {
            kind: kind::INODE,
            ino: 7,
            ..Key::default()
        };
        let value = Value {
            bits: bits::READ,
            ..Value::default()
        };
        let compiled = Compiled {
            entries: vec![(key, value)],
            ..Compiled::default()
        };
        assert!(filter.raise(&compiled).is_err());
        // The same bits again: no word changes.
        assert!(filter.raise(&compiled).is_err());
    }
}
