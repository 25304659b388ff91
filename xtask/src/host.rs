//! Running this machine's programs, saying which one failed.

use std::{
    ffi::OsStr,
    io::IsTerminal as _,
    process::{Command, Output, Stdio},
};

use anyhow::{Context as _, Result, bail};

/// A command that needs root: through sudo where this process is not.
pub(crate) fn as_root(program: impl AsRef<OsStr>) -> Command {
    if nix::unistd::Uid::effective().is_root() {
        Command::new(program)
    } else {
        let mut command = Command::new("sudo");
        command.arg(program);
        command
    }
}

/// Runs to the end with its output on standard error, where progress belongs.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command
        .stdin(Stdio::null())
        .stdout(std::io::stderr())
        .status()
        .with_context(|| cannot_start(command))?;
    if !status.success() {
        bail!("`{}` failed with {status}", name(command));
    }
    Ok(())
}

/// Like [`run`], but quiet, and with the output in the error, where standard
/// error is not a terminal.
pub(crate) fn run_with_progress(command: &mut Command) -> Result<()> {
    if std::io::stderr().is_terminal() {
        run(command)
    } else {
        capture(command).map(|_| ())
    }
}

/// Runs to the end and returns standard output.
pub(crate) fn capture(command: &mut Command) -> Result<String> {
    let Output {
        status,
        stdout,
        stderr,
    } = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| cannot_start(command))?;
    let stdout = String::from_utf8_lossy(&stdout).into_owned();
    if !status.success() {
        let said = [String::from_utf8_lossy(&stderr).trim(), stdout.trim()].join("\n");
        bail!(
            "`{}` failed with {status}:\n{}",
            name(command),
            tail(&said, 40)
        );
    }
    Ok(stdout)
}

/// Whether a program of this name is on the path.
pub(crate) fn has(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
    })
}

/// The last `count` lines.
pub(crate) fn tail(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

fn name(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy()];
    words.extend(command.get_args().map(|word| word.to_string_lossy()));
    words.truncate(4);
    words.join(" ")
}

fn cannot_start(command: &Command) -> String {
    format!("cannot start `{}`", command.get_program().display())
}
