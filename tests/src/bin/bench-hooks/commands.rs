//! Commands, run to their end.

use std::{process::Stdio, time::Duration};

use anyhow::{Context as _, Result, bail};

use crate::command;

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

pub(crate) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
