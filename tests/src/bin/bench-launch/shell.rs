//! Commands as a shell starts them: it reads the clock, forks, waits, and reads
//! the clock again.

use std::{os::unix::process::CommandExt as _, process::Command};

use anyhow::{Context as _, Result, bail};

use crate::{USER, WORKSPACE};

/// Measured, after those that fill caches.
const RUNS: usize = 15;
const BEFORE: usize = 5;

/// bash has its clock in microseconds, in which there are a thousand
/// instructions.
const SCRIPT: &str = "\
for ((run = 0; run < $1; run++)); do
	start=$EPOCHREALTIME
	$2 </dev/null >/dev/null || exit
	echo $start $EPOCHREALTIME
done";

/// One run, in microseconds of the guest's clock.
pub(crate) struct Run {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Run {
    pub(crate) fn takes(&self) -> u64 {
        self.end - self.start
    }
}

/// Runs a command again and again.
pub(crate) fn runs(command: &str) -> Result<Vec<Run>> {
    let count = (BEFORE + RUNS).to_string();
    let output = Command::new("bash")
        .args(["-c", SCRIPT, "bash", &count, command])
        .current_dir(WORKSPACE)
        .env_clear()
        .envs([
            ("PATH", "/usr/bin:/bin"),
            ("HOME", "/home/dev"),
            ("LANG", "C.UTF-8"),
        ])
        .uid(USER)
        .gid(USER)
        .output()
        .context("cannot start `bash`")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`{command}` failed: {}\n{said}", output.status);
    }
    let text = String::from_utf8(output.stdout)?;
    let runs = text.lines().skip(BEFORE).map(|line| {
        let (start, end) = line.split_once(' ').context("no two times")?;
        Ok(Run {
            start: microseconds(start)?,
            end: microseconds(end)?,
        })
    });
    runs.collect()
}

fn microseconds(time: &str) -> Result<u64> {
    Ok(time.replace('.', "").parse()?)
}

pub(crate) fn median(values: impl IntoIterator<Item = u64>) -> f64 {
    let mut values: Vec<u64> = values.into_iter().collect();
    values.sort_unstable();
    let middle = values.get(values.len() / 2).copied().unwrap_or_default();
    f64::from(u32::try_from(middle).unwrap_or(u32::MAX))
}
