//! What the kernel programs and the daemon both speak: map keys and values,
//! event records, rights. The layouts are private to one build: programs and
//! daemon are always of the same one.

#![no_std]

mod counters;
mod event;
mod flow;
mod fold;
mod place;
mod rule;

pub use counters::Counters;
pub use event::{
    EVENT_VERSION, EXE_BYTES, EventHeader, Facility, FacilityEvent, FileEvent, NetEvent, Object,
    Operation, PATH_BYTES, ProcessEvent, Right, UNIX_BYTES, UnixEvent, Verdict, capability_name,
    flags,
};
pub use flow::{
    Asked, DNS_PORT, Entrance, Entrances, FlowKey, PROXY_ADDRESS, PROXY_PORT, SYNTHETIC, mapped,
};
pub use fold::{Fold, folds};
pub use place::{
    FILTER_WORDS, Key, Lent, MAX_DEPTH, NAME_BYTES, UNREADABLE, Value, asked, bits, filter_bit,
    filter_bits, header, kind, name_hash, suffix_hash,
};
pub use rule::{builtin, builtin_label};

/// The kernel's view of a file: `s_dev`, `i_ino`, `i_generation`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity {
    /// `super_block.s_dev`, major << 20 | minor.
    pub dev: u32,
    /// `inode.i_generation`.
    pub generation: u32,
    /// `inode.i_ino`.
    pub ino: u64,
    /// `super_block.s_magic`.
    pub magic: u64,
    /// On btrfs a number of its subvolume; otherwise 0.
    pub subvolume: u64,
}

// SAFETY: plain integers without padding.
#[cfg(feature = "user")]
unsafe impl aya::Pod for Identity {}
