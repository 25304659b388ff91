//! The head of a push: what it does to which references. It ends before the pack.

use std::collections::HashSet;

use bytes::{Bytes, BytesMut};

use super::{
    object::{Format, Id},
    pkt::{self, Packet},
    reference,
};

/// The largest head.
pub const MAX_BYTES: usize = 1 << 20;

/// Most commands.
pub const MAX_COMMANDS: usize = 10_000;

/// What is done to a reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// What it refers to; zeros: it is created.
    pub old: Id,
    /// What it shall refer to; zeros: it is deleted.
    pub new: Id,
    /// Its whole name.
    pub reference: String,
}

/// What the client can do, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent")]
pub struct Capabilities {
    /// `report-status`, or its version 2.
    pub report_status: bool,
    /// `side-band-64k`
    pub side_band: bool,
    /// `atomic`
    pub atomic: bool,
    /// `quiet`
    pub quiet: bool,
    /// Push options come before the pack.
    pub push_options: bool,
    /// `object-format`
    pub format: Format,
}

/// The head of a push.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// As it came, with the flush.
    pub raw: Bytes,
    /// What came after it.
    pub rest: Bytes,
    /// None: git asks whether it may push at all.
    pub commands: Vec<Command>,
    /// Commits of which the client does not have the parents.
    pub shallow: Vec<Id>,
    /// Of the first command.
    pub capabilities: Capabilities,
}

/// A push that nobody has to understand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// A length is none.
    #[error("a push with a malformed packet")]
    Packet,
    /// See [`MAX_BYTES`] and [`MAX_COMMANDS`].
    #[error("a push of more than 10000 references or 1 MiB of them")]
    TooLarge,
    /// A packet that is empty or not of version 0 of the protocol.
    #[error("a push with an unexpected packet")]
    Unexpected,
    /// It is neither a command nor a shallow commit.
    #[error("a push with a malformed command")]
    Command,
    /// Signed pushes have their commands in a certificate.
    #[error("a signed push")]
    Signed,
    /// Not git-check-ref-format(1).
    #[error("a push to a malformed reference")]
    Reference,
    /// Which of the commands counts would be the server's choice.
    #[error("a push to a reference twice")]
    Twice,
    /// Ids of another hash than the push says, or a hash that there is not.
    #[error("a push with ids of another object format")]
    Format,
}

/// Reads a head as it comes.
#[derive(Debug, Default)]
pub struct HeadReader {
    bytes: BytesMut,
    /// How many of them have been read.
    read: usize,
    commands: Vec<Command>,
    names: HashSet<String>,
    shallow: Vec<Id>,
    capabilities: Option<Capabilities>,
}

impl Command {
    /// Whether it deletes a reference.
    #[must_use]
    pub fn is_deletion(&self) -> bool {
        self.new.is_zero()
    }

    /// Whether it changes a reference that there is to something else.
    #[must_use]
    pub fn is_update(&self) -> bool {
        !self.old.is_zero() && !self.new.is_zero() && self.old != self.new
    }
}

