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
    /// What programs do all the time: outside, inside, and under Landlock
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

/// A Markdown table, which is as readable in a terminal as in the README: a
/// column for each kernel, and what a case adds to the first one of its row.
fn table(measurements: &[Measurement]) -> String {
    let kernels = distinct(measurements.iter().map(|line| line.kernel.as_str()));
    let mut lines = vec![["", "", ""].map(str::to_owned).to_vec()];
    lines[0].extend(kernels.iter().map(|kernel| format!("Linux {kernel}")));
    let columns = 3 + kernels.len();
    lines.push(vec!["---".to_owned(); columns]);
    for row in distinct(measurements.iter().map(|line| line.row.as_str())) {
        let cells: Vec<_> = measurements.iter().filter(|line| line.row == row).collect();
        for case in distinct(cells.iter().map(|cell| cell.case.as_str())) {
            let mut line = vec![row.to_owned(), case.to_owned(), String::new()];
            for kernel in &kernels {
                let mut of_kernel = cells.iter().filter(|cell| cell.kernel == *kernel);
                let first = of_kernel.clone().next();
                let cell = of_kernel.find(|cell| cell.case == case);
                let shown = match (first, cell) {
                    (Some(first), Some(cell)) => {
                        cell.unit.clone_into(&mut line[2]);
                        shown(first, cell)
                    }
                    _ => String::new(),
                };
                line.push(shown);
            }
            lines.push(line);
        }
    }
    let mut widths = vec![0; columns];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut table = String::new();
    for line in &lines {
        for (width, cell) in widths.iter().zip(line) {
            // Writing to a string cannot fail.
            let _ = write!(table, "| {cell:<width$} ");
        }
        table.push_str("|\n");
    }
    table
}

/// A value, with what it adds to the first of its row where both are of a kind.
fn shown(first: &Measurement, cell: &Measurement) -> String {
    let value = if cell.value < 1000.0 {
        format!("{:.1}", cell.value)
    } else {
        format!("{:.0}", cell.value)
    };
    if first.case == cell.case || first.unit != cell.unit {
        return value;
    }
    let more = (cell.value / first.value - 1.0) * 100.0;
    format!("{value} ({more:+.1} %)")
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
    fn a_case_is_compared_with_the_first_of_its_row() {
        let lines = r#"{"row":"open","case":"without","value":2000.0,"unit":"instructions"}
{"row":"open","case":"inside","value":2503.04,"unit":"instructions"}"#;
        let measurements = parse(Kernel::V6_1, lines).unwrap();
        assert_eq!(
            table(&measurements).lines().last().unwrap(),
            "| open | inside  | instructions | 2503 (+25.2 %) |"
        );
    }

    #[test]
    fn anything_else_is_an_error() {
        let error = parse(Kernel::V6_12, "hello").unwrap_err();
        assert!(error.to_string().contains("`hello`"), "{error}");
    }
}
