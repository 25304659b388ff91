//! Attacks on the network. Each sends a marker, so that what arrives outside
//! can be told apart.

use std::{
    ffi::OsStr,
    io::IoSlice,
    net::{IpAddr, SocketAddr, SocketAddrV6},
    os::fd::{AsRawFd as _, IntoRawFd as _, OwnedFd},
};

use nix::{
    errno::Errno,
    net::if_::if_nametoindex,
    sys::socket::{
        AddressFamily, ControlMessage, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn,
        SockaddrIn6, SockaddrStorage, connect, send, sendmsg, sendto, setsockopt, socket, sockopt,
    },
};

use super::{Found, text};

const NONE: Result<String, Errno> = Ok(String::new());

/// The device that leads out.
const DEVICE: &str = "eth0";

pub(super) fn perform(operation: &str, arguments: &[&OsStr]) -> Option<Found> {
    Some(match (operation, arguments) {
        ("tcp", [to, marker]) => tcp(address(to), text(marker)),
        ("tcp-mapped", [to, marker]) => tcp(mapped(address(to)), text(marker)),
        ("tcp-fast-open", [to, marker]) => fast_open(address(to), text(marker)),
        ("udp", [to, marker]) => udp(address(to), text(marker)),
        ("udp-mapped", [to, marker]) => udp(mapped(address(to)), text(marker)),
        ("udp-other-family", [to, marker]) => other_family(address(to), text(marker)),
        ("udp-broadcast", [to, marker]) => broadcast(address(to), text(marker)),
        ("udp-connected", [to, marker]) => connected(address(to), text(marker)),
        ("udp-retarget", [first, to, marker]) => {
            retarget(address(first), address(to), text(marker))
        }
        ("udp-routing-header", [to, through, marker]) => {
            routing_header(address(to), address(through), text(marker))
        }
        ("udp-source-route", [to, through, marker]) => {
            source_route(address(to), address(through), text(marker))
        }
        ("udp-device", [to, marker]) => device(address(to), text(marker)),
        ("udp-packet-info", [to, marker]) => packet_info(address(to), text(marker)),
        ("ping", [to, marker]) => ping(address(to), SockType::Datagram, text(marker)),
        ("keep-socket", []) => open(AddressFamily::Inet, SockType::Datagram).map(|socket| {
            // Open for as long as this program runs.
            let _ = socket.into_raw_fd();
            String::new()
        }),
        ("raw", [to, marker]) => ping(address(to), SockType::Raw, text(marker)),
        _ => return None,
    })
}

pub(super) fn address(argument: &OsStr) -> SocketAddr {
    text(argument)
        .parse()
        .unwrap_or_else(|_| panic!("`{}` is no address", argument.display()))
}

fn mapped(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) => (ip.to_ipv6_mapped(), address.port()).into(),
        IpAddr::V6(_) => address,
    }
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

fn storage(address: SocketAddr) -> SockaddrStorage {
    address.into()
}

fn tcp(to: SocketAddr, marker: &str) -> Found {
    let socket = open(family(&to), SockType::Stream)?;
    connect(socket.as_raw_fd(), &storage(to))?;
    send(socket.as_raw_fd(), marker.as_bytes(), MsgFlags::empty()).and(NONE)
}

/// Data with the first packet, and no connect(2).
fn fast_open(to: SocketAddr, marker: &str) -> Found {
    let socket = open(family(&to), SockType::Stream)?;
    let flags = MsgFlags::from_bits_retain(libc::MSG_FASTOPEN);
    sendto(socket.as_raw_fd(), marker.as_bytes(), &storage(to), flags).and(NONE)
}

fn send_to(socket: &OwnedFd, to: SocketAddr, marker: &str) -> Found {
    let flags = MsgFlags::empty();
    sendto(socket.as_raw_fd(), marker.as_bytes(), &storage(to), flags).and(NONE)
}

fn udp(to: SocketAddr, marker: &str) -> Found {
    let socket = open(family(&to), SockType::Datagram)?;
    send_to(&socket, to, marker)
}

/// An IPv4 address given to an IPv6 socket.
fn other_family(to: SocketAddr, marker: &str) -> Found {
    let socket = open(AddressFamily::Inet6, SockType::Datagram)?;
    send_to(&socket, to, marker)
}

fn broadcast(to: SocketAddr, marker: &str) -> Found {
    let socket = open(family(&to), SockType::Datagram)?;
    setsockopt(&socket, sockopt::Broadcast, &true)?;
    send_to(&socket, to, marker)
}

