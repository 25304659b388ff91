//! The session keyring, which a child inherits.

use std::io;

use super::check;

const JOIN_SESSION_KEYRING: libc::c_long = 1;

/// Gives the calling thread a new, empty session keyring in place of the one
/// it inherited. A kernel without keyrings has none to hand on.
pub fn join_new_session_keyring() -> io::Result<()> {
    // SAFETY: a null name asks for an anonymous keyring; no memory is touched.
    let result = check(unsafe {
        libc::syscall(
            libc::SYS_keyctl,
            JOIN_SESSION_KEYRING,
            std::ptr::null::<libc::c_char>(),
        )
    });
    match result {
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => Ok(()),
        other => other.map(drop),
    }
}
