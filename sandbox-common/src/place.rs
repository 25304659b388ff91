//! How a policy names places: the keys and values of its rule map, the filter
//! that all policies share, and the hash of a name.

/// Directories between a file and its file system's root that a walk follows.
/// Deeper files are refused.
pub const MAX_DEPTH: usize = 64;

/// Longest name (`NAME_MAX`), and a NUL.
pub const NAME_BYTES: usize = 256;

/// What a key names.
pub mod kind {
    /// The policy itself.
    pub const HEADER: u32 = 0;
    /// A file: `dev`, `ino`, and `extra` = generation.
    pub const INODE: u32 = 1;
    /// A name in a directory: `dev`, `ino` of the directory, `extra` = hash.
    pub const NAME: u32 = 2;
    /// A regular file's name anywhere below a directory (0, 0: everywhere).
    pub const PATTERN: u32 = 3;
    /// The same for what follows the last dot of a name, with the dot.
    pub const SUFFIX: u32 = 4;
    /// An IPv4 destination: `dev` = address, `ino` = port (0: any), both as
    /// in the packet.
    pub const NET4: u32 = 6;
    /// An IPv6 destination: `dev` = port, `ino` and `extra` = address.
    pub const NET6: u32 = 7;
    /// A Unix socket: `dev`, `ino` of its directory, `extra` = hash of its name.
    pub const UNIX: u32 = 8;
    /// A character device that the policy opens: `dev` = its number.
    pub const DEVICE: u32 = 9;
    /// A file system of pseudo-terminals that is the sandbox's own: `dev`.
    pub const TERMINALS: u32 = 10;
}

/// The bits of a value of a place.
pub mod bits {
    /// The value states rights; without it, the walk goes on.
    pub const RULED: u32 = 1;
    /// open, list, stat, readlink, execute
    pub const READ: u32 = 1 << 1;
    /// Everything that changes it.
    pub const WRITE: u32 = 1 << 2;
    /// A directory above a ruled place: stat'ed, not moved. `aux` is the
    /// shielded rule where `rule` is its own.
    pub const ANCESTOR: u32 = 1 << 3;
    /// A directory of which some names are guarded (`kind::NAME`).
    pub const NAMES: u32 = 1 << 4;
    /// A directory at which walks may end, and below which name patterns hold:
    /// its own, and those of all directories above it.
    pub const SCOPE: u32 = 1 << 5;
    /// With [`RULED`]: there are whole names among the patterns that hold
    /// everywhere.
    pub const PATTERNS: u32 = 1 << 6;
    /// With [`RULED`]: there are suffixes among them.
    pub const SUFFIXES: u32 = 1 << 7;
}

/// The bits of a header.
pub mod header {
    /// Let through, and say `observed`.
    pub const OBSERVE: u32 = 1;
    /// `[network] mode = "unrestricted"`.
    pub const NETWORK_UNRESTRICTED: u32 = 1 << 1;
    /// `[network] listen = "none"`.
    pub const LISTEN_NONE: u32 = 1 << 2;
    /// `[network] listen = "any"`.
    pub const LISTEN_ANY: u32 = 1 << 3;
    /// `[network] mode = "proxy"`.
    pub const PROXY: u32 = 1 << 4;
    /// `[scope] allow = ["userns"]`.
    pub const USER_NAMESPACES: u32 = 1 << 8;
}

/// A key of a policy's rule map.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// One of [`kind`].
    pub kind: u32,
    /// See [`kind`].
    pub dev: u32,
    /// See [`kind`].
    pub ino: u64,
    /// See [`kind`].
    pub extra: u64,
}

impl Key {
    /// All zeros.
    pub const ZERO: Self = Self {
        kind: 0,
        dev: 0,
        ino: 0,
        extra: 0,
    };
}

/// A file that a sandbox was given open: it may look at it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lent {
    /// Cgroup id of the sandbox.
    pub sandbox: u64,
    /// `inode.i_ino`.
    pub ino: u64,
    /// `super_block.s_dev`.
    pub dev: u32,
    /// `inode.i_generation`.
    pub generation: u32,
}

// SAFETY: plain integers without padding.
#[cfg(feature = "user")]
unsafe impl aya::Pod for Lent {}

/// A value of a policy's rule map.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Value {
    /// [`bits`]; in a header [`header`].
    pub bits: u32,
    /// The rule that events name; in a header the policy's generation.
    pub rule: u32,
    /// With [`bits::ANCESTOR`]: the rule below, in the lower half. In the upper
    /// one the number of the subvolume that it is about: what it gives, it gives
    /// there alone. Zero in a header.
    pub aux: u64,
}

// SAFETY: plain integers without padding.
#[cfg(feature = "user")]
unsafe impl aya::Pod for Key {}
// SAFETY: plain integers without padding.
#[cfg(feature = "user")]
unsafe impl aya::Pod for Value {}

