//! What is expected of each kernel's hooks: files that the observer among the
//! end-to-end tests reads, and makes anew where that is asked for.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

use crate::{
    binaries::{Binaries, workspace},
    kernel::Kernel,
    vm::{Install, Vm},
};

/// The environment variable that asks.
const UPDATE: &str = "SANDBOX_UPDATE_COVERAGE";

/// What the test program takes for it.
const ARGUMENT: &str = "--observe";

/// The files, one a kernel.
pub(crate) fn directory() -> PathBuf {
    workspace().join("tests/coverage")
}

pub(crate) fn to_be_updated() -> bool {
    std::env::var_os(UPDATE).is_some()
}

/// Makes one of them anew, from what is observed on that kernel.
pub(crate) fn update(kernel: Kernel, binaries: &Binaries, program: &Path) -> Result<()> {
    let vm = Vm {
        install: Install::Running(binaries),
        put: vec![program.to_owned()],
        ..Vm::new(kernel)
    };
    let name = program.file_name().unwrap_or_default();
    let command = Path::new("/mnt/put").join(name).into_os_string();
    let output = vm.run(&[command, ARGUMENT.into()])?;
    if output.status != 0 {
        bail!(
            "observing kernel {} failed with status {}\n{}",
            kernel.name(),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim_end()
        );
    }
    let file = directory().join(format!("{}.txt", kernel.name()));
    fs::write(&file, &output.stdout).with_context(|| format!("cannot write `{}`", file.display()))
}
