//! The sockets that sandboxes are led to. They are open for as long as the
//! daemon lives, whether a proxy serves them or not.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket},
    os::fd::{AsFd, BorrowedFd},
};

use nix::sys::socket::{Backlog, listen};
use sandbox_common::{Entrance, Entrances};

use crate::sys;

/// Connections that wait for the proxy.
const BACKLOG: i32 = 4096;

/// TCP and name server at one loopback address.
struct Pair {
    tcp: TcpListener,
    dns: UdpSocket,
}

/// All of them.
pub(super) struct Sockets {
    ipv4: Pair,
    ipv6: Option<Pair>,
}

impl Sockets {
    /// Opens them at ports that the kernel chooses. A host without IPv6 has none
    /// of that.
    pub(super) fn open() -> io::Result<Self> {
        let absent = [io::ErrorKind::AddrNotAvailable, io::ErrorKind::Unsupported];
        let ipv6 = match Pair::open(Ipv6Addr::LOCALHOST.into()) {
            Err(error)
                if absent.contains(&error.kind())
                    || error.raw_os_error() == Some(libc::EAFNOSUPPORT) =>
            {
                None
            }
            pair => Some(pair?),
        };
        Ok(Self {
            ipv4: Pair::open(Ipv4Addr::LOCALHOST.into())?,
            ipv6,
        })
    }

    /// As the kernel's programs know them.
    pub(super) fn entrances(&self) -> io::Result<Entrances> {
        let mut entrances = Entrances {
            tcp4: entrance(&self.ipv4.tcp, self.ipv4.tcp.local_addr()?)?,
            dns4: entrance(&self.ipv4.dns, self.ipv4.dns.local_addr()?)?,
            ..Entrances::default()
        };
        if let Some(pair) = &self.ipv6 {
            entrances.tcp6 = entrance(&pair.tcp, pair.tcp.local_addr()?)?;
            entrances.dns6 = entrance(&pair.dns, pair.dns.local_addr()?)?;
        }
        Ok(entrances)
    }

    pub(super) fn ipv4(&self) -> [BorrowedFd<'_>; 2] {
        self.ipv4.descriptors()
    }

    pub(super) fn ipv6(&self) -> Option<[BorrowedFd<'_>; 2]> {
        self.ipv6.as_ref().map(Pair::descriptors)
    }
}

impl Pair {
    fn open(address: IpAddr) -> io::Result<Self> {
        let at = SocketAddr::new(address, 0);
        let tcp = TcpListener::bind(at)?;
        listen(&tcp, Backlog::new(BACKLOG)?)?;
        tcp.set_nonblocking(true)?;
        let dns = UdpSocket::bind(at)?;
        dns.set_nonblocking(true)?;
        Ok(Self { tcp, dns })
    }

    fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.tcp.as_fd(), self.dns.as_fd()]
    }
}

fn entrance(socket: &impl AsFd, at: SocketAddr) -> io::Result<Entrance> {
    Ok(Entrance {
        cookie: sys::socket_cookie(socket.as_fd())?,
        port: at.port().into(),
        reserved: 0,
    })
}
