//! How often the kernel runs programs, by its own statistics.

use std::fs;

use anyhow::{Context as _, Result};
use aya::programs::loaded_programs;

const SWITCH: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// A count of all runs from now on, which makes each more expensive.
pub(crate) struct Counting {
    before: u64,
}

impl Counting {
    pub(crate) fn start() -> Result<Self> {
        switch("1")?;
        Ok(Self { before: runs()? })
    }

    /// How many there were.
    pub(crate) fn finish(self) -> Result<f64> {
        let runs = runs()? - self.before;
        switch("0")?;
        Ok(f64::from(u32::try_from(runs)?))
    }
}

fn runs() -> Result<u64> {
    let mut sum = 0;
    for program in loaded_programs() {
        sum += program?.run_count();
    }
    Ok(sum)
}

fn switch(state: &str) -> Result<()> {
    fs::write(SWITCH, state).with_context(|| format!("cannot write `{SWITCH}`"))
}
