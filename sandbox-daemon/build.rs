//! Generates the gRPC code and builds the eBPF object.

#[path = "build/ebpf.rs"]
mod ebpf;

use std::{env, path::PathBuf};

use anyhow::{Context as _, Result};
use prost::Message as _;

fn main() -> Result<()> {
    let out = PathBuf::from(env::var_os("OUT_DIR").context("OUT_DIR is not set")?);
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(["sandbox/v1/sandbox.proto"], ["proto"])?;
    std::fs::write(out.join("sandbox.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        .bytes(".")
        // What is printed of it is said in `proto.rs`.
        .skip_debug([".sandbox.v1.SetSecretRequest"])
        .compile_fds(descriptors)?;
    ebpf::build("sandbox-ebpf", "SANDBOXD_EBPF_OBJECT", &out)
}
