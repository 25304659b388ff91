//! Whether a push only adds to what there is: its pack is looked at as it passes.
//!
//! An update forces nothing if its old commit is among the ancestors of the new
//! one. The commits between them are in the pack, since the server does not have
//! them. What the pack does not show counts as forced, such as that the server had
//! them after all.
//!
//! The end of the pack is held back until that is clear: a server drops a pack of
//! which the checksum is missing, and does nothing.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    mem,
};

use bytes::Bytes;
use flate2::{Decompress, FlushDecompress, Status};

use super::{
    commits::{Commits, Kind, Malformed},
    delta,
    object::Id,
    pkt::{self, Packet},
    receive::{Command, Head},
    report::{Refusal, Refusals},
};

/// Largest push options.
const MAX_OPTIONS: usize = 64 << 10;

/// How many ancestors are looked at: the client chooses how many there are, and
/// others wait meanwhile.
const MAX_STEPS: usize = 1 << 20;

/// What comes before the objects: `PACK`, a version, and their number.
const HEADER: usize = 12;

/// Why a pack shows nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum PackError {
    #[error("its pack is malformed")]
    Malformed,
    #[error("its pack is not whole")]
    Partial,
    #[error("something follows its pack")]
    Longer,
    #[error("it has more than 64 MiB of commits")]
    TooLarge,
    #[error("it has too many commits")]
    TooMany,
}

/// Looks at a pack as it passes.
#[derive(Debug)]
pub struct PackCheck {
    commits: Commits,
    updates: Vec<Command>,
    shallow: HashSet<Id>,
    state: State,
    failed: Option<PackError>,
    inflate: Decompress,
    inflated: Box<[u8]>,
    /// How many bytes of the pack have been read.
    offset: u64,
    /// How many objects are to come.
    objects: u32,
    steps: usize,
    /// How many commits there have to be before it is worth another look.
    look_at: usize,
    held: VecDeque<Bytes>,
}

#[derive(Debug)]
enum State {
    /// Packets before the pack.
    Options(Vec<u8>),
    Header(Vec<u8>),
    /// What comes before an object.
    Entry(Vec<u8>),
    Object(Object),
    /// How many bytes of it are to come.
    Checksum(usize),
    /// Nothing is forced; whatever follows makes no difference.
    Shown,
}

#[derive(Debug)]
struct Object {
    kind: Kind,
    /// Where it is in the pack.
    offset: u64,
    /// How much of it is to come.
    left: u64,
    /// What of it is kept.
    content: Vec<u8>,
}

impl PackCheck {
    /// For the push with this head.
    #[must_use]
    pub fn new(head: &Head) -> Self {
        let updates = head.commands.iter().filter(|it| it.is_update());
        let updates: Vec<_> = updates.cloned().collect();
        Self {
            commits: Commits::new(head.capabilities.format),
            state: if updates.is_empty() {
                State::Shown
            } else if head.capabilities.push_options {
                State::Options(Vec::new())
            } else {
                State::Header(Vec::new())
            },
            updates,
            shallow: head.shallow.iter().copied().collect(),
            failed: None,
            inflate: Decompress::new(true),
            inflated: vec![0; 64 << 10].into(),
            offset: 0,
            objects: 0,
            steps: 0,
            look_at: 1,
            held: VecDeque::new(),
        }
    }

    /// Takes what comes after the head; what of it may be forwarded. It takes the
    /// time that inflating takes, until it is clear that nothing is forced.
    ///
    /// # Errors
    /// The push is refused. Nothing more may be forwarded, and the server may not be
    /// told that this was all.
    pub fn feed(&mut self, bytes: Bytes) -> Result<Vec<Bytes>, Refusals> {
        if self.failed.is_none() {
            self.failed = self.read(&bytes).err();
        }
        if let Some(error) = self.failed {
            return Err(self.refusals(Some(error)));
        }
        if !bytes.is_empty() {
            self.held.push_back(bytes);
        }
        Ok(self.release())
    }

    /// Whether it is clear that nothing is forced: what follows, and all that was
    /// kept, makes no difference.
    #[must_use]
    pub fn is_shown(&self) -> bool {
        self.failed.is_none() && matches!(self.state, State::Shown)
    }

