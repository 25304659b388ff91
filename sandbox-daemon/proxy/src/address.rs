//! Addresses that no name may lead to, unless the policy names them itself: what
//! is not of the public Internet (IANA's registries of special-purpose
//! addresses), in IPv4, in IPv6, and in the forms that one takes in the other.
//! Addresses for documentation are nobody's, and do no harm.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const UNSPECIFIED: &str = "an unspecified address";
const LOOPBACK: &str = "a loopback address";
const PRIVATE: &str = "a private address";
const SHARED: &str = "an address behind a carrier's NAT";
const LINK_LOCAL: &str = "a link-local address";
const METADATA: &str = "the address of a metadata service";
const BENCHMARKING: &str = "an address for benchmarking";
const MULTICAST: &str = "a multicast address";
const BROADCAST: &str = "a broadcast address";
const RESERVED: &str = "a reserved address";

/// What clouds give secrets out on: AWS and those that follow it, Azure, Alibaba,
/// Oracle.
const METADATA_V4: [Ipv4Addr; 4] = [
    Ipv4Addr::new(169, 254, 169, 254),
    Ipv4Addr::new(168, 63, 129, 16),
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(192, 0, 0, 192),
];

/// AWS, Google.
const METADATA_V6: [Ipv6Addr; 2] = [
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
];

/// Why an address is not dialled: `a private address`, ... None: it may be.
#[must_use]
pub fn refused(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => refused_v4(address),
        IpAddr::V6(address) => refused_v6(address),
    }
}

fn refused_v4(address: Ipv4Addr) -> Option<&'static str> {
    if METADATA_V4.contains(&address) {
        return Some(METADATA);
    }
    match address.octets() {
        [0, ..] => Some(UNSPECIFIED),
        [127, ..] => Some(LOOPBACK),
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => Some(PRIVATE),
        [100, 64..=127, ..] => Some(SHARED),
        [169, 254, ..] => Some(LINK_LOCAL),
        // Synthetic addresses among them.
        [198, 18..=19, ..] => Some(BENCHMARKING),
        [224..=239, ..] => Some(MULTICAST),
        [255, 255, 255, 255] => Some(BROADCAST),
        // Of protocols, relays of 6to4, the future.
        [192, 0, 0, _] | [192, 88, 99, _] | [240..=255, ..] => Some(RESERVED),
        _ => None,
    }
}

fn refused_v6(address: Ipv6Addr) -> Option<&'static str> {
    if METADATA_V6.contains(&address) {
        return Some(METADATA);
    }
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => Some(UNSPECIFIED),
        [0, 0, 0, 0, 0, 0, 0, 1] => Some(LOOPBACK),
        // Mapped, and what NAT64 makes of it: whatever they stand for.
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            refused_v4(embedded(high, low))
        }
        // Compatible, translated (SIIT), 6to4: nothing on the Internet has these.
        [0, 0, 0, 0, 0 | 0xffff, 0, high, low] | [0x2002, high, low, ..] => {
            refused_v4(embedded(high, low)).or(Some(RESERVED))
        }
        // Teredo; the client's address is inverted.
        [0x2001, 0, _, _, _, _, high, low] => refused_v4(embedded(!high, !low)).or(Some(RESERVED)),
        [0x2001, 2, 0, ..] => Some(BENCHMARKING),
        [0xfe80..=0xfebf, ..] => Some(LINK_LOCAL),
        // Unique-local, site-local, and NAT64 as a network likes it.
        [0xfc00..=0xfdff | 0xfec0..=0xfeff, ..] | [0x64, 0xff9b, 1, ..] => Some(PRIVATE),
        [0xff00..=0xffff, ..] => Some(MULTICAST),
        // Of protocols.
        [0x2001, 0..=0x1ff, ..] => Some(RESERVED),
        // All that is given out.
        [0x2000..=0x3fff, ..] => None,
        _ => Some(RESERVED),
    }
}

