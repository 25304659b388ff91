//! `cargo xtask test`: every check of the project, in groups from the quickest
//! to the slowest, with one line at the end that says how it went.

use std::{
    ffi::OsString,
    io::{self, IsTerminal as _},
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::{
    binaries::{self, Binaries, cargo},
    clients, coverage, demo, fuzz,
    kernel::Kernel,
    outcome::{Listener, Outcome, Tally},
    vm::{Install, Vm},
};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Leave the virtual machines out
    #[arg(long)]
    quick: bool,
    /// Run the long variants of tests too
    #[arg(long)]
    long: bool,
    /// Boot this kernel; all of them without
    #[arg(long, value_enum, value_name = "K")]
    kernel: Vec<Kernel>,
    /// Run the tests whose names contain this, and no other checks
    #[arg(long, value_name = "F")]
    filter: Option<String>,
}

/// What one group came to.
struct Group {
    name: String,
    took: Duration,
    tally: Tally,
    failures: Vec<String>,
}

pub(crate) fn main(arguments: &Arguments) -> Result<ExitCode> {
    let mut groups = Vec::new();
    if arguments.filter.is_none() {
        groups.push(check("format", cargo().args(["fmt", "--all", "--check"]))?);
        groups.push(check("clippy", cargo().args(CLIPPY))?);
        groups.push(check("clippy eBPF", &mut clippy_ebpf())?);
    }
    groups.push(tests("unit", &UNIT, arguments, false)?);
    // Which the native tests start.
    Binaries::build(false)?;
    groups.push(tests("native", &NATIVE, arguments, true)?);
    if !arguments.quick && arguments.filter.is_none() {
        groups.push(fuzz_targets());
    }
    if !arguments.quick {
        groups.extend(virtual_machines(arguments)?);
    }
    report(&groups, arguments)
}

const CLIPPY: [&str; 8] = [
    "clippy",
    "--workspace",
    "--exclude",
    "sandbox-ebpf",
    "--all-targets",
    "--",
    "-D",
    "warnings",
];
const UNIT: [&str; 6] = [
    "test",
    "--workspace",
    "--exclude",
    "sandbox-ebpf",
    "--exclude",
    "sandbox-tests",
];
const NATIVE: [&str; 8] = [
    "test",
    "--package",
    "sandbox-tests",
    "--lib",
    "--test",
    "native",
    "--test",
    "egress",
];

/// Clippy reads the kernel's programs as if they were for this machine: it is
/// of rustup's toolchain, which has no `core` for theirs, and it compiles
/// nothing.
fn clippy_ebpf() -> Command {
    let mut clippy = cargo();
    clippy
        .args(["clippy", "--package", "sandbox-ebpf", "--profile", "ebpf"])
        // Not unwinding needs flags of its own, and so a place of its own.
        .args([
            "--target",
            "host-tuple",
            "--target-dir",
            "target/clippy-ebpf",
        ])
        .args(["--", "-D", "warnings"])
        .env("CARGO_ENCODED_RUSTFLAGS", "-Cpanic=abort")
        .env("RUSTC_BOOTSTRAP", "1");
    clippy
}

/// A group that passes or fails as a whole.
fn check(name: &str, command: &mut Command) -> Result<Group> {
    let start = begin(name);
    let status = command
        .stdin(Stdio::null())
        .status()
        .context("cannot start `cargo`")?;
    Ok(Group {
        name: name.to_owned(),
        took: start.elapsed(),
        tally: Tally::of(status.success()),
        failures: Vec::new(),
    })
}

/// Each fuzz target for a while, as a test.
fn fuzz_targets() -> Group {
    let start = begin("fuzz");
    let (tally, failures) = fuzz::run(fuzz::SECONDS, &[]).unwrap_or_else(|error| {
        println!("{error:#}");
        (Tally::of(false), Vec::new())
    });
    Group {
        name: "fuzz".to_owned(),
        took: start.elapsed(),
        tally,
        failures,
    }
}

/// A group of tests that cargo runs here.
fn tests(name: &str, words: &[&str], arguments: &Arguments, root: bool) -> Result<Group> {
    let start = begin(name);
    let mut command = cargo();
    command.args(words).args(["--no-fail-fast"]);
    command.args(&arguments.filter);
    if arguments.long {
        command.env("SANDBOX_TEST_LONG", "1");
    }
    if root {
        command.env("SANDBOX_TEST_LIBRARIES", clients::libraries()?);
    }
    if root && !nix::unistd::Uid::effective().is_root() {
        command.env(
            "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER",
            "sudo --preserve-env",
        );
    }
    let (ended_well, outcome) = listen(&mut command)?;
    Ok(group(name, start, &outcome, ended_well))
}

