//! What a detached command wrote: a ring of records in a file without a name, of
//! which nothing is left when the daemon ends, however it ends.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    path::Path,
    time::{Duration, SystemTime},
};

use bytes::Bytes;

use super::OutputStream;

/// The newest output that is kept, with 16 bytes a record.
pub(super) const CAPACITY: u64 = 64 << 20;

/// A ring grows by so much at a time.
pub(super) const GRAIN: u64 = 256 << 10;

/// Of a record: length, stream and time.
const HEADER: usize = 16;

/// Most that is read at once, and one record.
const BATCH: usize = 256 << 10;

/// The output of one command.
pub(super) struct Log {
    file: File,
    /// Of the ring; it grows until it has to turn.
    size: u64,
    turns: bool,
    /// Where the oldest record begins, counted from the first one ever.
    head: u64,
    /// Where the next one is to begin.
    tail: u64,
    /// Bytes of output before `head`.
    dropped: u64,
    /// And of all of it.
    written: u64,
}

/// A piece of output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Where it was written to.
    pub stream: OutputStream,
    /// When it was read.
    pub time: SystemTime,
    /// What.
    pub bytes: Bytes,
}

/// How far a reader is; by default before everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cursor {
    /// In the log.
    place: u64,
    /// Bytes of output before that.
    seen: u64,
}

struct Header {
    stream: OutputStream,
    nanoseconds: u64,
    length: u32,
}

impl Log {
    /// An empty one, in a directory of the daemon's.
    pub(super) fn new(directory: &Path) -> io::Result<Self> {
        Ok(Self {
            file: tempfile::tempfile_in(directory)?,
            size: 0,
            turns: false,
            head: 0,
            tail: 0,
            dropped: 0,
            written: 0,
        })
    }

    /// What it takes of the disk, at most.
    #[cfg(test)]
    fn size(&self) -> u64 {
        self.size
    }

    /// All that was ever added, in bytes.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Adds a piece, for which the oldest ones may have to go. The file may grow
    /// where `grow` says so.
    pub(super) fn append(
        &mut self,
        stream: OutputStream,
        time: SystemTime,
        bytes: &[u8],
        mut grow: impl FnMut(u64) -> bool,
    ) -> io::Result<()> {
        let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        self.written += u64::from(length);
        let needed = HEADER as u64 + u64::from(length);
        while !self.turns && self.tail + needed > self.size {
            if self.size < CAPACITY && grow(GRAIN) {
                self.size += GRAIN;
            } else {
                self.turns = true;
            }
        }
        let record = Header {
            stream,
            nanoseconds: nanoseconds(time),
            length,
        };
        let record = [&record.encode(), bytes].concat();
        let kept = self.keep(&record, needed);
        if !matches!(kept, Ok(true)) {
            self.dropped += u64::from(length);
        }
        kept.map(drop)
    }

    /// False: there is no room for it, whatever goes.
    fn keep(&mut self, record: &[u8], needed: u64) -> io::Result<bool> {
        if !self.make_room(needed)? {
            return Ok(false);
        }
        match self.write(record) {
            Ok(()) => {}
            // It makes do with what it has of a disk that is full.
            Err(error) if !self.turns => {
                tracing::warn!(%error, "cannot let the log of a command grow");
                self.turns = true;
                self.size = self.tail;
                if !self.make_room(needed)? {
                    return Ok(false);
                }
                self.write(record)?;
            }
            Err(error) => return Err(error),
        }
        self.tail += needed;
        Ok(true)
    }

    /// Gives the oldest records up for one of this size. False: even all of them
    /// are too little, and they are gone.
    fn make_room(&mut self, needed: u64) -> io::Result<bool> {
        while self.tail + needed - self.head > self.size {
            if self.head == self.tail {
                return Ok(false);
            }
            let header = self.header(self.head)?;
            self.head += HEADER as u64 + u64::from(header.length);
            self.dropped += u64::from(header.length);
        }
        Ok(true)
    }