/// The hash of a name that cannot be read, which is refused wherever it matters.
pub const UNREADABLE: u64 = 0;

/// Words of 64 bits in the filter.
pub const FILTER_WORDS: usize = 8192;

/// What the shared filter is asked for with a file's number; with a directory's
/// number also the hash of a name.
pub mod asked {
    /// Whether there is anything about that file.
    pub const FILE: u64 = 0;
    /// Whether there is anything about what is below that directory.
    pub const BELOW: u64 = 1;
}

/// The bit of the filter that all policies share, which spares most places the
/// lookup: "some policy may have an answer".
#[inline(always)]
#[must_use]
pub const fn filter_bit(dev: u32, ino: u64, asked: u64) -> u32 {
    let mixed = ino ^ ((dev as u64) << 32) ^ (asked << 31);
    (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 45) as u32
}

/// The bits of the filter that an entry needs.
pub fn filter_bits(key: &Key, value: &Value) -> impl Iterator<Item = u32> {
    let below = bits::RULED | bits::NAMES | bits::SCOPE;
    let asked = match key.kind {
        kind::INODE if value.bits & below == 0 => [Some(asked::FILE), None],
        kind::INODE => [Some(asked::FILE), Some(asked::BELOW)],
        kind::NAME | kind::PATTERN | kind::SUFFIX => [Some(key.extra), None],
        _ => [None, None],
    };
    let (dev, ino) = (key.dev, key.ino);
    asked
        .into_iter()
        .flatten()
        .map(move |asked| filter_bit(dev, ino, asked))
}

/// The hash of a name, padded with zeros to a multiple of eight bytes; keyed,
/// so that nobody can look for a name that collides with a guarded one: a sum of
/// products of halves of words, each with a part of the key added to it (NH),
/// because differences between names pass through a chain of multiplications
/// in ways that do not depend on the key.
#[inline(always)]
#[must_use]
pub fn name_hash(seed: u64, words: impl IntoIterator<Item = u64>) -> u64 {
    let mut hash = seed;
    let mut key = seed;
    for word in words {
        if word == 0 {
            break;
        }
        key = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut part = (key ^ key >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        part ^= part >> 27;
        let low = word.wrapping_add(part) & 0xffff_ffff;
        let high = (word >> 32).wrapping_add(part >> 32) & 0xffff_ffff;
        hash = hash.wrapping_add(low.wrapping_mul(high));
    }
    hash ^= hash >> 32;
    hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^ hash >> 29
}

/// The hash of what follows the last dot of a name, with the dot; of all of it
/// where there is none. The same padding and key as [`name_hash`].
#[inline(always)]
#[must_use]
pub fn suffix_hash(seed: u64, words: impl IntoIterator<Item = u64>) -> u64 {
    let mut hash = seed;
    'name: for word in words {
        let mut rest = word;
        for _ in 0..8 {
            let byte = rest & 0xff;
            if byte == 0 {
                break 'name;
            }
            if byte == u64::from(b'.') {
                hash = seed;
            }
            hash = (hash ^ byte).wrapping_mul(0x0000_0100_0000_01b3);
            rest >>= 8;
        }
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_bit_fits_the_filter() {
        for ino in [0, 1, u64::MAX, 0x1234_5678_9abc_def0] {
            assert!((filter_bit(u32::MAX, ino, 7) as usize) < FILTER_WORDS * 64);
        }
    }

    #[test]
    fn the_suffix_hash_is_that_of_the_last_dot() {
        let words = |name: &[u8]| {
            let mut bytes = [0; 16];
            bytes[..name.len()].copy_from_slice(name);
            [0, 8].map(|at| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()))
        };
        assert_eq!(
            suffix_hash(5, words(b"key.pem")),
            suffix_hash(5, words(b".pem"))
        );
        assert_eq!(
            suffix_hash(5, words(b"a.b.c.pem")),
            suffix_hash(5, words(b".pem"))
        );
        assert_ne!(
            suffix_hash(5, words(b"pem")),
            suffix_hash(5, words(b".pem"))
        );
    }

    #[test]
    fn a_difference_is_not_cancelled_by_the_next_word() {
        let (top, next) = (1 << 63, 1 << 63 | 1 << 31);
        for seed in [1, 7, u64::MAX] {
            let one = name_hash(seed, [0x4141, 0x4242]);
            assert_ne!(one, name_hash(seed, [0x4141 ^ top, 0x4242 ^ next]));
        }
    }

    #[test]
    fn the_name_hash_depends_on_seed_and_name() {
        assert_ne!(name_hash(1, [2, 0]), name_hash(2, [2, 0]));
        assert_ne!(name_hash(1, [2, 0]), name_hash(1, [3, 0]));
        assert_eq!(name_hash(1, [2, 0, 9]), name_hash(1, [2]));
    }
}
