//! The filter that all policies share: which places some policy may have.

use std::collections::HashMap;

use aya::maps::{Array, MapData};
use sandbox_common::{FILTER_WORDS, Key, Value, filter_bits};

use super::{KernelError, map};

/// The filter of all policies, with a count for every bit.
pub(super) struct Filter {
    map: FilterMap,
    words: Box<[u64; FILTER_WORDS]>,
    counts: HashMap<u32, u32>,
    /// The bits of each sandbox's policy.
    bits: HashMap<u64, Vec<u32>>,
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
            counts: HashMap::new(),
            bits: HashMap::new(),
        }
    }

    /// Takes over the bits of an earlier filter, for good: whose they are is
    /// not known.
    pub(super) fn adopt(&mut self, earlier: &FilterMap) -> Result<(), KernelError> {
        let words = earlier.get(&0, 0).map_err(map("read the filter"))?;
        for (word, at) in words.iter().zip(0..) {
            for bit in (0..64).filter(|bit| word >> bit & 1 == 1) {
                self.add(at * 64 + bit);
            }
        }
        self.write()
    }

    /// Sets the bits of a policy.
    pub(super) fn raise(&mut self, entries: &[(Key, Value)]) -> Result<Vec<u32>, KernelError> {
        let bits: Vec<u32> = entries
            .iter()
            .flat_map(|(key, value)| filter_bits(key, value))
            .collect();
        for bit in &bits {
            self.add(*bit);
        }
        self.write()?;
        Ok(bits)
    }

    /// Says whose bits they are, in the place of those before.
    pub(super) fn assign(&mut self, sandbox: u64, bits: Vec<u32>) -> Result<(), KernelError> {
        let before = if bits.is_empty() {
            self.bits.remove(&sandbox)
        } else {
            self.bits.insert(sandbox, bits)
        };
        self.lower(&before.unwrap_or_default())
    }

    /// Takes the bits of a policy back.
    pub(super) fn lower(&mut self, bits: &[u32]) -> Result<(), KernelError> {
        for bit in bits {
            if let Some(count) = self.counts.get_mut(bit) {
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(bit);
                    self.words[*bit as usize / 64] &= !(1 << (bit % 64));
                }
            }
        }
        self.write()
    }

    fn add(&mut self, bit: u32) {
        *self.counts.entry(bit).or_default() += 1;
        self.words[bit as usize / 64] |= 1 << (bit % 64);
    }

    /// In one piece. A program that reads meanwhile sees each word as it was or
    /// as it will be, and those of the policies in force do not change.
    fn write(&mut self) -> Result<(), KernelError> {
        self.map
            .set(0, *self.words, 0)
            .map_err(map("write the filter"))
    }
}
