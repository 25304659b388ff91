//! What is done with sockets.

use std::os::fd::{AsRawFd as _, OwnedFd};

use libc::{
    AF_INET, AF_INET6, AF_NETLINK, AF_PACKET, AF_UNIX, AF_UNSPEC, IPPROTO_ICMP, IPPROTO_IP,
    IPPROTO_IPV6, IPPROTO_MPTCP, IPPROTO_SCTP, IPPROTO_TCP, IPPROTO_UDPLITE, MSG_FASTOPEN,
    O_RDONLY, SO_REUSEPORT, SOCK_DGRAM, SOCK_RAW, SOCK_SEQPACKET, SOCK_STREAM, SOL_SOCKET,
};

use super::{
    call::{Window, actions, descriptor, sys},
    make,
    uring::Ring,
};

/// An address on another host, and ports where nobody listens.
const OUTSIDE: [u8; 4] = [192, 0, 2, 1];
const LOOPBACK: [u8; 4] = [127, 0, 0, 1];
const PORT: u16 = 4711;
const TCP_FASTOPEN: i32 = 23;
const TCP_FASTOPEN_CONNECT: i32 = 30;
const SO_PEERPIDFD: i32 = 77;
const AF_VSOCK: i32 = 40;
const AF_ALG: i32 = 38;

