//! Packets with their length before them (gitprotocol-common).
//!
//! Read strictly: a length has four digits in small letters, as every client
//! writes it, so that there is one way to write what was read.

/// The longest packet, with its length.
pub const MAX_BYTES: usize = 65520;

/// Bytes of a length.
const LENGTH: usize = 4;

/// A packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet<'a> {
    /// `0000`: the end of a list.
    Flush,
    /// `0001`: the end of a part, in version 2.
    Delimiter,
    /// `0002`: the end of an answer, in version 2.
    End,
    /// What there is to say.
    Data(&'a [u8]),
}

/// A length that no packet has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a malformed packet")]
pub struct Malformed;

/// Reads the first packet, and says how many bytes it has; none: there are more to
/// come.
///
/// # Errors
/// It is no packet, whatever follows.
pub fn read(bytes: &[u8]) -> Result<Option<(Packet<'_>, usize)>, Malformed> {
    let mut length = 0;
    for byte in bytes.iter().take(LENGTH) {
        length = length << 4 | digit(*byte).ok_or(Malformed)?;
    }
    if bytes.len() < LENGTH {
        return Ok(None);
    }
    let packet = match length {
        0 => Packet::Flush,
        1 => Packet::Delimiter,
        2 => Packet::End,
        LENGTH..=MAX_BYTES => {
            let Some(data) = bytes.get(LENGTH..length) else {
                return Ok(None);
            };
            return Ok(Some((Packet::Data(data), length)));
        }
        _ => return Err(Malformed),
    };
    Ok(Some((packet, LENGTH)))
}

/// Writes a packet. Data that is too long is written as several packets.
pub fn write(packet: Packet<'_>, to: &mut Vec<u8>) {
    match packet {
        Packet::Flush => to.extend(b"0000"),
        Packet::Delimiter => to.extend(b"0001"),
        Packet::End => to.extend(b"0002"),
        Packet::Data(data) => {
            for chunk in data.chunks(MAX_BYTES - LENGTH) {
                data_packet(&[chunk], to);
            }
        }
    }
}

/// Writes bytes to a band of `side-band-64k`.
pub fn write_band(band: u8, data: &[u8], to: &mut Vec<u8>) {
    for chunk in data.chunks(MAX_BYTES - LENGTH - 1) {
        data_packet(&[&[band], chunk], to);
    }
}

fn data_packet(parts: &[&[u8]], to: &mut Vec<u8>) {
    let length = LENGTH + parts.iter().map(|it| it.len()).sum::<usize>();
    to.extend(format!("{length:04x}").bytes());
    to.extend(parts.concat());
}

fn digit(byte: u8) -> Option<usize> {
    match byte {
        b'0'..=b'9' => Some((byte - b'0').into()),
        b'a'..=b'f' => Some((byte - b'a' + 10).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let longest = vec![b'x'; MAX_BYTES - LENGTH];
        for packet in [
            Packet::Flush,
            Packet::Delimiter,
            Packet::End,
            Packet::Data(b"a"),
            Packet::Data(&longest),
        ] {
            let mut bytes = Vec::new();
            write(packet, &mut bytes);
            assert_eq!(read(&bytes), Ok(Some((packet, bytes.len()))));
            for length in 0..bytes.len().min(100) {
                assert_eq!(read(&bytes[..length]), Ok(None), "{length}");
            }
            bytes.push(b'!');
            assert_eq!(read(&bytes), Ok(Some((packet, bytes.len() - 1))));
        }
    }

    #[test]
    fn an_empty_packet_is_not_a_flush() {
        assert_eq!(read(b"0004"), Ok(Some((Packet::Data(b""), 4))));
    }

    #[test]
    fn lengths_that_no_packet_has_are_malformed_at_once() {
        for bytes in [
            &b"0003"[..],
            b"fff1x",
            b"ffff",
            b"000A",
            b"00 4",
            b"+004",
            b"0x04",
            b"-",
            b"P",
            b"\0",
        ] {
            assert_eq!(read(bytes), Err(Malformed), "{bytes:?}");
        }
        assert_eq!(read(b"fff0"), Ok(None));
    }

    #[test]
    fn what_is_too_long_for_one_packet_comes_in_several() {
        let data = vec![7; 3 * MAX_BYTES];
        let mut bytes = Vec::new();
        write_band(2, &data, &mut bytes);
        let (mut rest, mut got) = (&bytes[..], Vec::new());
        while let Some((Packet::Data([2, part @ ..]), used)) = read(rest).unwrap() {
            got.extend(part);
            rest = &rest[used..];
        }
        assert_eq!((rest, got), (&[][..], data));
    }
}
