//! The network wall alone, with the real daemon, client and proxy around it: for
//! machines that load cgroup programs, and no LSM ones.

#![expect(
    clippy::unwrap_used,
    reason = "a test says what it expects by panicking"
)]

mod daemon;
mod walls;

pub use daemon::{Daemon, Settings};
pub use walls::NetworkWall;
