//! Time and resources that a sandbox may take.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What a sandbox, or one exec in it, may take; none: no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Limits {
    /// Wall clock of each exec.
    pub timeout: Option<Duration>,
    /// Wall clock of the sandbox, from its creation.
    pub sandbox_timeout: Option<Duration>,
    /// Bytes of memory, of all execs together.
    pub memory: Option<u64>,
    /// Thousandths of a CPU, of all execs together.
    pub cpu_millis: Option<u32>,
    /// Processes and threads, of all execs together.
    pub pids: Option<u32>,
    /// Bytes that an ephemeral workspace may take.
    pub disk: Option<u64>,
    /// Bytes of output that are relayed, of each exec.
    pub output: Option<u64>,
}

impl Limits {
    /// These, each that is missing from `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            timeout: self.timeout.or(other.timeout),
            sandbox_timeout: self.sandbox_timeout.or(other.sandbox_timeout),
            memory: self.memory.or(other.memory),
            cpu_millis: self.cpu_millis.or(other.cpu_millis),
            pids: self.pids.or(other.pids),
            disk: self.disk.or(other.disk),
            output: self.output.or(other.output),
        }
    }
}
