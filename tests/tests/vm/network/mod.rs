//! Attacks on the network wall: addresses of other machines. Beside it this
//! machine's own, Unix sockets, and what is made and used as a socket.

mod credentials;
mod listen;
mod loopback;
mod programs;
pub(crate) mod proxy;
mod sockets;
mod unix;

use nix::errno::Errno;
use sandbox_daemon::proto::Right;

use crate::{
    client::{self, Ran},
    expect::{Case, attack, compare},
    ground::{self, WORK},
    host::{self, DEV, ROOT},
    outside::{Connections, Datagrams, IPV4, IPV6, Wire},
};

pub(crate) fn trials() -> Vec<libtest_mimic::Trial> {
    let trials = [
        addresses(),
        credentials::trials(),
        listen::trials(),
        loopback::trials(),
        programs::trials(),
        proxy::trials(),
        sockets::trials(),
        unix::trials(),
    ];
    trials.into_iter().flatten().collect()
}

crate::trials![in addresses:
    a_connection_is_refused,
    a_connection_without_connect_is_refused,
    a_datagram_is_refused,
    a_socket_connected_elsewhere_cannot_be_used_for_another_address,
    a_packet_for_loopback_does_not_leave_by_a_routing_header,
    a_packet_for_loopback_does_not_leave_by_a_forced_device,
    a_direct_address_is_reached_and_no_other,
    a_direct_address_with_any_port_is_reached_at_every_port,
    an_unrestricted_network_is_reached,
    a_socket_that_is_only_connected_is_no_denial,
];

const RULE: &str = "network none";

fn policy(network: &str) -> String {
    format!(
        "version = 1\nname = \"network\"\n\
         [files]\nread = [\"/\"]\nwrite = [\"${{workspace}}\", \"${{tmp}}\"]\n\
         [network]\n{network}\n"
    )
}

async fn perform(uid: u32, network: &str, cases: &[Case]) -> Ran {
    ground::make(uid);
    let steps: Vec<&[&str]> = cases.iter().map(|case| case.step.as_slice()).collect();
    let spec = client::spec(uid, client::policy(&policy(network)), WORK);
    let start = client::start(spec, &client::attacker(&steps));
    let ran = client::run(&mut client::root().await, start).await;
    compare(uid, cases, &ran);
    ran
}

