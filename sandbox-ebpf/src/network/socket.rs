//! Sockets as a process makes them: an allow list of kinds.

use aya_ebpf::programs::LsmContext;
use sandbox_common::{Operation, Right, builtin};

use super::{AF_INET, AF_INET6};
use crate::{
    event::Destination,
    member::{self, Who},
    verdict::{self, Errno, Reason},
};

const AF_UNIX: u32 = 1;
const AF_NETLINK: u32 = 16;
const SOCK_TYPE_MASK: u32 = 0xf;
const SOCK_STREAM: u32 = 1;
const SOCK_DGRAM: u32 = 2;
const IPPROTO_TCP: u32 = 6;
const IPPROTO_UDP: u32 = 17;
const NETLINK_ROUTE: u32 = 0;

/// `socket_create(family, type, protocol, kern)`
#[inline(always)]
pub fn create(ctx: &LsmContext) -> i32 {
    let (family, kind, protocol): (u32, u32, u32) = (ctx.arg(0), ctx.arg(1), ctx.arg(2));
    let kern: u32 = ctx.arg(3);
    if kern != 0 {
        return 0;
    }
    let allowed = match (family, kind & SOCK_TYPE_MASK) {
        (AF_UNIX, _) => true,
        (family, SOCK_STREAM) if inet(family) => matches!(protocol, 0 | IPPROTO_TCP),
        (family, SOCK_DGRAM) if inet(family) => matches!(protocol, 0 | IPPROTO_UDP),
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
        port: 0,
        protocol,
        address: [0; 4],
    };
    verdict::socket(&member, reason, &kind)
}

#[inline(always)]
fn inet(family: u32) -> bool {
    family == AF_INET as u32 || family == AF_INET6 as u32
}
