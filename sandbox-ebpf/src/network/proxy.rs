//! The way to the proxy. Addresses that stand for names, and name servers, are
//! replaced by the proxy's own sockets; what was asked for is kept by the
//! socket's cookie, and found by the proxy through the address that the socket
//! sends from.

use aya_ebpf::{
    EbpfContext as _,
    bindings::{
        BPF_SOCK_OPS_STATE_CB, BPF_SOCK_OPS_STATE_CB_FLAG, BPF_SOCK_OPS_TCP_CONNECT_CB,
        BPF_TCP_CLOSE,
    },
    cty::c_void,
    helpers::generated::{
        bpf_get_current_comm, bpf_get_current_pid_tgid, bpf_get_current_uid_gid,
        bpf_get_socket_cookie, bpf_sk_lookup_tcp, bpf_sk_lookup_udp, bpf_sk_release,
    },
    programs::{SkBuffContext, SockAddrContext, SockContext, SockOpsContext},
};
use sandbox_common::{Asked, DNS_PORT, Entrance, Entrances, FlowKey, SYNTHETIC, builtin, header};

use super::{
    AF_INET, AF_INET6, TCP, UDP,
    address::{address4, address6},
    is_loopback, loopback,
    owner::{CURRENT, owner, with_tuple},
};
use crate::{
    event::Destination,
    layout::probe,
    maps::{ASKED, ENTRANCES, FLOWS},
    member::Member,
    verdict::{self, Errno, Reason},
};

/// Where a socket of a sandbox is sent instead; none: nowhere else.
#[inline(always)]
pub fn redirect<const IPV6: bool>(
    ctx: &SockAddrContext,
    member: &Member,
    reason: Reason,
    to: &Destination,
) -> Option<i32> {
    if member.header().bits & header::PROXY == 0 {
        return None;
    }
    let asks = to.port == DNS_PORT && (to.protocol == TCP || to.protocol == UDP);
    let names = to.protocol == TCP && is_synthetic(to);
    if !asks && !names {
        return None;
    }
    // A name server of the sandbox's own.
    if asks
        && is_loopback(to)
        && owner(ctx.as_ptr(), &Destination::none(), to) == Some(member.sandbox)
    {
        return None;
    }
    let away = Reason {
        errno: Errno::ConnRefused,
        rule: builtin::PROXY_AWAY,
        ..reason
    };
    let Some(entrance) = entrance(to.family, to.protocol) else {
        return Some(verdict::network(member, away, to));
    };
    let at = Destination {
        port: entrance.port as u16,
        ..loopback(to)
    };
    // Somebody else may have the port, now that the proxy's socket is gone, or in
    // this network.
    let led = holder(ctx.as_ptr(), &at) == entrance.cookie
        && remember(ctx.as_ptr(), member.sandbox, member.exec(), to);
    if !led {
        return Some(verdict::network(member, away, to));
    }
    replace::<IPV6>(ctx, &at);
    Some(1)
}

/// What a packet to the proxy comes from is noted; false: it is none.
#[inline(always)]
pub fn note(ctx: &SkBuffContext, from: &Destination, to: &Destination) -> bool {
    match entrance(to.family, to.protocol) {
        Some(entrance) if u32::from(to.port) == entrance.port && is_loopback(to) => {}
        _ => return false,
    }
    // SAFETY: the program's own context.
    let cookie = unsafe { bpf_get_socket_cookie(ctx.as_ptr()) };
    let Some(asked) = ASKED.get_ptr_mut(cookie) else {
        return false;
    };
    let key = FlowKey {
        address: long(from),
        port: from.port,
        protocol: from.protocol as u16,
        reserved: 0,
    };
    // SAFETY: the entry is this socket's, and goes with it.
    unsafe {
        if (*asked).flow != key {
            forget(&(*asked).flow, cookie);
        } else if FLOWS.get(key).copied() == Some(cookie) {
            // Otherwise somebody else had the address in between.
            return true;
        }
        (*asked).flow = key;
    }
    FLOWS.insert(key, cookie, 0).is_ok()
}

