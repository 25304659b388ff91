//! What an exec took of the host.

use std::time::Duration;

use super::Cause;
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

/// How often the limit on memory of this cgroup itself left nothing to be had.
pub(super) fn exhausted(cgroup: &Cgroup) -> u64 {
    let events = cgroup.value("memory.events.local");
    events.and_then(|text| field(&text, "oom")).unwrap_or(0)
}

/// Why the kernel killed any of an exec for want of memory, if it did. `exhausted`:
/// how often its limit, or that of its sandbox since it began, was why.
pub(super) fn out_of_memory(exec: &Cgroup, exhausted: u64) -> Option<Cause> {
    want(&exec.value("memory.events")?, exhausted)
}

/// The kernel counts who was killed, whoever had to have the memory.
fn want(events: &str, exhausted: u64) -> Option<Cause> {
    let cause = if exhausted > 0 {
        Cause::Memory
    } else {
        Cause::MachineMemory
    };
    (field(events, "oom_kill")? > 0).then_some(cause)
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

    #[test]
    fn what_the_machine_lacks_is_no_limit_that_was_reached() {
        let killed = "low 0\nhigh 0\nmax 0\noom 0\noom_kill 2\noom_group_kill 1\n";
        assert_eq!(want(killed, 0), Some(Cause::MachineMemory));
        assert_eq!(want(killed, 1), Some(Cause::Memory));
        // Of which nobody died: the one that wanted more was refused.
        let refused = "low 0\nhigh 0\nmax 3\noom 1\noom_kill 0\noom_group_kill 0\n";
        assert_eq!(want(refused, 1), None);
        assert_eq!(want("", 0), None);
    }
}