    /// Behind the newest one.
    pub(super) fn newest(&self) -> Cursor {
        Cursor {
            place: self.tail,
            seen: self.written,
        }
    }

    /// The next records, and how many bytes of output before them are lost.
    pub(super) fn read(&self, cursor: &mut Cursor) -> io::Result<(u64, Vec<Record>)> {
        let mut lost = 0;
        // What had no place in the ring was before its head, too.
        if cursor.place <= self.head {
            lost = self.dropped.saturating_sub(cursor.seen);
            *cursor = Cursor {
                place: self.head,
                seen: self.dropped,
            };
        }
        let (mut records, mut length) = (Vec::new(), 0);
        while cursor.place < self.tail && length < BATCH {
            let header = self.header(cursor.place)?;
            let mut bytes = vec![0; header.length as usize];
            self.read_at(cursor.place + HEADER as u64, &mut bytes)?;
            length += bytes.len();
            cursor.pass(header.length);
            records.push(Record {
                stream: header.stream,
                time: SystemTime::UNIX_EPOCH + Duration::from_nanos(header.nanoseconds),
                bytes: bytes.into(),
            });
        }
        Ok((lost, records))
    }

    fn header(&self, place: u64) -> io::Result<Header> {
        let mut bytes = [0; HEADER];
        self.read_at(place, &mut bytes)?;
        Header::decode(bytes).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let (offset, first) = self.split(self.tail, bytes.len());
        let (one, other) = bytes.split_at(first);
        self.file.write_all_at(one, offset)?;
        self.file.write_all_at(other, 0)
    }

    fn read_at(&self, place: u64, bytes: &mut [u8]) -> io::Result<()> {
        let (offset, first) = self.split(place, bytes.len());
        let (one, other) = bytes.split_at_mut(first);
        self.file.read_exact_at(one, offset)?;
        self.file.read_exact_at(other, 0)
    }

    /// Where a place is in the file, and how much of so many bytes is before its
    /// end.
    fn split(&self, place: u64, length: usize) -> (u64, usize) {
        let offset = if self.turns { place % self.size } else { place };
        let left = usize::try_from(self.size - offset).unwrap_or(usize::MAX);
        (offset, length.min(left))
    }
}

impl Cursor {
    /// Where nothing is kept, behind so many bytes.
    pub(super) fn behind(bytes: u64) -> Self {
        Self {
            place: u64::MAX,
            seen: bytes,
        }
    }

    /// Goes on to behind so many bytes; how many that were not seen.
    pub(super) fn skip(&mut self, written: u64) -> u64 {
        let lost = written.saturating_sub(self.seen);
        self.seen = written;
        lost
    }

    fn pass(&mut self, length: u32) {
        self.place += HEADER as u64 + u64::from(length);
        self.seen += u64::from(length);
    }
}

impl Header {
    fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&self.length.to_ne_bytes());
        bytes[4] = match self.stream {
            OutputStream::Stdout => 1,
            OutputStream::Stderr => 2,
        };
        bytes[8..].copy_from_slice(&self.nanoseconds.to_ne_bytes());
        bytes
    }

    fn decode(bytes: [u8; HEADER]) -> Option<Self> {
        Some(Self {
            stream: match bytes[4] {
                1 => OutputStream::Stdout,
                2 => OutputStream::Stderr,
                _ => return None,
            },
            length: u32::from_ne_bytes(bytes[..4].try_into().ok()?),
            nanoseconds: u64::from_ne_bytes(bytes[8..].try_into().ok()?),
        })
    }
}

