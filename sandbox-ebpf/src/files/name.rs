//! Names: guarded ones in a directory, and patterns such as `**/.env`.

use aya_ebpf::helpers::bpf_probe_read_kernel;
use sandbox_common::{
    Fold, Key, NAME_BYTES, UNREADABLE, Value, bits, builtin, folds, kind, name_hash, suffix_hash,
};

use super::walk::{Leaf, Place};
use crate::maps::{Filter, NAME_SEED, Rules, lookup};

/// What holds for a name that cannot be read.
pub const REFUSED: Value = Value {
    bits: 0,
    rule: builtin::DISCONNECTED,
    aux: 0,
};

/// Takes from the rights of a place what patterns take: those that hold
/// everywhere, if `bits` say that there are some, and those of its scope. They
/// are about regular files, and about names that do not exist yet.
#[inline(always)]
pub fn restrict(
    rules: &'static Rules,
    filter: Filter,
    leaf: Leaf,
    bits: u32,
    (dev, magic): (u32, u64),
    place: Place,
) -> Place {
    let scope = place.scope;
    if bits & (bits::PATTERNS | bits::SUFFIXES) == 0 && scope == 0 {
        return place;
    }
    if !leaf.has_patterns() {
        return place;
    }
    let mut place = place;
    let name = leaf.name_address();
    if bits & bits::PATTERNS != 0 || scope != 0 {
        let extra = hash(name, magic);
        place = narrower(rules, filter, kind::PATTERN, (0, 0, extra), place);
        if scope != 0 {
            place = narrower(rules, filter, kind::PATTERN, (dev, scope, extra), place);
        }
    }
    if bits & bits::SUFFIXES != 0 || scope != 0 {
        let extra = suffix(name, magic);
        place = narrower(rules, filter, kind::SUFFIX, (0, 0, extra), place);
        if scope != 0 {
            place = narrower(rules, filter, kind::SUFFIX, (dev, scope, extra), place);
        }
    }
    place
}

#[inline(always)]
fn narrower(
    rules: &'static Rules,
    filter: Filter,
    kind: u32,
    (dev, ino, extra): (u32, u64, u64),
    place: Place,
) -> Place {
    let pattern = if extra == UNREADABLE {
        REFUSED
    } else {
        let key = Key {
            kind,
            dev,
            ino,
            extra,
        };
        if !filter.knows(dev, ino, extra) {
            return place;
        }
        match lookup(rules, &key) {
            Some(value) => value,
            None => return place,
        }
    };
    let rights = place.rights & pattern.bits;
    if rights == place.rights {
        return place;
    }
    Place {
        rights,
        rule: pattern.rule,
        ..place
    }
}

/// The hash of the name at an address, as a file system with that magic number
/// compares it; `UNREADABLE`: it cannot be read, or may be another name of some
/// file. To the verifier a global function with plain numbers as arguments:
/// checked once, on its own stack, whatever calls it.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn hash(name: u64, magic: u64) -> u64 {
    if folds(magic) {
        Words::<true>::new(name).hashed(|seed, words| name_hash(seed, words))
    } else {
        Words::<false>::new(name).hashed(|seed, words| name_hash(seed, words))
    }
}

/// The same for its suffix.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn suffix(name: u64, magic: u64) -> u64 {
    if folds(magic) {
        Words::<true>::new(name).hashed(|seed, words| suffix_hash(seed, words))
    } else {
        Words::<false>::new(name).hashed(|seed, words| suffix_hash(seed, words))
    }
}

/// The words of the name at an address, padded with zeros as the hashes want
/// them. Most names are short: a buffer for the longest would be filled for
/// nothing, and is half of what the stack has room for.
struct Words<const FOLDING: bool> {
    name: u64,
    index: usize,
    ended: bool,
    failed: bool,
    fold: Fold,
}

impl<const FOLDING: bool> Words<FOLDING> {
    #[inline(always)]
    fn new(name: u64) -> Self {
        Self {
            name,
            index: 0,
            ended: false,
            failed: false,
            fold: Fold::default(),
        }
    }

    #[inline(always)]
    fn hashed(mut self, hash: impl FnOnce(u64, &mut Self) -> u64) -> u64 {
        let hash = hash(Fold::seed(NAME_SEED.load(), FOLDING), &mut self);
        if self.failed || FOLDING && self.fold.is_ambiguous() {
            return UNREADABLE;
        }
        hash
    }
}

impl<const FOLDING: bool> Iterator for Words<FOLDING> {
    type Item = u64;

    #[inline(always)]
    fn next(&mut self) -> Option<u64> {
        if self.ended || self.index == NAME_BYTES / 8 {
            return None;
        }
        // Up to seven bytes beyond the name, which may not be its own.
        let from = (self.name + self.index as u64 * 8) as *const u64;
        // SAFETY: the helper checks the address.
        let Ok(word) = (unsafe { bpf_probe_read_kernel(from) }) else {
            self.failed = true;
            return None;
        };
        self.index += 1;
        let end = ends(word);
        self.ended = end != 0;
        let word = if self.ended {
            word & ((end & end.wrapping_neg()) >> 7).wrapping_sub(1)
        } else {
            word
        };
        Some(if FOLDING { self.fold.word(word) } else { word })
    }
}

/// The highest bit of each byte that is zero, and perhaps of some above the
/// lowest of these.
#[inline(always)]
fn ends(word: u64) -> u64 {
    word.wrapping_sub(0x0101_0101_0101_0101) & !word & 0x8080_8080_8080_8080
}