    /// The end of the pack, which is forwarded.
    ///
    /// # Errors
    /// As of [`PackCheck::feed`].
    pub fn finish(mut self) -> Result<Vec<Bytes>, Refusals> {
        if self.failed.is_none() {
            match self.state {
                State::Shown => {}
                State::Checksum(0) => self.failed = self.look().err(),
                _ => self.failed = Some(PackError::Partial),
            }
        }
        if self.failed.is_some() || !self.updates.is_empty() {
            return Err(self.refusals(self.failed));
        }
        Ok(self.held.into())
    }

    fn refusals(&self, error: Option<PackError>) -> Refusals {
        let refusal = |update: &Command| Refusal {
            reference: update.reference.clone(),
            reason: match error {
                Some(error) => format!("may be a forced update: {error}"),
                None => format!(
                    "may be a forced update: what is pushed does not lead from {:.10} back to {:.10}",
                    update.new, update.old
                ),
            },
        };
        Refusals(self.updates.iter().map(refusal).collect())
    }

    /// Takes out all but as many bytes as a checksum has.
    fn release(&mut self) -> Vec<Bytes> {
        let held: usize = self.held.iter().map(Bytes::len).sum();
        let mut free = match self.state {
            State::Shown => held,
            _ => held.saturating_sub(self.commits.checksum()),
        };
        let mut released = Vec::new();
        while free > 0
            && let Some(first) = self.held.front_mut()
        {
            let part = first.split_to(free.min(first.len()));
            free -= part.len();
            if first.is_empty() {
                self.held.pop_front();
            }
            released.push(part);
        }
        released
    }

    fn read(&mut self, mut bytes: &[u8]) -> Result<(), PackError> {
        while !bytes.is_empty() {
            let all = bytes.len();
            // Nothing may follow an error.
            bytes = match mem::replace(&mut self.state, State::Checksum(0)) {
                State::Options(read) => self.options(read, bytes)?,
                State::Header(read) => self.header(read, bytes)?,
                State::Entry(read) => self.entry(read, bytes)?,
                State::Object(object) => self.object(object, bytes)?,
                State::Checksum(0) => return Err(PackError::Longer),
                State::Checksum(left) => {
                    let taken = left.min(all);
                    self.state = State::Checksum(left - taken);
                    &bytes[taken..]
                }
                State::Shown => {
                    self.state = State::Shown;
                    &[]
                }
            };
            self.offset += (all - bytes.len()) as u64;
        }
        Ok(())
    }

