//! Servers on this machine, and who talks to them.

use std::{
    ffi::OsStr,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::{AsRawFd as _, FromRawFd as _, IntoRawFd as _, OwnedFd},
    process, thread,
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::{
        socket::{
            AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, connect,
            getsockname, listen, recv, send, setsockopt, socket, sockopt,
        },
        wait::waitpid,
    },
    unistd::{ForkResult, fork},
};

use super::{Found, Kept, errno, network::address, text};

/// What is said over a connection.
const GREETING: &[u8] = b"hello";

pub(super) fn perform(kept: &mut Kept, operation: &str, arguments: &[&OsStr]) -> Option<Found> {
    Some(match (operation, arguments) {
        ("tcp-own", [at, to]) => own(address(at), address(to)),
        ("tcp-own-by-a-child", [at, to]) => by_a_child(address(at), address(to)),
        ("tcp-own-unbound", [to]) => unbound(address(to)),
        ("udp-own", [at, to]) => datagrams(address(at), address(to), false),
        ("udp-own-connected", [at, to]) => datagrams(address(at), address(to), true),
        ("tcp-listen", [name, at]) => tcp_listen(kept, text(name), address(at)),
        ("tcp-listen-shared", [name, at]) => {
            shared(kept, text(name), SockType::Stream, address(at))
        }
        ("udp-bind-shared", [name, at]) => {
            shared(kept, text(name), SockType::Datagram, address(at))
        }
        ("tcp-accept", [name]) => accept(kept, text(name)),
        ("udp-bind", [name, at]) => udp_bind(kept, text(name), address(at)),
        ("udp-receive", [name]) => receive(kept, text(name)),
        ("bind", [kind, at]) => take(text(kind), address(at), &[]),
        ("bind-reuse-port", [kind, at]) => take(text(kind), address(at), &[reuse_port]),
        ("bind-reuse-address", [kind, at]) => take(text(kind), address(at), &[reuse_address]),
        ("listen-unbound", []) => open(AddressFamily::Inet, SockType::Stream)
            .and_then(|it| listen(&it, Backlog::new(1)?))
            .map(|()| String::new()),
        ("udp-connect-only", [to]) => open(family(&address(to)), SockType::Datagram)
            .and_then(|it| connect(it.as_raw_fd(), &SockaddrStorage::from(address(to))))
            .map(|()| String::new()),
        _ => return None,
    })
}

fn family(address: &SocketAddr) -> AddressFamily {
    if address.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    }
}

fn open(family: AddressFamily, kind: SockType) -> Result<OwnedFd, Errno> {
    socket(family, kind, SockFlag::SOCK_CLOEXEC, None)
}

fn listener(at: SocketAddr) -> Result<TcpListener, Errno> {
    TcpListener::bind(at).map_err(|error| errno(&error))
}

/// Connects to what `listener` accepts, and says something in both directions.
fn converse(listener: TcpListener, to: SocketAddr) -> Found {
    let server = thread::spawn(move || -> std::io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        let mut heard = [0; GREETING.len()];
        stream.read_exact(&mut heard)?;
        stream.write_all(&heard)
    });
    let greet = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect(to)?;
        stream.write_all(GREETING)?;
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard)?;
        Ok(heard == GREETING)
    };
    // Where that fails the server waits for ever; it ends with this program.
    match greet() {
        Ok(true) => {
            let _ = server.join();
            Ok(String::new())
        }
        Ok(false) => Err(Errno::EPROTO),
        Err(error) => Err(errno(&error)),
    }
}

fn own(at: SocketAddr, to: SocketAddr) -> Found {
    converse(listener(at)?, to)
}

/// The listener is made by a child, which this process inherits nothing of.
fn by_a_child(at: SocketAddr, to: SocketAddr) -> Found {
    let (mut ready, signal) = std::io::pipe().map_err(|error| errno(&error))?;
    // SAFETY: this program has one thread, or others that hold no lock.
    match unsafe { fork() }? {
        ForkResult::Child => {
            drop(ready);
            let Ok(listener) = listener(at) else {
                process::exit(1);
            };
            drop(signal);
            if let Ok((mut stream, _)) = listener.accept() {
                let mut heard = [0; GREETING.len()];
                let _ = stream.read_exact(&mut heard);
                let _ = stream.write_all(&heard);
            }
            process::exit(0);
        }
        ForkResult::Parent { child } => {
            drop(signal);
            let mut nothing = Vec::new();
            ready
                .read_to_end(&mut nothing)
                .map_err(|error| errno(&error))?;
            let mut stream = TcpStream::connect(to).map_err(|error| errno(&error))?;
            stream.write_all(GREETING).map_err(|error| errno(&error))?;
            let mut heard = Vec::new();
            stream
                .read_to_end(&mut heard)
                .map_err(|error| errno(&error))?;
            waitpid(child, None)?;
            if heard == GREETING {
                Ok(String::new())
            } else {
                Err(Errno::EPROTO)
            }
        }
    }
}

