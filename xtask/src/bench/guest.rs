//! Measuring inside guests whose clock counts instructions.

use std::path::Path;

use anyhow::{Result, bail};

use super::{Measurement, parse};
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
