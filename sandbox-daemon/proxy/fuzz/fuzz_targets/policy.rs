//! A policy's text: it is refused with what is wrong, where, or it is a policy
//! whose rules some name equals.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../../src/escape.rs"]
#[expect(dead_code, reason = "the daemon uses more of it")]
mod escape;
#[path = "../../../src/policy/mod.rs"]
#[expect(dead_code, unused_imports, reason = "the daemon uses more of it")]
mod policy;

use policy::{Document, Sets, Source};

fuzz_target!(|text: &str| {
    let sets = Sets::shipped().expect("the sets that are shipped");
    match Document::parse(&Source::new("policy.toml", text), &sets) {
        Ok(document) => drop(format!("{document:?}")),
        Err(found) => assert!(!found.to_string().is_empty()),
    }
});