/// listen(2) without bind(2): at a port of the kernel's choice.
fn unbound(to: SocketAddr) -> Found {
    let socket = open(family(&to), SockType::Stream)?;
    listen(&socket, Backlog::new(1)?)?;
    let name: SockaddrStorage = getsockname(socket.as_raw_fd())?;
    let port = name
        .as_sockaddr_in()
        .map(nix::sys::socket::SockaddrIn::port)
        .or_else(|| {
            name.as_sockaddr_in6()
                .map(nix::sys::socket::SockaddrIn6::port)
        })
        .ok_or(Errno::EAFNOSUPPORT)?;
    // SAFETY: the descriptor is passed on.
    let listener = unsafe { TcpListener::from_raw_fd(socket.into_raw_fd()) };
    converse(listener, SocketAddr::new(to.ip(), port))
}

fn datagrams(at: SocketAddr, to: SocketAddr, connected: bool) -> Found {
    let io = |error: std::io::Error| errno(&error);
    let server = UdpSocket::bind(at).map_err(io)?;
    server
        .set_read_timeout(Some(Duration::from_secs(20)))
        .map_err(io)?;
    let client = open(family(&to), SockType::Datagram)?;
    if connected {
        connect(client.as_raw_fd(), &SockaddrStorage::from(to))?;
        send(
            client.as_raw_fd(),
            GREETING,
            nix::sys::socket::MsgFlags::empty(),
        )?;
    } else {
        nix::sys::socket::sendto(
            client.as_raw_fd(),
            GREETING,
            &SockaddrStorage::from(to),
            nix::sys::socket::MsgFlags::empty(),
        )?;
    }
    let mut heard = [0; 16];
    let (length, from) = server.recv_from(&mut heard).map_err(io)?;
    // And back.
    server.send_to(&heard[..length], from).map_err(io)?;
    let length = recv(
        client.as_raw_fd(),
        &mut heard,
        nix::sys::socket::MsgFlags::empty(),
    )?;
    if heard[..length] == *GREETING {
        Ok(String::new())
    } else {
        Err(Errno::EPROTO)
    }
}

fn tcp_listen(kept: &mut Kept, name: &str, at: SocketAddr) -> Found {
    let listener = listener(at)?;
    kept.descriptors.insert(name.to_owned(), listener.into());
    Ok(String::new())
}

/// What the next connection says; it is told the same.
fn accept(kept: &mut Kept, name: &str) -> Found {
    let listener = kept.descriptors.get(name).ok_or(Errno::EBADF)?;
    let listener = TcpListener::from(listener.try_clone().map_err(|error| errno(&error))?);
    let (mut stream, _) = listener.accept().map_err(|error| errno(&error))?;
    let mut heard = [0; 64];
    let length = stream.read(&mut heard).map_err(|error| errno(&error))?;
    stream
        .write_all(&heard[..length])
        .map_err(|error| errno(&error))?;
    Ok(String::from_utf8_lossy(&heard[..length]).into_owned())
}

fn udp_bind(kept: &mut Kept, name: &str, at: SocketAddr) -> Found {
    let socket = UdpSocket::bind(at).map_err(|error| errno(&error))?;
    kept.descriptors.insert(name.to_owned(), socket.into());
    Ok(String::new())
}

fn receive(kept: &mut Kept, name: &str) -> Found {
    let socket = kept.descriptors.get(name).ok_or(Errno::EBADF)?;
    let mut heard = [0; 64];
    let length = recv(
        socket.as_raw_fd(),
        &mut heard,
        nix::sys::socket::MsgFlags::empty(),
    )?;
    Ok(String::from_utf8_lossy(&heard[..length]).into_owned())
}

type Setting = fn(&OwnedFd) -> Result<(), Errno>;

fn reuse_port(socket: &OwnedFd) -> Result<(), Errno> {
    setsockopt(socket, sockopt::ReusePort, &true)
}

fn reuse_address(socket: &OwnedFd) -> Result<(), Errno> {
    setsockopt(socket, sockopt::ReuseAddr, &true)
}

fn take(kind: &str, at: SocketAddr, settings: &[Setting]) -> Found {
    let kind = match kind {
        "tcp" => SockType::Stream,
        _ => SockType::Datagram,
    };
    taken(kind, at, settings).map(|_| String::new())
}

/// A port that others may share.
fn shared(kept: &mut Kept, name: &str, kind: SockType, at: SocketAddr) -> Found {
    let settings: &[Setting] = if kind == SockType::Datagram {
        &[reuse_port, reuse_address]
    } else {
        &[reuse_port]
    };
    let socket = taken(kind, at, settings)?;
    kept.descriptors.insert(name.to_owned(), socket);
    Ok(String::new())
}

/// Takes a port, and listens at it.
fn taken(kind: SockType, at: SocketAddr, settings: &[Setting]) -> Result<OwnedFd, Errno> {
    let socket = open(family(&at), kind)?;
    for set in settings {
        set(&socket)?;
    }
    bind(socket.as_raw_fd(), &SockaddrStorage::from(at))?;
    if kind == SockType::Stream {
        listen(&socket, Backlog::new(1)?)?;
    }
    Ok(socket)
}
