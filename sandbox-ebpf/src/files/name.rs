//! Names: guarded ones in a directory, and patterns such as `**/.env`.

use aya_ebpf::helpers::generated::bpf_probe_read_kernel_str;
use sandbox_common::{Key, NAME_BYTES, Value, bits, builtin, kind, name_hash, suffix_hash};

use super::walk::lookup;
use crate::{
    layout::Dentry,
    maps::{NAME_SEED, Rules},
};

const S_IFMT: u16 = 0o170_000;
const S_IFREG: u16 = 0o100_000;

/// The hashes by which patterns know a file.
#[derive(Clone, Copy)]
pub enum Patterns {
    /// Not a regular file: none holds.
    None,
    Some {
        name: u64,
        suffix: u64,
    },
    /// Its name cannot be read: all hold.
    All,
}

impl Patterns {
    /// Of a regular file, or of a name that does not exist yet.
    #[inline(always)]
    pub fn of(leaf: Dentry) -> Self {
        let inode = leaf.inode();
        if !inode.is_null() && inode.mode() & S_IFMT != S_IFREG {
            return Self::None;
        }
        let (name, suffix) = (hash(leaf.name() as u64), suffix(leaf.name() as u64));
        if name == 0 || suffix == 0 {
            return Self::All;
        }
        Self::Some { name, suffix }
    }

    /// Takes from `mask` what the patterns below that directory take.
    #[inline(always)]
    pub fn restrict(self, rules: &'static Rules, dev: u32, ino: u64, mask: Value) -> Value {
        let (name, suffix) = match self {
            Self::None => return mask,
            Self::Some { name, suffix } => (name, suffix),
            Self::All => return REFUSED,
        };
        let mut mask = mask;
        if let Some(value) = lookup(
            rules,
            &Key {
                kind: kind::PATTERN,
                dev,
                ino,
                extra: name,
            },
        ) {
            mask = narrower(mask, value);
        }
        if let Some(value) = lookup(
            rules,
            &Key {
                kind: kind::SUFFIX,
                dev,
                ino,
                extra: suffix,
            },
        ) {
            mask = narrower(mask, value);
        }
        mask
    }
}

/// What holds for a name that cannot be read.
pub const REFUSED: Value = Value {
    bits: 0,
    rule: builtin::DISCONNECTED,
    aux: 0,
};

#[inline(always)]
fn narrower(mask: Value, value: Value) -> Value {
    let kept = mask.bits & value.bits;
    if kept & (bits::READ | bits::WRITE) == mask.bits & (bits::READ | bits::WRITE) {
        return mask;
    }
    Value {
        bits: kept,
        rule: value.rule,
        aux: 0,
    }
}

/// The hash of the name at an address; 0: it cannot be read. A function of its
/// own for the sake of the 512 bytes of stack, with a plain number as argument,
/// so that the verifier looks at it once.
#[inline(never)]
pub fn hash(name: u64) -> u64 {
    let mut words = [0_u64; NAME_BYTES / 8];
    if read(&mut words, name) {
        name_hash(NAME_SEED.load(), &words)
    } else {
        0
    }
}

/// The same for its suffix.
#[inline(never)]
fn suffix(name: u64) -> u64 {
    let mut words = [0_u64; NAME_BYTES / 8];
    if read(&mut words, name) {
        suffix_hash(NAME_SEED.load(), &words)
    } else {
        0
    }
}

#[inline(always)]
fn read(words: &mut [u64; NAME_BYTES / 8], name: u64) -> bool {
    // SAFETY: the buffer has NAME_BYTES bytes; the helper checks the address.
    let copied = unsafe {
        bpf_probe_read_kernel_str(
            words.as_mut_ptr().cast(),
            NAME_BYTES as u32,
            name as *const _,
        )
    };
    copied > 0
}
