//! What a socket is known by.

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd},
};

use super::check;

/// `SO_COOKIE`: a number that no other socket has until the next boot. Linux
/// 4.12.
pub fn socket_cookie(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut cookie = 0_u64;
    let mut size = libc::socklen_t::try_from(size_of::<u64>()).unwrap_or(8);
    // SAFETY: `cookie` has `size` bytes.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut size,
        )
    };
    check(answer.into())?;
    Ok(cookie)
}
