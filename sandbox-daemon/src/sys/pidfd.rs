//! Processes by descriptor: a pidfd keeps naming the process it was opened
//! for, whatever becomes of its number.

use std::{
    io, mem,
    os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
};

use super::check;

/// How a process ended, as wait(2) has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitStatus {
    /// It called exit with this code.
    Code(u8),
    /// This signal ended it.
    Signal(i32),
}

/// Opens a descriptor for a process (Linux 5.3).
pub fn pidfd_open(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: plain integers; the kernel touches no memory of ours.
    let fd = check(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    own(fd)
}

/// Copies descriptor `fd` of another process (Linux 5.6). The copy is
/// close-on-exec.
pub fn pidfd_getfd(pidfd: impl AsFd, fd: RawFd) -> io::Result<OwnedFd> {
    let pidfd = pidfd.as_fd().as_raw_fd();
    // SAFETY: plain integers; `pidfd` is open for the length of the call.
    let fd = check(unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd, fd, 0) })?;
    own(fd)
}

/// Sends a signal (Linux 5.1); 0 only asks whether the process is there.
pub fn pidfd_send_signal(pidfd: impl AsFd, signal: i32) -> io::Result<()> {
    let pidfd = pidfd.as_fd().as_raw_fd();
    // SAFETY: plain integers and a null siginfo, which the call allows.
    check(unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd,
            signal,
            std::ptr::null::<libc::siginfo_t>(),
            0,
        )
    })
    .map(drop)
}

/// The exit status of a child of ours, if it has ended; reaps it then.
pub fn try_reap(pidfd: impl AsFd) -> io::Result<Option<ExitStatus>> {
    wait_for(pidfd, libc::WEXITED | libc::WNOHANG)
}

/// Waits for a child of ours to end and reaps it.
pub fn reap(pidfd: impl AsFd) -> io::Result<ExitStatus> {
    loop {
        match wait_for(&pidfd, libc::WEXITED) {
            Ok(Some(status)) => return Ok(status),
            Ok(None) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

// `nix` has no name for a real-time signal and would lose such a status.
fn wait_for(pidfd: impl AsFd, flags: i32) -> io::Result<Option<ExitStatus>> {
    let pidfd = pidfd.as_fd().as_raw_fd();
    let id = libc::id_t::try_from(pidfd).map_err(io::Error::other)?;
    // SAFETY: all zeroes is a valid siginfo_t, which is plain data.
    let mut info: libc::siginfo_t = unsafe { mem::zeroed() };
    // SAFETY: `info` outlives the call, which writes nothing else.
    check(unsafe { libc::waitid(libc::P_PIDFD, id, &raw mut info, flags) }.into())?;
    // SAFETY: waitid filled these, or left them zero if nothing has ended.
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    Ok(match (pid, info.si_code) {
        (0, _) => None,
        // The kernel keeps the low eight bits of an exit code.
        (_, libc::CLD_EXITED) => Some(ExitStatus::Code(status.to_le_bytes()[0])),
        _ => Some(ExitStatus::Signal(status)),
    })
}

fn own(fd: libc::c_long) -> io::Result<OwnedFd> {
    let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made this descriptor and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
