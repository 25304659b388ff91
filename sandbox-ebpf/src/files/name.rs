//! Names: guarded ones in a directory, and patterns such as `**/.env`.

use core::mem::MaybeUninit;

use aya_ebpf::helpers::generated::{bpf_probe_read_kernel, bpf_probe_read_kernel_str};
use sandbox_common::{
    Key, NAME_BYTES, UNREADABLE, Value, bits, builtin, kind, name_hash, suffix_hash,
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
    dev: u32,
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
    if bits & bits::PATTERNS != 0 || scope != 0 {
        let extra = hash(leaf.name_address());
        place = narrower(rules, filter, kind::PATTERN, (0, 0, extra), place);
        if scope != 0 {
            place = narrower(rules, filter, kind::PATTERN, (dev, scope, extra), place);
        }
    }
    if bits & bits::SUFFIXES != 0 || scope != 0 {
        let extra = suffix(leaf.name_address());
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

/// The hash of the name at an address; `UNREADABLE`: it cannot be read. To the
/// verifier a global function with a plain number as argument: checked once, on
/// its own stack, whatever calls it.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn hash(name: u64) -> u64 {
    let mut buffer = Buffer::uninit();
    match read(&mut buffer, name) {
        Some(words) => name_hash(NAME_SEED.load(), words),
        None => UNREADABLE,
    }
}

/// The same for its suffix.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn suffix(name: u64) -> u64 {
    let mut buffer = Buffer::uninit();
    match read(&mut buffer, name) {
        Some(words) => suffix_hash(NAME_SEED.load(), words),
        None => UNREADABLE,
    }
}

/// Not filled with zeros, which would be done byte by byte.
type Buffer = MaybeUninit<[u64; NAME_BYTES / 8]>;

/// Bytes that can be read from where any name starts: those that a dentry holds
/// itself (`d_iname`, 32 on 6.1), and what is allocated for longer ones.
const SHORT: usize = 32;

/// The name at an address, padded with zeros as the hashes want it.
#[inline(always)]
fn read(buffer: &mut Buffer, name: u64) -> Option<impl Iterator<Item = u64>> {
    let words: *mut u64 = buffer.as_mut_ptr().cast();
    let from = name as *const _;
    // Most names are short, and read word by word, which the other helper does
    // not do.
    // SAFETY: the buffer has NAME_BYTES bytes; the helpers check the address.
    let copied = unsafe {
        let failed = bpf_probe_read_kernel(words.cast(), SHORT as u32, from);
        if failed != 0 || (0..SHORT / 8).all(|index| ends(words.add(index).read_volatile()) == 0) {
            bpf_probe_read_kernel_str(words.cast(), NAME_BYTES as u32, from)
        } else {
            1
        }
    };
    if copied <= 0 {
        return None;
    }
    let mut ended = false;
    Some((0..NAME_BYTES / 8).map_while(move |index| {
        if ended {
            return None;
        }
        // SAFETY: within the buffer. To the verifier the helper has filled it;
        // what is beyond the name's end is not used.
        let word = unsafe { words.add(index).read_volatile() };
        let end = ends(word);
        ended = end != 0;
        Some(if ended {
            word & ((end & end.wrapping_neg()) >> 7).wrapping_sub(1)
        } else {
            word
        })
    }))
}

/// The highest bit of each byte that is zero, and perhaps of some above the
/// lowest of these.
#[inline(always)]
fn ends(word: u64) -> u64 {
    word.wrapping_sub(0x0101_0101_0101_0101) & !word & 0x8080_8080_8080_8080
}
