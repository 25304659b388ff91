//! Connections to the proxy: who asks, and for what. Kept by the programs, read
//! by the proxy; addresses are IPv6 ones, IPv4 in the v4-mapped form.

/// The proxy as sandboxes address it (`http://198.18.0.1:3128`): nothing
/// listens there, and what is sent there comes to the proxy.
pub const PROXY_ADDRESS: [u8; 4] = [198, 18, 0, 1];

/// See [`PROXY_ADDRESS`].
pub const PROXY_PORT: u16 = 3128;

/// Addresses that stand for names (RFC 2544's, which no network has): the first
/// two bytes, of which the second may be one more.
pub const SYNTHETIC: [u8; 2] = [198, 18];

/// The port of name servers.
pub const DNS_PORT: u16 = 53;

/// Where a connection comes from, or a query.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// Of the sandbox's socket.
    pub address: [u8; 16],
    /// Of the sandbox's socket, host order.
    pub port: u16,
    /// `IPPROTO_TCP`, `IPPROTO_UDP`.
    pub protocol: u16,
    /// 0.
    pub reserved: u32,
}

/// What a socket of a sandbox asked for.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Cgroup id of the sandbox.
    pub sandbox: u64,
    /// Cgroup id of the exec; 0: it is in none.
    pub exec: u64,
    /// Its entry among the flows; port 0: none yet.
    pub flow: FlowKey,
    /// Where it wanted to go.
    pub address: [u8; 16],
    /// Host order.
    pub port: u16,
    /// 0.
    pub reserved: u16,
    /// Process (thread group).
    pub pid: u32,
    /// Real user id.
    pub uid: u32,
    /// 0.
    pub reserved2: u32,
    /// `task_struct.comm`.
    pub comm: [u8; 16],
}

/// One of the proxy's sockets.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entrance {
    /// Its cookie (`SO_COOKIE`): whoever else has its port is not the proxy.
    /// 0: there is none.
    pub cookie: u64,
    /// On the loopback address, host order.
    pub port: u32,
    /// 0.
    pub reserved: u32,
}

/// The proxy's sockets, while there is a proxy.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entrances {
    /// TCP at 127.0.0.1.
    pub tcp4: Entrance,
    /// TCP at `::1`.
    pub tcp6: Entrance,
    /// Name server at 127.0.0.1, UDP.
    pub dns4: Entrance,
    /// Name server at `::1`, UDP.
    pub dns6: Entrance,
}

// SAFETY: plain integers without padding.
#[cfg(feature = "user")]
unsafe impl aya::Pod for FlowKey {}

// SAFETY: likewise.
#[cfg(feature = "user")]
unsafe impl aya::Pod for Asked {}

// SAFETY: likewise.
#[cfg(feature = "user")]
unsafe impl aya::Pod for Entrances {}

/// The v4-mapped form of an IPv4 address.
#[must_use]
pub const fn mapped(address: [u8; 4]) -> [u8; 16] {
    let [a, b, c, d] = address;
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}
