//! Secrets that never enter: what is added to requests at the boundary, for whom,
//! and what becomes of every attempt to get it elsewhere.

mod clients;

use std::path::PathBuf;

use base64::{
    Engine as _, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use serde_json::Value;

use sandbox_daemon::secrets::Secrets;
use sandbox_tests::egress::Daemon;

use crate::{Test, attacks::number, world::World};

pub(crate) fn tests() -> Vec<Test> {
    clients::tests()
}

/// A secret of root's, and a token that the servers know.
struct Held {
    name: String,
    token: String,
}

impl Held {
    /// A new one, that a daemon keeps.
    fn by(world: &World, daemon: &Daemon) -> Self {
        let held = Self {
            name: format!("held-{}", number()),
            token: token(),
        };
        world.know(&held.token);
        held.set(daemon, &held.token);
        held
    }

    /// Another value in its place.
    fn set(&self, daemon: &Daemon, token: &str) {
        let value = Secrets::value(token.as_bytes().to_vec()).unwrap();
        daemon
            .registry
            .secrets()
            .set(0, &self.name, &value)
            .unwrap();
    }

    /// An entry for these hosts, whose dummy is in `TOKEN`.
    fn entry(&self, hosts: &[&str], rest: &str) -> String {
        format!(
            "[[credential]]\nname = \"{}\"\nhosts = {hosts:?}\nenv = \"TOKEN\"\n{rest}\n",
            self.name
        )
    }

    /// A policy with that entry, which allows its hosts.
    fn policy(&self, daemon: &Daemon, hosts: &[&str], rest: &str) -> PathBuf {
        daemon.policy(&format!("allow = {hosts:?}\n{}", self.entry(hosts, rest)))
    }
}

/// Whether anything that came to a server says this, encoded or not.
fn came(world: &World, what: &str) -> bool {
    let said = |bytes: &[u8]| memmem(bytes, what.as_bytes());
    let raw = world.raw_bytes();
    raw.iter().any(|it| says(it, &said)) || world.records().iter().any(|it| holds(it, &said))
}

/// Whether a record has a text in which this is.
fn holds(record: &Value, said: &dyn Fn(&[u8]) -> bool) -> bool {
    match record {
        Value::String(text) => says(text.as_bytes(), said),
        Value::Array(all) => all.iter().any(|it| holds(it, said)),
        // What the servers know is theirs.
        Value::Object(all) => all
            .iter()
            .any(|(name, it)| name != "known" && holds(it, said)),
        _ => false,
    }
}

fn says(bytes: &[u8], said: &dyn Fn(&[u8]) -> bool) -> bool {
    let words = bytes.split(|it| b" \r\n,;\"=&?".contains(it));
    let mut decoded = words.filter_map(|word| LENIENT.decode(word).ok());
    said(bytes) || decoded.any(|it| said(&it))
}

fn memmem(bytes: &[u8], what: &[u8]) -> bool {
    bytes.windows(what.len()).any(|it| it == what)
}

const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// One that nobody else has, in the shape of many.
fn token() -> String {
    use std::io::Read as _;
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    let mut random = [0; 32];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut it| it.read_exact(&mut random))
        .unwrap();
    let letters = random.map(|it| char::from(LETTERS[usize::from(it) % LETTERS.len()]));
    format!("tok_{}", String::from_iter(letters))
}
