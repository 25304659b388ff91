//! The first message of TLS: which server name it asks for.
//!
//! Read strictly, by RFC 8446 and RFC 6066: what a lenient server might read in
//! another way is refused. Nothing in it is used but the name.

use crate::name::Name;

/// The largest hello, with its records.
pub const MAX_BYTES: usize = 64 << 10;

/// What the first bytes of a connection are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hello {
    /// The beginning of a hello.
    Partial,
    /// A hello, and the server that it names.
    Whole(Option<Name>),
    /// Not TLS.
    Other,
}

/// A hello that nobody has to understand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    /// See [`MAX_BYTES`].
    #[error("a TLS hello of more than 64 KiB")]
    TooLarge,
    /// It is not what RFC 8446 describes.
    #[error("a malformed TLS hello")]
    Malformed,
    /// The server name is an address, several names, or no host name.
    #[error("a TLS server name that is no host name")]
    Name,
}

/// Reads the first bytes of a connection.
///
/// # Errors
/// They begin as TLS does, and go on as it may not.
pub fn read(bytes: &[u8]) -> Result<Hello, HelloError> {
    const HANDSHAKE: u8 = 22;
    const RECORDS: std::ops::RangeInclusive<u8> = 20..=24;
    match bytes {
        [kind, ..] if !RECORDS.contains(kind) => return Ok(Hello::Other),
        [] | [_] => return Ok(Hello::Partial),
        [_, version, ..] if *version != 3 => return unversioned(bytes),
        [HANDSHAKE, ..] => {}
        // A record of another kind comes first in no handshake.
        _ => return Err(HelloError::Malformed),
    }
    // However many came at a time.
    let bytes = &bytes[..bytes.len().min(MAX_BYTES)];
    let Some(message) = message(bytes)? else {
        return if bytes.len() == MAX_BYTES {
            Err(HelloError::TooLarge)
        } else {
            Ok(Hello::Partial)
        };
    };
    hello(&message).map(Hello::Whole)
}

/// A record of no version that there is. Go's server (`crypto/tls`) takes all
/// below 16, and reads what is in it: that would not be what was looked at.
fn unversioned(bytes: &[u8]) -> Result<Hello, HelloError> {
    match bytes {
        // A hello, or an alert before it.
        [22, ..0x10, _, _, _, 1, ..] | [21, ..0x10, _, 0, 2, _, ..] => Err(HelloError::Malformed),
        [21 | 22, ..0x10, rest @ ..] if rest.len() < 4 => Ok(Hello::Partial),
        _ => Ok(Hello::Other),
    }
}

/// Puts a handshake message together from its records.
fn message(mut bytes: &[u8]) -> Result<Option<Vec<u8>>, HelloError> {
    const HANDSHAKE: u8 = 22;
    const CLIENT_HELLO: u8 = 1;
    /// RFC 8446, 5.1
    const MAX_FRAGMENT: usize = 1 << 14;
    let mut message = Vec::new();
    loop {
        if let [kind, a, b, c, ..] = *message.as_slice() {
            if kind != CLIENT_HELLO {
                return Err(HelloError::Malformed);
            }
            let length = u32::from_be_bytes([0, a, b, c]) as usize;
            if length > MAX_BYTES {
                return Err(HelloError::TooLarge);
            }
            if message.len() >= 4 + length {
                // What follows in the last record would be a second message.
                return if message.len() == 4 + length {
                    message.drain(..4);
                    Ok(Some(message))
                } else {
                    Err(HelloError::Malformed)
                };
            }
        }
        let [kind, major, _, high, low, rest @ ..] = bytes else {
            return Ok(None);
        };
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        if *kind != HANDSHAKE || *major != 3 || !(1..=MAX_FRAGMENT).contains(&length) {
            return Err(HelloError::Malformed);
        }
        let (fragment, rest) = rest.split_at(length.min(rest.len()));
        message.extend_from_slice(fragment);
        if message.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
            return Err(HelloError::Malformed);
        }
        if fragment.len() < length {
            return Ok(None);
        }
        bytes = rest;
    }
}

