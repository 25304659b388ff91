//! `sandboxd`.

fn main() {}
