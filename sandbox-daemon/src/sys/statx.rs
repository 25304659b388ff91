//! statx(2) on a descriptor, mostly for its side effect: the kernel asks its
//! security modules about the file.

use std::{
    io, mem,
    os::fd::{AsFd, AsRawFd as _},
};

use nix::sys::stat::SFlag;

/// The type of the file that a descriptor names, `O_PATH` ones included,
/// without asking a file system's server. Linux 4.11.
pub fn stat(file: impl AsFd) -> io::Result<SFlag> {
    // SAFETY: all-zero is a valid `statx`; the path is empty and the buffer ours.
    let (result, mode) = unsafe {
        let mut buffer: libc::statx = mem::zeroed();
        let result = libc::statx(
            file.as_fd().as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC,
            libc::STATX_TYPE,
            &raw mut buffer,
        );
        (result, buffer.stx_mode)
    };
    if result == 0 {
        Ok(SFlag::from_bits_truncate(mode.into()) & SFlag::S_IFMT)
    } else {
        Err(io::Error::last_os_error())
    }
}
