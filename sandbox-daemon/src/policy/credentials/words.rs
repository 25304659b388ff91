//! The words of an entry of `[[credential]]`: names, variables, and what a request
//! is told by.

use sandbox_proxy::credential::{MAX_NAME, is_name};

use super::super::diagnostic::{Fault, Span};

/// Longest name of a header, a method and the like.
const MAX_WORD: usize = 64;

/// Headers that say how a message travels, or to whom: they are the proxy's.
const FRAMING: [&str; 12] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// The name of a credential or of a secret.
pub(super) fn name(text: &str) -> Result<String, Fault> {
    if is_name(text) {
        return Ok(text.to_owned());
    }
    let hint = format!("at most {MAX_NAME} letters, digits, `-`, `_` and `.`, not first a dot");
    Err(Fault::new(format!("`{text}` is not a name"), hint))
}

/// As programs in every language can read it.
pub(super) fn variable(text: &str) -> Result<String, Fault> {
    let plausible = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    if !text.is_empty()
        && text.bytes().all(plausible)
        && !text.starts_with(|first: char| first.is_ascii_digit())
    {
        return Ok(text.to_owned());
    }
    let hint = "letters, digits and `_`, such as `API_TOKEN`";
    let message = format!("`{text}` is not the name of a variable");
    Err(Fault::new(message, hint))
}

/// A method, in capitals.
pub(super) fn method(text: &str) -> Result<String, Fault> {
    if !is_token(text) {
        let message = format!("`{text}` is not a method");
        return Err(Fault::new(message, "such as `GET` or `POST`"));
    }
    let method = text.to_ascii_uppercase();
    if matches!(method.as_str(), "CONNECT" | "TRACE") {
        let message = format!("`{method}` is never let through with a credential");
        return Err(Fault::new(message, "remove it"));
    }
    Ok(method)
}

/// A header's name, in small letters.
pub(super) fn header(text: &str) -> Result<String, Fault> {
    if !is_token(text) {
        let message = format!("`{text}` is not the name of a header");
        return Err(Fault::new(message, "such as `x-api-key`"));
    }
    let header = text.to_ascii_lowercase();
    if FRAMING.contains(&header.as_str()) {
        let message = format!("`{text}` says how a request travels, and takes no credential");
        return Err(Fault::new(message, "such as `x-api-key`"));
    }
    Ok(header)
}

/// A query parameter's name, as it is before it is encoded.
pub(super) fn query(text: &str) -> Result<String, Fault> {
    let plausible = |b: u8| b.is_ascii_graphic() && !b"&=#%+;?/".contains(&b);
    if (1..=MAX_WORD).contains(&text.len()) && text.bytes().all(plausible) {
        return Ok(text.to_owned());
    }
    let message = format!("`{text}` is not the name of a query parameter");
    Err(Fault::new(message, "such as `api_key`"))
}

/// What stands before the colon of `Basic`.
pub(super) fn username(text: &str) -> Result<String, Fault> {
    if let Some((at, _)) = text.char_indices().find(|(_, c)| *c == ':') {
        let hint = "the secret is the password: leave the colon and what follows out";
        return Err(Fault::new("a user name holds no colon", hint).at(at..at + 1));
    }
    if text.len() > MAX_WORD || text.chars().any(char::is_control) {
        let hint = format!("at most {MAX_WORD} bytes, none of them control characters");
        return Err(Fault::new("not a user name", hint));
    }
    Ok(text.to_owned())
}

/// A pattern of paths: `*` is a segment, a last `**` all that follow.
pub(super) fn path(text: &str) -> Result<String, Fault> {
    let Some(rest) = text.strip_prefix('/') else {
        let hint = format!("write `/{text}`");
        return Err(Fault::new(
            format!("`{text}` does not begin with `/`"),
            hint,
        ));
    };
    if let Some(at) = text.find(['?', '#']) {
        let hint = "paths are told by what comes before it: leave it out";
        return Err(Fault::new("a path has no query and no fragment", hint).at(at..text.len()));
    }
    let count = rest.split('/').count();
    let mut start = 1;
    for (index, segment) in rest.split('/').enumerate() {
        let at = start..start + segment.len();
        start = at.end + 1;
        let last = index + 1 == count;
        match segment {
            "*" => {}
            // Nothing at the end: of `/` itself, or of `/v1/`.
            "" | "**" if last => {}
            "" => {
                let fault = Fault::new("doubled slashes", "write one");
                return Err(fault.at(at.start - 1..at.start + 1));
            }
            "**" => {
                let hint = "it stands at the end: `/v1/**`; `*` is for one segment";
                return Err(Fault::new("`**` is for all that follow", hint).at(at));
            }
            _ => check_segment(segment, &at)?,
        }
    }
    Ok(text.to_owned())
}

/// One that is compared as it stands.
fn check_segment(segment: &str, at: &Span) -> Result<(), Fault> {
    let fault = |message: String, hint: &str| Err(Fault::new(message, hint).at(at.clone()));
    if matches!(segment, "." | "..") {
        let message = format!("`{segment}` is not followed");
        return fault(message, "write the path without it");
    }
    let pieces = segment.replace("%2F", "%2f");
    let mut pieces = pieces.split("%2f");
    if pieces.any(|it| it.contains('*') && it != "*") {
        let message = format!("`{segment}`: `*` does not stand for part of a segment");
        let hint = "`*` alone is one segment, `*%2f*` one with a slash in it, and a last `**` all \
                    that follow";
        return fault(message, hint);
    }
    let mut rest = segment.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let Some(encoded) = hexadecimal(rest.next(), rest.next()) else {
                let message = format!("`{segment}`: `%` is not followed by two digits");
                return fault(message, "two hexadecimal digits say what it encodes: `%20`");
            };
            if encoded == b'%' || encoded.is_ascii_control() {
                let message = format!("`{segment}`: servers read such a path in two ways");
                return fault(message, "name another: no request with it is covered");
            }
            if is_unreserved(encoded) {
                // Whoever reads it should not have to decode it.
                let message = format!("`{segment}` encodes `{}`", char::from(encoded));
                return fault(message, "write it as it is");
            }
        } else if !is_unreserved(byte) && !b"!$&'()*+,;=:@".contains(&byte) {
            let message = format!("`{segment}` has what is encoded in a path");
            return fault(message, "as requests have it: `%20` for a space");
        }
    }
    Ok(())
}

/// RFC 3986, 2.3.
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

fn hexadecimal(high: Option<u8>, low: Option<u8>) -> Option<u8> {
    let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

/// RFC 9110, 5.6.2.
fn is_token(text: &str) -> bool {
    let plausible = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    (1..=MAX_WORD).contains(&text.len()) && text.bytes().all(plausible)
}
