//! Measuring inside guests whose clock counts instructions.

use std::path::Path;

use anyhow::{Result, bail};

use super::{Measurement, columns, distinct, parse};
use crate::{
    binaries::{self, Binaries},
    kernel::Kernel,
    vm::{Install, Vm},
};

/// What a program of the end-to-end tests prints, a `{row, case, value, unit}` a
/// line, on each of these kernels. It finds sandboxd installed and not running.
pub(super) fn measurements(program: &str, kernels: &[Kernel]) -> Result<Vec<Measurement>> {
    let binaries = Binaries::build(true)?;
    let program = binaries::guest_program(program, true)?;
    let mut measurements = Vec::new();
    for kernel in Kernel::or_all(kernels) {
        eprintln!("bench: kernel {}", kernel.name());
        measurements.extend(measure(kernel, &binaries, &program)?);
    }
    Ok(measurements)
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
    parse(kernel.name(), &output.stdout)
}

/// A column for each kernel. `shown` is told the first of the row, too.
pub(super) fn table(
    measurements: &[Measurement],
    shown: impl Fn(&Measurement, &Measurement) -> String,
) -> String {
    let kernels = distinct(measurements.iter().map(|line| line.kernel.as_str()));
    let mut lines = vec![["", "", ""].map(str::to_owned).to_vec()];
    lines[0].extend(kernels.iter().map(|kernel| format!("Linux {kernel}")));
    lines.push(vec!["---".to_owned(); 3 + kernels.len()]);
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
    columns(&lines)
}