impl HeadReader {
    /// Takes more bytes; none: there are more to come. How many come at a time
    /// makes no difference.
    ///
    /// # Errors
    /// It is not a push, whatever follows, or one that is not supported.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Option<Head>, HeadError> {
        self.bytes.extend_from_slice(bytes);
        let all = std::mem::take(&mut self.bytes);
        let done = loop {
            let packet =
                pkt::read(&all[self.read..]).map_err(|pkt::Malformed| HeadError::Packet)?;
            let Some((packet, used)) = packet else {
                break false;
            };
            self.read += used;
            if self.read > MAX_BYTES {
                return Err(HeadError::TooLarge);
            }
            match packet {
                Packet::Flush => break true,
                Packet::Data(line) if !line.is_empty() => self.line(line)?,
                _ => return Err(HeadError::Unexpected),
            }
        };
        self.bytes = all;
        if !done {
            return Ok(None);
        }
        self.head().map(Some)
    }

    fn line(&mut self, line: &[u8]) -> Result<(), HeadError> {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        if line.starts_with(b"push-cert") {
            return Err(HeadError::Signed);
        }
        if let Some(id) = line.strip_prefix(b"shallow ") {
            let id = Id::parse(id).ok_or(HeadError::Command)?;
            if !self.commands.is_empty() || id.is_zero() {
                return Err(HeadError::Command);
            }
            self.shallow.push(id);
            return Ok(());
        }
        let line = match self.capabilities {
            Some(_) => line,
            None => self.first(line)?,
        };
        let command = command(line)?;
        if self.commands.len() == MAX_COMMANDS {
            return Err(HeadError::TooLarge);
        }
        if !self.names.insert(command.reference.clone()) {
            return Err(HeadError::Twice);
        }
        self.commands.push(command);
        Ok(())
    }

    /// Takes the capabilities from the first command.
    fn first<'a>(&mut self, line: &'a [u8]) -> Result<&'a [u8], HeadError> {
        let end = memchr::memchr(0, line);
        let (line, list) = match end {
            Some(at) => (&line[..at], &line[at + 1..]),
            None => (line, &[][..]),
        };
        self.capabilities = Some(capabilities(list)?);
        Ok(line)
    }

    fn head(&mut self) -> Result<Head, HeadError> {
        let capabilities = match self.capabilities {
            Some(it) => it,
            // Without a command, nothing but a flush.
            None if self.shallow.is_empty() => capabilities(b"")?,
            None => return Err(HeadError::Command),
        };
        let commands = self.commands.iter().flat_map(|it| [&it.old, &it.new]);
        let odd = |id: &Id| id.format() != capabilities.format;
        if commands.chain(&self.shallow).any(odd) {
            return Err(HeadError::Format);
        }
        let all = std::mem::take(&mut self.bytes).freeze();
        Ok(Head {
            raw: all.slice(..self.read),
            rest: all.slice(self.read..),
            commands: std::mem::take(&mut self.commands),
            shallow: std::mem::take(&mut self.shallow),
            capabilities,
        })
    }
}

/// `OLD NEW REFERENCE`
fn command(line: &[u8]) -> Result<Command, HeadError> {
    let mut fields = line.splitn(3, |byte| *byte == b' ');
    let mut field = || fields.next().ok_or(HeadError::Command);
    let (old, new, reference) = (field()?, field()?, field()?);
    let reference = std::str::from_utf8(reference).map_err(|_| HeadError::Reference)?;
    if !reference::is_valid(reference) {
        return Err(HeadError::Reference);
    }
    Ok(Command {
        old: Id::parse(old).ok_or(HeadError::Command)?,
        new: Id::parse(new).ok_or(HeadError::Command)?,
        reference: reference.into(),
    })
}

