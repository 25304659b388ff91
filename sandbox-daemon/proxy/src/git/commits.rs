//! The commits of a pack.

use std::collections::HashMap;

use super::object::{Format, Id};

/// Most memory for commits.
const MAX_COMMITS: usize = 64 << 20;

/// What a commit takes beside its content.
const COMMIT: usize = 256;

/// What an object is, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Commit,
    /// A commit, as the difference to this one.
    Delta(usize),
    Other,
}

/// No pack has that.
#[derive(Clone, Copy, Debug)]
pub(super) struct Malformed;

/// Those that have passed.
#[derive(Debug)]
pub(super) struct Commits {
    format: Format,
    contents: Vec<Box<[u8]>>,
    by_offset: HashMap<u64, usize>,
    by_id: HashMap<Id, usize>,
    bytes: usize,
}

impl Commits {
    pub(super) fn new(format: Format) -> Self {
        Self {
            format,
            contents: Vec::new(),
            by_offset: HashMap::new(),
            by_id: HashMap::new(),
            bytes: 0,
        }
    }

    /// How large another one may be.
    pub(super) fn room(&self) -> usize {
        MAX_COMMITS.saturating_sub(self.bytes)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.contents.len()
    }

    /// Bytes of a checksum, which is of the same hash as ids are.
    pub(super) fn checksum(&self) -> usize {
        self.format.bytes()
    }

    pub(super) fn content(&self, at: usize) -> &[u8] {
        &self.contents[at]
    }

    pub(super) fn find(&self, id: &Id) -> Option<usize> {
        self.by_id.get(id).copied()
    }

    /// Adds the commit at this place of the pack.
    pub(super) fn add(&mut self, offset: u64, content: Vec<u8>) {
        self.bytes += content.len() + COMMIT;
        let id = self.format.commit(&content);
        self.by_id.insert(id, self.contents.len());
        self.by_offset.insert(offset, self.contents.len());
        self.contents.push(content.into());
    }

    /// Reads what comes before an object: what it is, and its size; none: there is
    /// more to come.
    pub(super) fn entry(
        &self,
        bytes: &[u8],
        offset: u64,
    ) -> Result<Option<(Kind, u64)>, Malformed> {
        let Some(end) = bytes.iter().position(|byte| *byte < 0x80) else {
            // More than nine bytes are of no size.
            return if bytes.len() < 9 {
                Ok(None)
            } else {
                Err(Malformed)
            };
        };
        if end >= 9 {
            return Err(Malformed);
        }
        let (size, base) = bytes.split_at(end + 1);
        let kind = size[0] >> 4 & 7;
        let first = u64::from(size[0] & 15);
        let more = size[1..].iter().enumerate();
        let size = more.fold(first, |size, (at, byte)| {
            size | u64::from(byte & 0x7f) << (4 + 7 * at)
        });
        let known = match kind {
            1 => return Ok(Some((Kind::Commit, size))),
            2..=4 => return Ok(Some((Kind::Other, size))),
            6 => match distance(base)? {
                Some(distance) => {
                    let base = offset.checked_sub(distance).ok_or(Malformed)?;
                    self.by_offset.get(&base)
                }
                None => return Ok(None),
            },
            7 if base.len() < self.format.bytes() => return Ok(None),
            7 => Id::from_bytes(self.format, base).and_then(|id| self.by_id.get(&id)),
            _ => return Err(Malformed),
        };
        // Of something else, or of a commit that is not in the pack.
        Ok(Some((
            known.map_or(Kind::Other, |it| Kind::Delta(*it)),
            size,
        )))
    }

    /// The parents of a commit, as git finds them: after the tree, and nowhere else.
    pub(super) fn parents(&self, at: usize) -> impl Iterator<Item = Id> {
        let digits = 2 * self.format.bytes();
        let mut rest = self.contents[at].strip_prefix(b"tree ").and_then(|rest| {
            Id::parse(rest.get(..digits)?)?;
            rest[digits..].strip_prefix(b"\n")
        });
        std::iter::from_fn(move || {
            let line = rest?.strip_prefix(b"parent ")?;
            let parent = Id::parse(line.get(..digits)?)?;
            rest = line[digits..].strip_prefix(b"\n");
            rest.is_some().then_some(parent)
        })
    }
}

/// How far before an object its base is.
fn distance(bytes: &[u8]) -> Result<Option<u64>, Malformed> {
    let mut distance = 0u64;
    for (index, byte) in bytes.iter().enumerate() {
        if index == 8 {
            return Err(Malformed);
        }
        if index > 0 {
            distance += 1;
        }
        distance = distance << 7 | u64::from(byte & 0x7f);
        if *byte < 0x80 {
            return if distance == 0 {
                Err(Malformed)
            } else {
                Ok(Some(distance))
            };
        }
    }
    Ok(None)
}