/// The body of a `ClientHello`.
fn hello(bytes: &[u8]) -> Result<Option<Name>, HelloError> {
    const SERVER_NAME: u16 = 0;
    let mut fields = Fields(bytes);
    fields.take(2 + 32)?; // legacy version, random
    fields.vector8()?; // session
    fields.vector16()?; // cipher suites
    fields.vector8()?; // compression
    if fields.0.is_empty() {
        // Before TLS 1.2 there need not be extensions.
        return Ok(None);
    }
    let mut extensions = Fields(fields.vector16()?);
    fields.end()?;
    let mut named = None;
    while !extensions.0.is_empty() {
        let kind = extensions.number()?;
        let body = extensions.vector16()?;
        if kind == SERVER_NAME && named.replace(server_name(body)?).is_some() {
            return Err(HelloError::Name);
        }
    }
    Ok(named)
}

/// The extension `server_name` (RFC 6066, 3): one entry, a host name.
fn server_name(bytes: &[u8]) -> Result<Name, HelloError> {
    const HOST_NAME: &[u8] = &[0];
    let mut fields = Fields(bytes);
    let mut list = Fields(fields.vector16()?);
    fields.end()?;
    if list.take(1)? != HOST_NAME {
        return Err(HelloError::Name);
    }
    let name = list.vector16()?;
    if !list.0.is_empty() || !name.is_ascii() {
        return Err(HelloError::Name);
    }
    let name = std::str::from_utf8(name).map_err(|_| HelloError::Name)?;
    Name::parse(name).map_err(|_| HelloError::Name)
}

struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], HelloError> {
        let (taken, rest) = self
            .0
            .split_at_checked(length)
            .ok_or(HelloError::Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u16, HelloError> {
        let bytes = self.take(2)?;
        Ok(bytes
            .iter()
            .fold(0, |number, byte| number << 8 | u16::from(*byte)))
    }

    fn vector8(&mut self) -> Result<&'a [u8], HelloError> {
        let length = self.take(1)?[0];
        self.take(length.into())
    }

    fn vector16(&mut self) -> Result<&'a [u8], HelloError> {
        let length = self.number()?;
        self.take(length.into())
    }

    fn end(&self) -> Result<(), HelloError> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(HelloError::Malformed)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What rustls says to a server of this name.
    fn of_rustls(name: &'static str) -> Vec<u8> {
        let config = rustls::ClientConfig::builder_with_provider(std::sync::Arc::new(
            rustls::crypto::ring::default_provider(),
        ))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
        let name = name.try_into().unwrap();
        let mut client = rustls::ClientConnection::new(config.into(), name).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        bytes
    }

    fn with_extensions(extensions: &[u8]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend([0, 0, 2, 0x13, 1, 1, 0]);
        body.extend(u16::try_from(extensions.len()).unwrap().to_be_bytes());
        body.extend(extensions);
        let mut message = vec![1];
        message.extend(&u32::try_from(body.len()).unwrap().to_be_bytes()[1..]);
        message.extend(body);
        message
    }

    fn record(fragment: &[u8]) -> Vec<u8> {
        let mut record = vec![22, 3, 1];
        record.extend(u16::try_from(fragment.len()).unwrap().to_be_bytes());
        record.extend(fragment);
        record
    }

    fn entry(name: &[u8]) -> Vec<u8> {
        let mut entry = vec![0];
        entry.extend(u16::try_from(name.len()).unwrap().to_be_bytes());
        entry.extend(name);
        entry
    }

    fn names(entries: &[Vec<u8>]) -> Vec<u8> {
        let list = entries.concat();
        let length = u16::try_from(list.len()).unwrap();
        let mut extension = vec![0, 0];
        extension.extend((length + 2).to_be_bytes());
        extension.extend(length.to_be_bytes());
        extension.extend(list);
        extension
    }

    fn whole(name: &str) -> Hello {
        Hello::Whole(Some(Name::parse(name).unwrap()))
    }

    #[test]
    fn the_name_in_a_hello_of_rustls_is_found_and_every_part_of_it_waits() {
        let bytes = of_rustls("Registry.Example");
        assert_eq!(read(&bytes), Ok(whole("registry.example")));
        for length in 0..bytes.len() {
            assert_eq!(read(&bytes[..length]), Ok(Hello::Partial), "{length}");
        }
    }

    #[test]
    fn a_hello_without_a_name_is_whole() {
        assert_eq!(read(&of_rustls("192.0.2.1")), Ok(Hello::Whole(None)));
        assert_eq!(read(&record(&with_extensions(&[]))), Ok(Hello::Whole(None)));
    }

    #[test]
    fn a_hello_in_records_of_one_byte_is_put_together() {
        let message = with_extensions(&names(&[entry(b"a.example.")]));
        let bytes: Vec<u8> = message.chunks(1).flat_map(record).collect();
        assert_eq!(read(&bytes), Ok(whole("a.example")));
        assert_eq!(read(&bytes[..bytes.len() - 1]), Ok(Hello::Partial));
    }

    #[test]
    fn addresses_several_names_and_non_names_are_refused() {
        let one = entry(b"a.example");
        for entries in [
            vec![entry(b"192.0.2.1")],
            vec![entry(b"0x7f000001")],
            vec![entry(b"2001:db8::1")],
            vec![entry(b"a\0.example")],
            vec![entry(b"")],
            vec![entry("b\u{fc}cher.example".as_bytes())],
            vec![one.clone(), entry(b"b.example")],
            vec![one.clone(), one.clone()],
        ] {
            let bytes = record(&with_extensions(&names(&entries)));
            assert_eq!(read(&bytes), Err(HelloError::Name), "{entries:?}");
        }
        let twice = [names(std::slice::from_ref(&one)), names(&[one])].concat();
        assert_eq!(
            read(&record(&with_extensions(&twice))),
            Err(HelloError::Name)
        );
    }

    #[test]
    fn records_that_lie_are_malformed() {
        let good = with_extensions(&names(&[entry(b"a.example")]));
        assert_eq!(read(&record(&good)), Ok(whole("a.example")));
        let mut longer = good.clone();
        longer.push(0);
        assert_eq!(read(&record(&longer)), Err(HelloError::Malformed));
        let mut other = good.clone();
        other[0] = 2;
        assert_eq!(read(&record(&other)), Err(HelloError::Malformed));
        assert_eq!(read(&[22, 3, 1, 0, 0]), Err(HelloError::Malformed));
        assert_eq!(read(&[20, 3, 1, 0, 1, 1]), Err(HelloError::Malformed));
        let mut mixed = record(&good[..9]);
        mixed.extend([23, 3, 3, 0, 1, 0]);
        assert_eq!(read(&mixed), Err(HelloError::Malformed));
    }

    #[test]
    fn a_record_of_no_version_is_not_passed_on_as_something_else() {
        let mut hello = of_rustls("b.example");
        for version in [0, 2, 4, 0xf] {
            hello[1] = version;
            for length in 2..6 {
                assert_eq!(read(&hello[..length]), Ok(Hello::Partial));
            }
            assert_eq!(read(&hello), Err(HelloError::Malformed));
            let alert = [21, version, 1, 0, 2, 1, 0];
            assert_eq!(read(&alert), Err(HelloError::Malformed));
        }
        hello[1] = 0x10;
        assert_eq!(read(&hello), Ok(Hello::Other));
    }

    #[test]
    fn a_hello_of_more_than_64_kib_is_refused() {
        let mut head = vec![1, 1, 0, 1];
        head.resize(64, 0);
        assert_eq!(read(&record(&head)), Err(HelloError::TooLarge));
        // With its records, whose heads are larger than what is in them.
        let message = with_extensions(&[&[0xff, 0xff, 0x40, 0], &[0; 0x4000][..]].concat());
        let bytes: Vec<u8> = message.chunks(1).flat_map(record).collect();
        assert!(bytes.len() > MAX_BYTES);
        for length in [MAX_BYTES, bytes.len()] {
            assert_eq!(read(&bytes[..length]), Err(HelloError::TooLarge));
        }
    }

    #[test]
    fn one_byte_is_not_enough_to_tell_a_record() {
        for kind in 20..=24 {
            assert_eq!(read(&[kind]), Ok(Hello::Partial));
            assert_eq!(read(&[kind, 0x10]), Ok(Hello::Other));
        }
        assert_eq!(read(&[20, 3]), Err(HelloError::Malformed));
    }

    #[test]
    fn other_protocols_are_not_tls() {
        for bytes in [
            &b"GET / HTTP/1.1"[..],
            b"SSH-2.0-x",
            &[0x80, 0x2e, 1],
            &[22, 0x10],
            &[20, 1],
            // A length, and what no hello begins with.
            &[22, 0, 1, 2, 3, 4],
        ] {
            assert_eq!(read(bytes), Ok(Hello::Other));
        }
    }
}
