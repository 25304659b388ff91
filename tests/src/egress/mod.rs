//! The network wall alone, with the real daemon, client and proxy around it: for
//! machines that load cgroup programs, and no LSM ones.

mod daemon;
mod walls;

pub use daemon::{Daemon, Settings};
pub use walls::NetworkWall;
