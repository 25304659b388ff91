//! What an attacker does beside files and the network.

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read as _},
    os::fd::AsRawFd as _,
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
        ("clone-into", [cgroup]) => clone_into(cgroup),
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

/// A child in another cgroup.
fn clone_into(cgroup: &OsStr) -> Found {
    const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
    let cgroup = File::open(cgroup).map_err(|error| super::errno(&error))?;
    // SAFETY: all zeroes is a valid clone_args, which is plain data.
    let mut clone: libc::clone_args = unsafe { std::mem::zeroed() };
    clone.flags = CLONE_INTO_CGROUP;
    clone.exit_signal = Signal::SIGCHLD as u64;
    clone.cgroup = u64::try_from(cgroup.as_raw_fd()).map_err(|_| Errno::EBADF)?;
    // SAFETY: as fork(2), for a program that has one thread; `clone` outlives it.
    let pid = unsafe {
        libc::syscall(
            libc::SYS_clone3,
            &raw mut clone,
            size_of::<libc::clone_args>(),
        )
    };
    match Errno::result(pid)? {
        0 => process::exit(0),
        _ => nix::sys::wait::wait().and(NONE),
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
