//! Names: guarded ones in a directory, and patterns such as `**/.env`.

use aya_ebpf::helpers::generated::bpf_probe_read_kernel_str;
use sandbox_common::{Key, NAME_BYTES, UNREADABLE, Value, builtin, kind, name_hash, suffix_hash};

use crate::{
    layout::Dentry,
    maps::{NAME_SEED, Rules, lookup},
};

const S_IFMT: u16 = 0o170_000;
const S_IFREG: u16 = 0o100_000;

/// The hashes by which patterns know a file. Those of a name that cannot be
/// read are `UNREADABLE`, which every policy with patterns refuses; 1 stands for what no
/// pattern holds for.
#[derive(Clone, Copy)]
pub struct Patterns {
    name: u64,
    suffix: u64,
}

impl Patterns {
    pub const fn none(zero: u64) -> Self {
        Self {
            name: zero ^ 1,
            suffix: zero ^ 1,
        }
    }

    /// Of a regular file, or of a name that does not exist yet.
    #[inline(always)]
    pub fn of(leaf: Dentry, zero: u64) -> Self {
        let inode = leaf.inode();
        if !inode.is_null() && inode.mode() & S_IFMT != S_IFREG {
            return Self::none(zero);
        }
        Self {
            name: hash(leaf.name() as u64),
            suffix: suffix(leaf.name() as u64),
        }
    }

    /// Takes from `mask` what the patterns below that directory take.
    #[inline(always)]
    pub fn restrict(self, rules: &'static Rules, dev: u32, ino: u64, mask: Value) -> Value {
        let mut mask = mask;
        if let Some(value) = lookup(
            rules,
            &Key {
                kind: kind::PATTERN,
                dev,
                ino,
                extra: self.name,
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
                extra: self.suffix,
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
    let rule = if kept == mask.bits {
        mask.rule
    } else {
        value.rule
    };
    Value {
        bits: kept,
        rule,
        ..mask
    }
}

/// The hash of the name at an address; `UNREADABLE`: it cannot be read. To the
/// verifier it is a global function, with a plain number as argument: checked
/// once, on its own stack, whatever calls it.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn hash(name: u64) -> u64 {
    let mut words = [0_u64; NAME_BYTES / 8];
    if read(&mut words, name) {
        name_hash(NAME_SEED.load(), &words)
    } else {
        UNREADABLE
    }
}

/// The same for its suffix.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn suffix(name: u64) -> u64 {
    let mut words = [0_u64; NAME_BYTES / 8];
    if read(&mut words, name) {
        suffix_hash(NAME_SEED.load(), &words)
    } else {
        UNREADABLE
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
