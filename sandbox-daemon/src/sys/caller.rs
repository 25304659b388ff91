//! What the client needs of the terminal and the descriptors it was given.

use std::{
    io,
    os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
};

/// A terminal's size in cells: rows, columns.
pub fn window_size(terminal: impl AsFd) -> io::Result<(u16, u16)> {
    let mut size = libc::winsize {
        ws_row: 0,
        ws_col: 0,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let terminal = terminal.as_fd().as_raw_fd();
    // SAFETY: TIOCGWINSZ writes one winsize, which outlives the call.
    if unsafe { libc::ioctl(terminal, libc::TIOCGWINSZ, &raw mut size) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((size.ws_row, size.ws_col))
}

/// A duplicate, closed on exec, of a descriptor that is known by number only.
pub fn duplicate(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: F_DUPFD_CLOEXEC touches no memory of this process; a number
    // that is not open is EBADF.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_not_open_is_an_error() {
        let error = duplicate(123_456).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBADF));
        assert!(duplicate(2).is_ok());
    }

    #[test]
    fn only_a_terminal_has_a_window() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(window_size(file).is_err());
    }
}