/// `sock_ops`: when a connection has ended, its address may become somebody
/// else's, though its socket is kept.
#[inline(always)]
pub fn state(ctx: &SockOpsContext) {
    // SAFETY: the program's own context.
    let cookie = unsafe { bpf_get_socket_cookie(ctx.as_ptr()) };
    let Some(asked) = ASKED.get_ptr_mut(cookie) else {
        return;
    };
    match ctx.op() {
        BPF_SOCK_OPS_TCP_CONNECT_CB => {
            let _ = ctx.set_cb_flags(BPF_SOCK_OPS_STATE_CB_FLAG as i32);
        }
        // The earlier state, and the new one.
        BPF_SOCK_OPS_STATE_CB if ctx.arg(1) == BPF_TCP_CLOSE => {
            // SAFETY: as in `note`.
            unsafe {
                forget(&(*asked).flow, cookie);
                (*asked).flow.port = 0;
            }
        }
        _ => {}
    }
}

/// `sock_release`
#[inline(always)]
pub fn release(ctx: &SockContext) {
    // SAFETY: the program's own context.
    let cookie = unsafe { bpf_get_socket_cookie(ctx.as_ptr()) };
    let Some(asked) = ASKED.get_ptr(cookie) else {
        return;
    };
    // SAFETY: as in `note`.
    unsafe { forget(&(*asked).flow, cookie) };
    let _ = ASKED.remove(cookie);
}

/// `recvmsg4`, `getpeername4`: who answers is whom the socket asked.
#[inline(always)]
pub fn restore4(ctx: &SockAddrContext) {
    restore::<false>(ctx, &address4(ctx));
}

/// `recvmsg6`, `getpeername6`
#[inline(always)]
pub fn restore6(ctx: &SockAddrContext) {
    restore::<true>(ctx, &address6(ctx));
}

#[inline(always)]
fn restore<const IPV6: bool>(ctx: &SockAddrContext, from: &Destination) {
    match entrance(from.family, from.protocol) {
        Some(entrance) if u32::from(from.port) == entrance.port && is_loopback(from) => {}
        _ => return,
    }
    // SAFETY: the program's own context.
    let cookie = unsafe { bpf_get_socket_cookie(ctx.as_ptr()) };
    let Some(asked) = ASKED.get_ptr(cookie) else {
        return;
    };
    // SAFETY: as in `note`.
    let (address, port) = unsafe { ((*asked).address, (*asked).port) };
    replace::<IPV6>(ctx, &short(address, port));
}

/// The proxy's socket for this kind of traffic, if there is one.
#[inline(always)]
fn entrance(family: u16, protocol: u32) -> Option<Entrance> {
    let entrances: *const Entrances = ENTRANCES.get_ptr(0)?;
    // SAFETY: the map's value is there for as long as the map.
    let entrance = unsafe {
        match (family, protocol) {
            (AF_INET, TCP) => (*entrances).tcp4,
            (AF_INET6, TCP) => (*entrances).tcp6,
            (AF_INET, UDP) => (*entrances).dns4,
            (AF_INET6, UDP) => (*entrances).dns6,
            _ => return None,
        }
    };
    (entrance.cookie != 0).then_some(entrance)
}

/// The cookie of the socket that gets what is sent there; 0: there is none.
#[inline(always)]
fn holder(ctx: *mut c_void, at: &Destination) -> u64 {
    with_tuple(&Destination::none(), at, |tuple, size| {
        // SAFETY: `tuple` has `size` bytes; what is found is released.
        unsafe {
            let sock = if at.protocol == TCP {
                bpf_sk_lookup_tcp(ctx, tuple, size, CURRENT, 0)
            } else {
                bpf_sk_lookup_udp(ctx, tuple, size, CURRENT, 0)
            };
            if sock.is_null() {
                return 0;
            }
            let cookie = probe::sock_cookie(probe::address(sock));
            bpf_sk_release(sock.cast());
            cookie
        }
    })
}

