//! Packets on their way out and in, by what they really say. A routing header
//! or a forced device carries a packet for `::1` to another host, and no hook on
//! sockets sees it; whatever comes next ends here as well.

use aya_ebpf::{
    EbpfContext as _,
    helpers::generated::{bpf_skb_ancestor_cgroup_id, bpf_skb_load_bytes},
    programs::SkBuffContext,
};
use sandbox_common::{Operation, Right, builtin, header};

use super::{AF_INET, AF_INET6, TCP, UDP, direct, is_loopback, owner::owner, proxy::note};
use crate::{
    event::Destination,
    maps::SANDBOX_LEVEL,
    member::{self, Member, Who},
    verdict::{self, Errno, Reason},
};

const LOOPBACK_DEVICE: u32 = 1;

/// `cgroup_skb/egress`. 1: pass, 0: drop.
#[inline(always)]
pub fn egress(ctx: &SkBuffContext) -> i32 {
    let (member, bits) = match walled(ctx) {
        Ok(walled) => walled,
        Err(verdict) => return verdict,
    };
    let Some(packet) = Packet::parse(ctx) else {
        return refuse(&member, builtin::PACKET, &Destination::none());
    };
    match packet.leaves(&member, bits, ctx) {
        Verdict::Pass => 1,
        Verdict::Drop => 0,
        Verdict::Refuse(rule) => refuse(&member, rule, &packet.to),
    }
}

/// `cgroup_skb/ingress`: what reaches the sandbox's sockets. A stranger's
/// packets are no doing of the sandbox's, so there are no events.
#[inline(always)]
pub fn ingress(ctx: &SkBuffContext) -> i32 {
    let (member, bits) = match walled(ctx) {
        Ok(walled) => walled,
        Err(verdict) => return verdict,
    };
    // What was sent was only told, and an answer to it is no new attempt.
    if bits & header::OBSERVE != 0 {
        return 1;
    }
    match Packet::parse(ctx) {
        Some(packet) => i32::from(packet.enters(&member, bits, ctx)),
        None => 0,
    }
}

/// The sandbox of a packet's socket, and the bits of its policy; or what becomes
/// of a packet that there is no wall for.
#[inline(always)]
fn walled(ctx: &SkBuffContext) -> Result<(Member, u32), i32> {
    let level = SANDBOX_LEVEL.load() as i32;
    // SAFETY: the helper takes this program's context and any level.
    let (sandbox, exec) = unsafe {
        (
            bpf_skb_ancestor_cgroup_id(ctx.skb.skb, level),
            bpf_skb_ancestor_cgroup_id(ctx.skb.skb, level + 1),
        )
    };
    if sandbox == 0 {
        return Err(1);
    }
    let Who::Inside(member) = member::of(sandbox, Some(exec)) else {
        return Err(0);
    };
    let bits = member.header().bits;
    if bits & header::NETWORK_UNRESTRICTED != 0 {
        return Err(1);
    }
    Ok((member, bits))
}

#[inline(always)]
fn refuse(member: &Member, rule: u32, to: &Destination) -> i32 {
    let reason = Reason {
        operation: Operation::Packet,
        right: Right::Connect,
        errno: Errno::Perm,
        rule,
    };
    verdict::packet(member, reason, to)
}

enum Verdict {
    Pass,
    /// Without an event: there is nobody whom it would reach.
    Drop,
    Refuse(u32),
}

struct Packet {
    from: Destination,
    to: Destination,
    /// The first packet of a TCP connection.
    opens: bool,
    /// TCP or UDP without options, extension headers, or a part of a packet.
    plain: bool,
}