actions! {
    "TCP connect" => |window| {
        let (_listener, address) = listener(&four(LOOPBACK, 0));
        let socket = socket(AF_INET, SOCK_STREAM, 0);
        window.watch(|| connect(&socket, &address))
    },
    "TCP connect to another host" => |window| {
        let socket = socket(AF_INET, SOCK_STREAM, 0);
        window.watch(|| connect(&socket, &four(OUTSIDE, PORT)))
    },
    "TCP connect over IPv6" => |window| {
        let (_listener, address) = listener(&six(0));
        let socket = socket(AF_INET6, SOCK_STREAM, 0);
        window.watch(|| connect(&socket, &address))
    },
    "TCP connect to a mapped address" => |window| {
        let socket = socket(AF_INET6, SOCK_STREAM, 0);
        window.watch(|| connect(&socket, &mapped(OUTSIDE)))
    },
    "TCP connect to nothing" => |window| {
        let (_listener, address) = listener(&four(LOOPBACK, 0));
        let socket = socket(AF_INET, SOCK_STREAM, 0);
        connect(&socket, &address)?;
        window.watch(|| connect(&socket, &family(AF_UNSPEC)))
    },
    "TCP connect by io_uring" => |window| {
        let (_listener, address) = listener(&four(LOOPBACK, 0));
        let socket = socket(AF_INET, SOCK_STREAM, 0);
        let mut ring = Ring::new();
        window.watch(|| ring.connect(socket.as_raw_fd(), &address))
    },
    "TCP fast open" => |window| {
        let (listener, address) = listener(&four(LOOPBACK, 0));
        set(&listener, IPPROTO_TCP, TCP_FASTOPEN, 5);
        let socket = socket(AF_INET, SOCK_STREAM, 0);
        window.watch(|| send(&socket, MSG_FASTOPEN, &address))
    },
    "TCP fast open by an option" => |window| {
        let (listener, address) = listener(&four(LOOPBACK, 0));
        set(&listener, IPPROTO_TCP, TCP_FASTOPEN, 5);
        let socket = socket(AF_INET, SOCK_STREAM, 0);
        set(&socket, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1);
        window.watch(|| {
            connect(&socket, &address)?;
            sys!(SYS_write, &socket, c"x", 1)
        })
    },
    "TCP accept" => |window| {
        let (listener, address) = listener(&four(LOOPBACK, 0));
        let socket = socket(AF_INET, SOCK_STREAM, 0);
        connect(&socket, &address)?;
        window.watch(|| sys!(SYS_accept4, &listener, 0, 0, 0))
    },
    "TCP write" => |window| {
        let (_listener, address) = listener(&four(LOOPBACK, 0));
        let socket = socket(AF_INET, SOCK_STREAM, 0);
        connect(&socket, &address)?;
        window.watch(|| sys!(SYS_write, &socket, c"x", 1))
    },
    "TCP shutdown" => |window| {
        let (_listener, address) = listener(&four(LOOPBACK, 0));
        let socket = socket(AF_INET, SOCK_STREAM, 0);
        connect(&socket, &address)?;
        window.watch(|| sys!(SYS_shutdown, &socket, libc::SHUT_WR))
    },
    "MPTCP connect" => |window| {
        let (_listener, address) = listener(&four(LOOPBACK, 0));
        let socket = socket(AF_INET, SOCK_STREAM, IPPROTO_MPTCP);
        window.watch(|| connect(&socket, &address))
    },
    "MPTCP fast open" => |window| {
        let (listener, address) = listener(&four(LOOPBACK, 0));
        set(&listener, IPPROTO_TCP, TCP_FASTOPEN, 5);
        let socket = socket(AF_INET, SOCK_STREAM, IPPROTO_MPTCP);
        window.watch(|| send(&socket, MSG_FASTOPEN, &address))
    },
    "SCTP connect" => |window| {
        let socket = socket(AF_INET, SOCK_STREAM, IPPROTO_SCTP);
        window.watch(|| connect(&socket, &four(LOOPBACK, PORT)))
    },
    "SCTP send" => |window| {
        let socket = socket(AF_INET, SOCK_SEQPACKET, IPPROTO_SCTP);
        window.watch(|| send(&socket, 0, &four(LOOPBACK, PORT)))
    },

    "UDP send" => |window| {
        let socket = socket(AF_INET, SOCK_DGRAM, 0);
        window.watch(|| send(&socket, 0, &four(OUTSIDE, PORT)))
    },
    "UDP send without a family" => |window| {
        let socket = socket(AF_INET, SOCK_DGRAM, 0);
        let mut address = four(OUTSIDE, PORT);
        address[0] = 0;
        window.watch(|| send(&socket, 0, &address))
    },
    "UDP connect and send" => |window| {
        let socket = socket(AF_INET, SOCK_DGRAM, 0);
        window.watch(|| {
            connect(&socket, &four(OUTSIDE, PORT))?;
            sys!(SYS_write, &socket, c"x", 1)
        })
    },
    "UDP send elsewhere than connected" => |window| {
        let socket = socket(AF_INET, SOCK_DGRAM, 0);
        connect(&socket, &four(OUTSIDE, PORT))?;
        window.watch(|| send(&socket, 0, &four(OUTSIDE, PORT + 1)))
    },
    "UDP send over IPv6" => |window| {
        let socket = socket(AF_INET6, SOCK_DGRAM, 0);
        window.watch(|| send(&socket, 0, &six(PORT)))
    },
    "UDP send to a mapped address" => |window| {
        let socket = socket(AF_INET6, SOCK_DGRAM, 0);
        window.watch(|| send(&socket, 0, &mapped(OUTSIDE)))
    },
    "UDP send to IPv4 by a socket of IPv6" => |window| {
        let socket = socket(AF_INET6, SOCK_DGRAM, 0);
        window.watch(|| send(&socket, 0, &four(OUTSIDE, PORT)))
    },
    "UDP receive" => |window| {
        let (receiver, address) = bound(&four(LOOPBACK, 0), SOCK_DGRAM);
        let socket = socket(AF_INET, SOCK_DGRAM, 0);
        send(&socket, 0, &address)?;
        let mut bytes = [0_u8; 8];
        window.watch(|| {
            sys!(SYS_recvfrom, &receiver, bytes.as_mut_ptr(), bytes.len(), 0, 0, 0)
        })
    },
    "UDP-Lite send" => |window| {
        let socket = socket(AF_INET, SOCK_DGRAM, IPPROTO_UDPLITE);
        window.watch(|| send(&socket, 0, &four(OUTSIDE, PORT)))
    },
    "UDP send with a routing header" => |window| {
        let socket = socket(AF_INET6, SOCK_DGRAM, 0);
        let mut header = [0_u8; 24]; // of type 2, with one address
        (header[1], header[2], header[3]) = (2, 2, 1);
        header[8..].copy_from_slice(&[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        option(&socket, IPPROTO_IPV6, libc::IPV6_RTHDR, &header)?;
        window.watch(|| send(&socket, 0, &six(PORT)))
    },
    "send from a raw socket" => |window| {
        let socket = socket(AF_INET, SOCK_RAW, IPPROTO_ICMP);
        window.watch(|| send(&socket, 0, &four(OUTSIDE, 0)))
    },
    "send from a ping socket" => |window| {
        let socket = socket(AF_INET, SOCK_DGRAM, IPPROTO_ICMP);
        let echo = [8_u8, 0, 0, 0, 0, 0, 0, 0];
        let address = four(OUTSIDE, 0);
        window.watch(|| {
            sys!(
                SYS_sendto, &socket, echo.as_slice(), echo.len(), 0,
                address.as_slice(), address.len()
            )
        })
    },
    "send from a packet socket" => |window| {
        let socket = socket(AF_PACKET, SOCK_DGRAM, 0);
        let mut address = [0_u8; 20];
        address[..2].copy_from_slice(&17_u16.to_ne_bytes());
        address[2..4].copy_from_slice(&0x0800_u16.to_be_bytes());
        address[4..8].copy_from_slice(&1_i32.to_ne_bytes()); // lo
        window.watch(|| send(&socket, 0, &address))
    },

    "listen" => |window| {
        let socket = socket(AF_INET, SOCK_STREAM, 0);
        window.watch(|| {
            bind(&socket, &four(LOOPBACK, 0))?;
            sys!(SYS_listen, &socket, 1)
        })
    },
    "listen over IPv6" => |window| {
        let socket = socket(AF_INET6, SOCK_STREAM, 0);
        window.watch(|| {
            bind(&socket, &six(0))?;
            sys!(SYS_listen, &socket, 1)
        })
    },
    "listen without a bind" => |window| {
        let socket = socket(AF_INET, SOCK_STREAM, 0);
        window.watch(|| sys!(SYS_listen, &socket, 1))
    },
    "listen beside another" => |window| {
        let other = socket(AF_INET, SOCK_STREAM, 0);
        set(&other, SOL_SOCKET, SO_REUSEPORT, 1);
        bind(&other, &four(LOOPBACK, 0))?;
        sys!(SYS_listen, &other, 1)?;
        let address = name(&other);
        let socket = socket(AF_INET, SOCK_STREAM, 0);
        set(&socket, SOL_SOCKET, SO_REUSEPORT, 1);
        window.watch(|| {
            bind(&socket, &address)?;
            sys!(SYS_listen, &socket, 1)
        })
    },
    "UDP bind" => |window| {
        let socket = socket(AF_INET, SOCK_DGRAM, 0);
        window.watch(|| bind(&socket, &four([0; 4], 0)))
    },
    "ask for one's own address" => |window| {
        let (socket, _) = bound(&four(LOOPBACK, 0), SOCK_STREAM);
        window.watch(|| {
            name(&socket);
            Ok(0)
        })
    },
    "ask for a peer's address" => |window| {
        let (_listener, address) = listener(&four(LOOPBACK, 0));
        let socket = socket(AF_INET, SOCK_STREAM, 0);
        connect(&socket, &address)?;
        let (mut address, mut length) = ([0_u8; 128], 128_u32);
        window.watch(|| {
            sys!(SYS_getpeername, &socket, address.as_mut_ptr(), &raw mut length)
        })
    },
    "force a device" => |window| {
        let socket = socket(AF_INET, SOCK_DGRAM, 0);
        window.watch(|| option(&socket, SOL_SOCKET, libc::SO_BINDTODEVICE, b"eth0"))
    },
    "set a source route" => |window| {
        let socket = socket(AF_INET, SOCK_DGRAM, 0);
        let route = [0x83, 7, 4, 192, 0, 2, 1, 0]; // LSRR
        window.watch(|| option(&socket, IPPROTO_IP, libc::IP_OPTIONS, &route))
    },
    "set a mark" => |window| {
        let socket = socket(AF_INET, SOCK_DGRAM, 0);
        window.watch(|| option(&socket, SOL_SOCKET, libc::SO_MARK, &1_i32.to_ne_bytes()))
    },
    "get an option" => |window| {
        let socket = socket(AF_INET, SOCK_DGRAM, 0);
        window.watch(|| asked(&socket, libc::SO_TYPE))
    },
    "attach a filter" => |window| {
        let socket = socket(AF_INET, SOCK_DGRAM, 0);
        let program = [0xffff_ffff_0000_0006_u64]; // return all
        let filter = [1, program.as_ptr().expose_provenance()];
        let filter: Vec<u8> = filter.into_iter().flat_map(usize::to_ne_bytes).collect();
        window.watch(|| option(&socket, SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter))
    },

    "socket of TCP" => |window| opened(window, AF_INET, SOCK_STREAM, 0),
    "socket of MPTCP" => |window| opened(window, AF_INET, SOCK_STREAM, IPPROTO_MPTCP),
    "socket of SCTP" => |window| opened(window, AF_INET, SOCK_STREAM, IPPROTO_SCTP),
    "socket of DCCP" => |window| opened(window, AF_INET, 6, 33),
    "socket of SMC" => |window| opened(window, 43, SOCK_STREAM, 0),
    "socket of packets" => |window| opened(window, AF_PACKET, SOCK_RAW, 0),
    "socket of ALG" => |window| opened(window, AF_ALG, SOCK_SEQPACKET, 0),
    "socket of XDP" => |window| opened(window, 44, SOCK_RAW, 0),
    "socket of keys" => |window| opened(window, 15, SOCK_RAW, 2),
    "socket of TIPC" => |window| opened(window, 30, SOCK_STREAM, 0),
    "socket of CAN" => |window| opened(window, 29, SOCK_RAW, 1),
    "socket of Bluetooth" => |window| opened(window, 31, SOCK_SEQPACKET, 0),
    "socket of RDS" => |window| opened(window, 21, SOCK_SEQPACKET, 0),
    "socket of X.25" => |window| opened(window, 9, SOCK_SEQPACKET, 0),
    "vsock connect" => |window| {
        let socket = socket(AF_VSOCK, SOCK_STREAM, 0);
        let mut address = [0_u8; 16];
        address[..2].copy_from_slice(&40_u16.to_ne_bytes());
        address[4..8].copy_from_slice(&22_u32.to_ne_bytes());
        address[8..12].copy_from_slice(&2_u32.to_ne_bytes()); // the host
        window.watch(|| connect(&socket, &address))
    },
    "open a tunnel" => |window| {
        make::device(libc::S_IFCHR, 10, 200);
        let tunnel = sys!(SYS_openat, libc::AT_FDCWD, make::FILE, libc::O_RDWR)?;
        let mut request = [0_u8; 40];
        request[16..18].copy_from_slice(&0x1001_u16.to_ne_bytes()); // IFF_TUN, IFF_NO_PI
        window.watch(|| sys!(SYS_ioctl, tunnel, 0x4004_54ca_u32, request.as_ptr()))
    },
    "ioctl of an interface" => |window| {
        let socket = socket(AF_INET, SOCK_DGRAM, 0);
        let mut request = [0_u8; 40];
        request[..2].copy_from_slice(b"lo");
        window.watch(|| sys!(SYS_ioctl, &socket, 0x8913_u32, request.as_mut_ptr()))
    },
    "netlink for routes" => |window| netlink(window, libc::NETLINK_ROUTE, 26),
    "netlink for packet filters" => |window| netlink(window, libc::NETLINK_NETFILTER, 0x0a10),
    "netlink for sockets" => |window| netlink(window, libc::NETLINK_SOCK_DIAG, 20),
    "netlink for all else" => |window| netlink(window, libc::NETLINK_GENERIC, 16),
    "netlink for devices" => |window| {
        let socket = socket(AF_NETLINK, SOCK_RAW, libc::NETLINK_KOBJECT_UEVENT);
        let mut address = family(AF_NETLINK).to_vec();
        address[8] = 1;
        window.watch(|| bind(&socket, &address[..12]))
    },

    "Unix connect" => |window| {
        let (_listener, address) = listener(&unix(b"socket"));
        let socket = socket(AF_UNIX, SOCK_STREAM, 0);
        window.watch(|| connect(&socket, &address))
    },
    "Unix connect to an abstract name" => |window| {
        let (_listener, address) = listener(&unix(b"\0observed"));
        let socket = socket(AF_UNIX, SOCK_STREAM, 0);
        window.watch(|| connect(&socket, &address))
    },
    "Unix connect of packets" => |window| {
        let (listener, address) = bound(&unix(b"socket"), SOCK_SEQPACKET);
        sys!(SYS_listen, &listener, 1)?;
        let socket = socket(AF_UNIX, SOCK_SEQPACKET, 0);
        window.watch(|| connect(&socket, &address))
    },
    "Unix listen" => |window| {
        let socket = socket(AF_UNIX, SOCK_STREAM, 0);
        window.watch(|| {
            bind(&socket, &unix(b"socket"))?;
            sys!(SYS_listen, &socket, 1)
        })
    },
    "Unix send of a datagram" => |window| {
        let (_receiver, address) = bound(&unix(b"socket"), SOCK_DGRAM);
        let socket = socket(AF_UNIX, SOCK_DGRAM, 0);
        window.watch(|| send(&socket, 0, &address))
    },
    "Unix connect and send of a datagram" => |window| {
        let (_receiver, address) = bound(&unix(b"socket"), SOCK_DGRAM);
        let socket = socket(AF_UNIX, SOCK_DGRAM, 0);
        window.watch(|| {
            connect(&socket, &address)?;
            sys!(SYS_write, &socket, c"x", 1)
        })
    },
    "socketpair" => |window| {
        let mut ends = [0_i32; 2];
        window.watch(|| sys!(SYS_socketpair, AF_UNIX, SOCK_STREAM, 0, ends.as_mut_ptr()))
    },
    "write to a socketpair" => |window| {
        let (one, _other) = make::pair();
        window.watch(|| sys!(SYS_write, &one, c"x", 1))
    },
    "send a descriptor" => |window| {
        let (one, _other) = make::pair();
        let file = make::opened(O_RDONLY);
        window.watch(|| pass(&one, file.as_raw_fd()))
    },
    "receive a descriptor" => |window| {
        let (one, other) = make::pair();
        let file = make::opened(O_RDONLY);
        pass(&one, file.as_raw_fd())?;
        window.watch(|| taken(&other))
    },
    "receive a socket" => |window| {
        let (one, other) = make::pair();
        let socket = socket(AF_INET, SOCK_STREAM, 0);
        pass(&one, socket.as_raw_fd())?;
        window.watch(|| taken(&other))
    },
    "ask for a peer's process" => |window| {
        let (one, _other) = make::pair();
        window.watch(|| asked(&one, SO_PEERPIDFD))
    },
    "ask for a peer's user" => |window| {
        let (one, _other) = make::pair();
        window.watch(|| asked(&one, libc::SO_PEERCRED))
    },
}

fn socket(family: i32, kind: i32, protocol: i32) -> OwnedFd {
    match sys!(SYS_socket, family, kind | libc::SOCK_CLOEXEC, protocol) {
        Ok(socket) => descriptor(socket),
        // Kernels without the protocol: the error of what follows is that of
        // nothing.
        Err(_) => std::fs::File::open("/dev/null").unwrap().into(),
    }
}

fn opened(window: Window, family: i32, kind: i32, protocol: i32) -> nix::Result<()> {
    window.watch(|| sys!(SYS_socket, family, kind, protocol))
}

fn connect(socket: &OwnedFd, address: &[u8]) -> nix::Result<i64> {
    sys!(SYS_connect, socket, address, address.len())
}

fn bind(socket: &OwnedFd, address: &[u8]) -> nix::Result<i64> {
    sys!(SYS_bind, socket, address, address.len())
}

fn send(socket: &OwnedFd, flags: i32, address: &[u8]) -> nix::Result<i64> {
    let bytes = [0_u8; 8];
    sys!(
        SYS_sendto,
        socket,
        bytes.as_slice(),
        bytes.len(),
        flags,
        address,
        address.len()
    )
}

fn option(socket: &OwnedFd, level: i32, name: i32, value: &[u8]) -> nix::Result<i64> {
    sys!(SYS_setsockopt, socket, level, name, value, value.len())
}

fn set(socket: &OwnedFd, level: i32, name: i32, value: i32) {
    option(socket, level, name, &value.to_ne_bytes()).unwrap();
}

fn asked(socket: &OwnedFd, name: i32) -> nix::Result<i64> {
    let (mut value, mut length) = ([0_u8; 64], 64_u32);
    sys!(
        SYS_getsockopt,
        socket,
        SOL_SOCKET,
        name,
        value.as_mut_ptr(),
        &raw mut length
    )
}

/// The address that a socket was bound to.
fn name(socket: &OwnedFd) -> Vec<u8> {
    let (mut address, mut length) = (vec![0_u8; 128], 128_u32);
    sys!(
        SYS_getsockname,
        socket,
        address.as_mut_ptr(),
        &raw mut length
    )
    .unwrap();
    address.truncate(length as usize);
    address
}

fn bound(address: &[u8], kind: i32) -> (OwnedFd, Vec<u8>) {
    let family = i32::from(u16::from_ne_bytes([address[0], address[1]]));
    let socket = socket(family, kind, 0);
    bind(&socket, address).unwrap();
    let address = name(&socket);
    (socket, address)
}

/// Somebody who listens, and where.
fn listener(address: &[u8]) -> (OwnedFd, Vec<u8>) {
    let (socket, address) = bound(address, SOCK_STREAM);
    sys!(SYS_listen, &socket, 8).unwrap();
    (socket, address)
}

fn netlink(window: Window, protocol: i32, kind: u16) -> nix::Result<()> {
    let socket = socket(AF_NETLINK, SOCK_RAW, protocol);
    let mut message = [0_u8; 64];
    message[0] = 64;
    message[4..6].copy_from_slice(&kind.to_ne_bytes());
    message[6..8].copy_from_slice(&0x301_u16.to_ne_bytes()); // a request for all
    window.watch(|| sys!(SYS_write, &socket, message.as_slice(), message.len()))
}

/// Sends a descriptor.
fn pass(socket: &OwnedFd, file: i32) -> nix::Result<i64> {
    let control = [20_usize, 1 << 32 | 1, file.unsigned_abs() as usize];
    sys!(SYS_sendmsg, socket, message(&control).as_ptr(), 0)
}

/// Receives one.
fn taken(socket: &OwnedFd) -> nix::Result<i64> {
    let control = [0_usize; 3];
    sys!(SYS_recvmsg, socket, message(&control).as_mut_ptr(), 0)
}

/// `struct msghdr` with one byte and this control data.
fn message(control: &[usize; 3]) -> [usize; 7] {
    static mut BYTE: u8 = b'x';
    static mut VECTOR: [usize; 2] = [0, 1];
    let byte = (&raw mut BYTE).expose_provenance();
    let vector = &raw mut VECTOR;
    // SAFETY: this program has one thread.
    unsafe { (*vector)[0] = byte };
    let control = control.as_ptr().expose_provenance();
    [0, 0, vector.expose_provenance(), 1, control, 24, 0]
}

fn family(family: i32) -> [u8; 16] {
    let mut address = [0; 16];
    let family = u16::try_from(family).expect("a family");
    address[..2].copy_from_slice(&family.to_ne_bytes());
    address
}

fn four(host: [u8; 4], port: u16) -> [u8; 16] {
    let mut address = family(AF_INET);
    address[2..4].copy_from_slice(&port.to_be_bytes());
    address[4..8].copy_from_slice(&host);
    address
}

/// The loopback address.
fn six(port: u16) -> [u8; 28] {
    let mut address = [0; 28];
    address[..16].copy_from_slice(&family(AF_INET6));
    address[2..4].copy_from_slice(&port.to_be_bytes());
    address[23] = 1;
    address
}

fn mapped(host: [u8; 4]) -> [u8; 28] {
    let mut address = six(PORT);
    address[18..20].copy_from_slice(&[0xff; 2]);
    address[20..24].copy_from_slice(&host);
    address
}

fn unix(name: &[u8]) -> Vec<u8> {
    let mut address = family(AF_UNIX)[..2].to_vec();
    address.extend(name);
    if name[0] != 0 {
        address.push(0);
    }
    address
}
