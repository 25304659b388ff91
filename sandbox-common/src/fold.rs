//! Names on file systems to which upper and lower case are the same (FAT,
//! exFAT): folded before they are hashed, so that each way to write a guarded
//! name is guarded.

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x80 * ONES;

/// Whether names on a file system with that magic number are folded.
#[inline(always)]
#[must_use]
pub const fn folds(magic: u64) -> bool {
    // msdos and vfat, exfat
    matches!(magic, 0x4d44 | 0x2011_bab0)
}

/// Folds a name, word by word: letters of ASCII become small ones, and all
/// bytes beyond ASCII the same, because what they are depends on the mount.
#[derive(Clone, Copy, Default)]
pub struct Fold {
    /// The last byte of the word before, if it is a dot.
    dot: u64,
    ambiguous: u64,
}

impl Fold {
    /// The key of hashes of names: folded names have their own.
    #[inline(always)]
    #[must_use]
    pub const fn seed(seed: u64, folding: bool) -> u64 {
        if folding {
            seed ^ 0x243f_6a88_85a3_08d3
        } else {
            seed
        }
    }

    /// The next word, which may end the name with zeros.
    #[inline(always)]
    #[must_use]
    pub fn word(&mut self, word: u64) -> u64 {
        let beyond = word & HIGH;
        let word = word & !((beyond >> 7) * 0xff) | beyond;
        // `~` stands in short names, which FAT makes up; a dot at the end is
        // no part of a name.
        let dots = zeros(word ^ (u64::from(b'.') * ONES));
        self.ambiguous |= zeros(word ^ (u64::from(b'~') * ONES));
        self.ambiguous |= (dots << 8 | self.dot) & zeros(word);
        self.dot = dots >> 56;
        let low = word & !HIGH;
        let from_a = low + (0x80 - u64::from(b'A')) * ONES;
        let beyond_z = low + (0x7f - u64::from(b'Z')) * ONES;
        let capital = (from_a ^ beyond_z) & HIGH & !beyond;
        word | capital >> 2
    }

    /// Whether the name may stand for a file of another one.
    #[inline(always)]
    #[must_use]
    pub const fn is_ambiguous(&self) -> bool {
        self.ambiguous != 0
    }
}

/// The highest bit of each byte that is zero. Bytes of 1 above one count too:
/// they are in no name.
#[inline(always)]
const fn zeros(word: u64) -> u64 {
    word.wrapping_sub(ONES) & !word & HIGH
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the kernel programs read it; none: ambiguous.
    fn folded(name: &str) -> Option<[u64; 3]> {
        let mut bytes = [0; 24];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        let mut fold = Fold::default();
        let words = [0, 8, 16].map(|at| {
            let word = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            fold.word(word)
        });
        (!fold.is_ambiguous()).then_some(words)
    }

    #[test]
    fn upper_and_lower_case_are_the_same() {
        assert_eq!(folded("SeCret.ENV"), folded("secret.env"));
        assert_eq!(folded("@[`{Zz"), folded("@[`{zz"));
        assert_ne!(folded("@"), folded("`"));
        assert_ne!(folded("["), folded("{"));
        assert_ne!(folded("secret"), folded("secrets"));
    }

    #[test]
    fn bytes_beyond_ascii_are_all_the_same() {
        assert_eq!(folded("caf\u{e9}"), folded("CAF\u{c9}"));
        assert_ne!(folded("caf\u{e9}"), folded("cafe"));
    }

    #[test]
    fn a_short_name_and_a_dot_at_the_end_may_stand_for_others() {
        for name in [
            "SECRET~1",
            "secret.",
            "seventh.",
            "1234567890abcde.",
            "a..",
            "~",
        ] {
            assert_eq!(folded(name), None, "{name}");
        }
        for name in ["secret.env", ".env", "1234567.txt", "a.b.c", "12345678"] {
            assert!(folded(name).is_some(), "{name}");
        }
    }
}