fn embedded(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(high) << 16 | u32::from(low))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranges, from the first to the last address, that border on addresses of
    /// another kind.
    const RANGES: &[(&str, &str, Option<&str>)] = &[
        ("0.0.0.0", "0.255.255.255", Some(UNSPECIFIED)),
        ("1.0.0.0", "9.255.255.255", None),
        ("10.0.0.0", "10.255.255.255", Some(PRIVATE)),
        ("11.0.0.0", "100.63.255.255", None),
        ("100.64.0.0", "100.100.100.199", Some(SHARED)),
        ("100.100.100.200", "100.100.100.200", Some(METADATA)),
        ("100.100.100.201", "100.127.255.255", Some(SHARED)),
        ("100.128.0.0", "126.255.255.255", None),
        ("127.0.0.0", "127.255.255.255", Some(LOOPBACK)),
        ("128.0.0.0", "168.63.129.15", None),
        ("168.63.129.16", "168.63.129.16", Some(METADATA)),
        ("168.63.129.17", "169.253.255.255", None),
        ("169.254.0.0", "169.254.169.253", Some(LINK_LOCAL)),
        ("169.254.169.254", "169.254.169.254", Some(METADATA)),
        ("169.254.169.255", "169.254.255.255", Some(LINK_LOCAL)),
        ("169.255.0.0", "172.15.255.255", None),
        ("172.16.0.0", "172.31.255.255", Some(PRIVATE)),
        ("172.32.0.0", "191.255.255.255", None),
        ("192.0.0.0", "192.0.0.191", Some(RESERVED)),
        ("192.0.0.192", "192.0.0.192", Some(METADATA)),
        ("192.0.0.193", "192.0.0.255", Some(RESERVED)),
        ("192.0.1.0", "192.88.98.255", None),
        ("192.88.99.0", "192.88.99.255", Some(RESERVED)),
        ("192.88.100.0", "192.167.255.255", None),
        ("192.168.0.0", "192.168.255.255", Some(PRIVATE)),
        ("192.169.0.0", "198.17.255.255", None),
        ("198.18.0.0", "198.19.255.255", Some(BENCHMARKING)),
        ("198.20.0.0", "223.255.255.255", None),
        ("224.0.0.0", "239.255.255.255", Some(MULTICAST)),
        ("240.0.0.0", "255.255.255.254", Some(RESERVED)),
        ("255.255.255.255", "255.255.255.255", Some(BROADCAST)),
        ("::", "::", Some(UNSPECIFIED)),
        ("::1", "::1", Some(LOOPBACK)),
        ("::2", "::2", Some(UNSPECIFIED)),
        ("::127.0.0.1", "::127.0.0.1", Some(LOOPBACK)),
        ("::8.8.8.8", "::8.8.8.8", Some(RESERVED)),
        ("::1:0:0", "::fffe:ffff:ffff", Some(RESERVED)),
        ("::ffff:10.0.0.0", "::ffff:10.255.255.255", Some(PRIVATE)),
        ("::ffff:11.0.0.0", "::ffff:100.63.255.255", None),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.1", Some(LOOPBACK)),
        ("::ffff:0:127.0.0.1", "::ffff:0:127.0.0.1", Some(LOOPBACK)),
        ("::ffff:0:8.8.8.8", "::ffff:0:8.8.8.8", Some(RESERVED)),
        ("64:ff9b::8.8.8.8", "64:ff9b::8.8.8.8", None),
        (
            "64:ff9b::192.168.0.0",
            "64:ff9b::192.168.255.255",
            Some(PRIVATE),
        ),
        (
            "64:ff9b::169.254.169.254",
            "64:ff9b::169.254.169.254",
            Some(METADATA),
        ),
        (
            "64:ff9b::1:0:0",
            "64:ff9b:0:ffff:ffff:ffff:ffff:ffff",
            Some(RESERVED),
        ),
        (
            "64:ff9b:1::",
            "64:ff9b:1:ffff:ffff:ffff:ffff:ffff",
            Some(PRIVATE),
        ),
        (
            "64:ff9b:2::",
            "1fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            Some(RESERVED),
        ),
        ("2000::", "2000:ffff:ffff:ffff:ffff:ffff:ffff:ffff", None),
        ("2001::ffff:ffff", "2001::ffff:ffff", Some(UNSPECIFIED)),
        (
            "2001:0:808:808::f5ff:fffe",
            "2001:0:808:808::f5ff:fffe",
            Some(PRIVATE),
        ),
        (
            "2001:0:808:808::f7f7:f7f7",
            "2001:0:808:808::f7f7:f7f7",
            Some(RESERVED),
        ),
        (
            "2001:1::",
            "2001:1:ffff:ffff:ffff:ffff:ffff:ffff",
            Some(RESERVED),
        ),
        (
            "2001:2::",
            "2001:2:0:ffff:ffff:ffff:ffff:ffff",
            Some(BENCHMARKING),
        ),
        (
            "2001:2:1::",
            "2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff",
            Some(RESERVED),
        ),
        (
            "2001:200::",
            "2001:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            None,
        ),
        (
            "2002:7f00:1::",
            "2002:7f00:1:ffff:ffff:ffff:ffff:ffff",
            Some(LOOPBACK),
        ),
        (
            "2002:a00::",
            "2002:aff:ffff:ffff:ffff:ffff:ffff:ffff",
            Some(PRIVATE),
        ),
        ("2002:808:808::", "2002:808:808::1", Some(RESERVED)),
        ("2003::", "3fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", None),
        (
            "4000::",
            "fbff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            Some(RESERVED),
        ),
        ("fc00::", "fd00:ec2::253", Some(PRIVATE)),
        ("fd00:ec2::254", "fd00:ec2::254", Some(METADATA)),
        ("fd00:ec2::255", "fd20:ce::253", Some(PRIVATE)),
        ("fd20:ce::254", "fd20:ce::254", Some(METADATA)),
        (
            "fd20:ce::255",
            "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            Some(PRIVATE),
        ),
        (
            "fe00::",
            "fe7f:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            Some(RESERVED),
        ),
        (
            "fe80::",
            "febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            Some(LINK_LOCAL),
        ),
        (
            "fec0::",
            "feff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            Some(PRIVATE),
        ),
        (
            "ff00::",
            "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            Some(MULTICAST),
        ),
    ];

    #[test]
    fn every_range_is_known_from_its_first_to_its_last_address() {
        for (first, last, kind) in RANGES {
            for address in [first, last] {
                assert_eq!(refused(address.parse().unwrap()), *kind, "{address}");
            }
        }
    }

    #[test]
    fn the_ranges_of_ipv4_leave_nothing_out() {
        let number = |text: &str| text.parse::<Ipv4Addr>().map(u32::from);
        let v4 = RANGES
            .iter()
            .filter_map(|(first, last, _)| Some((number(first).ok()?, number(last).ok()?)));
        let mut next = Some(0);
        for (first, last) in v4 {
            assert_eq!(next, Some(first));
            next = last.checked_add(1);
        }
        assert_eq!(next, None);
    }

    #[test]
    fn addresses_for_documentation_are_not_refused() {
        for address in [
            "192.0.2.1",
            "198.51.100.1",
            "203.0.113.1",
            "2001:db8::1",
            "3fff::1",
        ] {
            assert_eq!(refused(address.parse().unwrap()), None, "{address}");
        }
    }
}
