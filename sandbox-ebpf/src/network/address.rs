//! `connect4`, `connect6`, `sendmsg4`, `sendmsg6`: destinations that a socket
//! is given; they also see TCP Fast Open and v4-mapped addresses. `bind4`,
//! `bind6`: addresses that it takes.

use aya_ebpf::{
    EbpfContext as _,
    helpers::generated::{bpf_get_current_ancestor_cgroup_id, bpf_getsockopt},
    programs::SockAddrContext,
};
use sandbox_common::{Operation, Right, builtin, header};

use super::{
    AF_INET, AF_INET6, TCP, UDP, direct, is_loopback, owner::owner, proxy::redirect, specified,
};
use crate::{
    event::Destination,
    layout::probe,
    maps::SANDBOX_LEVEL,
    member::{self, Member, Who},
    verdict::{self, Errno, Reason},
};

/// `connect4`
#[inline(always)]
pub fn connect4(ctx: &SockAddrContext) -> i32 {
    reach::<false>(ctx, Operation::Connect, address4(ctx))
}

/// `connect6`
#[inline(always)]
pub fn connect6(ctx: &SockAddrContext) -> i32 {
    reach::<true>(ctx, Operation::Connect, address6(ctx))
}

/// `sendmsg4`
#[inline(always)]
pub fn send4(ctx: &SockAddrContext) -> i32 {
    reach::<false>(ctx, Operation::Send, address4(ctx))
}

/// `sendmsg6`
#[inline(always)]
pub fn send6(ctx: &SockAddrContext) -> i32 {
    reach::<true>(ctx, Operation::Send, address6(ctx))
}

/// `bind4`
#[inline(always)]
pub fn bind4(ctx: &SockAddrContext) -> i32 {
    take(ctx, address4(ctx))
}

/// `bind6`
#[inline(always)]
pub fn bind6(ctx: &SockAddrContext) -> i32 {
    take(ctx, address6(ctx))
}

/// The sandbox that a socket was made in, and whether it is the one of the
/// process that uses it. None: it is nobody's, or its sandbox is being removed.
#[inline(always)]
fn user(ctx: &SockAddrContext) -> Option<(Member, bool)> {
    // SAFETY: the context's socket is there for all these hooks.
    let sock = unsafe { (*ctx.sock_addr).__bindgen_anon_1.sk };
    let Who::Inside(member) = member::of_socket(probe::address(sock)) else {
        return None;
    };
    // SAFETY: the helper takes any level.
    let current = unsafe { bpf_get_current_ancestor_cgroup_id(SANDBOX_LEVEL.load() as i32) };
    Some((member, current == member.sandbox))
}

/// 1: let it through, 0: refused.
#[inline(always)]
fn reach<const IPV6: bool>(ctx: &SockAddrContext, operation: Operation, to: Destination) -> i32 {
    let Some((member, own)) = user(ctx) else {
        return 0;
    };
    if member.header().bits & header::NETWORK_UNRESTRICTED != 0 {
        return 1;
    }
    let reason = |rule| Reason {
        operation,
        right: Right::Connect,
        errno: Errno::Perm,
        rule,
    };
    let mut rule = builtin::NETWORK;
    if own {
        if direct(member.rules, &to) {
            return 1;
        }
        let asked = reason(builtin::NETWORK);
        if let Some(answer) = redirect::<IPV6>(ctx, &member, asked, &specified(to)) {
            return answer;
        }
        // Resolvers connect such sockets to compare addresses, and send nothing.
        // What is sent is decided for each packet.
        if operation as u16 == Operation::Connect as u16 && to.protocol == UDP {
            return 1;
        }
        let to = specified(to);
        if is_loopback(&to) && (to.protocol == TCP || to.protocol == UDP) {
            match owner(ctx.as_ptr(), &Destination::none(), &to) {
                Some(owner) if owner == member.sandbox => return 1,
                Some(_) => rule = builtin::LOOPBACK,
                // Nobody, or somebody whom the lookup does not find, because
                // the socket is bound to a device. The answer is the same.
                None if to.protocol == TCP => {
                    return verdict::unheard(&member, Errno::ConnRefused);
                }
                // Packets are looked up with their device.
                None => return 1,
            }
        }
    }
    verdict::network(&member, reason(rule), &to)
}

