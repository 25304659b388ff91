//! Requests that are not what they seem: that bring a key of somebody else's under
//! another spelling of a credential's place, or ask to be taken for another request.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use hyper::{HeaderMap, header::HeaderName, http::request::Parts};
use zeroize::Zeroizing;

use crate::credential::{Credential, Scheme};

/// Headers by which frameworks take a request for one with another method or path.
const OTHERWISE: [&str; 6] = [
    "x-http-method-override",
    "x-http-method",
    "x-method-override",
    "x-original-url",
    "x-rewrite-url",
    "x-original-uri",
];

/// The parameter that is one of them (Rails, Symfony, Laravel).
const METHOD: &[u8] = b"_method";

/// The longest half of `Basic` that is no key by itself: `gitlab-ci-token` is a name,
/// the keys that services take without the other half are longer.
const LONGEST_NAME: usize = 15;

/// Whether a request would have some server take it for another one than it is. What
/// a credential is for is told by method and path.
pub(super) fn is_otherwise(parts: &Parts, query: impl Iterator<Item = Vec<u8>>) -> bool {
    let named = |name: &HeaderName| OTHERWISE.iter().any(|it| is_spelt(name, it));
    parts.headers.keys().any(named) || query.into_iter().any(|name| parameter(&name) == METHOD)
}

/// The values of a header, and of those that are the same to servers which hand them
/// on as variables (RFC 3875, 4.1.18).
pub(super) fn spelt<'a>(
    headers: &'a HeaderMap,
    place: &'a str,
) -> impl Iterator<Item = &'a [u8]> + 'a {
    let its = headers.iter().filter(|(name, _)| is_spelt(name, place));
    its.map(|(_, value)| value.as_bytes())
}

fn is_spelt(name: &HeaderName, place: &str) -> bool {
    let same = |one: u8, other: u8| {
        let plain = |byte| if byte == b'_' { b'-' } else { byte };
        plain(one) == plain(other)
    };
    let mut bytes = name.as_str().bytes().zip(place.bytes());
    name.as_str().len() == place.len() && bytes.all(|(one, other)| same(one, other))
}

/// The name of a parameter as the most lenient server has it: some take no notice of
/// capitals, PHP makes `a.b`, `a b` and `a_b[c]` the same name.
pub(super) fn parameter(name: &[u8]) -> Vec<u8> {
    let end = name.iter().position(|byte| b"[\0".contains(byte));
    let name = name[..end.unwrap_or(name.len())].trim_ascii();
    let plain = |byte: &u8| match byte {
        b'.' | b' ' => b'_',
        byte => byte.to_ascii_lowercase(),
    };
    name.iter().map(plain).collect()
}

/// Name and password of `Basic`; none: it is something else.
pub(super) fn pair(value: &[u8]) -> Option<(Zeroizing<String>, Zeroizing<String>)> {
    let (scheme, rest) = std::str::from_utf8(value).ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = BASE64_STANDARD.decode(rest.trim()).ok()?;
    let (name, password) = std::str::from_utf8(&decoded).ok()?.split_once(':')?;
    Some((Zeroizing::new(name.into()), Zeroizing::new(password.into())))
}

/// Whether what stands beside the dummy in `Basic` may be a key itself: many hosts
/// look at one half alone, and take whichever is a key.
pub(super) fn is_key(credential: &Credential, half: &str) -> bool {
    let named = match &credential.scheme {
        Scheme::Basic { username } => half == username,
        _ => false,
    };
    !named && half.len() > LONGEST_NAME
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_is_the_same_in_every_spelling() {
        for name in [
            "api_key",
            "API_KEY",
            "api.key",
            "api key",
            " api_key",
            "api_key[]",
            "api_key[0]",
            "api_key\0x",
        ] {
            assert_eq!(parameter(name.as_bytes()), b"api_key", "{name}");
        }
        for name in ["apikey", "my_api_key", "api_key2", ""] {
            assert_ne!(parameter(name.as_bytes()), b"api_key", "{name}");
        }
    }
}