    fn options<'a>(&mut self, mut read: Vec<u8>, bytes: &'a [u8]) -> Result<&'a [u8], PackError> {
        let before = read.len();
        read.extend(&bytes[..bytes.len().min(MAX_OPTIONS)]);
        let mut at = 0;
        while let Some((packet, used)) =
            pkt::read(&read[at..]).map_err(|pkt::Malformed| PackError::Malformed)?
        {
            at += used;
            match packet {
                Packet::Flush => {
                    self.state = State::Header(Vec::new());
                    return Ok(&bytes[at - before..]);
                }
                Packet::Data(_) => {}
                _ => return Err(PackError::Malformed),
            }
        }
        if read.len() > MAX_OPTIONS {
            return Err(PackError::Malformed);
        }
        self.state = State::Options(read);
        Ok(&[])
    }

    fn header<'a>(&mut self, mut read: Vec<u8>, bytes: &'a [u8]) -> Result<&'a [u8], PackError> {
        let (taken, rest) = bytes.split_at(bytes.len().min(HEADER - read.len()));
        // From here on they are counted, when they have been read.
        self.offset = read.len() as u64;
        read.extend(taken);
        match *read.as_slice() {
            [b'P', b'A', b'C', b'K', 0, 0, 0, 2 | 3, a, b, c, d] => {
                self.objects = u32::from_be_bytes([a, b, c, d]);
                self.next();
            }
            [_, _, _, _, _, _, _, _, _, _, _, _] => return Err(PackError::Malformed),
            _ => self.state = State::Header(read),
        }
        Ok(rest)
    }

    /// Waits for an object, or for the end.
    fn next(&mut self) {
        self.state = match self.objects.checked_sub(1) {
            Some(left) => {
                self.objects = left;
                State::Entry(Vec::new())
            }
            None => State::Checksum(self.commits.checksum()),
        };
    }

    fn entry<'a>(&mut self, mut read: Vec<u8>, bytes: &'a [u8]) -> Result<&'a [u8], PackError> {
        let offset = self.offset - read.len() as u64;
        for (index, byte) in bytes.iter().enumerate() {
            read.push(*byte);
            if let Some((kind, left)) = self
                .commits
                .entry(&read, offset)
                .map_err(|Malformed| PackError::Malformed)?
            {
                let keeps = kind != Kind::Other;
                if keeps && left > self.commits.room() as u64 {
                    return Err(PackError::TooLarge);
                }
                self.state = State::Object(Object {
                    kind,
                    offset,
                    left,
                    content: Vec::new(),
                });
                return Ok(&bytes[index + 1..]);
            }
        }
        self.state = State::Entry(read);
        Ok(&[])
    }

    fn object<'a>(
        &mut self,
        mut object: Object,
        mut bytes: &'a [u8],
    ) -> Result<&'a [u8], PackError> {
        loop {
            let (read, wrote) = (self.inflate.total_in(), self.inflate.total_out());
            let status = self
                .inflate
                .decompress(bytes, &mut self.inflated, FlushDecompress::None)
                .map_err(|_| PackError::Malformed)?;
            let read = usize::try_from(self.inflate.total_in() - read);
            let wrote = usize::try_from(self.inflate.total_out() - wrote);
            let (Ok(read), Ok(wrote)) = (read, wrote) else {
                return Err(PackError::Malformed);
            };
            bytes = &bytes[read..];
            object.left = object
                .left
                .checked_sub(wrote as u64)
                .ok_or(PackError::Malformed)?;
            if object.kind != Kind::Other {
                object.content.extend(&self.inflated[..wrote]);
            }
            let full = wrote == self.inflated.len();
            match status {
                Status::StreamEnd if object.left == 0 => {
                    self.inflate.reset(true);
                    self.next();
                    self.complete(object)?;
                    return Ok(bytes);
                }
                Status::StreamEnd => return Err(PackError::Malformed),
                // There may be more to write of what was read.
                _ if full => {}
                _ if bytes.is_empty() => {
                    self.state = State::Object(object);
                    return Ok(bytes);
                }
                _ if read == 0 && wrote == 0 => return Err(PackError::Malformed),
                _ => {}
            }
        }
    }

    fn complete(&mut self, object: Object) -> Result<(), PackError> {
        match object.kind {
            Kind::Commit => self.commits.add(object.offset, object.content),
            Kind::Delta(base) => {
                let content = delta::apply(
                    self.commits.content(base),
                    &object.content,
                    self.commits.room(),
                );
                let content = content.ok_or(PackError::Malformed)?;
                self.commits.add(object.offset, content);
            }
            // Git writes all commits first.
            Kind::Other if self.commits.len() >= self.look_at => {
                self.look()?;
                self.look_at = 2 * self.commits.len();
            }
            Kind::Other => {}
        }
        Ok(())
    }

    /// Forgets the updates that do not force anything, by the commits so far.
    fn look(&mut self) -> Result<(), PackError> {
        let mut wanted: HashMap<Id, HashSet<Id>> = HashMap::new();
        for update in &self.updates {
            wanted.entry(update.new).or_default().insert(update.old);
        }
        for (new, olds) in &mut wanted {
            self.find(*new, olds)?;
        }
        self.updates
            .retain(|update| wanted[&update.new].contains(&update.old));
        if self.updates.is_empty() {
            self.state = State::Shown;
        }
        Ok(())
    }

    /// Goes from a commit to its ancestors, as far as they are in the pack, and
    /// takes those out that it finds.
    fn find(&mut self, new: Id, olds: &mut HashSet<Id>) -> Result<(), PackError> {
        let mut seen = vec![false; self.commits.len()];
        let mut next = vec![new];
        while let Some(id) = next.pop() {
            let Some(at) = self.commits.find(&id) else {
                continue;
            };
            // To the server, a shallow one may have no parents.
            if mem::replace(&mut seen[at], true) || self.shallow.contains(&id) {
                continue;
            }
            for parent in self.commits.parents(at) {
                self.steps += 1;
                if self.steps > MAX_STEPS {
                    return Err(PackError::TooMany);
                }
                olds.remove(&parent);
                if self.commits.find(&parent).is_some() {
                    next.push(parent);
                }
            }
            if olds.is_empty() {
                break;
            }
        }
        Ok(())
    }
}
