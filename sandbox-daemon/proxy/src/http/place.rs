//! The place of a credential in a request: whether its dummy stands there, and how
//! its secret gets there.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use hyper::{
    HeaderMap, Uri,
    header::{AUTHORIZATION, HeaderName, HeaderValue},
    http::request::Parts,
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use zeroize::Zeroizing;

use super::strange;
use crate::{
    credential::{Credential, Scheme, SecretValue},
    dummies,
};

/// What is not a letter, digit or one of these is escaped in a query (RFC 3986,
/// 2.3).
pub(super) const QUERY: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Whether two credentials have one place.
pub(super) fn same_place(one: &Scheme, other: &Scheme) -> bool {
    let header = |scheme: &Scheme| match scheme {
        Scheme::Bearer | Scheme::Basic { .. } => Some(AUTHORIZATION.as_str().to_owned()),
        Scheme::Header { name } => Some(name.clone()),
        Scheme::Query { .. } => None,
    };
    match (one, other) {
        (Scheme::Query { name }, Scheme::Query { name: other }) => name == other,
        _ => header(one).is_some() && header(one) == header(other),
    }
}

/// Whether the dummy of a credential stands in its place.
pub(super) fn stands(credential: &Credential, parts: &Parts) -> bool {
    let Some(dummy) = &credential.dummy else {
        return false;
    };
    match &credential.scheme {
        Scheme::Bearer | Scheme::Basic { .. } => {
            let value = only(&parts.headers, &AUTHORIZATION);
            value.is_some_and(|value| replaced(value, dummy, dummy).is_some())
        }
        Scheme::Header { name } => {
            let name = HeaderName::try_from(name.as_str());
            let value = name.ok().and_then(|name| only(&parts.headers, &name));
            value.is_some_and(|value| value == dummy.as_bytes())
        }
        Scheme::Query { name } => {
            let mut values = parameters(&parts.uri, &['&']).filter(|(it, _)| it == name.as_bytes());
            let first = values.next();
            values.next().is_none() && first.is_some_and(|(_, it)| it == dummy.as_bytes())
        }
    }
}

/// The value of a header that is there once.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a [u8]> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    values.next().is_none().then(|| value.as_bytes())
}

/// The value of `Authorization` with a secret where it has the dummy: as a token, or
/// as the name or password of a user; none: it is not there.
fn replaced(value: &[u8], dummy: &str, secret: &str) -> Option<Zeroizing<String>> {
    let (scheme, rest) = std::str::from_utf8(value).ok()?.split_once(' ')?;
    let rest = rest.trim();
    if !scheme.eq_ignore_ascii_case("basic") {
        let token = ["bearer", "token"]
            .iter()
            .any(|it| scheme.eq_ignore_ascii_case(it));
        return (token && rest == dummy).then(|| Zeroizing::new(format!("{scheme} {secret}")));
    }
    let (user, password) = strange::pair(value)?;
    let pair = match (*user == dummy, *password == dummy) {
        (false, true) => Zeroizing::new(format!("{}:{secret}", *user)),
        (true, false) => Zeroizing::new(format!("{secret}:{}", *password)),
        _ => return None,
    };
    let encoded = Zeroizing::new(BASE64_STANDARD.encode(pair.as_bytes()));
    Some(Zeroizing::new(format!("{scheme} {}", *encoded)))
}

/// Puts a secret in its place; none: it cannot stand there, or the address is too
/// long with it.
pub(super) fn put(credential: &Credential, secret: &SecretValue, parts: &mut Parts) -> Option<()> {
    let dummy = credential.dummy.as_deref();
    let (name, value) = match &credential.scheme {
        Scheme::Query { name } => {
            parts.uri = with_parameter(&parts.uri, name, secret)?;
            return Some(());
        }
        Scheme::Header { name } => {
            let value = Zeroizing::new(secret.expose().to_owned());
            (HeaderName::try_from(name.as_str()).ok()?, value)
        }
        Scheme::Bearer | Scheme::Basic { .. } => {
            let there = parts.headers.get(AUTHORIZATION);
            let there = there.zip(dummy);
            let replaced =
                there.and_then(|(it, dummy)| replaced(it.as_bytes(), dummy, secret.expose()));
            let value = replaced.unwrap_or_else(|| added(&credential.scheme, secret));
            (AUTHORIZATION, value)
        }
    };
    let mut value = HeaderValue::from_str(&value).ok()?;
    // Never into a table of headers that others are compressed by.
    value.set_sensitive(true);
    parts.headers.insert(name, value);
    Some(())
}

/// The value of `Authorization` where there is none.
fn added(scheme: &Scheme, secret: &SecretValue) -> Zeroizing<String> {
    let Scheme::Basic { username } = scheme else {
        return Zeroizing::new(format!("Bearer {}", secret.expose()));
    };
    let pair = Zeroizing::new(format!("{username}:{}", secret.expose()));
    let encoded = Zeroizing::new(BASE64_STANDARD.encode(pair.as_bytes()));
    Zeroizing::new(format!("Basic {}", *encoded))
}

/// The parameters of a query, names and values unescaped.
pub(super) fn parameters(uri: &Uri, between: &[char]) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    let pairs = uri.query().unwrap_or_default().split(between);
    pairs.map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let unescaped = |text: &str| dummies::unescaped(&text.replace('+', " "));
        (unescaped(name), unescaped(value))
    })
}

/// An address in which a parameter is this secret, in its place or at the end.
fn with_parameter(uri: &Uri, name: &str, secret: &SecretValue) -> Option<Uri> {
    let pair = Zeroizing::new(format!(
        "{}={}",
        utf8_percent_encode(name, QUERY),
        utf8_percent_encode(secret.expose(), QUERY)
    ));
    let query = uri.query().unwrap_or_default();
    let mut pairs: Vec<&str> = query.split('&').filter(|it| !it.is_empty()).collect();
    let is_it = |it: &&str| {
        let there = it.split_once('=').map_or(*it, |(name, _)| name);
        dummies::unescaped(there) == name.as_bytes()
    };
    match pairs.iter().position(is_it) {
        Some(place) => pairs[place] = &pair,
        None => pairs.push(&pair),
    }
    let query = Zeroizing::new(pairs.join("&"));
    let target = Zeroizing::new(format!("{}?{}", uri.path(), *query));
    target.parse().ok()
}
