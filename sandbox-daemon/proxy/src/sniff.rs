//! What a client speaks, by its first bytes.

use std::{future::poll_fn, io, pin::Pin, task::ready, time::Duration};

use bytes::BytesMut;
use tokio::{
    io::{AsyncRead, ReadBuf},
    time::timeout,
};

use crate::{
    hello::{self, Hello, HelloError},
    name::Name,
};

/// How long a client may take from its first byte to saying what it speaks.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The longest beginning that may still become a request's. A longer one is left
/// to the HTTP code to refuse: there are servers that read on.
const MAX_LINE: usize = 16 << 10;

/// What lenient servers take for the space in a request's line (RFC 9112, 3).
const SPACE: &[u8] = b" \t\x0b\x0c\r";

/// How HTTP/2 begins (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What a client speaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum First {
    /// TLS, and the server that it names.
    Tls(Option<Name>),
    /// TLS that is not to be passed on.
    BadTls(HelloError),
    /// HTTP/1.
    Http,
    /// HTTP/2 without TLS.
    Http2,
    /// Anything else.
    Other,
    /// It said nothing more, or too little to tell.
    Closed,
    /// It did not say in time.
    Slow,
}

/// Reads until it is known what the client speaks; what was read is in
/// `buffer`, and there is none before the first byte. The first byte may take
/// as long as it likes.
///
/// # Errors
/// The client cannot be read from.
pub async fn first<R>(reader: &mut R, buffer: &mut BytesMut) -> io::Result<First>
where
    R: AsyncRead + Unpin,
{
    if buffer.is_empty() && read(reader, buffer).await? == 0 {
        return Ok(First::Closed);
    }
    let rest = async {
        loop {
            if let Some(first) = classify(buffer) {
                return Ok(first);
            }
            if read(reader, buffer).await? == 0 {
                return Ok(First::Closed);
            }
        }
    };
    timeout(PATIENCE, rest).await.unwrap_or(Ok(First::Slow))
}

/// Reads some bytes; none: the end. There is no buffer while there is nothing
/// to read.
///
/// # Errors
/// It cannot be read from.
pub async fn read<R>(reader: &mut R, buffer: &mut BytesMut) -> io::Result<usize>
where
    R: AsyncRead + Unpin,
{
    poll_fn(|context| {
        let mut bytes = [0; 4096];
        let mut read = ReadBuf::new(&mut bytes);
        ready!(Pin::new(&mut *reader).poll_read(context, &mut read))?;
        buffer.extend_from_slice(read.filled());
        Ok(read.filled().len()).into()
    })
    .await
}

/// What these bytes begin; none: that takes more of them. Once there is an answer,
/// no byte that follows makes it another one: it does not matter how many come at a
/// time.
#[must_use]
pub fn classify(bytes: &[u8]) -> Option<First> {
    match hello::read(bytes) {
        Ok(Hello::Partial) => return None,
        Ok(Hello::Whole(name)) => return Some(First::Tls(name)),
        Err(error) => return Some(First::BadTls(error)),
        Ok(Hello::Other) => {}
    }
    if PREFACE.starts_with(&bytes[..bytes.len().min(PREFACE.len())]) {
        return (bytes.len() >= PREFACE.len()).then_some(First::Http2);
    }
    let long = bytes.len() > MAX_LINE;
    let bytes = &bytes[..bytes.len().min(MAX_LINE)];
    // Servers skip empty lines before a request, some of them any number.
    let blank = bytes.iter().take_while(|byte| b"\r\n".contains(byte));
    let line = &bytes[blank.count()..];
    let first = match line.iter().position(|byte| *byte == b'\n') {
        Some(end) => request(&line[..end]).or(Some(First::Other)),
        None => request(line),
    };
    first.or(long.then_some(First::Http))
}

/// What a line begins that may be a request's; none: that depends on how it goes
/// on. What a lenient server could take for one is one: the HTTP code refuses what
/// is not well formed.
fn request(line: &[u8]) -> Option<First> {
    let gap = line.iter().position(|byte| SPACE.contains(byte));
    let (method, rest) = line.split_at(gap.unwrap_or(line.len()));
    if !method.iter().all(|byte| token(*byte)) {
        return Some(First::Other);
    }
    let known = [
        "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH",
    ];
    let known = known
        .iter()
        .any(|it| method.eq_ignore_ascii_case(it.as_bytes()));
    match rest.iter().find(|byte| !SPACE.contains(byte)) {
        Some(byte) if known && b"/hH*".contains(byte) => return Some(First::Http),
        // As in LDAP, where the method is a tag and the space a length.
        Some(byte) if !known && control(*byte) => return Some(First::Other),
        _ => {}
    }
    let http = rest
        .windows(6)
        .position(|it| SPACE.contains(&it[0]) && it[1..].eq_ignore_ascii_case(b"HTTP/"));
    // There are servers that let control characters be, but git's own protocol has
    // one in what would be a method and a path, and then waits.
    let strange = rest.iter().position(|byte| control(*byte));
    match (http, strange) {
        (None, Some(_)) if is_git(method) => Some(First::Other),
        (Some(http), Some(strange)) if is_git(method) && strange < http => Some(First::Other),
        (Some(_), _) => Some(First::Http),
        (None, _) => None,
    }
}

