//! Whose a port of this machine is: the kernel's own lookup finds the socket
//! that would get a packet, and its cgroup says who made it.

use aya_ebpf::{
    bindings::{
        bpf_sock, bpf_sock_tuple, bpf_sock_tuple__bindgen_ty_1__bindgen_ty_1 as Tuple4,
        bpf_sock_tuple__bindgen_ty_1__bindgen_ty_2 as Tuple6,
    },
    cty::c_void,
    helpers::generated::{bpf_sk_lookup_tcp, bpf_sk_lookup_udp, bpf_sk_release},
};

use super::{AF_INET, TCP};
use crate::{event::Destination, layout::probe, member};

/// The network namespace of the caller (`BPF_F_CURRENT_NETNS`).
pub const CURRENT: u64 = -1_i64 as u64;

/// Who receives what is sent to `to`, a TCP or a UDP port, from `from`: the
/// sandbox's cgroup id, or 0 for somebody outside. None: nobody.
///
/// `ctx` is that of a program on addresses or packets. Only for packets, the
/// device counts: in the others a socket that is bound to one is not found.
#[inline(always)]
pub fn owner(ctx: *mut c_void, from: &Destination, to: &Destination) -> Option<u64> {
    with_tuple(from, to, |tuple, size| find(ctx, to.protocol, tuple, size))
}

/// Calls with what the kernel looks a socket up by.
#[inline(always)]
pub fn with_tuple<T>(
    from: &Destination,
    to: &Destination,
    look_up: impl FnOnce(*mut bpf_sock_tuple, u32) -> T,
) -> T {
    if to.family == AF_INET {
        let mut tuple = Tuple4 {
            saddr: from.address[0],
            daddr: to.address[0],
            sport: from.port.to_be(),
            dport: to.port.to_be(),
        };
        look_up((&raw mut tuple).cast(), size_of::<Tuple4>() as u32)
    } else {
        let mut tuple = Tuple6 {
            saddr: from.address,
            daddr: to.address,
            sport: from.port.to_be(),
            dport: to.port.to_be(),
        };
        look_up((&raw mut tuple).cast(), size_of::<Tuple6>() as u32)
    }
}

#[inline(always)]
fn find(ctx: *mut c_void, protocol: u32, tuple: *mut bpf_sock_tuple, size: u32) -> Option<u64> {
    // SAFETY: `tuple` has `size` bytes; what is found is released.
    unsafe {
        if protocol == TCP {
            made_in(bpf_sk_lookup_tcp(ctx, tuple, size, CURRENT, 0))
        } else {
            made_in(bpf_sk_lookup_udp(ctx, tuple, size, CURRENT, 0))
        }
    }
}

/// The sandbox of a socket that was found, which is released.
///
/// # Safety
///
/// `sock` must come from a lookup.
#[inline(always)]
unsafe fn made_in(sock: *mut bpf_sock) -> Option<u64> {
    if sock.is_null() {
        return None;
    }
    let sandbox = member::of_sock(probe::address(sock));
    // SAFETY: by contract, and not used after.
    unsafe { bpf_sk_release(sock.cast()) };
    Some(sandbox)
}
