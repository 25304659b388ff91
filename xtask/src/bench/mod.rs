//! `cargo xtask bench`: what the walls and the way out cost.

mod guest;
mod hooks;
mod launch;
mod proxy;

use std::{fmt::Write as _, process::ExitCode};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::kernel::Kernel;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Print an array of `{kernel, row, case, value, unit}` instead of a table
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// What programs do all the time: outside, inside, and under Landlock
    Hooks {
        /// Measure on this kernel; on all of them without
        #[arg(long, value_enum, value_name = "K")]
        kernel: Vec<Kernel>,
    },
    /// A sandbox beside what else starts a command, and where it goes
    Launch {
        /// Measure on this kernel; on all of them without
        #[arg(long, value_enum, value_name = "K")]
        kernel: Vec<Kernel>,
    },
    /// The proxy beside squid, tinyproxy and none, on this machine, as root
    Proxy {
        /// Measure rows with this in their name; all without
        #[arg(long, value_name = "WORD", default_value = "")]
        rows: String,
    },
}

/// A line of what is measured.
#[derive(Debug, Deserialize, Serialize)]
struct Measurement {
    #[serde(default)]
    kernel: String,
    row: String,
    case: String,
    value: f64,
    unit: String,
}

pub(crate) fn main(arguments: &Arguments) -> Result<ExitCode> {
    let (measurements, table): (_, fn(&[Measurement]) -> String) = match &arguments.what {
        What::Hooks { kernel } => (hooks::measurements(kernel)?, hooks::table),
        What::Launch { kernel } => (launch::measurements(kernel)?, launch::table),
        What::Proxy { rows } => (proxy::measurements(rows)?, proxy::table),
    };
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&measurements)?);
    } else {
        print!("{}", table(&measurements));
    }
    Ok(ExitCode::SUCCESS)
}

fn parse(kernel: &str, lines: &[u8]) -> Result<Vec<Measurement>> {
    String::from_utf8_lossy(lines)
        .lines()
        .map(|line| {
            let mut measurement: Measurement = serde_json::from_str(line)
                .with_context(|| format!("what measures printed no measurement: `{line}`"))?;
            kernel.clone_into(&mut measurement.kernel);
            Ok(measurement)
        })
        .collect()
}

/// A Markdown table, which is as readable in a terminal as in the README.
fn columns(lines: &[Vec<String>]) -> String {
    let mut widths = Vec::new();
    for line in lines {
        widths.resize(widths.len().max(line.len()), 0);
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut table = String::new();
    for line in lines {
        for (width, cell) in widths.iter().zip(line) {
            // Writing to a string cannot fail.
            let _ = write!(table, "| {cell:<width$} ");
        }
        table.push_str("|\n");
    }
    table
}

/// Each text once, in the order of its first appearance.
fn distinct<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut found: Vec<&str> = Vec::new();
    for text in texts {
        if !found.contains(&text) {
            found.push(text);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anything_else_is_an_error() {
        let error = parse("6.12", b"hello").unwrap_err();
        assert!(error.to_string().contains("`hello`"), "{error}");
    }
}
