//! What an attacker does beside files and the network.

use std::{
    ffi::OsStr,
    io::{self, Read as _},
    process, thread,
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::signal::{Signal, raise},
    unistd::{ForkResult, fork, pause, setsid},
};

use super::{Found, number, text};

const NONE: Result<String, Errno> = Ok(String::new());

pub(super) fn perform(operation: &str, arguments: &[&OsStr]) -> Option<Found> {
    Some(match (operation, arguments) {
        ("say", [what]) => Ok(text(what).to_owned()),
        ("cwd", []) => std::env::current_dir()
            .map(|path| path.display().to_string())
            .map_err(|error| super::errno(&error)),
        ("env", []) => {
            let names: Vec<_> = std::env::vars_os().map(|(name, _)| name).collect();
            Ok(names.join(OsStr::new(" ")).display().to_string())
        }
        ("pid", []) => Ok(process::id().to_string()),
        // Until whoever started this says something.
        ("wait", []) => {
            let mut byte = [0];
            match io::stdin().read(&mut byte) {
                Ok(1) => NONE,
                Ok(_) => Err(Errno::EPIPE),
                Err(error) => Err(super::errno(&error)),
            }
        }
        ("stay", []) => loop {
            pause();
        },
        ("exit", [code]) => process::exit(number(code)),
        ("signal", [signal]) => Signal::try_from(number::<i32>(signal))
            .and_then(raise)
            .and(NONE),
        ("escape", []) => escape(),
        ("child", []) => child(),
        _ => return None,
    })
}

/// Leaves session, group and parent, ignores what can be ignored, and stays.
fn escape() -> Found {
    let (mut reader, writer) = io::pipe().map_err(|error| super::errno(&error))?;
    // SAFETY: this program has one thread.
    if let ForkResult::Parent { child } = unsafe { fork() }? {
        drop(writer);
        nix::sys::wait::waitpid(child, None)?;
        let mut pid = String::new();
        reader
            .read_to_string(&mut pid)
            .map_err(|error| super::errno(&error))?;
        return Ok(pid);
    }
    setsid()?;
    // SAFETY: as above.
    if let ForkResult::Parent { .. } = unsafe { fork() }? {
        process::exit(0);
    }
    for signal in [Signal::SIGHUP, Signal::SIGTERM, Signal::SIGINT] {
        // SAFETY: ignoring a signal runs no code of ours.
        unsafe {
            nix::sys::signal::signal(signal, nix::sys::signal::SigHandler::SigIgn)?;
        }
    }
    nix::unistd::write(&writer, process::id().to_string().as_bytes())?;
    drop(writer);
    loop {
        thread::sleep(Duration::from_secs(1000));
    }
}

/// A child that stays as long as it can.
fn child() -> Found {
    // SAFETY: this program has one thread.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => Ok(child.to_string()),
        ForkResult::Child => loop {
            pause();
        },
    }
}
