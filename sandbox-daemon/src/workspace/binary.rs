//! Contents as git carries what is no text: deflated, in base 85.

use std::{
    fmt,
    fs::File,
    io::{self, Read as _, Write},
};

use flate2::{Compression, write::ZlibEncoder};
use sha1::{Digest as _, Sha1};

use super::{Watch, halt::Halt};

/// Bytes in a line.
const LINE: usize = 52;

const ALPHABET: &[u8; 85] =
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";

/// How much is read at once.
const CHUNK: usize = 128 << 10;

/// What a side of a binary patch is made of.
pub(super) enum Blob<'a> {
    /// Nothing is there.
    None,
    /// In memory.
    Bytes(&'a [u8]),
    /// Of this length.
    File(&'a File, u64),
}

impl Blob<'_> {
    fn len(&self) -> u64 {
        match self {
            Self::None => 0,
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File(_, length) => *length,
        }
    }

    /// Hands the contents out in pieces.
    fn each(
        &self,
        watch: &mut Watch<'_>,
        mut f: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), Halt> {
        match self {
            Self::None => {}
            Self::Bytes(bytes) => f(bytes)?,
            Self::File(file, length) => {
                let mut file = file.try_clone()?;
                io::Seek::rewind(&mut file)?;
                let mut left = *length;
                let mut buffer = vec![0; CHUNK];
                while left > 0 {
                    watch.go_on()?;
                    let most = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
                    let read = file.read(&mut buffer[..most])?;
                    if read == 0 {
                        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                    }
                    f(&buffer[..read])?;
                    left -= read as u64;
                }
            }
        }
        Ok(())
    }

    /// The name that git has for it, in hexadecimal.
    pub(super) fn id(&self, watch: &mut Watch<'_>) -> Result<String, Halt> {
        if matches!(self, Self::None) {
            return Ok("0".repeat(40));
        }
        let mut hash = Sha1::new();
        hash.update(format!("blob {}\0", self.len()));
        self.each(watch, |bytes| {
            hash.update(bytes);
            Ok(())
        })?;
        let digest = hash.finalize();
        Ok(digest.iter().fold(String::new(), |mut id, byte| {
            // Writing to a string cannot fail.
            let _ = fmt::Write::write_fmt(&mut id, format_args!("{byte:02x}"));
            id
        }))
    }

    /// Writes it as a literal hunk.
    pub(super) fn literal(&self, watch: &mut Watch<'_>, to: &mut dyn Write) -> Result<(), Halt> {
        writeln!(to, "literal {}", self.len())?;
        let mut lines = ZlibEncoder::new(Lines::new(to), Compression::default());
        self.each(watch, |bytes| lines.write_all(bytes))?;
        lines.finish()?.end()?;
        Ok(())
    }
}

/// Writes bytes as lines of base 85.
struct Lines<'a> {
    to: &'a mut dyn Write,
    line: Vec<u8>,
}

impl<'a> Lines<'a> {
    fn new(to: &'a mut dyn Write) -> Self {
        Self {
            to,
            line: Vec::with_capacity(LINE),
        }
    }

    fn end(mut self) -> io::Result<()> {
        self.line()?;
        self.to.write_all(b"\n")
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "a line is of 52 bytes, a digit of 85"
    )]
    fn line(&mut self) -> io::Result<()> {
        let length = match self.line.len() as u8 {
            0 => return Ok(()),
            short @ 1..=26 => b'A' + short - 1,
            long => b'a' + long - 27,
        };
        let mut text = vec![length];
        for group in self.line.chunks(4) {
            let mut word = [0; 4];
            word[..group.len()].copy_from_slice(group);
            let mut value = u32::from_be_bytes(word);
            let mut digits = [0; 5];
            for digit in digits.iter_mut().rev() {
                *digit = ALPHABET[(value % 85) as usize];
                value /= 85;
            }
            text.extend_from_slice(&digits);
        }
        text.push(b'\n');
        self.line.clear();
        self.to.write_all(&text)
    }
}

impl Write for Lines<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(LINE - self.line.len());
        self.line.extend_from_slice(&bytes[..taken]);
        if self.line.len() == LINE {
            self.line()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn literal(blob: &Blob<'_>) -> String {
        let mut text = Vec::new();
        let mut tell = |_| true;
        let watch = &mut Watch::new(&mut tell);
        assert!(blob.literal(watch, &mut text).is_ok());
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn lines_hold_52_bytes_and_say_how_many() {
        let mut text = Vec::new();
        let mut lines = Lines::new(&mut text);
        lines.write_all(&[0; 52 + 26 + 1]).unwrap();
        lines.end().unwrap();
        let text = String::from_utf8(text).unwrap();
        let zeros = |groups: usize| "00000".repeat(groups);
        assert_eq!(text, format!("z{}\na{}\n\n", zeros(13), zeros(7)));
    }

    #[test]
    fn nothing_is_a_literal_too() {
        let text = literal(&Blob::None);
        let line = text.strip_prefix("literal 0\n").unwrap();
        // Eight bytes in two groups.
        assert!(
            line.starts_with('H') && line.ends_with("\n\n") && line.len() == 13,
            "{text}"
        );
    }

    #[test]
    fn ids_are_gits() {
        let mut tell = |_| true;
        let watch = &mut Watch::new(&mut tell);
        let id = Blob::Bytes(b"hello\n").id(watch);
        assert!(id.is_ok_and(|id| id == "ce013625030ba8dba906f756967f9e9ca394464a"));
    }
}
