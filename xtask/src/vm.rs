//! `cargo xtask vm`: one run of one command in a virtual machine of its own,
//! emulated, on a snapshot of the cached root image.

use std::{
    ffi::OsString,
    io::{self, IsTerminal as _, Write},
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    binaries::{self, Binaries},
    host,
    kernel::Kernel,
    payload::Payload,
    ports::{Heard, Kept, Ports, lock, socket},
    setup::{self, Ready},
};

/// Lines of the console and of the daemon's log that a failure shows.
const TAIL: usize = 60;
/// Seconds within which the daemon must accept; it starts in one or two.
const DAEMON_START: u32 = 120;

#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The kernel to boot
    #[arg(long, value_enum, default_value = "6.12")]
    kernel: Kernel,
    /// Copy a file or directory to /mnt/put/
    #[arg(long, value_name = "PATH")]
    put: Vec<PathBuf>,
    /// Let the guest's clock count instructions
    #[arg(long)]
    icount: bool,
    /// The guest's memory, in mebibytes
    #[arg(long, value_name = "M", default_value_t = 2048)]
    memory: u32,
    /// Install sandboxd but do not start it
    #[arg(long)]
    no_daemon: bool,
    /// Neither build nor install the project
    #[arg(long)]
    bare: bool,
    /// Build with optimisations
    #[arg(long)]
    release: bool,
    /// Give up after so many seconds without any output
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
    /// The command to run as root; a shell without one
    #[arg(last = true)]
    command: Vec<OsString>,
}

/// What is built into the guest.
#[derive(Clone, Copy)]
pub(crate) enum Install<'a> {
    /// Nothing of the project.
    Nothing,
    /// The programs and policies.
    Programs(&'a Binaries),
    /// The same, with sandboxd running before the command starts.
    Running(&'a Binaries),
}

/// A virtual machine, before it is started.
pub(crate) struct Vm<'a> {
    pub(crate) kernel: Kernel,
    pub(crate) install: Install<'a>,
    /// Files and directories for `/mnt/put/`.
    pub(crate) put: Vec<PathBuf>,
    /// The command's environment, beside `PATH`, `HOME` and the like.
    pub(crate) environment: Vec<(String, String)>,
    /// Whether the guest's clock counts instructions, one a nanosecond.
    pub(crate) icount: bool,
    /// In mebibytes.
    pub(crate) memory: u32,
    /// How long nothing at all may be heard of the guest.
    pub(crate) timeout: Duration,
}

/// What a command left.
pub(crate) struct Output {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    /// As a shell has it: 128 and more for signals.
    pub(crate) status: u8,
}

pub(crate) fn main(arguments: Arguments) -> Result<ExitCode> {
    let binaries = if arguments.bare {
        None
    } else {
        Some(Binaries::build(arguments.release)?)
    };
    let install = match &binaries {
        None => Install::Nothing,
        Some(binaries) if arguments.no_daemon => Install::Programs(binaries),
        Some(binaries) => Install::Running(binaries),
    };
    let vm = Vm {
        icount: arguments.icount,
        install,
        memory: arguments.memory,
        put: arguments.put,
        timeout: Duration::from_secs(arguments.timeout),
        ..Vm::new(arguments.kernel)
    };
    let status = if arguments.command.is_empty() {
        vm.shell()?
    } else {
        vm.stream(&arguments.command, io::stdout(), io::stderr())?
    };
    Ok(ExitCode::from(status))
}

