//! A connection's first bytes: what they are does not depend on how many came at
//! a time, and a server name in them is one that rules are about.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sandbox_proxy::{
    hello::{self, Hello},
    name::Name,
    sniff::{self, First},
};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(Hello::Whole(Some(name))) = hello::read(bytes) {
        assert_eq!(Name::parse(name.as_str()), Ok(name));
    }
    let control = |byte: &u8| *byte < b' ' && !b"\t\r\n".contains(byte);
    // Not HTTP as soon as there is a control character, but for what is already.
    let strange = bytes.iter().any(control);
    let mut settled = None;
    // Every length of short ones, and of the others some.
    for length in (0..=bytes.len()).step_by(1 + bytes.len() / 64) {
        let first = sniff::classify(&bytes[..length]);
        let may_change = match settled {
            None => true,
            Some(First::Other) => strange,
            // Of one byte, it is refused: it may be of another protocol.
            Some(First::BadTls(_)) => first == Some(First::Other),
            Some(_) => false,
        };
        if !may_change {
            assert_eq!(first, settled, "changed its mind at {length}");
        }
        settled = first;
    }
});
