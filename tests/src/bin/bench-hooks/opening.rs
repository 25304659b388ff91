//! Opening and closing one file again and again.

use std::{
    ffi::{CString, OsStr},
    hint::black_box,
    os::unix::ffi::OsStrExt as _,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use landlock::{
    ABI, Access as _, AccessFs, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, RulesetStatus,
    path_beneath_rules,
};
use nix::{
    fcntl::{OFlag, open},
    sys::stat::Mode,
};

use crate::WORKSPACE;

const BATCHES: usize = 5;
const BATCH: u32 = 1000;

/// Prints the nanoseconds, which are instructions, of one open and close: the
/// median of batches that are long enough to hold their share of interrupts.
pub(crate) fn print(file: &OsStr) -> Result<()> {
    let file = CString::new(file.as_bytes())?;
    // Everything is cached after the first batch.
    batch(|| open(file.as_c_str(), FLAGS, Mode::empty()).map(drop))?;
    let mut batches = Vec::new();
    for _ in 0..BATCHES {
        let opened = batch(|| open(file.as_c_str(), FLAGS, Mode::empty()).map(drop))?;
        let looped = batch(|| {
            black_box(&file);
            Ok(())
        })?;
        batches.push(opened.saturating_sub(looped));
    }
    batches.sort();
    println!("{}", per_call(batches[BATCHES / 2]));
    Ok(())
}

/// What `policies/default.toml` comes to in Landlock, which can only allow.
pub(crate) fn restrict() -> Result<()> {
    let abi = ABI::V3;
    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(abi))?
        .create()?
        .add_rules(path_beneath_rules(["/"], AccessFs::from_read(abi)))?
        .add_rules(path_beneath_rules(
            [
                WORKSPACE,
                "/tmp",
                "/var/tmp",
                "/dev/shm",
                "/dev/null",
                "/dev/tty",
            ],
            AccessFs::from_all(abi),
        ))?
        .restrict_self()?;
    if status.ruleset == RulesetStatus::NotEnforced {
        bail!("this kernel enforces no Landlock rules");
    }
    Ok(())
}

const FLAGS: OFlag = OFlag::O_RDONLY.union(OFlag::O_CLOEXEC);

fn batch(mut call: impl FnMut() -> nix::Result<()>) -> Result<Duration> {
    let start = Instant::now();
    for _ in 0..BATCH {
        call()?;
    }
    Ok(start.elapsed())
}

fn per_call(batch: Duration) -> f64 {
    batch.as_secs_f64() * 1e9 / f64::from(BATCH)
}
