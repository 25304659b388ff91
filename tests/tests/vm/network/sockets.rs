//! Kinds of sockets, and sockets that were made elsewhere.

use nix::errno::Errno;
use sandbox_daemon::proto::Right;

use super::{ATTACK, CONTROL, control, perform};
use crate::{
    expect::{Case, attack},
    host::{DEV, ROOT},
    outside::Wire,
};

crate::trials![
    a_multipath_socket_cannot_be_made,
    an_sctp_socket_cannot_be_made,
    a_raw_socket_cannot_be_made,
    a_ping_socket_cannot_be_made,
    a_packet_socket_cannot_be_made,
    a_socket_to_the_hypervisor_cannot_be_made,
    a_socket_of_the_kernels_cryptography_cannot_be_made,
    a_lightweight_datagram_socket_cannot_be_made,
    netlink_sockets_other_than_routing_cannot_be_made,
    other_families_of_sockets_cannot_be_made,
    the_kinds_that_programs_need_can_be_made,
    a_packet_with_a_source_route_does_not_leave,
];

const NETWORK: &str = "mode = \"none\"";

/// Family, type and protocol; and who can make one outside.
async fn refused(kind: [&'static str; 3], outside: &[u32]) {
    let [family, _, protocol] = kind;
    let step = ["socket", kind[0], kind[1], kind[2]];
    let object = format!("family {family} protocol {protocol}");
    let case: Case = attack(&step).refused(
        Errno::EACCES,
        Right::Connect,
        "socket",
        &object,
        "socket kind",
    );
    // Whatever else the policy says.
    for network in [NETWORK, "mode = \"unrestricted\""] {
        for uid in [DEV, ROOT] {
            perform(uid, network, std::slice::from_ref(&case)).await;
        }
    }
    for uid in outside {
        control(*uid, &step);
    }
}

async fn a_multipath_socket_cannot_be_made() {
    refused(["2", "1", "262"], &[DEV, ROOT]).await;
    refused(["10", "1", "262"], &[DEV, ROOT]).await;
}

async fn an_sctp_socket_cannot_be_made() {
    // Its module is not on every kernel.
    refused(["2", "1", "132"], &[]).await;
    refused(["2", "5", "132"], &[]).await;
}

async fn a_raw_socket_cannot_be_made() {
    refused(["2", "3", "1"], &[ROOT]).await;
    refused(["10", "3", "58"], &[ROOT]).await;
    refused(["2", "3", "255"], &[ROOT]).await;
}

async fn a_ping_socket_cannot_be_made() {
    refused(["2", "2", "1"], &[DEV, ROOT]).await;
    refused(["10", "2", "58"], &[DEV, ROOT]).await;
}

async fn a_packet_socket_cannot_be_made() {
    refused(["17", "3", "0"], &[ROOT]).await;
    refused(["17", "2", "0"], &[ROOT]).await;
}

async fn a_socket_to_the_hypervisor_cannot_be_made() {
    refused(["40", "1", "0"], &[]).await;
}

async fn a_socket_of_the_kernels_cryptography_cannot_be_made() {
    refused(["38", "5", "0"], &[]).await;
}

async fn a_lightweight_datagram_socket_cannot_be_made() {
    refused(["2", "2", "136"], &[DEV, ROOT]).await;
    refused(["10", "2", "136"], &[DEV, ROOT]).await;
}

async fn netlink_sockets_other_than_routing_cannot_be_made() {
    // Audit, events of devices, netfilter, generic.
    for protocol in ["9", "15", "12", "16"] {
        let outside: &[u32] = if protocol == "15" { &[DEV, ROOT] } else { &[] };
        refused(["16", "3", protocol], outside).await;
    }
}

/// X.25, RDS, CAN, TIPC, Bluetooth, KCM, SMC, XDP.
async fn other_families_of_sockets_cannot_be_made() {
    for family in ["9", "21", "29", "30", "31", "41", "43", "44"] {
        refused([family, "2", "0"], &[]).await;
    }
}

async fn the_kinds_that_programs_need_can_be_made() {
    let cases = [
        attack(&["socket", "1", "1", "0"]),
        attack(&["socket", "1", "2", "0"]),
        attack(&["socket", "1", "5", "0"]),
        attack(&["socket", "2", "1", "0"]),
        attack(&["socket", "10", "1", "6"]),
        attack(&["socket", "2", "2", "0"]),
        attack(&["socket", "10", "2", "17"]),
        attack(&["socket", "16", "3", "0"]),
        attack(&["socket", "16", "2", "0"]),
    ];
    for uid in [DEV, ROOT] {
        perform(uid, NETWORK, &cases).await;
    }
}

/// It takes a capability, which nobody inside has.
async fn a_packet_with_a_source_route_does_not_leave() {
    let wire = Wire::tap();
    let step = |marker| {
        [
            "udp-source-route",
            "127.0.0.1:7221",
            "203.0.113.1:0",
            marker,
        ]
    };
    for uid in [DEV, ROOT] {
        perform(uid, NETWORK, &[attack(&step(ATTACK)).fails(Errno::EPERM)]).await;
    }
    control(ROOT, &step(CONTROL));
    assert!(!wire.carried_before(CONTROL, ATTACK));
}
