//! Contents of files, without reading what is not there: a sparse file of two
//! gigabytes is compared, hashed and copied as quickly as the little in it.

use std::{
    fs::File,
    io,
    os::{fd::AsFd, unix::fs::FileExt as _},
};

use nix::{
    errno::Errno,
    unistd::{Whence, lseek},
};
use sha2::{Digest as _, Sha256};

use super::{Watch, WorkspaceError};

/// How much is read at once.
const CHUNK: usize = 128 << 10;

/// How large a buffer a file of that size takes.
fn buffer(size: u64) -> usize {
    usize::try_from(size).unwrap_or(CHUNK).min(CHUNK)
}

/// The next place that has data from `at` on; `size` if there is none.
fn data(file: &impl AsFd, at: u64, size: u64) -> io::Result<u64> {
    seek(file, at, size, Whence::SeekData)
}

/// Where the data at `at` ends.
fn hole(file: &impl AsFd, at: u64, size: u64) -> io::Result<u64> {
    seek(file, at, size, Whence::SeekHole)
}

fn seek(file: &impl AsFd, at: u64, size: u64, whence: Whence) -> io::Result<u64> {
    let data = matches!(whence, Whence::SeekData);
    let offset = i64::try_from(at).map_err(io::Error::other)?;
    match lseek(file, offset, whence) {
        Ok(found) => Ok(u64::try_from(found).map_err(io::Error::other)?.min(size)),
        Err(Errno::ENXIO) => Ok(size),
        // A file system that knows of no holes.
        Err(Errno::EINVAL) => Ok(if data { at } else { size }),
        Err(errno) => Err(errno.into()),
    }
}

/// Fills the buffer as far as the file goes.
fn read_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], at + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Whether two files of one size have the same contents.
pub(super) fn same(
    one: &File,
    other: &File,
    size: u64,
    watch: &mut Watch<'_>,
) -> Result<io::Result<bool>, WorkspaceError> {
    let length = buffer(size);
    let mut buffers = (vec![0; length], vec![0; length]);
    let mut at = 0;
    while at < size {
        watch.go_on()?;
        let mut step = || -> io::Result<Option<u64>> {
            let start = data(one, at, size)?.min(data(other, at, size)?);
            if start >= size {
                return Ok(Some(size));
            }
            let lengths = (
                read_at(one, &mut buffers.0, start)?,
                read_at(other, &mut buffers.1, start)?,
            );
            let equal = buffers.0[..lengths.0] == buffers.1[..lengths.1];
            Ok(equal.then_some(start + CHUNK as u64))
        };
        match step() {
            Ok(Some(next)) => at = next,
            Ok(None) => return Ok(Ok(false)),
            Err(error) => return Ok(Err(error)),
        }
    }
    Ok(Ok(true))
}

/// A digest that is the same for the same contents, wherever their holes are.
pub(super) fn digest(
    file: &File,
    size: u64,
    watch: &mut Watch<'_>,
) -> Result<io::Result<[u8; 32]>, WorkspaceError> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; buffer(size)];
    let mut at = 0;
    while at < size {
        watch.go_on()?;
        let mut step = || -> io::Result<u64> {
            // In whole chunks: where data begins is the file system's choice.
            let start = data(file, at, size)? / CHUNK as u64 * CHUNK as u64;
            let start = start.max(at);
            if start >= size {
                return Ok(size);
            }
            let length = read_at(file, &mut buffer, start)?;
            if buffer[..length].iter().any(|byte| *byte != 0) {
                hash.update(start.to_le_bytes());
                hash.update(&buffer[..length]);
            }
            Ok(start + CHUNK as u64)
        };
        match step() {
            Ok(next) => at = next,
            Err(error) => return Ok(Err(error)),
        }
    }
    Ok(Ok(hash.finalize().into()))
}

/// Copies contents, holes as holes.
pub(super) fn copy(
    from: &File,
    to: &File,
    size: u64,
    watch: &mut Watch<'_>,
) -> Result<io::Result<()>, WorkspaceError> {
    let mut buffer = vec![0; buffer(size)];
    let mut at = 0;
    let mut end = 0;
    while at < size {
        watch.go_on()?;
        let mut step = || -> io::Result<u64> {
            if at >= end {
                at = data(from, at, size)?;
                end = hole(from, at, size)?.max(at);
            }
            let length = usize::try_from(end - at).unwrap_or(CHUNK).min(buffer.len());
            let read = read_at(from, &mut buffer[..length], at)?;
            to.write_all_at(&buffer[..read], at)?;
            // It became shorter: what is missing is as if it were zero.
            Ok(if read == 0 { size } else { at + read as u64 })
        };
        match step() {
            Ok(next) => at = next,
            Err(error) => return Ok(Err(error)),
        }
    }
    Ok(to.set_len(size))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::MetadataExt as _};

    use super::*;

    fn sparse(at: u64, bytes: &[u8], size: u64) -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(size).unwrap();
        file.write_all_at(bytes, at).unwrap();
        file
    }

    fn quiet<T>(f: impl FnOnce(&mut Watch<'_>) -> T) -> T {
        f(&mut Watch::new(&mut |_| true))
    }

    #[test]
    fn a_difference_behind_two_gigabytes_of_nothing_is_found() {
        const SIZE: u64 = 2 << 30;
        let one = sparse(SIZE - 4, b"tail", SIZE);
        let equal = sparse(SIZE - 4, b"tail", SIZE);
        let other = sparse(SIZE - 4, b"tali", SIZE);
        // Zeros that are written are no difference.
        equal.write_all_at(&[0; 4096], 1 << 20).unwrap();
        assert!(
            quiet(|watch| same(&one, &equal, SIZE, watch))
                .unwrap()
                .unwrap()
        );
        assert!(
            !quiet(|watch| same(&one, &other, SIZE, watch))
                .unwrap()
                .unwrap()
        );
        let digest = |file| quiet(|watch| digest(file, SIZE, watch)).unwrap().unwrap();
        assert_eq!(digest(&one), digest(&equal));
        assert_ne!(digest(&one), digest(&other));
    }

    #[test]
    fn holes_stay_holes() {
        const SIZE: u64 = 256 << 20;
        let from = sparse(100 << 20, b"middle", SIZE);
        let place = tempfile::NamedTempFile::new().unwrap();
        let to = place.reopen().unwrap();
        quiet(|watch| copy(&from, &to, SIZE, watch))
            .unwrap()
            .unwrap();
        let meta = fs::metadata(place.path()).unwrap();
        assert_eq!(meta.len(), SIZE);
        assert!(meta.blocks() < 2048, "{} blocks", meta.blocks());
        let reopened = place.reopen().unwrap();
        assert!(
            quiet(|watch| same(&from, &reopened, SIZE, watch))
                .unwrap()
                .unwrap()
        );
    }

    #[test]
    fn whoever_goes_away_ends_it() {
        let file = sparse(0, &vec![1; 1 << 20], 1 << 20);
        let ended = same(&file, &file, 1 << 20, &mut Watch::new(&mut |_| false));
        assert!(matches!(ended, Err(WorkspaceError::Cancelled)));
    }
}
