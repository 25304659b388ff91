//! The only way out of a sandbox: a proxy that checks each destination by name.
//! Who is calling, and for what, comes from the kernel; the policy from the
//! daemon; what was decided goes back to it.
//!
//! ```text
//! serve -> { http, tunnel, dns } -> caller -> { policy, ledger, names }
//!                                -> dial -> { resolver, address }
//! ```
//!
//! The daemon shares the host grammar (`name`, `rule`) and the messages
//! (`channel`).

#![deny(unsafe_code)]

pub mod address;
pub mod authority;
pub mod caller;
#[expect(unsafe_code, reason = "descriptors that the kernel has just opened")]
pub mod channel;
pub mod client;
pub mod confine;
pub mod covers;
pub mod credential;
pub mod daemon;
pub mod dial;
pub mod dns;
pub mod dummies;
#[expect(unsafe_code, reason = "bpf(2) has no wrapper that is not of a loader")]
pub mod flows;
pub mod git;
pub mod hello;
pub mod host;
pub mod http;
mod intercept;
pub mod ledger;
pub mod name;
pub mod policy;
pub mod relay;
pub mod resolver;
pub mod rule;
pub mod secrets;
pub mod serve;
pub mod sniff;
pub mod synthetic;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
pub mod tls;
pub mod tunnel;