impl Vm<'_> {
    /// One with nothing of the project in it, and the usual memory.
    pub(crate) fn new(kernel: Kernel) -> Self {
        Self {
            kernel,
            install: Install::Nothing,
            put: Vec::new(),
            environment: Vec::new(),
            icount: false,
            memory: 2048,
            timeout: Duration::from_mins(10),
        }
    }

    /// Boots, runs `command` as root, and powers off.
    ///
    /// An error is the machine's: no boot, a panic, a hang, a daemon that did
    /// not start. It ends with what the console and the daemon's log said.
    pub(crate) fn run(&self, command: &[OsString]) -> Result<Output> {
        let stdout = Kept::default();
        let stderr = Kept::default();
        let status = self.stream(command, stdout.clone(), stderr.clone())?;
        Ok(Output {
            stdout: stdout.take(),
            stderr: stderr.take(),
            status,
        })
    }

    /// Like [`Vm::run`], passing output on as it comes.
    pub(crate) fn stream(
        &self,
        command: &[OsString],
        stdout: impl Write + Send + 'static,
        stderr: impl Write + Send + 'static,
    ) -> Result<u8> {
        let scratch = tempfile::tempdir().context("cannot create a scratch directory")?;
        let ready = setup::ready(self.kernel)?;
        let payload = self.payload(scratch.path(), &ready)?;
        payload.words("command", command)?;
        self.boot(scratch.path(), &ready, &payload, stdout, stderr, false)
    }

    /// A root shell on this process's terminal.
    pub(crate) fn shell(&self) -> Result<u8> {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            bail!(
                "a shell needs a terminal\n\n\
                 hint: give a command: `cargo xtask vm -- COMMAND...`"
            );
        }
        let scratch = tempfile::tempdir().context("cannot create a scratch directory")?;
        let ready = setup::ready(self.kernel)?;
        let payload = self.payload(scratch.path(), &ready)?;
        let size = Command::new("stty")
            .arg("size")
            .stdin(Stdio::inherit())
            .output()
            .context("cannot start `stty`")?;
        payload.note("size", size.stdout)?;
        payload.note("term", std::env::var("TERM").unwrap_or("dumb".to_owned()))?;
        self.boot(
            scratch.path(),
            &ready,
            &payload,
            io::sink(),
            io::sink(),
            true,
        )
    }

    fn payload(&self, scratch: &Path, ready: &Ready) -> Result<Payload> {
        let payload = Payload::new(scratch.join("payload"), ready.image.glibc()?)?;
        if let Install::Programs(binaries) | Install::Running(binaries) = self.install {
            payload.program(&binaries.sandbox, "/usr/bin/sandbox")?;
            payload.program(&binaries.sandboxd, "/usr/sbin/sandboxd")?;
            payload.program(&binaries.proxy, "/usr/lib/sandboxd/sandbox-proxy")?;
            let policies = binaries::workspace().join("policies");
            payload.copy(&policies, "/usr/lib/sandboxd/policies")?;
        }
        if let Install::Running(_) = self.install {
            payload.note("daemon", DAEMON_START.to_string())?;
        }
        for path in &self.put {
            payload.put(path)?;
        }
        let environment = self.environment.iter();
        let environment: Vec<_> = environment
            .map(|(name, value)| OsString::from(format!("{name}={value}")))
            .collect();
        payload.words("environment", &environment)?;
        Ok(payload)
    }

    fn boot(
        &self,
        scratch: &Path,
        ready: &Ready,
        payload: &Payload,
        stdout: impl Write + Send + 'static,
        stderr: impl Write + Send + 'static,
        terminal: bool,
    ) -> Result<u8> {
        let disk = scratch.join("payload.img");
        payload.write(&disk)?;

        let heard = Heard::default();
        let console = Kept::default();
        let log = Kept::default();
        let verdict = Arc::new(Mutex::new(None));
        let mut ports = Ports::new(scratch, &heard);
        ports.read("stdout", stdout)?;
        ports.read("stderr", stderr)?;
        ports.read("log", log.clone())?;
        ports.answer("status", Arc::clone(&verdict))?;
        if !terminal {
            ports.read("console", console.clone())?;
        }

        let mut qemu = self
            .qemu(scratch, ready, &disk, terminal)
            .stdin(if terminal {
                Stdio::inherit()
            } else {
                Stdio::null()
            })
            .spawn()
            .context("cannot start `qemu-system-x86_64`")?;
        let limit = if terminal {
            Duration::MAX
        } else {
            self.timeout
        };
        let ended = wait(&mut qemu, &heard, limit)?;
        ports.finish();

        let verdict = lock(&verdict).take();
        if let Some(status) = verdict.as_deref().and_then(exited) {
            return Ok(status);
        }
        let console = console.text();
        let reason = reason(ended, verdict.as_deref(), &console, self.timeout);
        let mut text = format!(
            "the virtual machine with kernel {}: {reason}",
            self.kernel.name()
        );
        for (name, lines) in [("console", console), ("sandboxd", log.text())] {
            let lines = host::tail(&lines, TAIL);
            if !lines.is_empty() {
                text.extend(["\n--- ", name, " ---\n", &lines]);
            }
        }
        bail!(text)
    }

    fn qemu(&self, scratch: &Path, ready: &Ready, disk: &Path, terminal: bool) -> Command {
        // Killed with this process, whatever ends it.
        let mut qemu = Command::new("setpriv");
        qemu.args(["--pdeathsig", "KILL", "qemu-system-x86_64"]);
        qemu.args([
            "-no-user-config",
            "-nodefaults",
            "-display",
            "none",
            "-no-reboot",
        ]);
        // One processor: with more, emulation races with the kernel's patching
        // of its own code (`Oops: int3`, 6.12 on).
        qemu.args([
            "-machine", "q35", "-accel", "tcg", "-cpu", "max", "-smp", "1",
        ]);
        qemu.args(["-m", &self.memory.to_string()]);
        if self.icount {
            qemu.args(["-icount", "shift=0,sleep=off"]);
        }
        qemu.arg("-kernel").arg(ready.kernel.image());
        qemu.arg("-initrd").arg(ready.kernel.initramfs());
        qemu.args([
            "-append",
            "console=ttyS0 quiet panic=-1 oops=panic lsm=lockdown,capability,landlock,bpf",
        ]);
        let root = ready.image.disk();
        for (name, disk) in [
            ("root", root.as_path()),
            ("modules", &ready.kernel.modules()),
            ("payload", disk),
        ] {
            let disk = disk.display();
            qemu.arg("-drive").arg(format!(
                "id={name},file={disk},format=raw,if=none,snapshot=on,cache=unsafe"
            ));
            qemu.args(["-device", &format!("virtio-blk-pci,drive={name}")]);
        }
        qemu.args(["-device", "virtio-serial-pci"]);
        for port in ["status", "stdout", "stderr", "log"] {
            qemu.args(["-chardev", &socket(scratch, port)]);
            qemu.args([
                "-device",
                &format!("virtserialport,chardev={port},name={port}"),
            ]);
        }
        let console = if terminal {
            "stdio,id=console,signal=off".to_owned()
        } else {
            socket(scratch, "console")
        };
        qemu.args(["-chardev", &console, "-serial", "chardev:console"]);
        qemu
    }
}