fn listen(command: &mut Command) -> Result<(bool, Outcome)> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start `cargo`")?;
    let mut listener = Listener::new("");
    if let Some(mut stdout) = child.stdout.take() {
        io::copy(&mut stdout, &mut listener).context("cannot read what the tests print")?;
    }
    let status = child.wait().context("cannot wait for the tests")?;
    Ok((status.success(), listener.finish()))
}

/// One group a kernel, side by side, each in one boot.
fn virtual_machines(arguments: &Arguments) -> Result<Vec<Group>> {
    let start = begin("build for virtual machines");
    let built = Binaries::build(false).and_then(|binaries| {
        let program = binaries::test_program("vm")?;
        Ok((binaries, program))
    });
    let (binaries, program) = match built {
        Ok(built) => built,
        Err(error) => {
            println!("{error:#}");
            let outcome = Outcome::default();
            return Ok(vec![group("vm", start, &outcome, false)]);
        }
    };
    if let Some(filter) = &arguments.filter
        && !any_matches(&program, filter)?
    {
        return Ok(Vec::new());
    }
    begin("virtual machines");
    let groups = thread::scope(|scope| {
        let running: Vec<_> = Kernel::or_all(&arguments.kernel)
            .into_iter()
            .map(|kernel| {
                let (binaries, program) = (&binaries, &program);
                scope.spawn(move || virtual_machine(kernel, binaries, program, arguments))
            })
            .collect();
        running
            .into_iter()
            .map(|thread| match thread.join() {
                Ok(group) => group,
                Err(panic) => std::panic::resume_unwind(panic),
            })
            .collect()
    });
    Ok(groups)
}

fn virtual_machine(
    kernel: Kernel,
    binaries: &Binaries,
    program: &Path,
    arguments: &Arguments,
) -> Group {
    let start = Instant::now();
    if coverage::to_be_updated()
        && let Err(error) = coverage::update(kernel, binaries, program)
    {
        println!("[{}] {error:#}", kernel.name());
        let outcome = Outcome::default();
        return group(&format!("kernel {}", kernel.name()), start, &outcome, false);
    }
    let name = program.file_name().unwrap_or_default();
    let mut command = vec![PathBuf::from("/mnt/put").join(name).into_os_string()];
    command.extend(arguments.filter.iter().map(OsString::from));
    let mut environment = vec![("RUST_BACKTRACE".to_owned(), "1".to_owned())];
    if arguments.long {
        environment.push(("SANDBOX_TEST_LONG".to_owned(), "1".to_owned()));
    }
    let vm = Vm {
        install: Install::Running(binaries),
        put: vec![
            program.to_owned(),
            demo::directory(),
            demo::proto(),
            coverage::directory(),
        ],
        environment,
        ..Vm::new(kernel)
    };
    let label = format!("[{}] ", kernel.name());
    let stdout = Listener::new(&label);
    let stderr = Listener::new(&label);
    let status = vm.stream(&command, stdout.clone(), stderr.clone());
    stderr.finish();
    let outcome = stdout.finish();
    let ended_well = match status {
        Ok(status) => status == 0,
        Err(error) => {
            println!("{label}{error:#}");
            false
        }
    };
    group(
        &format!("kernel {}", kernel.name()),
        start,
        &outcome,
        ended_well,
    )
}

/// Whether the test program has a test of such a name: a boot for none is
/// spared.
fn any_matches(program: &Path, filter: &str) -> Result<bool> {
    let output = Command::new(program)
        .args(["--list", filter])
        .output()
        .with_context(|| format!("cannot start `{}`", program.display()))?;
    let list = String::from_utf8_lossy(&output.stdout);
    Ok(list.lines().any(|line| line.ends_with(": test")))
}

fn group(name: &str, start: Instant, outcome: &Outcome, ended_well: bool) -> Group {
    Group {
        name: name.to_owned(),
        took: start.elapsed(),
        tally: outcome.tally(ended_well),
        failures: outcome.failures().to_vec(),
    }
}

fn begin(name: &str) -> Instant {
    if io::stdout().is_terminal() {
        println!("\x1b[1m=== {name}\x1b[0m");
    } else {
        println!("=== {name}");
    }
    Instant::now()
}

fn report(groups: &[Group], arguments: &Arguments) -> Result<ExitCode> {
    begin("summary");
    let mut sum = Tally::default();
    for group in groups {
        sum += group.tally;
        println!(
            "{:<12} {:>7.1} s  {}",
            group.name,
            group.took.as_secs_f64(),
            group.tally
        );
        for name in &group.failures {
            println!("{:<12} failed: {name}", "");
        }
    }
    if let Some(filter) = &arguments.filter
        && sum == Tally::default()
    {
        bail!("no test is named like `{filter}`");
    }
    println!("{sum}");
    Ok(if sum.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
