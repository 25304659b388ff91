//! The attacker: this program started as `vm --attack STEP , STEP ...`, inside
//! a sandbox and, for the control, outside. Each step is an operation and its
//! arguments and answers with one line: `ok`, perhaps with what was found, or
//! the name of the error.

mod control;
mod files;
mod kernel;
mod network;
mod processes;
mod repeat;
mod scope;
mod serve;
mod sockets;
mod unix;

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    io::{self, Write as _},
    os::fd::OwnedFd,
    process::ExitCode,
};

use nix::errno::Errno;

use crate::coverage::uring::Ring;

/// The argument that makes an attacker of this program.
pub(crate) const ARGUMENT: &str = "--attack";

/// Between two steps.
pub(crate) const THEN: &str = ",";

/// What a step finds.
type Found = Result<String, Errno>;

/// What steps keep for later ones.
#[derive(Default)]
struct Kept {
    descriptors: HashMap<String, OwnedFd>,
    /// And the credentials that it has kept.
    ring: Option<(Ring, u16)>,
}

/// Performs the steps of the command line.
pub(crate) fn main(arguments: &[OsString]) -> ExitCode {
    let mut kept = Kept::default();
    for step in arguments.split(|argument| argument == THEN) {
        let Some((operation, arguments)) = step.split_first() else {
            continue;
        };
        let operation = operation.to_str().unwrap_or_default();
        let arguments: Vec<&OsStr> = arguments.iter().map(OsString::as_os_str).collect();
        let line = match perform(&mut kept, operation, &arguments) {
            Ok(found) if found.is_empty() => "ok".to_owned(),
            Ok(found) => format!("ok {found}"),
            Err(errno) => format!("{errno:?}"),
        };
        if writeln!(io::stdout(), "{line}").is_err() {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn perform(kept: &mut Kept, operation: &str, arguments: &[&OsStr]) -> Found {
    files::perform(kept, operation, arguments)
        .or_else(|| control::perform(operation, arguments))
        .or_else(|| network::perform(operation, arguments))
        .or_else(|| processes::perform(operation, arguments))
        .or_else(|| serve::perform(kept, operation, arguments))
        .or_else(|| sockets::perform(kept, operation, arguments))
        .or_else(|| unix::perform(kept, operation, arguments))
        .or_else(|| scope::perform(operation, arguments))
        .or_else(|| kernel::perform(kept, operation, arguments))
        .or_else(|| repeat::perform(kept, operation, arguments))
        .unwrap_or_else(|| panic!("no step `{operation}` takes {} arguments", arguments.len()))
}

/// An error of the standard library as the kernel's.
fn errno(error: &io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(0))
}

fn text(argument: &OsStr) -> &str {
    argument.to_str().unwrap_or_default()
}

fn number<T: std::str::FromStr>(argument: &OsStr) -> T {
    text(argument)
        .parse()
        .unwrap_or_else(|_| panic!("`{}` is no number", argument.display()))
}
