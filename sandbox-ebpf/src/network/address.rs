//! `connect4`, `connect6`, `sendmsg4`, `sendmsg6`: destinations that a socket
//! is given. They also see TCP Fast Open and v4-mapped addresses.

use aya_ebpf::{helpers::generated::bpf_get_current_ancestor_cgroup_id, programs::SockAddrContext};
use sandbox_common::{Operation, Right, builtin, header};

use super::{AF_INET, AF_INET6, direct4, direct6, labelled};
use crate::{
    event::Destination,
    maps::{LABELS, SANDBOX_LEVEL},
    member::{self, Who},
    verdict::{self, Errno, Reason},
};

/// `connect4`
#[inline(always)]
pub fn connect4(ctx: &SockAddrContext) -> i32 {
    decide(ctx, Operation::Connect, destination4(ctx))
}

/// `connect6`
#[inline(always)]
pub fn connect6(ctx: &SockAddrContext) -> i32 {
    decide(ctx, Operation::Connect, destination6(ctx))
}

/// `sendmsg4`
#[inline(always)]
pub fn send4(ctx: &SockAddrContext) -> i32 {
    decide(ctx, Operation::Send, destination4(ctx))
}

/// `sendmsg6`
#[inline(always)]
pub fn send6(ctx: &SockAddrContext) -> i32 {
    decide(ctx, Operation::Send, destination6(ctx))
}

/// 1: let it through, 0: EPERM.
#[inline(always)]
fn decide(ctx: &SockAddrContext, operation: Operation, to: Destination) -> i32 {
    // SAFETY: the context's socket is there for all four hooks.
    let label = unsafe { LABELS.get_ptr_mut(ctx) };
    // Without: made by the kernel, or before these programs were there. Nobody's.
    // SAFETY: checked; storage lives as long as its socket.
    let label = (!label.is_null()).then(|| unsafe { *label });
    let who = match label {
        Some(label) => labelled(label),
        None => member::current(),
    };
    let Who::Inside(member) = who else {
        return 0;
    };
    if member.header().bits & header::NETWORK_UNRESTRICTED != 0 {
        return 1;
    }
    // SAFETY: the helper takes any level.
    let current = unsafe { bpf_get_current_ancestor_cgroup_id(SANDBOX_LEVEL.load() as i32) };
    let direct = if to.family == AF_INET {
        direct4(member.rules, to.address[0], to.port)
    } else {
        direct6(member.rules, to.address, to.port)
    };
    if direct && label.is_some_and(|label| label.sandbox == current) {
        return 1;
    }
    let reason = Reason {
        operation,
        right: Right::Connect,
        errno: Errno::Perm,
        rule: builtin::NETWORK,
    };
    verdict::network(&member, reason, &to)
}

#[inline(always)]
fn destination4(ctx: &SockAddrContext) -> Destination {
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
fn destination6(ctx: &SockAddrContext) -> Destination {
    // SAFETY: as in `destination4`.
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
