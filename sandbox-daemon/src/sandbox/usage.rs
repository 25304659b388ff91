//! What an exec took of the host.

use std::time::Duration;

/// What an exec and all that it started took; none: the host's cgroup
/// controllers do not count it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Bytes of memory, at most.
    pub peak_memory: Option<u64>,
    /// User and system time.
    pub cpu_time: Option<Duration>,
    /// Processes and threads at once.
    pub peak_pids: Option<u64>,
    /// Bytes from block devices.
    pub read_bytes: Option<u64>,
    /// Bytes to block devices.
    pub written_bytes: Option<u64>,
    /// Processes and threads that `pids` refused.
    pub refused_forks: u64,
}
