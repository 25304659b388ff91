//! Addresses in answers that repeat the secret of a query: a redirect that adds a
//! slash, the next page of a list. They have the dummy again, so that the secret does
//! not come in by them, and following them is no use of another key.

use std::sync::Arc;

use hyper::{
    HeaderMap,
    header::{self, HeaderName, HeaderValue},
};
use memchr::memmem;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use zeroize::Zeroizing;

use super::place::QUERY;
use crate::credential::SecretValue;

/// Headers of answers that have addresses.
const ADDRESSES: [HeaderName; 4] = [
    header::LOCATION,
    header::CONTENT_LOCATION,
    header::LINK,
    header::REFRESH,
];

/// Shorter ones would be found in ordinary addresses.
const SHORTEST: usize = 8;

/// A secret that went out in a query.
#[derive(Debug)]
pub(super) struct Echo {
    pub(super) secret: Arc<SecretValue>,
    /// Empty: it was added without being asked for.
    pub(super) dummy: String,
}

impl Echo {
    /// Takes the secret out of the addresses of an answer.
    pub(super) fn hide(&self, headers: &mut HeaderMap) {
        let secret = self.secret.expose();
        if secret.len() < SHORTEST {
            return;
        }
        let spellings = [
            utf8_percent_encode(secret, QUERY).to_string(),
            utf8_percent_encode(secret, NON_ALPHANUMERIC).to_string(),
            secret.replace(' ', "+"),
            secret.to_owned(),
        ]
        .map(Zeroizing::new);
        for name in &ADDRESSES {
            let header::Entry::Occupied(mut values) = headers.entry(name) else {
                continue;
            };
            for value in values.iter_mut() {
                for spelling in &spellings {
                    if let Some(hidden) = replaced(value, spelling, &self.dummy) {
                        *value = hidden;
                    }
                }
            }
        }
    }
}

fn replaced(value: &HeaderValue, secret: &str, dummy: &str) -> Option<HeaderValue> {
    let mut found = memmem::find_iter(value.as_bytes(), secret).peekable();
    found.peek()?;
    let (mut bytes, mut end) = (Vec::new(), 0);
    for at in found {
        bytes.extend(&value.as_bytes()[end..at]);
        bytes.extend(dummy.as_bytes());
        end = at + secret.len();
    }
    bytes.extend(&value.as_bytes()[end..]);
    HeaderValue::from_bytes(&bytes).ok()
}
