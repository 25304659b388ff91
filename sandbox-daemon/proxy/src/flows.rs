//! Who is at the other end of a connection, as the kernel's programs noted it.
//! The maps are only read here.

use std::{
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    os::fd::{AsRawFd as _, OwnedFd},
};

use sandbox_common::{Asked, FlowKey};

/// `IPPROTO_TCP`
pub const TCP: u16 = 6;
/// `IPPROTO_UDP`
pub const UDP: u16 = 17;

/// The maps `FLOWS` and `ASKED`.
#[derive(Debug)]
pub struct Flows {
    flows: OwnedFd,
    asked: OwnedFd,
}

impl Flows {
    /// Reads these maps.
    #[must_use]
    pub fn new(flows: OwnedFd, asked: OwnedFd) -> Self {
        Self { flows, asked }
    }

    /// Who sends from this address; none: nobody who is in a sandbox.
    ///
    /// # Errors
    /// The maps cannot be read.
    pub fn find(&self, protocol: u16, from: SocketAddr) -> io::Result<Option<Asked>> {
        let key = FlowKey {
            address: match from.ip() {
                IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                IpAddr::V6(address) => address.octets(),
            },
            port: from.port(),
            protocol,
            reserved: 0,
        };
        let mut cookie = 0_u64;
        if !lookup(&self.flows, &key, &mut cookie)? {
            return Ok(None);
        }
        let mut asked = Asked::default();
        Ok(lookup(&self.asked, &cookie, &mut asked)?.then_some(asked))
    }
}

/// Where a socket wanted to go.
#[must_use]
pub fn destination(asked: &Asked) -> SocketAddr {
    SocketAddr::new(Ipv6Addr::from(asked.address).to_canonical(), asked.port)
}

/// The part of `union bpf_attr` for `BPF_MAP_LOOKUP_ELEM`
/// (include/uapi/linux/bpf.h).
#[repr(C)]
struct Lookup {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// `BPF_MAP_LOOKUP_ELEM`. `K` and `V` are the map's own types: the kernel reads
/// and writes as many bytes as the map has.
fn lookup<K, V>(map: &OwnedFd, key: &K, value: &mut V) -> io::Result<bool> {
    const BPF_MAP_LOOKUP_ELEM: libc::c_long = 1;
    let attributes = Lookup {
        map: map.as_raw_fd().cast_unsigned(),
        padding: 0,
        key: std::ptr::from_ref(key).addr() as u64,
        value: std::ptr::from_mut(value).addr() as u64,
        flags: 0,
    };
    // SAFETY: `key` and `value` have the sizes that the map was made with, and
    // live until the call returns.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_MAP_LOOKUP_ELEM,
            &raw const attributes,
            size_of::<Lookup>(),
        )
    };
    if answer == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::NotFound => Ok(false),
        error => Err(error),
    }
}