fn refused(step: &[&'static str], operation: &'static str, address: &str) -> Case {
    attack(step).refused(Errno::EPERM, Right::Connect, operation, address, RULE)
}

fn control(uid: u32, step: &[&str]) {
    assert_eq!(host::attack(uid, "/", step), "ok", "{step:?}");
}

async fn a_connection_is_refused() {
    let v4 = Connections::at("203.0.113.1:7001");
    let v6 = Connections::at("[2001:db8::1]:7001");
    let cases = [
        refused(
            &["tcp", "203.0.113.1:7001", "attack"],
            "connect",
            "203.0.113.1:7001",
        ),
        refused(
            &["tcp", "[2001:db8::1]:7001", "attack"],
            "connect",
            "[2001:db8::1]:7001",
        ),
        refused(
            &["tcp-mapped", "203.0.113.1:7001", "attack"],
            "connect",
            "203.0.113.1:7001",
        ),
    ];
    for uid in [DEV, ROOT] {
        perform(uid, "mode = \"none\"", &cases).await;
        for (case, listener) in cases.iter().zip([&v4, &v6, &v4]) {
            control(uid, &[case.step[0], case.step[1], "control"]);
            // The first that arrives is the control's.
            assert_eq!(listener.next(), "control");
        }
    }
}

async fn a_connection_without_connect_is_refused() {
    let v4 = Connections::at("203.0.113.1:7002");
    let v6 = Connections::at("[2001:db8::1]:7002");
    let cases = [
        refused(
            &["tcp-fast-open", "203.0.113.1:7002", "attack"],
            "connect",
            "203.0.113.1:7002",
        ),
        refused(
            &["tcp-fast-open", "[2001:db8::1]:7002", "attack"],
            "connect",
            "[2001:db8::1]:7002",
        ),
    ];
    for uid in [DEV, ROOT] {
        perform(uid, "mode = \"none\"", &cases).await;
        for (case, listener) in cases.iter().zip([&v4, &v6]) {
            control(uid, &[case.step[0], case.step[1], "control"]);
            assert_eq!(listener.next(), "control");
        }
    }
}

async fn a_datagram_is_refused() {
    let v4 = Datagrams::at("203.0.113.1:53");
    let v6 = Datagrams::at("[2001:db8::1]:53");
    let c4 = Datagrams::at("203.0.113.1:7013");
    let c6 = Datagrams::at("[2001:db8::1]:7013");
    let (on4, on6) = ("203.0.113.1:7013", "[2001:db8::1]:7013");
    let at4 = "203.0.113.1:53";
    let at6 = "[2001:db8::1]:53";
    let cases = [
        refused(&["udp", at4, "attack"], "send", at4),
        refused(&["udp", at6, "attack"], "send", at6),
        refused(&["udp-mapped", at4, "attack"], "send", at4),
        refused(&["udp-other-family", at4, "attack"], "send", at4),
        // Only where it sends it is seen.
        refused(&["udp-connected", on4, "attack"], "packet", on4),
        refused(&["udp-connected", on6, "attack"], "packet", on6),
    ];
    for uid in [DEV, ROOT] {
        perform(uid, "mode = \"none\"", &cases).await;
        for (case, socket) in cases.iter().zip([&v4, &v6, &v4, &v4, &c4, &c6]) {
            control(uid, &[case.step[0], case.step[1], "control"]);
            assert_eq!(socket.next(), "control");
        }
    }
}

async fn a_socket_connected_elsewhere_cannot_be_used_for_another_address() {
    let socket = Datagrams::at("203.0.113.1:7003");
    let v6 = Datagrams::at("[2001:db8::1]:7003");
    let cases = [
        refused(
            &[
                "udp-retarget",
                "198.51.100.1:7003",
                "203.0.113.1:7003",
                "attack",
            ],
            "send",
            "203.0.113.1:7003",
        ),
        refused(
            &[
                "udp-retarget",
                "[2001:db8::1]:7004",
                "[2001:db8::1]:7003",
                "attack",
            ],
            "send",
            "[2001:db8::1]:7003",
        ),
    ];
    let network = "mode = \"none\"\ndirect = [\"198.51.100.1:7003\", \"[2001:db8::1]:7004\"]";
    for uid in [DEV, ROOT] {
        perform(uid, network, &cases).await;
        for (case, socket) in cases.iter().zip([&socket, &v6]) {
            control(uid, &[case.step[0], case.step[1], case.step[2], "control"]);
            assert_eq!(socket.next(), "control");
        }
    }
}

/// What a packet on the wire may be told apart by.
const ATTACK: &str = "marker-of-the-attack";
const CONTROL: &str = "marker-of-the-control";

async fn nothing_on_the_wire(network: &str, cases: &[Case]) {
    let wire = Wire::tap();
    for uid in [DEV, ROOT] {
        perform(uid, network, cases).await;
        for case in cases {
            let mut step = case.step.clone();
            *step.last_mut().unwrap() = CONTROL;
            control(uid, &step);
            assert!(!wire.carried_before(CONTROL, ATTACK), "{:?}", case.step);
        }
    }
}

fn packet(step: &[&'static str], address: &str) -> Case {
    let rule = "packet destination";
    attack(step).refused(Errno::EPERM, Right::Connect, "packet", address, rule)
}

async fn a_packet_for_loopback_does_not_leave_by_a_routing_header() {
    let step = [
        "udp-routing-header",
        "[::1]:7005",
        "[2001:db8::1]:0",
        ATTACK,
    ];
    nothing_on_the_wire(
        "mode = \"none\"\ndirect = [\"[::1]:7005\"]",
        &[packet(&step, "2001:db8::1")],
    )
    .await;
}

async fn a_packet_for_loopback_does_not_leave_by_a_forced_device() {
    let cases = [
        packet(&["udp-device", "127.0.0.1:7006", ATTACK], "127.0.0.1:7006"),
        packet(
            &["udp-packet-info", "127.0.0.1:7006", ATTACK],
            "127.0.0.1:7006",
        ),
        packet(&["udp-device", "[::1]:7006", ATTACK], "[::1]:7006"),
        packet(&["udp-packet-info", "[::1]:7006", ATTACK], "[::1]:7006"),
    ];
    for network in [
        "mode = \"none\"",
        "mode = \"none\"\ndirect = [\"127.0.0.1:7006\", \"[::1]:7006\"]",
    ] {
        nothing_on_the_wire(network, &cases).await;
    }
}

async fn a_direct_address_is_reached_and_no_other() {
    let listener = Connections::at("203.0.113.1:7007");
    let v6 = Connections::at("[2001:db8::1]:7007");
    let socket = Datagrams::at("203.0.113.1:7007");
    let network = "mode = \"none\"\ndirect = [\"203.0.113.1:7007\", \"[2001:db8::1]:7007\"]";
    let cases = [
        attack(&["tcp", "203.0.113.1:7007", "direct"]),
        attack(&["tcp", "[2001:db8::1]:7007", "direct"]),
        attack(&["tcp-mapped", "203.0.113.1:7007", "direct"]),
        attack(&["udp", "203.0.113.1:7007", "direct"]),
        refused(
            &["tcp", "203.0.113.1:7008", "x"],
            "connect",
            "203.0.113.1:7008",
        ),
        refused(&["udp", "203.0.113.1:53", "x"], "send", "203.0.113.1:53"),
        refused(
            &["tcp", "198.51.100.1:7007", "x"],
            "connect",
            "198.51.100.1:7007",
        ),
        refused(
            &["tcp", "[2001:db8::1]:7008", "x"],
            "connect",
            "[2001:db8::1]:7008",
        ),
    ];
    for uid in [DEV, ROOT] {
        perform(uid, network, &cases).await;
        assert_eq!(listener.next(), "direct");
        assert_eq!(listener.next(), "direct");
        assert_eq!(v6.next(), "direct");
        assert_eq!(socket.next(), "direct");
    }
}

async fn a_direct_address_with_any_port_is_reached_at_every_port() {
    let listener = Connections::at("203.0.113.1:7009");
    let socket = Datagrams::at("203.0.113.1:7010");
    let network = "mode = \"none\"\ndirect = [\"203.0.113.1\"]";
    let cases = [
        attack(&["tcp", "203.0.113.1:7009", "direct"]),
        attack(&["udp", "203.0.113.1:7010", "direct"]),
        refused(
            &["udp", "198.51.100.1:7010", "x"],
            "send",
            "198.51.100.1:7010",
        ),
    ];
    perform(DEV, network, &cases).await;
    assert_eq!(listener.next(), "direct");
    assert_eq!(socket.next(), "direct");
}

async fn an_unrestricted_network_is_reached() {
    let listener = Connections::at(&format!("{IPV4}:7011"));
    let socket = Datagrams::at(&format!("[{IPV6}]:7011"));
    let cases = [
        attack(&["tcp", "203.0.113.1:7011", "free"]),
        attack(&["udp", "[2001:db8::1]:7011", "free"]),
    ];
    perform(DEV, "mode = \"unrestricted\"", &cases).await;
    assert_eq!(listener.next(), "free");
    assert_eq!(socket.next(), "free");
}

/// As resolvers do, to compare addresses.
async fn a_socket_that_is_only_connected_is_no_denial() {
    let cases = [
        attack(&["udp-connect-only", "203.0.113.1:53"]),
        attack(&["udp-connect-only", "[2001:db8::1]:53"]),
        attack(&["udp-connect-only", "127.0.0.53:53"]),
    ];
    for uid in [DEV, ROOT] {
        perform(uid, "mode = \"none\"", &cases).await;
    }
}
