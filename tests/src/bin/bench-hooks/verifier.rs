//! How long the kernel's verifier works, watched from both its ends.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

const TRACING: &str = "/sys/kernel/tracing";
const ON: &str = "events/sandboxd_bench/enable";

/// A watch over all programs that are loaded from now on.
pub(crate) struct Watch {
    trace: PathBuf,
}

impl Watch {
    pub(crate) fn start() -> Result<Self> {
        write("kprobe_events", "p:sandboxd_bench/enter bpf_check")?;
        append("kprobe_events", "r:sandboxd_bench/leave bpf_check")?;
        write(ON, "1")?;
        Ok(Self {
            trace: Path::new(TRACING).join("trace"),
        })
    }

    /// The milliseconds spent in it so far.
    pub(crate) fn finish(self) -> Result<f64> {
        write(ON, "0")?;
        let trace = fs::read_to_string(&self.trace).context("cannot read the trace")?;
        write("kprobe_events", "")?;
        Ok(spent(&trace) * 1e3)
    }
}

/// Seconds between entering and leaving, from lines such as
/// `sandboxd-612  [000] ..... 12.345678: enter: (bpf_check+0x0/0x2a50)`.
fn spent(trace: &str) -> f64 {
    let mut entered = HashMap::new();
    let mut sum = 0.0;
    for line in trace.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        let Some(task) = words.next() else { continue };
        let words: Vec<_> = words.collect();
        for pair in words.windows(2) {
            let Some(Ok(time)) = pair[0].strip_suffix(':').map(str::parse::<f64>) else {
                continue;
            };
            match pair[1] {
                "enter:" => drop(entered.insert(task, time)),
                "leave:" => sum += entered.remove(task).map_or(0.0, |start| time - start),
                _ => {}
            }
        }
    }
    sum
}

fn write(file: &str, text: &str) -> Result<()> {
    let path = Path::new(TRACING).join(file);
    fs::write(&path, text).with_context(|| format!("cannot write `{}`", path.display()))
}

fn append(file: &str, text: &str) -> Result<()> {
    let path = Path::new(TRACING).join(file);
    fs::OpenOptions::new()
        .append(true)
        .open(&path)
        .and_then(|mut file| std::io::Write::write_all(&mut file, text.as_bytes()))
        .with_context(|| format!("cannot write `{}`", path.display()))
}

#[cfg(test)]
mod tests {
    use super::spent;

    #[test]
    fn what_lies_between_entering_and_leaving_is_summed() {
        let trace = "# tracer: nop\n\
            sandboxd-612 [000] ..... 10.000000: enter: (bpf_check+0x0/0x2a50)\n\
            sandboxd-612 [000] ..... 10.250000: leave: (bpf_prog_load+0x1/0x2 <- bpf_check)\n\
            sandboxd-612 [000] ..... 11.000000: enter: (bpf_check+0x0/0x2a50)\n\
            sandboxd-612 [000] ..... 11.500000: leave: (bpf_prog_load+0x1/0x2 <- bpf_check)\n";
        assert!((spent(trace) - 0.75).abs() < 1e-9);
    }
}
