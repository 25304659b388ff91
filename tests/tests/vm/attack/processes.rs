//! What an attacker does beside files and the network.

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read as _},
    os::fd::AsRawFd as _,
    path::Path,
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
        ("sibling", []) => sibling().and(NONE),
        ("sibling-of-a-child", []) => sibling_of_a_child(),
        ("open-in-thread", [path]) => open_in_thread(Path::new(path)),
        ("map", [path]) => map(Path::new(path)),
        ("headless-child", []) => headless_child(),
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

/// Gives whoever started this process another child, which ends at once.
fn sibling() -> Result<i64, Errno> {
    let flags = libc::CLONE_PARENT;
    // SAFETY: as fork(2), for a program that has one thread.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    match Errno::result(pid)? {
        0 => process::exit(0),
        pid => Ok(pid),
    }
}

/// Both are this process's own.
fn sibling_of_a_child() -> Found {
    // SAFETY: this program has one thread.
    let ForkResult::Parent { child } = unsafe { fork() }? else {
        process::exit(i32::from(sibling().is_err()));
    };
    let mut failed = false;
    for _ in 0..2 {
        let status = nix::sys::wait::wait()?;
        failed |= status == nix::sys::wait::WaitStatus::Exited(child, 1);
    }
    if failed { Err(Errno::EPERM) } else { NONE }
}

/// A file that a thread with descriptors of its own has open for writing.
fn open_in_thread(path: &Path) -> Found {
    let (done, opened) = std::sync::mpsc::channel();
    let path = path.to_owned();
    thread::spawn(move || {
        let file = nix::sched::unshare(nix::sched::CloneFlags::CLONE_FILES).and_then(|()| {
            File::options()
                .append(true)
                .open(path)
                .map_err(|it| super::errno(&it))
        });
        let _ = done.send(file.as_ref().map(drop).map_err(|errno| *errno));
        loop {
            thread::park();
        }
    });
    opened.recv().unwrap_or(Err(Errno::EPIPE)).and(NONE)
}

/// A file that is mapped for reading, may be for writing, and is not open any
/// more.
fn map(path: &Path) -> Found {
    let file = File::options().read(true).write(true).open(path);
    let file = file.map_err(|error| super::errno(&error))?;
    let (read, shared, fd) = (libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd());
    // SAFETY: a new mapping that nobody uses.
    let mapping = unsafe { libc::mmap(std::ptr::null_mut(), 1, read, shared, fd, 0) };
    if mapping == libc::MAP_FAILED {
        return Err(Errno::last());
    }
    NONE
}

/// A child whose first thread has ended, and whose second one stays.
fn headless_child() -> Found {
    // SAFETY: this program has one thread.
    let ForkResult::Parent { child } = unsafe { fork() }? else {
        thread::spawn(|| {
            loop {
                pause();
            }
        });
        // SAFETY: exit(2), not that of libc: it ends this thread alone.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
        unreachable!("this thread has ended");
    };
    while !std::fs::read_to_string(format!("/proc/{child}/stat"))
        .is_ok_and(|stat| stat.contains(") Z "))
    {
        thread::sleep(Duration::from_millis(10));
    }
    Ok(child.to_string())
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
