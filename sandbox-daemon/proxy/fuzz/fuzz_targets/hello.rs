//! A connection's first bytes: what they are does not depend on how many came at
//! a time, and a server name in them is one that rules are about.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sandbox_proxy::{
    hello::{self, Hello},
    name::Name,
    sniff,
};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(Hello::Whole(Some(name))) = hello::read(bytes) {
        assert_eq!(Name::parse(name.as_str()), Ok(name));
    }
    let whole = sniff::classify(bytes);
    // Every length of short ones, and of the others some.
    for length in (0..bytes.len()).step_by(1 + bytes.len() / 256) {
        let part = sniff::classify(&bytes[..length]);
        if part.is_some() {
            assert_eq!(part, whole, "changed its mind after {length}");
        }
    }
});
