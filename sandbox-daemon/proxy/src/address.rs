//! Addresses that no name may lead to, unless the policy names them itself.

use std::net::IpAddr;

/// Why an address is not dialled: `a private address`, ... None: it may be.
#[must_use]
pub fn refused(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) if address.is_loopback() => Some("a loopback address"),
        _ => None,
    }
}