/// A length in four digits, and a service: `0032git-upload-pack`
/// (gitprotocol-pack(5)).
fn is_git(method: &[u8]) -> bool {
    let (length, service) = method.split_at(method.len().min(4));
    length.iter().all(u8::is_ascii_hexdigit) && service.starts_with(b"git-")
}

fn control(byte: u8) -> bool {
    byte < b' ' && !SPACE.contains(&byte)
}

/// RFC 9110, 5.6.2
fn token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_lenient_server_could_take_for_a_request_is_http() {
        for bytes in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"\r\n\r\nGET / HTTP/1.1\r\n",
            b"get\t/\thttp/1.0\n",
            b"BREW  coffee:/pot  HTTP/1.1\r\n",
            b"GET /\r\n",
            b"POST http://a.example/",
            b"BREW\x0b/\x0cHTTP/1.1\r\n",
            &[&b"\r\n".repeat(40), &b"GET / HTTP/1.1\r\n"[..]].concat(),
            &[&b"X".repeat(100), &b" / HTTP/1.1\r\n"[..]].concat(),
            b"0032git-upload-pack / HTTP/1.1\r\n",
        ] {
            let text = String::from_utf8_lossy(bytes);
            assert_eq!(classify(bytes), Some(First::Http), "{text}");
        }
    }

    #[test]
    fn protocols_that_are_not_http_are_not_held_up() {
        for bytes in [
            &b"SSH-2.0-OpenSSH_9\r\n"[..],
            b"*1\r\n$4\r\nPING\r\n",
            b"0032git-upload-pack /x\0host=a\0",
            b"0032git-upload-pack /x\0 HTTP/1.1\r\n",
            // LDAP.
            b"0 \x02\x01\x01\x60\x1b",
            b"0\x0c\x02\x01\x01\x60\x07",
            b"\0\0\0\x08\x04\xd2\x16\x2f",
            b"EHLO a.example\r\n",
            b"AMQP\0\0\x09\x01",
        ] {
            let text = String::from_utf8_lossy(bytes);
            assert_eq!(classify(bytes), Some(First::Other), "{text}");
        }
    }

    #[test]
    fn a_line_that_may_become_a_request_waits_but_not_for_ever() {
        for bytes in [
            &b""[..],
            b"G",
            b"GET",
            b"GET ",
            b"BREW coffee",
            b"\r\n",
            b"PRI * HT",
            b"FOO /\x01",
        ] {
            assert_eq!(classify(bytes), None, "{bytes:?}");
        }
        for (beginning, then) in [("BREW ", b'x'), ("", b'x'), ("", b'\n')] {
            let mut long = beginning.as_bytes().to_vec();
            long.resize(MAX_LINE, then);
            assert_eq!(classify(&long), None);
            long.push(then);
            assert_eq!(classify(&long), Some(First::Http));
            long.extend(b"\nx\n");
            assert_eq!(classify(&long), Some(First::Http));
        }
    }

    #[test]
    fn the_preface_of_http_2_is_known() {
        assert_eq!(classify(PREFACE), Some(First::Http2));
        assert_eq!(classify(b"PRI * HTTP/2.0\r\nX"), Some(First::Http));
    }

    #[test]
    fn a_control_character_does_not_make_a_request_something_else() {
        for request in [
            "GET /\x01 HTTP/1.1\r\n",
            "FOO /\0 HTTP/1.1\r\n",
            "get /\x1b",
            "GET \x01 HTTP/1.1\r\n",
        ] {
            assert_eq!(
                classify(request.as_bytes()),
                Some(First::Http),
                "{request:?}"
            );
        }
        assert_eq!(classify(b"FOO \x01"), Some(First::Other));
    }
    #[test]
    fn it_does_not_matter_how_many_bytes_come_at_a_time() {
        for bytes in [
            &b"FOO /\0 HTTP/1.1\r\n"[..],
            b"FOO \x01 HTTP/1.1\r\n",
            b"0032git-upload-pack /x\0 HTTP/1.1\r\n",
            b"GET \x01 HTTP/1.1\r\n",
            b"PRI * HTTP/2.0\r\n HTTP/1.1\r\n",
            b"FOO /\r HTTP/1.1\r\n",
            b"\x14\x03\x01\0\x01\x01",
            b"\x17\x04 HTTP/1.1\r\n",
        ] {
            let whole = classify(bytes);
            assert!(whole.is_some());
            for length in 0..bytes.len() {
                let part = classify(&bytes[..length]);
                assert!(part.is_none() || part == whole, "{bytes:?} at {length}");
            }
        }
    }
}
