//! Builds the observer, the eBPF object that no daemon has.

#[path = "../sandbox-daemon/build/ebpf.rs"]
mod ebpf;

use std::{env, path::PathBuf};

use anyhow::{Context as _, Result};

fn main() -> Result<()> {
    let out = PathBuf::from(env::var_os("OUT_DIR").context("OUT_DIR is not set")?);
    ebpf::build("observer", "SANDBOXD_OBSERVER_OBJECT", &out)
}