fn connected(to: SocketAddr, marker: &str) -> Found {
    let socket = open(family(&to), SockType::Datagram)?;
    connect(socket.as_raw_fd(), &storage(to))?;
    send(socket.as_raw_fd(), marker.as_bytes(), MsgFlags::empty()).and(NONE)
}

/// A socket that is connected to one address and sends to another.
fn retarget(first: SocketAddr, to: SocketAddr, marker: &str) -> Found {
    let socket = open(family(&first), SockType::Datagram)?;
    connect(socket.as_raw_fd(), &storage(first))?;
    send_to(&socket, to, marker)
}

/// A packet for one host that visits another one first.
fn routing_header(to: SocketAddr, through: SocketAddr, marker: &str) -> Found {
    let socket = open(AddressFamily::Inet6, SockType::Datagram)?;
    let IpAddr::V6(through) = through.ip() else {
        return Err(Errno::EINVAL);
    };
    // Type 2 (RFC 6275): of all types the one that every kernel sends.
    let mut header = [0_u8; 24];
    header[1] = 2;
    header[2] = 2;
    header[3] = 1;
    header[8..].copy_from_slice(&through.octets());
    set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_RTHDR, &header)?;
    send_to(&socket, to, marker)
}

/// The same in IPv4, by a loose source route.
fn source_route(to: SocketAddr, through: SocketAddr, marker: &str) -> Found {
    let socket = open(AddressFamily::Inet, SockType::Datagram)?;
    let IpAddr::V4(through) = through.ip() else {
        return Err(Errno::EINVAL);
    };
    let [a, b, c, d] = through.octets();
    let option = [131, 7, 4, a, b, c, d, 0];
    set_option(&socket, libc::IPPROTO_IP, libc::IP_OPTIONS, &option)?;
    send_to(&socket, to, marker)
}

fn device(to: SocketAddr, marker: &str) -> Found {
    let socket = open(family(&to), SockType::Datagram)?;
    setsockopt(&socket, sockopt::BindToDevice, &DEVICE.into())?;
    send_to(&socket, to, marker)
}

fn packet_info(to: SocketAddr, marker: &str) -> Found {
    let socket = open(family(&to), SockType::Datagram)?;
    let index = if_nametoindex(DEVICE)?;
    let data = [IoSlice::new(marker.as_bytes())];
    let flags = MsgFlags::empty();
    match to {
        SocketAddr::V4(to) => {
            let info = libc::in_pktinfo {
                ipi_ifindex: i32::try_from(index).map_err(|_| Errno::EINVAL)?,
                ipi_spec_dst: libc::in_addr { s_addr: 0 },
                ipi_addr: libc::in_addr { s_addr: 0 },
            };
            let control = [ControlMessage::Ipv4PacketInfo(&info)];
            let to = SockaddrIn::from(to);
            sendmsg(socket.as_raw_fd(), &data, &control, flags, Some(&to)).and(NONE)
        }
        SocketAddr::V6(to) => {
            let info = libc::in6_pktinfo {
                ipi6_addr: libc::in6_addr { s6_addr: [0; 16] },
                ipi6_ifindex: index,
            };
            let control = [ControlMessage::Ipv6PacketInfo(&info)];
            let to = SockaddrIn6::from(to);
            sendmsg(socket.as_raw_fd(), &data, &control, flags, Some(&to)).and(NONE)
        }
    }
}

/// An echo request, by a socket that no hook on addresses sees.
fn ping(to: SocketAddr, kind: SockType, marker: &str) -> Found {
    let (protocol, echo) = if to.is_ipv4() {
        (SockProtocol::Icmp, 8)
    } else {
        (SockProtocol::IcmpV6, 128)
    };
    let socket = socket(family(&to), kind, SockFlag::SOCK_CLOEXEC, protocol)?;
    let mut packet = vec![echo, 0, 0, 0, 0, 0, 0, 1];
    packet.extend_from_slice(marker.as_bytes());
    if kind == SockType::Raw {
        let sum = checksum(&packet);
        packet[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    let to = match to {
        SocketAddr::V6(to) => storage(SocketAddrV6::new(*to.ip(), 0, 0, 0).into()),
        SocketAddr::V4(to) => storage(SocketAddr::new((*to.ip()).into(), 0)),
    };
    sendto(socket.as_raw_fd(), &packet, &to, MsgFlags::empty()).and(NONE)
}

fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0)))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(0)
}

/// For options that nix has no name for.
fn set_option(socket: &OwnedFd, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
    let length = libc::socklen_t::try_from(value.len()).map_err(|_| Errno::EINVAL)?;
    // SAFETY: `value` is valid for its length, which is passed along.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            value.as_ptr().cast(),
            length,
        )
    };
    Errno::result(result).map(drop)
}
