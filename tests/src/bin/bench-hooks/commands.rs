//! Commands, run to their end.

use std::{
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::command;

const RUNS: usize = 9;

/// What a command writes to stdout.
pub(crate) fn output<S: AsRef<str>>(words: &[S]) -> Result<String> {
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    let output = command(&words)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start `{}`", words[0]))?;
    if !output.status.success() {
        bail!("`{}` failed: {}", words.join(" "), output.status);
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Milliseconds from before a command's start to after its end: the median.
pub(crate) fn time(words: &[&str]) -> Result<f64> {
    let mut runs = Vec::new();
    for _ in 0..=RUNS {
        let start = Instant::now();
        output(words)?;
        runs.push(start.elapsed());
    }
    // The first one fills caches.
    runs.remove(0);
    runs.sort();
    Ok(milliseconds(runs[RUNS / 2]))
}

pub(crate) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
