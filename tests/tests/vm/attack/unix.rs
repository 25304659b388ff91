//! Unix sockets, and descriptors that are sent over them.

use std::{
    ffi::OsStr,
    io::{IoSlice, IoSliceMut},
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
};

use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, Backlog, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType,
        UnixAddr, accept, bind, connect, getpeername, listen, recv, recvmsg, send, sendmsg, sendto,
        socket, socketpair,
    },
    unistd::{ForkResult, fork, pipe},
};

use super::{Found, Kept, text};

const NONE: Result<String, Errno> = Ok(String::new());
const MARKER: &[u8] = b"marker";

pub(super) fn perform(kept: &mut Kept, operation: &str, arguments: &[&OsStr]) -> Option<Found> {
    Some(match (operation, arguments) {
        ("unix", [kind, name]) => reach(kind_of(kind), text(name)),
        ("unix-send", [name]) => open(SockType::Datagram).and_then(|it| {
            sendto(
                it.as_raw_fd(),
                MARKER,
                &named(text(name))?,
                MsgFlags::empty(),
            )
            .and(NONE)
        }),
        ("unix-listen", [keep, name]) => open(SockType::Stream).and_then(|it| {
            bind(it.as_raw_fd(), &named(text(name))?)?;
            listen(&it, Backlog::new(16)?)?;
            if !text(name).starts_with('@') {
                let mode = std::os::unix::fs::PermissionsExt::from_mode(0o666);
                std::fs::set_permissions(name, mode).map_err(|error| super::errno(&error))?;
            }
            kept.descriptors.insert(text(keep).to_owned(), it);
            NONE
        }),
        ("unix-own", [kind, name]) => own(kind_of(kind), text(name)),
        ("unix-pair", [kind]) => pair(kind_of(kind)),
        ("unix-pass", [what]) => pass(text(what)),
        ("unix-receive", [name]) => receive_from(text(name)),
        ("unix-hand-over", [name, what]) => hand_over(text(name), text(what)),
        _ => return None,
    })
}

fn kind_of(kind: &OsStr) -> SockType {
    match text(kind) {
        "stream" => SockType::Stream,
        "seqpacket" => SockType::SeqPacket,
        _ => SockType::Datagram,
    }
}

fn open(kind: SockType) -> Result<OwnedFd, Errno> {
    socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC, None)
}

/// A path, or an abstract name after an `@`.
fn named(name: &str) -> Result<UnixAddr, Errno> {
    match name.strip_prefix('@') {
        Some(name) => UnixAddr::new_abstract(name.as_bytes()),
        None => UnixAddr::new(name),
    }
}

/// Connects, and says something.
fn reach(kind: SockType, name: &str) -> Found {
    let socket = open(kind)?;
    connect(socket.as_raw_fd(), &named(name)?)?;
    send(socket.as_raw_fd(), MARKER, MsgFlags::empty()).and(NONE)
}

fn own(kind: SockType, name: &str) -> Found {
    let server = open(kind)?;
    if !name.starts_with('@') {
        let _ = std::fs::remove_file(name);
    }
    bind(server.as_raw_fd(), &named(name)?)?;
    if kind != SockType::Datagram {
        listen(&server, Backlog::new(1)?)?;
    }
    reach(kind, name)?;
    let mut heard = [0; 16];
    let length = if kind == SockType::Datagram {
        recv(server.as_raw_fd(), &mut heard, MsgFlags::empty())?
    } else {
        let accepted = accept(server.as_raw_fd())?;
        // SAFETY: it is new.
        let accepted = unsafe { OwnedFd::from_raw_fd(accepted) };
        recv(accepted.as_raw_fd(), &mut heard, MsgFlags::empty())?
    };
    if heard[..length] == *MARKER {
        NONE
    } else {
        Err(Errno::EPROTO)
    }
}

fn pair(kind: SockType) -> Found {
    let (one, other) = socketpair(AddressFamily::Unix, kind, None, SockFlag::SOCK_CLOEXEC)?;
    send(one.as_raw_fd(), MARKER, MsgFlags::empty())?;
    let mut heard = [0; 16];
    let length = recv(other.as_raw_fd(), &mut heard, MsgFlags::empty())?;
    if heard[..length] == *MARKER {
        NONE
    } else {
        Err(Errno::EPROTO)
    }
}

fn give(socket: RawFd, descriptor: RawFd) -> Result<(), Errno> {
    let data = [IoSlice::new(MARKER)];
    let descriptors = [descriptor];
    let rights = [ControlMessage::ScmRights(&descriptors)];
    sendmsg::<()>(socket, &data, &rights, MsgFlags::empty(), None).map(drop)
}

/// What arrives: a descriptor, or `nothing` where it was cut off.
fn get(socket: RawFd) -> Result<Option<OwnedFd>, Errno> {
    let mut bytes = [0; 16];
    let mut data = [IoSliceMut::new(&mut bytes)];
    let mut space = nix::cmsg_space!(RawFd);
    let message = recvmsg::<()>(socket, &mut data, Some(&mut space), MsgFlags::empty())?;
    if message.flags.contains(MsgFlags::MSG_CTRUNC) {
        return Ok(None);
    }
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(descriptors) = control
            && let Some(&descriptor) = descriptors.first()
        {
            // SAFETY: it is new.
            return Ok(Some(unsafe { OwnedFd::from_raw_fd(descriptor) }));
        }
    }
    Err(Errno::ENODATA)
}

/// Something of one's own, to a child.
fn pass(what: &str) -> Found {
    let (ours, theirs) = socketpair(
        AddressFamily::Unix,
        SockType::Stream,
        None,
        SockFlag::SOCK_CLOEXEC,
    )?;
    // SAFETY: this program has one thread.
    if let ForkResult::Child = unsafe { fork() }? {
        let sent = object(what).and_then(|it| give(theirs.as_raw_fd(), it.as_raw_fd()));
        std::process::exit(i32::from(sent.is_err()));
    }
    drop(theirs);
    let got = get(ours.as_raw_fd())?;
    nix::sys::wait::wait()?;
    got.map_or(Err(Errno::EACCES), |_| NONE)
}

fn object(what: &str) -> Result<OwnedFd, Errno> {
    match what {
        "tcp" => socket(
            AddressFamily::Inet,
            SockType::Stream,
            SockFlag::SOCK_CLOEXEC,
            None,
        ),
        "unix" => open(SockType::Stream),
        _ => pipe().map(|(reader, _)| reader),
    }
}

/// Something that a server sends; then it is used.
fn receive_from(name: &str) -> Found {
    let socket = open(SockType::Stream)?;
    connect(socket.as_raw_fd(), &named(name)?)?;
    let Some(received) = get(socket.as_raw_fd())? else {
        return Ok("nothing".into());
    };
    // What is connected says to whom.
    match getpeername::<nix::sys::socket::SockaddrStorage>(received.as_raw_fd()) {
        Ok(_) => Ok("a connection".into()),
        Err(Errno::ENOTSOCK) => Ok("a file".into()),
        Err(_) => Ok("a socket".into()),
    }
}

/// Something of one's own, to a server.
fn hand_over(name: &str, what: &str) -> Found {
    let socket = open(SockType::Stream)?;
    connect(socket.as_raw_fd(), &named(name)?)?;
    give(socket.as_raw_fd(), object(what)?.as_raw_fd()).and(NONE)
}
