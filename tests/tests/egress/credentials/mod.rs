//! Secrets that never enter: what is added to requests at the boundary, for whom,
//! and what becomes of every attempt to get it elsewhere.

mod certificates;
mod clients;
mod examples;
mod hosts;
mod lifetimes;
mod observed;
mod places;
mod pushes;
mod requests;
mod secrecy;

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::Stdio,
};

use base64::{
    Engine as _, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use serde_json::Value;

use sandbox_tests::egress::Daemon;

use crate::{
    Test,
    attacks::{Attack, Got, Shot, number, outside, results, shooting, under},
    world::World,
};

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = clients::tests();
    tests.extend(examples::tests());
    tests.extend(certificates::tests());
    tests.extend(hosts::tests());
    tests.extend(lifetimes::tests());
    tests.extend(observed::tests());
    tests.extend(places::tests());
    tests.extend(pushes::tests());
    tests.extend(requests::tests());
    tests.extend(secrecy::tests());
    tests
}

/// No refusal at all.
const NOTHING: &[&str] = &[];

/// What came of shots with a dummy.
#[derive(Debug)]
struct Tried {
    got: Vec<Got>,
    attack: Attack,
    dummy: String,
}

impl Tried {
    /// All of them were refused by this rule, which was told once for each, and no
    /// server was given anything of the token or the dummy.
    fn assert_refused(&self, world: &World, held: &Held, object: &str, rule: &str) {
        for (at, got) in self.got.iter().enumerate() {
            assert_eq!(got.answers(), [format!("403 {rule}")], "{at}: {self:?}");
        }
        let told = format!("request {object} ({rule})");
        self.attack.assert_told(&[&told]);
        let count = u64::try_from(self.got.len()).unwrap();
        assert_eq!(self.attack.denials[&told], count);
        assert!(self.attack.uses.is_empty(), "{self:?}");
        self.assert_kept(world, held);
    }

    /// No server was given the token or the dummy.
    fn assert_kept(&self, world: &World, held: &Held) {
        assert!(!came(world, &self.dummy), "{self:?}");
        assert!(!came(world, &held.token), "{self:?}");
    }
}

/// Makes these connections in a sandbox with this policy.
fn shoot(daemon: &Daemon, policy: &Path, shots: &[Shot]) -> Tried {
    let script = format!("echo \"dummy $TOKEN\" >&2; {}", shooting(shots));
    let attack = under(daemon, policy, &script);
    assert!(!attack.printed.is_empty(), "{attack:?}");
    let mut lines = attack.complaint.lines();
    let dummy = lines.find_map(|it| it.strip_prefix("dummy ")).unwrap();
    Tried {
        got: results(&attack.printed),
        dummy: dummy.to_owned(),
        attack,
    }
}

/// Makes them without a sandbox, with this token.
fn shoot_outside(token: &str, shots: &[Shot]) -> Vec<Got> {
    results(&outside(&format!(
        "export TOKEN={token}; {}",
        shooting(shots)
    )))
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
        set(daemon, &self.name, token, &[]);
    }

    fn remove(&self, daemon: &Daemon) {
        let mut client = daemon.client(&["secret", "rm", &self.name]);
        assert!(client.status().unwrap().success());
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
    let finder = memchr::memmem::Finder::new(what);
    let said = |bytes: &[u8]| finder.find(bytes).is_some();
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

const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// `sandbox secret set`
fn set(daemon: &Daemon, name: &str, value: &str, arguments: &[&str]) {
    let mut client = daemon.client(&["secret", "set", name]);
    let mut client = client
        .args(arguments)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    client
        .stdin
        .take()
        .unwrap()
        .write_all(value.as_bytes())
        .unwrap();
    assert!(client.wait().unwrap().success());
}

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
