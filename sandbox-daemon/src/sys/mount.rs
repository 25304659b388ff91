//! Mounts by descriptor (Linux 5.2), where no path can be swapped under us.

use std::{
    ffi::CString,
    io,
    os::{
        fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

use super::check;

const EMPTY: &std::ffi::CStr = c"";

/// A detached copy of the mount tree below an `O_PATH` descriptor, which must
/// have been opened in this thread's mount namespace.
pub fn clone_tree(place: impl AsFd) -> io::Result<OwnedFd> {
    let flags = libc::OPEN_TREE_CLONE
        | libc::OPEN_TREE_CLOEXEC
        | (libc::AT_EMPTY_PATH | libc::AT_RECURSIVE).cast_unsigned();
    let place = place.as_fd().as_raw_fd();
    // SAFETY: the path is a NUL-terminated constant, `place` is open.
    let fd = check(unsafe { libc::syscall(libc::SYS_open_tree, place, EMPTY.as_ptr(), flags) })?;
    let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made this descriptor and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Attaches a detached tree at `place`.
pub fn attach_tree(tree: impl AsFd, place: &Path) -> io::Result<()> {
    let place = CString::new(place.as_os_str().as_bytes())?;
    let tree = tree.as_fd().as_raw_fd();
    // SAFETY: both paths are NUL-terminated and outlive the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            tree,
            EMPTY.as_ptr(),
            libc::AT_FDCWD,
            place.as_ptr(),
            libc::MOVE_MOUNT_F_EMPTY_PATH,
        )
    })
    .map(drop)
}
