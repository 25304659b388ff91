//! `cargo xtask demo`: the traced run, in a virtual machine, because it changes what
//! the machine takes for the Internet and whom it believes.

use std::{io, path::PathBuf, process::ExitCode};

use anyhow::Result;

use crate::{
    binaries::{Binaries, workspace},
    kernel::Kernel,
    setup,
    vm::{Install, Vm},
};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The virtual machine's kernel
    #[arg(long, value_enum, value_name = "K", default_value_t = Kernel::V6_12)]
    kernel: Kernel,
}

pub(crate) fn main(arguments: &Arguments) -> Result<ExitCode> {
    setup::run()?;
    let binaries = Binaries::build(false)?;
    eprintln!(
        "demo: starting a virtual machine with kernel {}",
        arguments.kernel.name()
    );
    let vm = Vm {
        install: Install::Running(&binaries),
        put: vec![directory(), proto()],
        environment: vec![("SANDBOX_PROTO".to_owned(), "/mnt/put/proto".to_owned())],
        ..Vm::new(arguments.kernel)
    };
    let command = ["python3".into(), "/mnt/put/demo/run.py".into()];
    let status = vm.stream(&command, io::stdout(), io::stderr())?;
    Ok(ExitCode::from(status))
}

/// The traced run: `run.py` and what it needs.
pub(crate) fn directory() -> PathBuf {
    workspace().join("tests/demo")
}

/// The API's definition, from which its Python client is generated.
pub(crate) fn proto() -> PathBuf {
    workspace().join("sandbox-daemon/proto")
}
