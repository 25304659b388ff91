//! The network wall. Cgroup programs on the parent of all sandboxes run for the
//! cgroup that a socket was made in, whoever uses it; LSM programs for the
//! process that uses it, whoever made it. Whose a socket is, its cgroup says.

mod address;
mod owner;
mod packet;
mod proxy;
mod socket;
mod unix;

pub use address::{bind4, bind6, connect4, connect6, send4, send6};
pub use packet::{egress, ingress};
pub use proxy::{release, restore4, restore6, state};
use sandbox_common::{Key, kind};
pub use socket::{bind, connect, create, listen, receive};
pub use unix::{datagram, stream};

use crate::{
    event::Destination,
    maps::{Rules, lookup},
};

pub const AF_INET: u16 = 2;
pub const AF_INET6: u16 = 10;
pub const TCP: u32 = 6;
pub const UDP: u32 = 17;

/// Whether the policy names a destination, with its port or any.
#[inline(always)]
fn direct(rules: &'static Rules, to: &Destination) -> bool {
    if to.family == AF_INET {
        direct4(rules, to.address[0], to.port)
    } else {
        direct6(rules, to.address, to.port)
    }
}

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

/// Whether an address is one of this machine's own that never leave it, and
/// one socket's: not a broadcast, which is everybody's.
#[inline(always)]
fn is_loopback(to: &Destination) -> bool {
    if to.family == AF_INET {
        let address = u32::from_be(to.address[0]);
        address >> 24 == 127 && address != 0x7fff_ffff && address != 0x7f00_0000
    } else {
        to.address == [0, 0, 0, 1_u32.to_be()]
    }
}

/// The unspecified address stands for this machine, where something is sent to
/// it.
#[inline(always)]
fn specified(to: Destination) -> Destination {
    if to.address != [0; 4] {
        return to;
    }
    loopback(&to)
}

/// The same at the loopback address.
#[inline(always)]
fn loopback(to: &Destination) -> Destination {
    let address = if to.family == AF_INET {
        [0x7f00_0001_u32.to_be(), 0, 0, 0]
    } else {
        [0, 0, 0, 1_u32.to_be()]
    };
    Destination { address, ..*to }
}