/// A port: whether it may be taken, and is not somebody else's.
#[inline(always)]
fn take(ctx: &SockAddrContext, at: Destination) -> i32 {
    let Some((member, own)) = user(ctx) else {
        return 0;
    };
    let bits = member.header().bits;
    if bits & header::NETWORK_UNRESTRICTED != 0 {
        return 1;
    }
    let (errno, rule) = if !own {
        (Errno::Perm, builtin::NETWORK)
    } else if at.port == 0 {
        return 1;
    } else if bits & header::LISTEN_NONE != 0 {
        (Errno::Perm, builtin::LISTEN)
    } else if shares(ctx, at.protocol) && foreign(ctx, &member, &at) {
        (Errno::AddrInUse, builtin::LOOPBACK)
    } else {
        return 1;
    };
    let reason = Reason {
        operation: Operation::Bind,
        right: Right::Connect,
        errno,
        rule,
    };
    verdict::network(&member, reason, &at)
}

/// Whether the socket would share its port with another one. Without, the
/// kernel finds a port taken by itself.
#[inline(always)]
fn shares(ctx: &SockAddrContext, protocol: u32) -> bool {
    const SO_REUSEADDR: i32 = 2;
    const SO_REUSEPORT: i32 = 15;
    option(ctx, SO_REUSEPORT) || protocol == UDP && option(ctx, SO_REUSEADDR)
}

#[inline(always)]
fn option(ctx: &SockAddrContext, name: i32) -> bool {
    const SOL_SOCKET: i32 = 1;
    let mut value = 0_i32;
    // SAFETY: `value` has the size that is passed.
    let failed = unsafe {
        bpf_getsockopt(
            ctx.as_ptr(),
            SOL_SOCKET,
            name,
            (&raw mut value).cast(),
            size_of::<i32>() as i32,
        )
    };
    failed != 0 || value != 0
}

/// Whether a port is somebody else's at that address, or where that is all of
/// them, at one of loopback's.
#[inline(always)]
fn foreign(ctx: &SockAddrContext, member: &Member, at: &Destination) -> bool {
    let others = |at: &Destination| {
        owner(ctx.as_ptr(), &Destination::none(), at).is_some_and(|it| it != member.sandbox)
    };
    if others(at) {
        return true;
    }
    if at.address != [0; 4] {
        return false;
    }
    let four = Destination {
        family: AF_INET,
        ..*at
    };
    // What listens at `[::]` gets IPv4 as well.
    others(&specified(*at)) || at.family == AF_INET6 && others(&specified(four))
}

#[inline(always)]
pub(super) fn address4(ctx: &SockAddrContext) -> Destination {
    // SAFETY: fields that the verifier allows for these hooks.
    unsafe {
        Destination {
            family: AF_INET,
            port: u16::from_be((*ctx.sock_addr).user_port as u16),
            protocol: (*ctx.sock_addr).protocol,
            address: [(*ctx.sock_addr).user_ip4, 0, 0, 0],
        }
    }
}

/// A v4-mapped address is the IPv4 one.
#[inline(always)]
pub(super) fn address6(ctx: &SockAddrContext) -> Destination {
    // SAFETY: as in `address4`.
    let (address, port, protocol) = unsafe {
        let ip = &raw const (*ctx.sock_addr).user_ip6;
        (
            [
                core::ptr::read_volatile(ip.cast::<u32>()),
                core::ptr::read_volatile(ip.cast::<u32>().add(1)),
                core::ptr::read_volatile(ip.cast::<u32>().add(2)),
                core::ptr::read_volatile(ip.cast::<u32>().add(3)),
            ],
            u16::from_be((*ctx.sock_addr).user_port as u16),
            (*ctx.sock_addr).protocol,
        )
    };
    if address[0] == 0 && address[1] == 0 && address[2] == 0xffff_u32.to_be() {
        return Destination {
            family: AF_INET,
            port,
            protocol,
            address: [address[3], 0, 0, 0],
        };
    }
    Destination {
        family: AF_INET6,
        port,
        protocol,
        address,
    }
}
