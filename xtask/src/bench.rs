//! `cargo xtask bench`: what the walls cost, per kernel, in guest instructions.

use std::{fmt::Write as _, path::Path, process::ExitCode};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use crate::{
    binaries::{self, Binaries},
    kernel::Kernel,
    vm::{Install, Vm},
};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Measure on this kernel; on all of them without
    #[arg(long, value_enum, value_name = "K", global = true)]
    kernel: Vec<Kernel>,
    /// Print an array of `{kernel, row, case, value, unit}` instead of a table
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// An open and close of a deep file: outside, inside, and under Landlock
    Hooks,
}

impl What {
    /// The program of the end-to-end tests that measures, inside the guest. It
    /// prints one `{row, case, value, unit}` a line, and starts sandboxd itself
    /// when it has measured without.
    fn program(&self) -> &'static str {
        match self {
            Self::Hooks => "bench-hooks",
        }
    }
}

/// A line of the table.
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
    let binaries = Binaries::build(true)?;
    let program = binaries::guest_program(arguments.what.program(), true)?;
    let mut measurements = Vec::new();
    for kernel in Kernel::or_all(&arguments.kernel) {
        eprintln!("bench: kernel {}", kernel.name());
        measurements.extend(measure(kernel, &binaries, &program)?);
    }
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&measurements)?);
    } else {
        print!("{}", table(&measurements));
    }
    Ok(ExitCode::SUCCESS)
}

fn measure(kernel: Kernel, binaries: &Binaries, program: &Path) -> Result<Vec<Measurement>> {
    let vm = Vm {
        install: Install::Programs(binaries),
        put: vec![program.to_owned()],
        icount: true,
        ..Vm::new(kernel)
    };
    let command = Path::new("/mnt/put").join(program.file_name().unwrap_or_default());
    let output = vm.run(&[command.into_os_string()])?;
    if output.status != 0 {
        bail!(
            "measuring on kernel {} failed with status {}\n{}",
            kernel.name(),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim_end()
        );
    }
    parse(kernel, &String::from_utf8_lossy(&output.stdout))
}

fn parse(kernel: Kernel, lines: &str) -> Result<Vec<Measurement>> {
    lines
        .lines()
        .map(|line| {
            let mut measurement: Measurement = serde_json::from_str(line)
                .with_context(|| format!("the guest printed no measurement: `{line}`"))?;
            kernel.name().clone_into(&mut measurement.kernel);
            Ok(measurement)
        })
        .collect()
}

/// A Markdown table, which is as readable in a terminal as in the README.
fn table(measurements: &[Measurement]) -> String {
    let mut rows = vec![["kernel", "what", "case", "value", "unit"].map(str::to_owned)];
    rows.push(["---"; 5].map(str::to_owned));
    rows.extend(measurements.iter().map(|line| {
        [
            line.kernel.clone(),
            line.row.clone(),
            line.case.clone(),
            format!("{}", (line.value * 10.0).round() / 10.0),
            line.unit.clone(),
        ]
    }));
    let mut widths = [0; 5];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut table = String::new();
    for row in &rows {
        for (width, cell) in widths.iter().zip(row) {
            // Writing to a string cannot fail.
            let _ = write!(table, "| {cell:<width$} ");
        }
        table.push_str("|\n");
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_gets_its_kernel_and_a_row() {
        let line = r#"{"row":"open+close","case":"outside","value":5123.04,"unit":"instructions"}"#;
        let measurements = parse(Kernel::V6_1, line).unwrap();
        assert_eq!(
            table(&measurements).lines().last().unwrap(),
            "| 6.1    | open+close | outside | 5123  | instructions |"
        );
    }

    #[test]
    fn anything_else_is_an_error() {
        let error = parse(Kernel::V6_12, "hello").unwrap_err();
        assert!(error.to_string().contains("`hello`"), "{error}");
    }
}