impl Packet {
    #[inline(always)]
    fn parse(ctx: &SkBuffContext) -> Option<Self> {
        let first: u8 = bytes(ctx, 0)?;
        let (family, protocol, plain, transport, from, to) = match first >> 4 {
            4 => {
                let protocol: u8 = bytes(ctx, 9)?;
                let fragment: u16 = bytes(ctx, 6)?;
                let whole = u16::from_be(fragment) & 0x1fff == 0;
                (
                    AF_INET,
                    protocol,
                    first & 0xf == 5 && whole,
                    20,
                    [bytes(ctx, 12)?, 0, 0, 0],
                    [bytes(ctx, 16)?, 0, 0, 0],
                )
            }
            6 => {
                let next: u8 = bytes(ctx, 6)?;
                (AF_INET6, next, true, 40, bytes(ctx, 8)?, bytes(ctx, 24)?)
            }
            _ => return None,
        };
        let protocol = u32::from(protocol);
        let plain = plain && (protocol == TCP || protocol == UDP);
        let ports: [u16; 2] = if plain {
            bytes(ctx, transport)?
        } else {
            [0; 2]
        };
        let opens = if plain && protocol == TCP {
            const SYN: u8 = 0x02;
            const ACK: u8 = 0x10;
            let flags: u8 = bytes(ctx, transport + 13)?;
            flags & (SYN | ACK) == SYN
        } else {
            false
        };
        let end = |address, port| Destination {
            family,
            port: u16::from_be(port),
            protocol,
            address,
        };
        Some(Self {
            from: end(from, ports[0]),
            to: end(to, ports[1]),
            opens,
            plain,
        })
    }

    #[inline(always)]
    fn leaves(&self, member: &Member, bits: u32, ctx: &SkBuffContext) -> Verdict {
        if !self.plain {
            return Verdict::Refuse(builtin::PACKET);
        }
        // SAFETY: a field of the context.
        let device = unsafe { (*ctx.skb.skb).ifindex };
        let loopback = is_loopback(&self.to);
        // A host's own addresses, loopback's above all, never leave by a wire.
        if loopback && device != LOOPBACK_DEVICE {
            return Verdict::Refuse(builtin::PACKET);
        }
        if direct(member.rules, &self.to) {
            return Verdict::Pass;
        }
        let goes_on = self.to.protocol == TCP && !self.opens;
        if device != LOOPBACK_DEVICE {
            // An answer to somebody who was let in.
            return if goes_on && bits & header::LISTEN_ANY != 0 {
                Verdict::Pass
            } else {
                Verdict::Refuse(builtin::NETWORK)
            };
        }
        // A connection was looked at when it was opened, from whichever side.
        if goes_on {
            return Verdict::Pass;
        }
        if !loopback {
            return Verdict::Refuse(builtin::NETWORK);
        }
        if bits & header::PROXY != 0 && note(ctx, &self.from, &self.to) {
            return Verdict::Pass;
        }
        let owner = match owner(ctx.as_ptr(), &self.from, &self.to) {
            // What is left of a connection that has just ended is no socket, and
            // a new one goes to who listens.
            None if self.opens => owner(ctx.as_ptr(), &Destination::none(), &self.to),
            found => found,
        };
        match owner {
            Some(owner) if owner == member.sandbox => Verdict::Pass,
            Some(_) => Verdict::Refuse(builtin::LOOPBACK),
            None if self.opens => Verdict::Drop,
            // The sender is told that nobody is there.
            None => Verdict::Pass,
        }
    }

    #[inline(always)]
    fn enters(&self, member: &Member, bits: u32, ctx: &SkBuffContext) -> bool {
        // SAFETY: a field of the context.
        let device = unsafe { (*ctx.skb.skb).ingress_ifindex };
        if self.opens {
            return if device == LOOPBACK_DEVICE {
                bits & header::LISTEN_NONE == 0
            } else {
                bits & header::LISTEN_ANY != 0
            };
        }
        if device == LOOPBACK_DEVICE {
            return true;
        }
        let any = self.to.protocol == TCP && bits & header::LISTEN_ANY != 0;
        self.plain && (any || direct(member.rules, &self.from))
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
