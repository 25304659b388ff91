//! `sandbox-proxy`: started by `sandboxd`, with the channel as its stdin.

fn main() {}
