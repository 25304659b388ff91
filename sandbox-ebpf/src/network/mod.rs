//! The network wall. Cgroup programs on the parent of all sandboxes run for the
//! cgroup that a socket was made in, whoever uses it; LSM programs for the
//! process that uses it, whoever made it.

mod address;
mod packet;
mod socket;
mod unix;

pub use address::{connect4, connect6, send4, send6};
use aya_ebpf::{
    helpers::generated::{bpf_get_current_ancestor_cgroup_id, bpf_sk_storage_get},
    programs::{SkBuffContext, SockContext},
};
use sandbox_common::{Key, kind};
pub use socket::create;
pub use unix::{datagram, stream};

use crate::{
    maps::{LABELS, Label, Rules, SANDBOX_LEVEL, lookup},
    member::{self, Who},
};

pub const AF_INET: u16 = 2;
pub const AF_INET6: u16 = 10;

const BPF_SK_STORAGE_GET_F_CREATE: u64 = 1;

/// `sock_create`: labels a socket with the sandbox it is made in. A socket
/// without a label is refused everywhere else.
#[inline(always)]
pub fn label(ctx: &SockContext) -> i32 {
    let level = SANDBOX_LEVEL.load() as i32;
    // SAFETY: both helpers take these arguments; the storage is the socket's.
    unsafe {
        let sandbox = bpf_get_current_ancestor_cgroup_id(level);
        if sandbox == 0 {
            return 1;
        }
        let mut label = Label {
            sandbox,
            exec: bpf_get_current_ancestor_cgroup_id(level + 1),
        };
        let stored = bpf_sk_storage_get(
            (&raw const LABELS).cast_mut().cast(),
            ctx.sock.cast(),
            (&raw mut label).cast(),
            BPF_SK_STORAGE_GET_F_CREATE,
        );
        i32::from(!stored.is_null())
    }
}

/// `cgroup_skb/egress`: by the packet's real destination and device.
#[inline(always)]
pub fn egress(ctx: &SkBuffContext) -> i32 {
    packet::egress(ctx)
}

/// Whether the policy names an IPv4 destination, with its port or any.
#[inline(always)]
fn direct4(rules: &'static Rules, address: u32, port: u16) -> bool {
    let key = Key {
        kind: kind::NET4,
        dev: address,
        ino: u64::from(port),
        extra: 0,
    };
    lookup(rules, &key).is_some() || lookup(rules, &Key { ino: 0, ..key }).is_some()
}

/// The same for IPv6.
#[inline(always)]
fn direct6(rules: &'static Rules, address: [u32; 4], port: u16) -> bool {
    let key = Key {
        kind: kind::NET6,
        dev: u32::from(port),
        ino: u64::from(address[0]) | u64::from(address[1]) << 32,
        extra: u64::from(address[2]) | u64::from(address[3]) << 32,
    };
    lookup(rules, &key).is_some() || lookup(rules, &Key { dev: 0, ..key }).is_some()
}

/// The sandbox that a label names, if its policy is there.
#[inline(always)]
fn labelled(label: Label) -> Who {
    member::of(label.sandbox, Some(label.exec))
}
