//! Thin, typed wrappers of the system calls and `/proc` files for which `nix`
//! and `std` have nothing. No policy and no state lives here.

mod caller;

pub use caller::{duplicate, window_size};