/// How QEMU ended; none when it had to be killed.
fn wait(qemu: &mut Child, heard: &Heard, limit: Duration) -> Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = qemu.try_wait().context("cannot wait for QEMU")? {
            return Ok(Some(status));
        }
        if heard.since() > limit {
            qemu.kill().context("cannot kill QEMU")?;
            qemu.wait().context("cannot wait for QEMU")?;
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// The command's status, from the guest's `exited 0`.
fn exited(verdict: &str) -> Option<u8> {
    verdict.strip_prefix("exited ")?.parse().ok()
}

fn reason(
    ended: Option<ExitStatus>,
    verdict: Option<&str>,
    console: &str,
    timeout: Duration,
) -> String {
    match (verdict, ended) {
        (Some("daemon silent"), _) => {
            format!("sandboxd did not accept within {DAEMON_START} s")
        }
        (Some(verdict), _) => match verdict.strip_prefix("daemon exited ") {
            Some(status) => format!("sandboxd ended with status {status} before it accepted"),
            None => format!("said `{verdict}`, which means nothing"),
        },
        (None, None) => format!("silent for {} s, killed", timeout.as_secs()),
        (None, Some(_)) if console.contains("Kernel panic") => "its kernel panicked".to_owned(),
        (None, Some(status)) if status.success() => {
            "powered off before the command ended".to_owned()
        }
        (None, Some(status)) => format!("QEMU ended with {status}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_commands_own_status_is_one() {
        assert_eq!(exited("exited 137"), Some(137));
        assert_eq!(exited("daemon exited 1"), None);
        assert_eq!(exited("exited"), None);
    }

    #[test]
    fn a_panic_is_called_one() {
        let console = "Kernel panic - not syncing: Fatal exception";
        let ended = Some(ExitStatus::default());
        let timeout = Duration::from_secs(1);
        assert_eq!(reason(ended, None, console, timeout), "its kernel panicked");
    }
}
