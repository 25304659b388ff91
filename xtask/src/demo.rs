//! `cargo xtask demo`: a sandboxed run with real denials. On this machine where
//! its kernel accepts the programs, in a virtual machine where it does not.

use std::{
    fs, io,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::{
    binaries::{Binaries, workspace},
    host,
    kernel::Kernel,
    setup,
    vm::{Install, Vm},
};

/// How long the daemon may take to accept.
const DAEMON_START: Duration = Duration::from_mins(1);

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Use a virtual machine with this kernel, whatever this machine's can do
    #[arg(long, value_enum, value_name = "K")]
    kernel: Option<Kernel>,
}

pub(crate) fn main(arguments: &Arguments) -> Result<ExitCode> {
    setup::run()?;
    let binaries = Binaries::build(false)?;
    if let Some(kernel) = arguments.kernel {
        return in_vm(kernel, &binaries);
    }
    // Root alone may load programs, and doctor tries them.
    let doctor = host::as_root(&binaries.sandbox)
        .args(["doctor", "--no-daemon"])
        .stdin(Stdio::null())
        .output()
        .context("cannot start `sandbox doctor`")?;
    if doctor.status.success() {
        eprintln!("demo: on this machine, whose kernel accepts BPF-LSM programs");
        return natively(&binaries);
    }
    let kernel = Kernel::V6_12;
    eprintln!(
        "demo: in a virtual machine with kernel {}, because `sandbox doctor` says of this one:",
        kernel.name()
    );
    for said in [&doctor.stdout, &doctor.stderr] {
        for line in String::from_utf8_lossy(said).lines() {
            eprintln!("  {line}");
        }
    }
    in_vm(kernel, &binaries)
}

fn in_vm(kernel: Kernel, binaries: &Binaries) -> Result<ExitCode> {
    let vm = Vm {
        install: Install::Running(binaries),
        put: vec![directory(), proto()],
        environment: vec![("SANDBOX_PROTO".to_owned(), "/mnt/put/proto".to_owned())],
        ..Vm::new(kernel)
    };
    let status = vm.stream(&["/mnt/put/demo/run.sh".into()], io::stdout(), io::stderr())?;
    Ok(ExitCode::from(status))
}

/// With a daemon of its own, on a socket of its own, that ends with the demo.
fn natively(binaries: &Binaries) -> Result<ExitCode> {
    let scratch = tempfile::tempdir().context("cannot create a scratch directory")?;
    let socket = scratch.path().join("sandboxd.sock");
    let config = scratch.path().join("config.toml");
    fs::write(&config, settings(&socket, scratch.path()))?;
    let mut daemon = host::as_root(&binaries.sandboxd)
        .args(["--foreground", "--config"])
        .arg(&config)
        .stdin(Stdio::null())
        .spawn()
        .context("cannot start `sandboxd`")?;
    let ran = accepts(&mut daemon, &socket).and_then(|()| {
        Command::new(directory().join("run.sh"))
            .env("SANDBOX_HOST", format!("unix://{}", socket.display()))
            .env("SANDBOX_PROTO", proto())
            .env("PATH", path_with(&binaries.sandbox)?)
            .status()
            .context("cannot start the demo")
    });
    // Through `kill`, because the daemon, or the sudo around it, is root's.
    host::run(host::as_root("kill").arg(daemon.id().to_string()))?;
    daemon.wait().context("cannot wait for `sandboxd`")?;
    let code = ran?.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

fn settings(socket: &Path, scratch: &Path) -> String {
    let policies = workspace().join("policies");
    format!(
        "socket = '{}'\n\
         policy_directories = ['{}']\n\
         set_files = ['{}']\n\
         cache_directory = '{}'\n",
        socket.display(),
        policies.display(),
        policies.join("sets.toml").display(),
        scratch.join("cache").display(),
    )
}

fn accepts(daemon: &mut Child, socket: &Path) -> Result<()> {
    let start = Instant::now();
    while UnixStream::connect(socket).is_err() {
        if let Some(status) = daemon.try_wait().context("cannot wait for `sandboxd`")? {
            bail!("`sandboxd` ended with {status} before it accepted");
        }
        if start.elapsed() > DAEMON_START {
            bail!(
                "`sandboxd` did not accept within {} s",
                DAEMON_START.as_secs()
            );
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// The search path, with the built programs first.
fn path_with(program: &Path) -> Result<std::ffi::OsString> {
    let directory = program.parent().map(Path::to_owned);
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::join_paths(directory.into_iter().chain(std::env::split_paths(&path)))
        .context("the path to the checkout has a colon in it")
}

/// The demo: `run.sh` and what it needs.
pub(crate) fn directory() -> PathBuf {
    workspace().join("tests/demo")
}

/// The API's definition, from which the demo's Python client is generated.
pub(crate) fn proto() -> PathBuf {
    workspace().join("sandbox-daemon/proto")
}
