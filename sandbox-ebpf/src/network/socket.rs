//! Sockets as a process makes them: an allow list of kinds. And as it uses
//! them: those that were made elsewhere, and inherited or sent.

use aya_ebpf::programs::LsmContext;
use sandbox_common::{Facility, Operation, Right, builtin, header};

use super::{AF_INET, AF_INET6, TCP, UDP};
use crate::{
    event::Destination,
    layout::{File, probe},
    member::{self, Member, Who},
    verdict::{self, Errno, Reason},
};

const AF_UNSPEC: u16 = 0;
const AF_UNIX: u16 = 1;
const AF_NETLINK: u16 = 16;
const SOCK_TYPE_MASK: u32 = 0xf;
const SOCK_STREAM: u32 = 1;
const SOCK_DGRAM: u32 = 2;
const NETLINK_ROUTE: u32 = 0;
/// include/uapi/linux/magic.h
const SOCKFS_MAGIC: u64 = 0x534f_434b;

/// `socket_create(family, type, protocol, kern)`
#[inline(always)]
pub fn create(ctx: &LsmContext) -> i32 {
    let (family, kind, protocol): (u32, u32, u32) = (ctx.arg(0), ctx.arg(1), ctx.arg(2));
    let kern: u32 = ctx.arg(3);
    if kern != 0 {
        return 0;
    }
    let allowed = match (family as u16, kind & SOCK_TYPE_MASK) {
        (AF_UNIX, _) => true,
        (family, SOCK_STREAM) if inet(family) => matches!(protocol, 0 | TCP),
        (family, SOCK_DGRAM) if inet(family) => matches!(protocol, 0 | UDP),
        (AF_NETLINK, _) => protocol == NETLINK_ROUTE,
        _ => false,
    };
    if allowed {
        return 0;
    }
    let member = match member::current() {
        Who::Outside => return 0,
        Who::Inside(member) => member,
        Who::Orphan { .. } => return Errno::Acces.refused(),
    };
    let reason = Reason {
        operation: Operation::Socket,
        right: Right::Connect,
        errno: Errno::Acces,
        rule: builtin::SOCKET,
    };
    let kind = Destination {
        family: family as u16,
        protocol,
        ..Destination::none()
    };
    verdict::socket(&member, reason, &kind)
}

/// `socket_connect(sock, address, addrlen)`
#[inline(always)]
pub fn connect(ctx: &LsmContext) -> i32 {
    elsewhere(ctx, Operation::Connect)
}

/// `socket_bind(sock, address, addrlen)`
#[inline(always)]
pub fn bind(ctx: &LsmContext) -> i32 {
    elsewhere(ctx, Operation::Bind)
}

/// `socket_listen(sock, backlog)`
#[inline(always)]
pub fn listen(ctx: &LsmContext) -> i32 {
    let member = match member::current() {
        Who::Outside => return 0,
        Who::Inside(member) => member,
        Who::Orphan { .. } => return Errno::Perm.refused(),
    };
    let sock = probe::sock(ctx.arg(0));
    let family = probe::sock_family(sock);
    let bits = member.header().bits;
    if family == AF_UNIX || bits & header::NETWORK_UNRESTRICTED != 0 {
        return 0;
    }
    let rule = if member::of_sock(sock) != member.sandbox {
        builtin::NETWORK
    } else if bits & header::LISTEN_NONE != 0 {
        builtin::LISTEN
    } else {
        return 0;
    };
    let at = Destination {
        family,
        port: probe::sock_port(sock),
        ..Destination::none()
    };
    verdict::socket(&member, refused(Operation::Listen, rule), &at)
}

/// `file_receive(file)`. None: it is no socket.
#[inline(always)]
pub fn receive(ctx: &LsmContext) -> Option<i32> {
    let member = match member::current() {
        Who::Outside => return Some(0),
        Who::Inside(member) => member,
        Who::Orphan { .. } => return Some(Errno::Acces.refused()),
    };
    let file = File::arg(ctx, 0);
    if file.dentry().super_block().magic() != SOCKFS_MAGIC {
        return None;
    }
    if member::of_sock(probe::sock(file.private_data())) == member.sandbox {
        return Some(0);
    }
    let reason = Reason {
        operation: Operation::Receive,
        right: Right::Connect,
        errno: Errno::Acces,
        rule: builtin::RECEIVED,
    };
    Some(verdict::facility(&member, reason, Facility::Descriptor, 0))
}

/// Refuses a socket that was made outside, or in another sandbox, which the
/// programs on addresses do not see. Those see all others.
#[inline(always)]
fn elsewhere(ctx: &LsmContext, operation: Operation) -> i32 {
    let member: Member = match member::current() {
        Who::Outside => return 0,
        Who::Inside(member) => member,
        Who::Orphan { .. } => return Errno::Perm.refused(),
    };
    let sock = probe::sock(ctx.arg(0));
    // Of Unix sockets it matters who is at the other end.
    if member::of_sock(sock) == member.sandbox || probe::sock_family(sock) == AF_UNIX {
        return 0;
    }
    if member.header().bits & header::NETWORK_UNRESTRICTED != 0 {
        return 0;
    }
    let (family, port, address) = probe::sockaddr(ctx.arg(1));
    if family == AF_UNSPEC && operation as u16 == Operation::Connect as u16 {
        // Ends a connection.
        return 0;
    }
    let to = Destination {
        family,
        port,
        protocol: 0,
        address,
    };
    verdict::socket(&member, refused(operation, builtin::NETWORK), &to)
}

#[inline(always)]
fn refused(operation: Operation, rule: u32) -> Reason {
    Reason {
        operation,
        right: Right::Connect,
        errno: Errno::Perm,
        rule,
    }
}

#[inline(always)]
fn inet(family: u16) -> bool {
    family == AF_INET || family == AF_INET6
}
