//! The other host: sockets in the network namespace `outside`, which answers
//! at the documentation addresses, and its end of the wire.

use std::{
    fs::File,
    io::Read as _,
    net::{TcpListener, UdpSocket},
    os::fd::{AsRawFd as _, OwnedFd},
    thread,
    time::Duration,
};

use nix::{
    errno::Errno,
    sched::{CloneFlags, setns},
    sys::{
        socket::{
            AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, setsockopt, socket,
            sockopt::ReceiveTimeout,
        },
        time::{TimeVal, TimeValLike as _},
    },
};

/// Its addresses.
pub(crate) const IPV4: &str = "203.0.113.1";
pub(crate) const IPV6: &str = "2001:db8::1";

/// How long to wait for what must arrive.
const PATIENCE: Duration = Duration::from_mins(1);

/// Does something over there.
pub(crate) fn there<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    let enter = move || {
        let namespace = File::open("/run/netns/outside").unwrap();
        setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
        act()
    };
    thread::spawn(enter).join().unwrap()
}

/// Listens to everything that comes over the wire.
pub(crate) struct Wire(OwnedFd);

impl Wire {
    pub(crate) fn tap() -> Self {
        let socket = there(|| {
            socket(
                AddressFamily::Packet,
                SockType::Raw,
                SockFlag::SOCK_CLOEXEC,
                SockProtocol::EthAll,
            )
            .unwrap()
        });
        let patience = TimeVal::seconds(PATIENCE.as_secs().cast_signed());
        setsockopt(&socket, ReceiveTimeout, &patience).unwrap();
        Self(socket)
    }

    /// Reads until a packet carries the marker; whether one before it carried
    /// the other.
    pub(crate) fn carried_before(&self, marker: &str, other: &str) -> bool {
        let mut seen = false;
        let mut packet = [0; 2048];
        loop {
            let length = match recv(self.0.as_raw_fd(), &mut packet, MsgFlags::empty()) {
                Ok(length) => length,
                Err(Errno::EINTR) => continue,
                Err(errno) => panic!("`{marker}` never came: {errno}"),
            };
            let holds = |text: &str| {
                packet[..length]
                    .windows(text.len())
                    .any(|window| window == text.as_bytes())
            };
            if holds(marker) {
                return seen;
            }
            seen |= holds(other);
        }
    }
}

/// Receives datagrams at an address and a port.
pub(crate) struct Datagrams(UdpSocket);

impl Datagrams {
    pub(crate) fn at(address: &str) -> Self {
        let address = address.to_owned();
        let socket = there(move || UdpSocket::bind(address).unwrap());
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(socket)
    }

    /// The next one.
    pub(crate) fn next(&self) -> String {
        let mut buffer = [0; 512];
        let (length, _) = self.0.recv_from(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }
}

/// Accepts connections at an address and a port.
pub(crate) struct Connections(TcpListener);

impl Connections {
    pub(crate) fn at(address: &str) -> Self {
        let address = address.to_owned();
        Self(there(move || TcpListener::bind(address).unwrap()))
    }

    /// What the next one sends.
    pub(crate) fn next(&self) -> String {
        let (mut stream, _) = self.0.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }
}
