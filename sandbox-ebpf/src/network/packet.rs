//! Packets on their way out, by what they really say. A routing header or a
//! forced device carries a packet for `::1` to another host, and no hook on
//! sockets sees it; raw sockets and whatever comes next end here as well.

use aya_ebpf::{
    helpers::generated::{bpf_skb_ancestor_cgroup_id, bpf_skb_load_bytes},
    programs::SkBuffContext,
};
use sandbox_common::{Operation, Right, builtin, header};

use super::{AF_INET, AF_INET6, direct4, direct6};
use crate::{
    event::Destination,
    maps::SANDBOX_LEVEL,
    member::{self, Member, Who},
    verdict::{self, Errno, Reason},
};

const LOOPBACK_DEVICE: u32 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// 1: pass, 0: drop.
#[inline(always)]
pub fn egress(ctx: &SkBuffContext) -> i32 {
    let level = SANDBOX_LEVEL.load() as i32;
    // SAFETY: the helper takes this program's context and any level.
    let (sandbox, exec) = unsafe {
        (
            bpf_skb_ancestor_cgroup_id(ctx.skb.skb, level),
            bpf_skb_ancestor_cgroup_id(ctx.skb.skb, level + 1),
        )
    };
    if sandbox == 0 {
        return 1;
    }
    let Who::Inside(member) = member::of(sandbox, Some(exec)) else {
        return 0;
    };
    if member.header().bits & header::NETWORK_UNRESTRICTED != 0 {
        return 1;
    }
    match Packet::parse(ctx) {
        Some(packet) if packet.passes(&member, ctx) => 1,
        Some(packet) => refuse(&member, packet.to),
        None => refuse(
            &member,
            Destination {
                family: 0,
                port: 0,
                protocol: 0,
                address: [0; 4],
            },
        ),
    }
}

#[inline(always)]
fn refuse(member: &Member, to: Destination) -> i32 {
    let reason = Reason {
        operation: Operation::Packet,
        right: Right::Connect,
        errno: Errno::Perm,
        rule: builtin::PACKET,
    };
    verdict::packet(member, reason, &to)
}

struct Packet {
    to: Destination,
    /// No options, no extension headers, not a later fragment.
    plain: bool,
}

impl Packet {
    #[inline(always)]
    fn parse(ctx: &SkBuffContext) -> Option<Self> {
        let first: u8 = bytes(ctx, 0)?;
        match first >> 4 {
            4 => {
                let protocol: u8 = bytes(ctx, 9)?;
                let fragment: u16 = bytes(ctx, 6)?;
                let plain = first & 0xf == 5 && u16::from_be(fragment) & 0x1fff == 0;
                let port = if plain { port(ctx, protocol, 20) } else { 0 };
                Some(Self {
                    to: Destination {
                        family: AF_INET,
                        port,
                        protocol: u32::from(protocol),
                        address: [bytes(ctx, 16)?, 0, 0, 0],
                    },
                    plain,
                })
            }
            6 => {
                let next: u8 = bytes(ctx, 6)?;
                let plain = matches!(next, TCP | UDP | 58);
                let port = if plain { port(ctx, next, 40) } else { 0 };
                Some(Self {
                    to: Destination {
                        family: AF_INET6,
                        port,
                        protocol: u32::from(next),
                        address: bytes(ctx, 24)?,
                    },
                    plain,
                })
            }
            _ => None,
        }
    }

    #[inline(always)]
    fn passes(&self, member: &Member, ctx: &SkBuffContext) -> bool {
        if !self.plain {
            return false;
        }
        let address = self.to.address;
        let (loopback, direct) = if self.to.family == AF_INET {
            (
                u32::from_be(address[0]) >> 24 == 127,
                direct4(member.rules, address[0], self.to.port),
            )
        } else {
            (
                address == [0, 0, 0, 1_u32.to_be()],
                direct6(member.rules, address, self.to.port),
            )
        };
        // SAFETY: a field of the context.
        let device = unsafe { (*ctx.skb.skb).ifindex };
        // A host's own addresses, loopback's above all, never leave by a wire.
        if device == LOOPBACK_DEVICE {
            loopback || direct
        } else {
            direct && !loopback
        }
    }
}

/// The destination port, host order; 0 where the protocol has none.
#[inline(always)]
fn port(ctx: &SkBuffContext, protocol: u8, offset: u32) -> u16 {
    if protocol == TCP || protocol == UDP {
        bytes(ctx, offset + 2).map_or(0, u16::from_be)
    } else {
        0
    }
}

/// A value at an offset from the network header.
#[inline(always)]
fn bytes<T: Copy + Default>(ctx: &SkBuffContext, offset: u32) -> Option<T> {
    let mut value = T::default();
    // SAFETY: `value` has room for `T`.
    let failed = unsafe {
        bpf_skb_load_bytes(
            ctx.skb.skb.cast(),
            offset,
            (&raw mut value).cast(),
            size_of::<T>() as u32,
        )
    };
    (failed == 0).then_some(value)
}
