//! Sockets of any kind, and sockets that are made first and used later.

use std::{
    ffi::OsStr,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
};

use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, connect, listen, socket,
    },
};

use super::{Found, Kept, network::address, number, text};

const NONE: Result<String, Errno> = Ok(String::new());

pub(super) fn perform(kept: &mut Kept, operation: &str, arguments: &[&OsStr]) -> Option<Found> {
    Some(match (operation, arguments) {
        ("socket", [family, kind, protocol]) => {
            any(number(family), number(kind), number(protocol)).and(NONE)
        }
        ("make-socket", [name, kind]) => make(text(kind)).and_then(|socket| {
            kept.descriptors.insert(text(name).to_owned(), socket);
            NONE
        }),
        ("connect-socket", [name, to]) => with(kept, text(name), |socket| {
            connect(socket.as_raw_fd(), &SockaddrStorage::from(address(to)))
        }),
        ("disconnect-socket", [name]) => with(kept, text(name), disconnect),
        ("bind-socket", [name, at]) => with(kept, text(name), |socket| {
            bind(socket.as_raw_fd(), &SockaddrStorage::from(address(at)))
        }),
        ("listen-socket", [name]) => {
            with(kept, text(name), |socket| listen(socket, Backlog::new(1)?))
        }
        _ => return None,
    })
}

/// By numbers, for what nix has no name for.
fn any(family: i32, kind: i32, protocol: i32) -> Result<OwnedFd, Errno> {
    // SAFETY: without pointers, and what comes is a new descriptor.
    unsafe {
        let socket = libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol);
        Errno::result(socket).map(|socket| OwnedFd::from_raw_fd(socket))
    }
}

fn make(kind: &str) -> Result<OwnedFd, Errno> {
    let kind = match kind {
        "tcp" => SockType::Stream,
        _ => SockType::Datagram,
    };
    socket(AddressFamily::Inet, kind, SockFlag::SOCK_CLOEXEC, None)
}

fn with(kept: &Kept, name: &str, act: impl FnOnce(&OwnedFd) -> Result<(), Errno>) -> Found {
    kept.descriptors
        .get(name)
        .ok_or(Errno::EBADF)
        .and_then(act)
        .and(NONE)
}

/// connect(2) to no family.
fn disconnect(socket: &OwnedFd) -> Result<(), Errno> {
    let nowhere = libc::sockaddr {
        sa_family: 0,
        sa_data: [0; 14],
    };
    let length = libc::socklen_t::try_from(size_of_val(&nowhere)).map_err(|_| Errno::EINVAL)?;
    // SAFETY: `nowhere` is valid for its length, which is passed along.
    let result = unsafe { libc::connect(socket.as_raw_fd(), &raw const nowhere, length) };
    Errno::result(result).map(drop)
}
