//! The filter that all policies share: which places some policy may have.

use std::{collections::HashMap, sync::Arc};

use aya::maps::{Array, MapData};
use sandbox_common::{FILTER_WORDS, filter_bits};

use super::{Compiled, KernelError, Shared, map};

/// The filter of all policies, with a count for every bit.
pub(super) struct Filter {
    map: FilterMap,
    /// As they are in the map.
    words: Box<[u64; FILTER_WORDS]>,
    counts: Vec<u32>,
    /// Bits that no policy has any more. They are cleared with the next that are
    /// set: until then they cost a look at a policy, and nothing else.
    stale: Vec<u32>,
    /// The bits of each sandbox's policy.
    bits: HashMap<u64, Bits>,
    /// How many policies have shared entries, by address.
    shared: HashMap<usize, u32>,
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
    #[expect(
        clippy::large_stack_arrays,
        reason = "64 KiB, which is how the map's value is passed as well"
    )]
    pub(super) fn new(map: FilterMap) -> Self {
        Self {
            map,
            words: Box::new([0; FILTER_WORDS]),
            counts: vec![0; FILTER_WORDS * 64],
            stale: Vec::new(),
            bits: HashMap::new(),
            shared: HashMap::new(),
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
        if *users == 1 {
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
                for bit in bits.shared.filter_bits() {
                    self.subtract(bit);
                }
            }
        }
    }

    fn subtract(&mut self, bit: u32) {
        let count = &mut self.counts[bit as usize];
        *count -= 1;
        if *count == 0 {
            self.stale.push(bit);
        }
    }

    fn add(&mut self, bits: &[u32]) -> Result<(), KernelError> {
        let mut missing = false;
        for bit in bits {
            self.counts[*bit as usize] += 1;
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
        self.map
            .set(0, *self.words, 0)
            .map_err(map("write the filter"))
    }
}
