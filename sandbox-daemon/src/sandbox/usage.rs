//! What an exec took of the host.

use std::time::Duration;

use crate::cgroup::Cgroup;

/// What an exec and all that it started took; none: the host's cgroup
/// controllers do not count it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Bytes of memory, at most (Linux 5.19).
    pub peak_memory: Option<u64>,
    /// User and system time.
    pub cpu_time: Option<Duration>,
    /// Processes and threads at once (Linux 6.1).
    pub peak_pids: Option<u64>,
    /// Bytes from block devices.
    pub read_bytes: Option<u64>,
    /// Bytes to block devices.
    pub written_bytes: Option<u64>,
    /// Processes and threads that `pids` refused.
    pub refused_forks: u64,
}

impl Usage {
    /// Of an exec's cgroup, which may be empty and must be there.
    pub(super) fn of(cgroup: &Cgroup) -> Self {
        let number = |file| cgroup.value(file)?.trim().parse().ok();
        let io = cgroup.value("io.stat");
        let bytes = |key| io.as_deref().map(|text| sum(text, key));
        Self {
            peak_memory: number("memory.peak"),
            cpu_time: cgroup
                .value("cpu.stat")
                .and_then(|text| field(&text, "usage_usec"))
                .map(Duration::from_micros),
            peak_pids: number("pids.peak"),
            read_bytes: bytes("rbytes"),
            written_bytes: bytes("wbytes"),
            refused_forks: refused(cgroup),
        }
    }
}

/// Processes and threads that the kernel did not start, because this cgroup, or
/// before Linux 6.11 one above it, has as many as it may have.
pub(super) fn refused(cgroup: &Cgroup) -> u64 {
    // Of itself alone, and not of those below (Linux 6.11).
    let events = cgroup.value("pids.events.local");
    let events = events.or_else(|| cgroup.value("pids.events"));
    events.and_then(|text| field(&text, "max")).unwrap_or(0)
}

/// Whether the kernel killed any of it for want of memory.
pub(super) fn out_of_memory(cgroup: &Cgroup) -> bool {
    let events = cgroup.value("memory.events");
    events.and_then(|text| field(&text, "oom_kill")) > Some(0)
}

/// The number behind a name in lines of two words.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
        .and_then(|number| number.trim().parse().ok())
}

/// The sum of `name=NUMBER` over all lines.
fn sum(text: &str, name: &str) -> u64 {
    text.split_whitespace()
        .filter_map(|word| {
            word.strip_prefix(name)?
                .strip_prefix('=')?
                .parse::<u64>()
                .ok()
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_files_are_understood() {
        let events = "low 0\nhigh 0\nmax 12\noom 1\noom_kill 3\noom_group_kill 1\n";
        assert_eq!(field(events, "max"), Some(12));
        assert_eq!(field(events, "oom_kill"), Some(3));
        assert_eq!(field(events, "oom"), Some(1));
        assert_eq!(field(events, "oom_"), None);
        let io = "254:0 rbytes=4096 wbytes=1 rios=1 wios=1 dbytes=0 dios=0\n\
                  7:0 rbytes=10 wbytes=2 rios=1 wios=1 dbytes=0 dios=0\n";
        assert_eq!((sum(io, "rbytes"), sum(io, "wbytes")), (4106, 3));
        assert_eq!(sum("", "rbytes"), 0);
    }
}
