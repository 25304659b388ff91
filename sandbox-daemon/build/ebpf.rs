//! Builds `sandbox-ebpf` for the kernel's virtual machine: the one place that
//! knows how. It needs a rustc with a `core` for `bpfel-unknown-none`, or with
//! the sources of one, and bpf-linker of the same LLVM.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

const TARGET: &str = "bpfel-unknown-none";

/// Puts the object `name` at `OUT_DIR/NAME`: a program of `sandbox-ebpf`, or
/// what the environment variable `ready` says is one, readily built.
pub(crate) fn build(name: &str, ready: &str, out: &Path) -> Result<()> {
    let object = out.join(name);
    println!("cargo::rerun-if-env-changed={ready}");
    if let Some(ready) = env::var_os(ready) {
        println!("cargo::rerun-if-changed={}", Path::new(&ready).display());
        fs::copy(&ready, &object)
            .with_context(|| format!("cannot take the object at `{}`", ready.display()))?;
        return Ok(());
    }
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").context("no manifest directory")?);
    let workspace = root.parent().context("the workspace is missing")?;
    for part in ["sandbox-ebpf", "sandbox-common", "sandbox-daemon/build"] {
        println!("cargo::rerun-if-changed={}", workspace.join(part).display());
    }

    let (Some(toolchain), Some(linker)) = (Toolchain::find(), linker()) else {
        bail!(
            "the eBPF toolchain is missing: a rustc with `core` for {TARGET}, and `bpf-linker`\n\n\
             hint: run `cargo xtask setup`, or point `{ready}` at a ready object"
        );
    };
    let target_dir = out.join("ebpf");
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        // What is meant for the host's build does not fit this one.
        if text.starts_with("RUSTC")
            || text.starts_with("CARGO_BUILD_")
            || text.starts_with("CARGO_PROFILE_")
            || matches!(
                &*text,
                "RUSTFLAGS" | "CARGO_ENCODED_RUSTFLAGS" | "CARGO_TARGET_DIR"
            )
        {
            cargo.env_remove(&name);
        }
    }
    let arch = env::var("CARGO_CFG_TARGET_ARCH").context("no target architecture")?;
    let flags = [
        format!("--cfg=bpf_target_arch=\"{arch}\""),
        "-Cdebuginfo=2".into(),
        "-Clink-arg=--btf".into(),
        format!("-Clinker={}", linker.display()),
    ];
    cargo
        .current_dir(workspace)
        .args([
            "build",
            "--quiet",
            "--locked",
            "--package=sandbox-ebpf",
            "--profile=ebpf",
            "--bin",
            name,
        ])
        .arg(format!("--target={TARGET}"))
        .arg("--target-dir")
        .arg(&target_dir)
        .env("RUSTC", &toolchain.rustc)
        // The target and its intrinsics are unstable; for this one child only.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    if !toolchain.has_core {
        cargo.arg("-Zbuild-std=core");
    }
    let status = cargo
        .status()
        .context("cannot run cargo for the eBPF object")?;
    if !status.success() {
        bail!("the eBPF object does not build");
    }
    fs::copy(target_dir.join(TARGET).join("ebpf").join(name), &object)?;
    Ok(())
}

struct Toolchain {
    rustc: PathBuf,
    /// A compiled `core`; otherwise its sources.
    has_core: bool,
}

impl Toolchain {
    /// The quickest route that is there: a compiled `core` (Debian's `rustc-web`
    /// with `libstd-rust-web-dev-bpf`), then sources of one.
    fn find() -> Option<Self> {
        let candidates = [
            PathBuf::from("/usr/bin/rustc"),
            env::var_os("RUSTC").map_or_else(|| "rustc".into(), PathBuf::from),
        ];
        let roots: Vec<_> = candidates
            .into_iter()
            .filter_map(|rustc| sysroot(&rustc).map(|root| (rustc, root.join("lib/rustlib"))))
            .collect();
        let with = |part: &str, has_core| {
            roots
                .iter()
                .find(|(_, root)| root.join(part).exists())
                .map(|(rustc, _)| Self {
                    rustc: rustc.clone(),
                    has_core,
                })
        };
        with(&format!("{TARGET}/lib"), true)
            .or_else(|| with("src/rust/library/core/Cargo.toml", false))
    }
}

fn sysroot(rustc: &Path) -> Option<PathBuf> {
    let output = Command::new(rustc)
        .args(["--print", "sysroot"])
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output
        .status
        .success()
        .then(|| PathBuf::from(text.trim_end()))
}

/// `bpf-linker` from where `cargo xtask setup` puts it, or from the path.
fn linker() -> Option<PathBuf> {
    let cache = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
    let installed = cache.map(|cache| cache.join("sandboxd/bpf-linker-0.10.3/bin"));
    let path = env::var_os("PATH").unwrap_or_default();
    installed
        .into_iter()
        .chain(env::split_paths(&path))
        .map(|directory| directory.join("bpf-linker"))
        .find(|program| program.is_file())
}
