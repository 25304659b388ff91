//! Pseudo-terminals by descriptor: no path under `/dev/pts` is trusted.

use std::{
    fs::{File, OpenOptions},
    io,
    os::{
        fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd},
        unix::fs::OpenOptionsExt as _,
    },
};

use super::check;

/// Opens a new pseudo-terminal's master side.
pub fn open_master() -> io::Result<OwnedFd> {
    let master: File = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NOCTTY)
        .open("/dev/ptmx")?;
    let unlock: libc::c_int = 0;
    // SAFETY: TIOCSPTLCK reads one int, which outlives the call.
    check(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK, &raw const unlock) }.into())?;
    Ok(master.into())
}

/// Opens the slave side that belongs to this master (Linux 4.13).
pub fn open_slave(master: impl AsFd) -> io::Result<OwnedFd> {
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    let master = master.as_fd().as_raw_fd();
    // SAFETY: TIOCGPTPEER takes its flags by value.
    let fd = check(unsafe { libc::ioctl(master, libc::TIOCGPTPEER, flags) }.into())?;
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made this descriptor and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets the size in cells; the foreground process group gets SIGWINCH.
pub fn set_window_size(terminal: impl AsFd, rows: u16, columns: u16) -> io::Result<()> {
    let size = libc::winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let terminal = terminal.as_fd().as_raw_fd();
    // SAFETY: TIOCSWINSZ reads one winsize, which outlives the call.
    check(unsafe { libc::ioctl(terminal, libc::TIOCSWINSZ, &raw const size) }.into()).map(drop)
}