fn capabilities(list: &[u8]) -> Result<Capabilities, HeadError> {
    // A second NUL would be the end of the list to git.
    let list = std::str::from_utf8(list).map_err(|_| HeadError::Command)?;
    if list.bytes().any(|byte| byte < b' ') {
        return Err(HeadError::Command);
    }
    // To git, a value makes no difference where none is expected.
    let values = |name| {
        let entries = list
            .split(' ')
            .map(|it| it.split_once('=').unwrap_or((it, "")));
        entries.filter_map(move |(it, value)| (it == name).then_some(value))
    };
    let has = |name| values(name).next().is_some();
    let mut formats = values("object-format");
    let format = match (formats.next(), formats.next()) {
        (None, _) => Format::Sha1,
        (Some(name), None) => Format::named(name).ok_or(HeadError::Format)?,
        _ => return Err(HeadError::Format),
    };
    Ok(Capabilities {
        report_status: has("report-status") || has("report-status-v2"),
        side_band: has("side-band-64k"),
        atomic: has("atomic"),
        quiet: has("quiet"),
        push_options: has("push-options"),
        format,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "1111111111111111111111111111111111111111";
    const NONE: &str = "0000000000000000000000000000000000000000";

    fn packets(lines: &[&str]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for line in lines {
            pkt::write(Packet::Data(line.as_bytes()), &mut bytes);
        }
        pkt::write(Packet::Flush, &mut bytes);
        bytes
    }

    fn read(bytes: &[u8]) -> Result<Option<Head>, HeadError> {
        HeadReader::default().feed(bytes)
    }

    fn lines(lines: &[&str]) -> Result<Option<Head>, HeadError> {
        read(&packets(lines))
    }

    fn command(reference: &str) -> String {
        format!("{NONE} {ID} {reference}")
    }

    #[test]
    fn a_head_is_read_whatever_comes_at_a_time_and_is_kept_as_it_came() {
        let first = format!(
            "{NONE} {ID} refs/heads/a\0 report-status-v2 side-band-64k object-format=sha1 agent=git/2.47.3\n"
        );
        let shallow = format!("shallow {ID}\n");
        let second = format!("{ID} {NONE} refs/heads/b");
        let bytes = packets(&[&shallow, &first, &second]);
        let sent = [&bytes[..], b"PACK0000"].concat();
        let head = read(&sent).unwrap().unwrap();
        assert_eq!(
            (&head.raw[..], &head.rest[..]),
            (&bytes[..], &b"PACK0000"[..])
        );
        assert_eq!(head.commands.len(), 2);
        assert_eq!(head.commands[0].reference, "refs/heads/a");
        assert_eq!(head.commands[0].old.to_string(), NONE);
        assert_eq!(head.commands[0].new.to_string(), ID);
        assert!(!head.commands[0].is_deletion() && head.commands[1].is_deletion());
        assert_eq!(head.shallow, [Id::parse(ID.as_bytes()).unwrap()]);
        assert_eq!(
            head.capabilities,
            Capabilities {
                report_status: true,
                side_band: true,
                atomic: false,
                quiet: false,
                push_options: false,
                format: Format::Sha1,
            }
        );
        for size in 1..bytes.len() {
            let mut reader = HeadReader::default();
            let mut chunks = bytes.chunks(size);
            let found = chunks.find_map(|it| reader.feed(it).unwrap()).unwrap();
            assert_eq!(
                (found.raw, found.commands),
                (head.raw.clone(), head.commands.clone())
            );
            assert!(chunks.next().is_none());
        }
    }

    #[test]
    fn a_flush_alone_asks_whether_one_may_push() {
        let head = read(b"0000").unwrap().unwrap();
        assert!(head.commands.is_empty());
        assert_eq!(&head.raw[..], b"0000");
        assert_eq!(lines(&[&format!("shallow {ID}")]), Err(HeadError::Command));
    }

    #[test]
    fn ids_are_of_the_format_that_the_push_says() {
        let long = format!("{ID}{}", "1".repeat(24));
        let none = "0".repeat(64);
        let sha256 = format!("{none} {long} refs/heads/a\0object-format=sha256");
        let head = lines(&[&sha256]).unwrap().unwrap();
        assert_eq!(head.capabilities.format, Format::Sha256);
        for bad in [
            format!("{none} {long} refs/heads/a"),
            format!("{none} {long} refs/heads/a\0object-format=sha1"),
            format!("{NONE} {ID} refs/heads/a\0object-format=sha256"),
            format!("{NONE} {long} refs/heads/a\0object-format=sha256"),
            format!("{NONE} {ID} refs/heads/a\0object-format=md5"),
            format!("{NONE} {ID} refs/heads/a\0object-format"),
            format!("{NONE} {ID} refs/heads/a\0object-format=sha1 object-format=sha1"),
        ] {
            assert_eq!(lines(&[&bad]), Err(HeadError::Format), "{bad}");
        }
        let mixed = [&command("refs/heads/a"), &sha256.replace("/a\0", "/b")[..]];
        assert!(lines(&mixed).is_err());
        let shallow = [&format!("shallow {long}"), &command("refs/heads/a")[..]];
        assert_eq!(lines(&shallow), Err(HeadError::Format));
    }

    #[test]
    fn what_git_does_not_send_is_refused() {
        use HeadError::{Command, Packet, Reference, Signed, Twice, Unexpected};
        let good = command("refs/heads/a");
        assert!(lines(&[&good]).is_ok_and(|it| it.is_some()));
        for (bad, error) in [
            (format!("{ID} refs/heads/a"), Command),
            (format!("{NONE}  {ID} refs/heads/a"), Reference),
            (format!("{NONE} {ID}"), Command),
            (
                format!("{NONE} {}2 refs/heads/a", &ID[1..].replace('1', "A")),
                Command,
            ),
            (format!("{NONE} {}z refs/heads/a", &ID[1..]), Command),
            (format!("{NONE}\t{ID}\trefs/heads/a"), Command),
            (command("refs/heads/a\n\n"), Reference),
            (command("refs/heads/a b"), Reference),
            (command("refs/heads/../heads/a"), Reference),
            (command("HEAD"), Reference),
            (command("refs/heads/a\0report-status\0quiet"), Command),
            (command("refs/heads/a\0report-status\nquiet"), Command),
            ("push-cert\0report-status".into(), Signed),
            ("push-cert-end".into(), Signed),
            ("shallow 1234".into(), Command),
            (format!("shallow {NONE}"), Command),
            ("ERR no".into(), Command),
            ("\n".into(), Command),
        ] {
            assert_eq!(lines(&[&bad]), Err(error), "{bad:?}");
        }
        // The second one has no capabilities.
        assert_eq!(
            lines(&[&good, &command("refs/heads/b\0quiet")]),
            Err(Reference)
        );
        assert_eq!(lines(&[&good, &good]), Err(Twice));
        assert_eq!(lines(&[&good, &format!("shallow {ID}")]), Err(Command));
        for bytes in [&b"0001"[..], b"0002", b"0004"] {
            assert_eq!(read(bytes), Err(Unexpected), "{bytes:?}");
        }
        assert_eq!(read(b"PACK"), Err(Packet));
        let not_utf8 = [good.as_bytes(), b"\xff"].concat();
        let mut bytes = Vec::new();
        pkt::write(super::Packet::Data(&not_utf8), &mut bytes);
        assert_eq!(read(&bytes), Err(Reference));
    }

    #[test]
    fn a_capability_is_one_with_a_value_too_as_it_is_to_git() {
        let head = lines(&[&command("refs/heads/a\0push-options=1 atomic quiet")]).unwrap();
        let capabilities = head.unwrap().capabilities;
        assert!(capabilities.push_options && capabilities.atomic && capabilities.quiet);
        assert!(!capabilities.report_status && !capabilities.side_band);
    }

    #[test]
    fn a_head_of_too_many_commands_or_bytes_is_refused() {
        let many: Vec<_> = (0..=MAX_COMMANDS)
            .map(|it| command(&format!("refs/t/{it}")))
            .collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        assert_eq!(lines(&many), Err(HeadError::TooLarge));
        assert!(lines(&many[1..]).is_ok());
        let long = |it| command(&format!("refs/{}/{it}", "a".repeat(1000)));
        let long: Vec<_> = (0..1000).map(long).collect();
        let long: Vec<_> = long.iter().map(String::as_str).collect();
        assert_eq!(lines(&long), Err(HeadError::TooLarge));
        assert!(lines(&long[..900]).is_ok());
        // What is no head at all ends too.
        let mut reader = HeadReader::default();
        let shallow = packets(&[&format!("shallow {ID}")]);
        let shallow = &shallow[..shallow.len() - 4];
        let fed = (0..MAX_BYTES / 40).find_map(|_| reader.feed(shallow).err());
        assert_eq!(fed, Some(HeadError::TooLarge));
    }
}
