//! Ids of objects.

use std::fmt;

use sha1::{Digest as _, Sha1};
use sha2::Sha256;

/// How a repository hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// What a client means that does not say.
    Sha1,
    /// `object-format=sha256`
    Sha256,
}

/// The id of an object; all zeros: of none.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Id {
    format: Format,
    bytes: [u8; 32],
}

impl Format {
    /// Bytes of an id.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::Sha1 => 20,
            Self::Sha256 => 32,
        }
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        match name {
            "sha1" => Some(Self::Sha1),
            "sha256" => Some(Self::Sha256),
            _ => None,
        }
    }

    /// The id of a commit with this content.
    pub(super) fn commit(self, content: &[u8]) -> Id {
        let head = format!("commit {}\0", content.len());
        let mut bytes = [0; 32];
        match self {
            Self::Sha1 => {
                let hash = Sha1::new().chain_update(head).chain_update(content);
                bytes[..20].copy_from_slice(&hash.finalize());
            }
            Self::Sha256 => {
                let hash = Sha256::new().chain_update(head).chain_update(content);
                bytes.copy_from_slice(&hash.finalize());
            }
        }
        Id {
            format: self,
            bytes,
        }
    }
}

impl Id {
    /// Reads an id in hexadecimal digits and small letters, as git writes it.
    #[must_use]
    pub fn parse(hex: &[u8]) -> Option<Self> {
        let format = match hex.len() {
            40 => Format::Sha1,
            64 => Format::Sha256,
            _ => return None,
        };
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(hex.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Self { format, bytes })
    }

    /// Takes an id as it is in packs.
    pub(super) fn from_bytes(format: Format, raw: &[u8]) -> Option<Self> {
        let mut bytes = [0; 32];
        (raw.len() == format.bytes()).then(|| bytes[..raw.len()].copy_from_slice(raw))?;
        Some(Self { format, bytes })
    }

    /// How the repository hashes that it is of.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Whether it stands for no object.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.bytes == [0; 32]
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = f.precision().unwrap_or(usize::MAX);
        let digits = self.bytes[..self.format.bytes()]
            .iter()
            .flat_map(|byte| [byte >> 4, byte & 15])
            .take(shown);
        for digit in digits {
            write!(f, "{digit:x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHA1: &str = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";
    const SHA256: &str = "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321";

    #[test]
    fn an_id_is_printed_as_it_was_read() {
        for (hex, format) in [(SHA1, Format::Sha1), (SHA256, Format::Sha256)] {
            let id = Id::parse(hex.as_bytes()).unwrap();
            assert_eq!(id.to_string(), hex);
            assert_eq!(format!("{id:.7}"), hex[..7]);
            assert_eq!(id.format(), format);
            assert!(!id.is_zero());
        }
        assert!(Id::parse(&[b'0'; 40]).unwrap().is_zero());
        assert_ne!(Id::parse(&[b'0'; 40]), Id::parse(&[b'0'; 64]));
    }

    #[test]
    fn what_git_does_not_write_is_no_id() {
        let upper = SHA1.to_uppercase();
        let longer = format!("{SHA1}0");
        for bad in ["", &SHA1[..39], &upper, &longer, &"g".repeat(40)] {
            assert_eq!(Id::parse(bad.as_bytes()), None, "{bad}");
        }
    }
}