/// Since 1970; of a clock that is before that, 0.
fn nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |it| u64::try_from(it.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> Log {
        Log::new(&std::env::temp_dir()).unwrap()
    }

    /// A piece of output that says which one it is.
    fn piece(number: u32) -> Vec<u8> {
        let width = 100 + (number as usize * 7919) % 40_000;
        format!("{number:>width$}").into_bytes()
    }

    fn text(records: &[Record]) -> Vec<u8> {
        records.iter().flat_map(|it| it.bytes.to_vec()).collect()
    }

    #[test]
    fn what_was_written_is_read_in_order_with_its_stream_and_time() {
        let mut log = log();
        let time = SystemTime::UNIX_EPOCH + Duration::from_nanos(1_234_567_890_123_456_789);
        for (stream, bytes) in [
            (OutputStream::Stdout, &b"one"[..]),
            (OutputStream::Stderr, b"two"),
        ] {
            log.append(stream, time, bytes, |_| true).unwrap();
        }
        let mut cursor = Cursor::default();
        let (lost, records) = log.read(&mut cursor).unwrap();
        assert_eq!(lost, 0);
        let streams: Vec<_> = records.iter().map(|it| it.stream).collect();
        assert_eq!(streams, [OutputStream::Stdout, OutputStream::Stderr]);
        assert_eq!(text(&records), b"onetwo");
        assert_eq!(records[1].time, time);
        assert_eq!(cursor, log.newest());
        assert_eq!(log.read(&mut cursor).unwrap(), (0, vec![]));
    }

    /// Writes until the ring has turned several times; in the end everything is
    /// either kept or counted.
    fn turn(mut log: Log, mut grow: impl FnMut(&Log) -> bool, limit: u64) {
        let (mut behind, mut followed) = (Cursor::default(), Cursor::default());
        let mut all = Vec::new();
        let mut pieces = 0;
        for number in 0.. {
            let piece = piece(number);
            let may = grow(&log);
            log.append(OutputStream::Stdout, SystemTime::now(), &piece, |_| may)
                .unwrap();
            let (lost, records) = log.read(&mut followed).unwrap();
            assert_eq!((lost, text(&records)), (0, piece.clone()), "{number}");
            all.extend(piece);
            pieces = number;
            if all.len() as u64 > 3 * limit {
                break;
            }
        }
        assert!(pieces > 10 && log.size() == limit, "{}", log.size());
        let (missing, mut kept) = log.read(&mut behind).unwrap();
        loop {
            let (more, next) = log.read(&mut behind).unwrap();
            assert_eq!(more, 0);
            if next.is_empty() {
                break;
            }
            kept.extend(next);
        }
        let kept = text(&kept);
        assert_eq!(missing + kept.len() as u64, all.len() as u64);
        assert!(all.ends_with(&kept) && kept.len() as u64 > limit / 2);
    }

    #[test]
    fn the_newest_is_kept_and_the_rest_is_counted() {
        turn(log(), |_| true, CAPACITY);
    }

    #[test]
    fn where_it_may_not_grow_it_turns_in_what_it_has() {
        turn(log(), |log| log.size() < 2 * GRAIN, 2 * GRAIN);
    }

    #[test]
    fn without_any_room_everything_is_counted() {
        let mut log = log();
        let mut cursor = Cursor::default();
        for _ in 0..3 {
            log.append(OutputStream::Stdout, SystemTime::now(), b"four", |_| false)
                .unwrap();
        }
        assert_eq!(log.read(&mut cursor).unwrap(), (12, vec![]));
        assert_eq!(log.read(&mut cursor).unwrap(), (0, vec![]));
    }

    #[test]
    fn what_cannot_be_written_is_counted_and_the_rest_is_still_there() {
        let place = tempfile::NamedTempFile::new().unwrap();
        let mut log = log();
        log.file = place.reopen().unwrap();
        let append = |log: &mut Log, bytes: &[u8]| {
            log.append(OutputStream::Stdout, SystemTime::now(), bytes, |_| true)
        };
        append(&mut log, b"kept").unwrap();
        // As a disk that fails, where the ring turns already.
        log.turns = true;
        log.file = File::open(place.path()).unwrap();
        append(&mut log, b"gone").unwrap_err();
        let (lost, records) = log.read(&mut Cursor::default()).unwrap();
        assert_eq!((lost, text(&records)), (4, b"kept".to_vec()));
    }

    #[test]
    fn the_file_has_no_name() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = Log::new(directory.path()).unwrap();
        log.append(OutputStream::Stdout, SystemTime::now(), b"x", |_| true)
            .unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