/// Keeps what a socket asks for. Not inlined: there is little room on the stack
/// that the writer of events is called with.
#[inline(never)]
fn remember(ctx: *mut c_void, sandbox: u64, exec: u64, to: &Destination) -> bool {
    // SAFETY: the program's own context.
    let cookie = unsafe { bpf_get_socket_cookie(ctx) };
    if ASKED.get_ptr(cookie).is_none() && ASKED.insert(cookie, Asked::default(), 0).is_err() {
        return false;
    }
    let Some(asked) = ASKED.get_ptr_mut(cookie) else {
        return false;
    };
    // SAFETY: the entry is this socket's, and goes with it; the helpers take any
    // context, and write within `comm`.
    unsafe {
        (*asked).sandbox = sandbox;
        (*asked).exec = exec;
        (*asked).port = to.port;
        core::ptr::write_unaligned((&raw mut (*asked).address).cast(), words(to));
        (*asked).pid = (bpf_get_current_pid_tgid() >> 32) as u32;
        (*asked).uid = bpf_get_current_uid_gid() as u32;
        bpf_get_current_comm((&raw mut (*asked).comm).cast(), 16);
    }
    true
}

/// Takes a flow back, unless it is another socket's by now.
#[inline(always)]
fn forget(flow: &FlowKey, cookie: u64) {
    if flow.port == 0 {
        return;
    }
    let key = *flow;
    // SAFETY: a copy of a number.
    if unsafe { FLOWS.get(key) }.copied() == Some(cookie) {
        let _ = FLOWS.remove(key);
    }
}

/// Puts another address into the context of a hook for IPv4, or for IPv6.
#[inline(always)]
fn replace<const IPV6: bool>(ctx: &SockAddrContext, to: &Destination) {
    // SAFETY: fields that the verifier allows these hooks to write, the address
    // by words.
    unsafe {
        let sock_addr = ctx.sock_addr;
        if IPV6 {
            let [a, b, c, d] = words(to);
            let ip = (&raw mut (*sock_addr).user_ip6).cast::<u32>();
            core::ptr::write_volatile(ip, a);
            core::ptr::write_volatile(ip.add(1), b);
            core::ptr::write_volatile(ip.add(2), c);
            core::ptr::write_volatile(ip.add(3), d);
        } else {
            (*sock_addr).user_ip4 = to.address[0];
        }
        (*sock_addr).user_port = u32::from(to.port.to_be());
    }
}

/// Whether an address stands for a name.
#[inline(always)]
fn is_synthetic(to: &Destination) -> bool {
    let [a, b] = SYNTHETIC;
    let prefix = u32::from(a) << 7 | u32::from(b) >> 1;
    to.family == AF_INET && u32::from_be(to.address[0]) >> 17 == prefix
}

/// An address in the form that both families have.
#[inline(always)]
fn long(address: &Destination) -> [u8; 16] {
    // SAFETY: the same bytes.
    unsafe { core::mem::transmute(words(address)) }
}

#[inline(always)]
fn words(address: &Destination) -> [u32; 4] {
    if address.family == AF_INET {
        [0, 0, 0xffff_u32.to_be(), address.address[0]]
    } else {
        address.address
    }
}

/// The opposite of [`long`].
#[inline(always)]
fn short(address: [u8; 16], port: u16) -> Destination {
    // SAFETY: the same bytes.
    let words: [u32; 4] = unsafe { core::mem::transmute(address) };
    let (family, address) = if words[0] == 0 && words[1] == 0 && words[2] == 0xffff_u32.to_be() {
        (AF_INET, [words[3], 0, 0, 0])
    } else {
        (AF_INET6, words)
    };
    Destination {
        family,
        port,
        protocol: 0,
        address,
    }
}
