//! `cargo xtask setup`: everything that building and testing need beyond
//! rustup's stable toolchain and apt. Each step looks first, so a second run
//! does nothing.

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, bail};

use crate::{
    cache::Cache,
    clients, host,
    image::Image,
    kernel::{Kernel, KernelFiles},
};

/// Loads the LLVM that rustc brings; later ones need LLVM's own packages.
const BPF_LINKER: &str = "0.10.3";

/// What each package is for.
const PACKAGES: [(&str, &str); 11] = [
    ("binutils", "stripping what goes into virtual machines"),
    ("cpio", "initramfs"),
    (
        "debian-archive-keyring",
        "checking the root image's packages",
    ),
    ("e2fsprogs", "disks of virtual machines"),
    ("gcc", "linking"),
    ("kmod", "module dependencies"),
    ("libstd-rust-web-dev-bpf", "`core` for eBPF"),
    ("mmdebstrap", "root image"),
    ("qemu-system-x86", "virtual machines"),
    ("rustc-web", "compiling eBPF"),
    ("xz-utils", "kernel modules"),
];

/// Packages that are wanted for their programs and bring a service along.
const SERVICES: [(&str, &str); 3] = [
    ("openssh-server", "ssh.service"),
    ("squid", "squid.service"),
    ("tinyproxy", "tinyproxy.service"),
];

#[derive(clap::Args)]
pub(crate) struct Arguments {}

/// What setup has made for virtual machines.
pub(crate) struct Ready {
    pub(crate) image: Image,
    pub(crate) kernel: KernelFiles,
}

pub(crate) fn main(_: &Arguments) -> Result<ExitCode> {
    run()?;
    eprintln!("setup: everything is in place");
    Ok(ExitCode::SUCCESS)
}

/// Installs whatever is missing.
pub(crate) fn run() -> Result<()> {
    let cache = Cache::open()?;
    let mut packages = missing_packages()?;
    packages.extend(clients::missing_programs());
    let kernels: Vec<_> = Kernel::ALL
        .into_iter()
        .filter(|kernel| kernel.find(&cache).is_none())
        .collect();
    let image = Image::find(&cache).is_none();
    if !packages.is_empty() || !kernels.is_empty() || image {
        // Old lists name packages that the archive no longer has.
        eprintln!("setup: updating apt's package lists");
        host::run_with_progress(host::as_root("apt-get").args(["update", "-q"]))?;
    }
    install(&packages)?;
    clients::make_libraries(&cache)?;
    bpf_linker(&cache)?;
    for kernel in kernels {
        eprintln!("setup: fetching kernel {}", kernel.name());
        kernel.make(&cache)?;
    }
    if image {
        eprintln!("setup: building the root image (some minutes)");
        Image::make(&cache)?;
    }
    Ok(())
}

/// The files for a virtual machine with this kernel; an error that names the
/// remedy where setup has not made them.
pub(crate) fn ready(kernel: Kernel) -> Result<Ready> {
    let cache = Cache::open()?;
    match (Image::find(&cache), kernel.find(&cache)) {
        (Some(image), Some(kernel)) if host::has("qemu-system-x86_64") => {
            Ok(Ready { image, kernel })
        }
        _ => bail!(
            "no virtual machine with kernel {} is set up\n\nhint: run `cargo xtask setup`",
            kernel.name()
        ),
    }
}

fn install(packages: &[(&str, &str)]) -> Result<()> {
    if packages.is_empty() {
        return Ok(());
    }
    for (package, purpose) in packages {
        eprintln!("setup: installing `{package}` ({purpose})");
    }
    let names: Vec<_> = packages.iter().map(|(package, _)| *package).collect();
    let _idle = Idle::ensure()?;
    host::run_with_progress(
        host::as_root("apt-get")
            .args(["install", "-q", "-y", "--no-install-recommends"])
            .args(&names)
            .env("DEBIAN_FRONTEND", "noninteractive"),
    )
    .with_context(|| format!("cannot install {}", names.join(", ")))?;
    keep_off(&names)
}

/// Leaves the services of what was just installed off when the machine starts
/// again.
fn keep_off(installed: &[&str]) -> Result<()> {
    let services: Vec<_> = SERVICES
        .into_iter()
        .filter(|(package, _)| installed.contains(package))
        .map(|(_, service)| service)
        .collect();
    if services.is_empty() || !host::has("systemctl") {
        return Ok(());
    }
    host::run_with_progress(
        host::as_root("systemctl")
            .args(["--quiet", "disable"])
            .args(services),
    )
}

/// While it lives, a package that is installed starts no service.
struct Idle {
    made: bool,
}

impl Idle {
    /// What `invoke-rc.d` asks before it starts anything.
    const POLICY: &str = "/usr/sbin/policy-rc.d";

    fn ensure() -> Result<Self> {
        if Path::new(Self::POLICY).exists() {
            return Ok(Self { made: false });
        }
        let script = format!(
            "printf '#!/bin/sh\\nexit 101\\n' >{0} && chmod 755 {0}",
            Self::POLICY
        );
        host::run(host::as_root("sh").args(["-c", &script]))?;
        Ok(Self { made: true })
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        if self.made
            && let Err(error) = host::run(host::as_root("rm").args(["-f", Self::POLICY]))
        {
            eprintln!("setup: {error:#}");
        }
    }
}

fn missing_packages() -> Result<Vec<(&'static str, &'static str)>> {
    if !host::has("apt-get") || !host::has("dpkg-query") {
        bail!("{}", without_apt());
    }
    // Fails when it does not know one of the packages, and prints the others.
    let output = Command::new("dpkg-query")
        .args(["-W", "-f", "${db:Status-Status} ${Package}\n"])
        .args(PACKAGES.map(|(package, _)| package))
        .output()
        .context("cannot start `dpkg-query`")?;
    let states = String::from_utf8_lossy(&output.stdout);
    let installed = |package: &str| {
        states
            .lines()
            .any(|line| line.strip_prefix("installed ") == Some(package))
    };
    Ok(PACKAGES
        .into_iter()
        .filter(|(package, _)| !installed(package))
        .collect())
}

fn without_apt() -> String {
    let mut text = "this machine has no apt, and setup can install nothing without it\n\n\
         hint: build and test on Debian 12 or in a container of it; what is needed there:\n"
        .to_owned();
    for (package, purpose) in PACKAGES.into_iter().chain(clients::packages()) {
        text.extend(["  ", package, " (", purpose, ")\n"]);
    }
    text + "  bpf-linker (`cargo install --locked bpf-linker --version " + BPF_LINKER + "`)"
}

/// Where `build.rs` looks for the linker too.
fn bpf_linker_root(cache: &Cache) -> PathBuf {
    cache.path().join(format!("bpf-linker-{BPF_LINKER}"))
}

fn bpf_linker(cache: &Cache) -> Result<()> {
    let root = bpf_linker_root(cache);
    let installed = |root: &Path| root.join("bin/bpf-linker").is_file();
    if installed(&root) {
        return Ok(());
    }
    eprintln!("setup: building bpf-linker {BPF_LINKER} (some minutes)");
    host::run(
        Command::new("cargo")
            .args([
                "install",
                "--locked",
                "bpf-linker",
                "--version",
                BPF_LINKER,
                "--root",
            ])
            .arg(&root)
            // Not in the checkout, whose settings are for the project.
            .current_dir(cache.path()),
    )
}
