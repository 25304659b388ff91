//! `sandbox`.

fn main() {}
