//! Ports of this machine: whoever listens there owns them, and a sandbox reaches
//! its own.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream, UdpSocket},
    os::fd::{FromRawFd as _, IntoRawFd as _, OwnedFd},
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, listen, setsockopt,
        socket, sockopt,
    },
};
use sandbox_daemon::proto::Right;
use std::os::fd::AsRawFd as _;

use super::{control, perform, policy};
use crate::{
    client::{self, Run},
    expect::{Case, attack},
    ground::{self, WORK},
    host::{DEV, ROOT},
};

crate::trials![
    a_sandbox_reaches_its_own_servers,
    a_sandbox_reaches_its_own_datagram_servers,
    a_server_of_the_machines_is_refused,
    a_datagram_for_a_service_of_the_machines_is_refused,
    a_service_that_is_bound_to_a_device_is_not_reached,
    another_sandboxs_server_is_refused,
    where_nobody_listens_the_answer_is_the_kernels,
    a_broadcast_is_refused,
    the_machine_reaches_a_sandboxs_server,
];

const NETWORK: &str = "mode = \"none\"";
const RULE: &str = "loopback";

fn refused(step: &[&'static str], operation: &'static str, address: &str) -> Case {
    attack(step).refused(Errno::EPERM, Right::Connect, operation, address, RULE)
}

async fn a_sandbox_reaches_its_own_servers() {
    let cases = [
        attack(&["tcp-own", "127.0.0.1:7101", "127.0.0.1:7101"]),
        attack(&["tcp-own", "0.0.0.0:7102", "127.0.0.1:7102"]),
        attack(&["tcp-own", "0.0.0.0:7103", "127.1.2.3:7103"]),
        attack(&["tcp-own", "[::1]:7104", "[::1]:7104"]),
        attack(&["tcp-own", "[::]:7105", "[::1]:7105"]),
        attack(&["tcp-own", "[::]:7106", "127.0.0.1:7106"]),
        attack(&["tcp-own", "127.0.0.1:7107", "[::ffff:127.0.0.1]:7107"]),
        attack(&["tcp-own", "127.0.0.1:7108", "0.0.0.0:7108"]),
        attack(&["tcp-own", "[::1]:7109", "[::]:7109"]),
        attack(&["tcp-own-by-a-child", "127.0.0.1:7110", "127.0.0.1:7110"]),
        attack(&["tcp-own-by-a-child", "[::]:7111", "127.0.0.1:7111"]),
        attack(&["tcp-own-unbound", "127.0.0.1:0"]),
        attack(&["tcp-own-unbound", "[::1]:0"]),
    ];
    own(&cases).await;
}

async fn a_sandbox_reaches_its_own_datagram_servers() {
    let cases = [
        attack(&["udp-own", "127.0.0.1:7121", "127.0.0.1:7121"]),
        attack(&["udp-own", "0.0.0.0:7122", "127.0.0.1:7122"]),
        attack(&["udp-own", "[::1]:7123", "[::1]:7123"]),
        attack(&["udp-own", "[::]:7124", "127.0.0.1:7124"]),
        attack(&["udp-own", "127.0.0.1:7125", "[::ffff:127.0.0.1]:7125"]),
        attack(&["udp-own-connected", "127.0.0.1:7126", "127.0.0.1:7126"]),
        attack(&["udp-own-connected", "[::]:7127", "[::1]:7127"]),
        attack(&["udp-own-connected", "0.0.0.0:7128", "0.0.0.0:7128"]),
    ];
    own(&cases).await;
}

async fn own(cases: &[Case]) {
    for uid in [DEV, ROOT] {
        perform(uid, NETWORK, cases).await;
        for case in cases {
            control(uid, &case.step);
        }
    }
}

/// The machine's servers; what comes first must be the control's.
async fn untouched(cases: &[Case], mut next: impl FnMut(usize) -> String) {
    for uid in [DEV, ROOT] {
        perform(uid, NETWORK, cases).await;
        for (index, case) in cases.iter().enumerate() {
            let mut step = case.step.clone();
            *step.last_mut().unwrap() = "control";
            control(uid, &step);
            assert_eq!(next(index), "control", "as uid {uid}: {:?}", case.step);
        }
    }
}

fn said(listener: &TcpListener) -> String {
    let (mut stream, _) = listener.accept().unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

fn received(socket: &UdpSocket) -> String {
    socket
        .set_read_timeout(Some(Duration::from_mins(1)))
        .unwrap();
    let mut buffer = [0; 64];
    let (length, _) = socket.recv_from(&mut buffer).unwrap();
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}

async fn a_server_of_the_machines_is_refused() {
    let servers = ["127.0.0.1:7131", "0.0.0.0:7132", "[::1]:7133", "[::]:7134"]
        .map(|at| TcpListener::bind(at).unwrap());
    let case = |operation: &'static str, to: &'static str, event: &str| {
        refused(&[operation, to, "attack"], "connect", event)
    };
    let cases = [
        (0, case("tcp", "127.0.0.1:7131", "127.0.0.1:7131")),
        (0, case("tcp-mapped", "127.0.0.1:7131", "127.0.0.1:7131")),
        (0, case("tcp-fast-open", "127.0.0.1:7131", "127.0.0.1:7131")),
        (0, case("tcp", "0.0.0.0:7131", "0.0.0.0:7131")),
        (1, case("tcp", "127.0.0.1:7132", "127.0.0.1:7132")),
        (1, case("tcp", "127.9.9.9:7132", "127.9.9.9:7132")),
        (2, case("tcp", "[::1]:7133", "[::1]:7133")),
        (2, case("tcp", "[::]:7133", "[::]:7133")),
        (2, case("tcp-fast-open", "[::1]:7133", "[::1]:7133")),
        (3, case("tcp", "[::1]:7134", "[::1]:7134")),
        (3, case("tcp", "127.0.0.1:7134", "127.0.0.1:7134")),
    ];
    let (which, cases): (Vec<usize>, Vec<Case>) = cases.into_iter().unzip();
    untouched(&cases, |index| said(&servers[which[index]])).await;
}

async fn a_datagram_for_a_service_of_the_machines_is_refused() {
    let servers = ["127.0.0.1:7141", "0.0.0.0:7142", "[::1]:7143", "[::]:7144"]
        .map(|at| UdpSocket::bind(at).unwrap());
    let case = |operation: &'static str, to: &'static str, event: &str| {
        refused(&[operation, to, "attack"], "send", event)
    };
    // These are seen as packets; each needs an address of its own.
    let packet = |to: &'static str| refused(&["udp-connected", to, "attack"], "packet", to);
    let cases = [
        (0, case("udp", "127.0.0.1:7141", "127.0.0.1:7141")),
        (0, case("udp-mapped", "127.0.0.1:7141", "127.0.0.1:7141")),
        (
            0,
            case("udp-other-family", "127.0.0.1:7141", "127.0.0.1:7141"),
        ),
        (0, case("udp", "0.0.0.0:7141", "0.0.0.0:7141")),
        (1, case("udp", "127.0.0.1:7142", "127.0.0.1:7142")),
        (1, packet("127.0.0.2:7142")),
        (2, case("udp", "[::1]:7143", "[::1]:7143")),
        (3, case("udp", "127.0.0.1:7144", "127.0.0.1:7144")),
        (3, packet("[::1]:7144")),
    ];
    let (which, cases): (Vec<usize>, Vec<Case>) = cases.into_iter().unzip();
    untouched(&cases, |index| received(&servers[which[index]])).await;
}

/// As systemd-resolved listens.
fn on_the_device(kind: SockType, at: &str) -> OwnedFd {
    let socket = socket(AddressFamily::Inet, kind, SockFlag::SOCK_CLOEXEC, None).unwrap();
    setsockopt(&socket, sockopt::BindToDevice, &"lo".into()).unwrap();
    setsockopt(&socket, sockopt::ReuseAddr, &true).unwrap();
    let at: std::net::SocketAddr = at.parse().unwrap();
    bind(socket.as_raw_fd(), &SockaddrStorage::from(at)).unwrap();
    if kind == SockType::Stream {
        listen(&socket, Backlog::new(16).unwrap()).unwrap();
    }
    socket
}

async fn a_service_that_is_bound_to_a_device_is_not_reached() {
    let stream = on_the_device(SockType::Stream, "127.0.0.53:7151");
    let datagram = on_the_device(SockType::Datagram, "127.0.0.53:7151");
    // SAFETY: the descriptors are passed on.
    let (server, service) = unsafe {
        (
            TcpListener::from_raw_fd(stream.into_raw_fd()),
            UdpSocket::from_raw_fd(datagram.into_raw_fd()),
        )
    };
    let cases = [
        // As where nobody listens.
        attack(&["tcp", "127.0.0.53:7151", "attack"]).fails(Errno::ECONNREFUSED),
        refused(
            &["udp", "127.0.0.53:7151", "attack"],
            "packet",
            "127.0.0.53:7151",
        ),
        refused(
            &["udp-connected", "127.0.0.53:7151", "attack"],
            "packet",
            "127.0.0.53:7151",
        ),
    ];
    untouched(&cases, |index| match index {
        0 => said(&server),
        _ => received(&service),
    })
    .await;
}

async fn another_sandboxs_server_is_refused() {
    for (uid, other) in [(DEV, DEV), (ROOT, DEV), (DEV, ROOT)] {
        ground::make(other);
        let steps: &[&[&str]] = &[
            &["tcp-listen", "one", "127.0.0.1:7161"],
            &["tcp-listen", "two", "[::]:7162"],
            &["udp-bind", "three", "127.0.0.1:7163"],
            &["udp-bind", "four", "[::1]:7164"],
            &["wait"],
        ];
        let spec = client::spec(other, client::policy(&policy(NETWORK)), WORK);
        let mut client = client::root().await;
        let start = client::start(spec, &client::attacker(steps));
        let mut servers = Run::start(&mut client, start).await.unwrap();
        for _ in 0..4 {
            assert_eq!(servers.line().await, "ok");
        }
        let cases = [
            refused(&["tcp", "127.0.0.1:7161", "x"], "connect", "127.0.0.1:7161"),
            refused(&["tcp", "127.0.0.1:7162", "x"], "connect", "127.0.0.1:7162"),
            refused(&["tcp", "[::1]:7162", "x"], "connect", "[::1]:7162"),
            refused(&["udp", "127.0.0.1:7163", "x"], "send", "127.0.0.1:7163"),
            refused(&["udp", "[::1]:7164", "x"], "send", "[::1]:7164"),
        ];
        perform(uid, NETWORK, &cases).await;
        for case in &cases {
            control(uid, &case.step);
        }
        servers.write("x").await;
        let ran = servers.end().await;
        assert_eq!(ran.denials, [], "{ran:?}");
    }
}

async fn where_nobody_listens_the_answer_is_the_kernels() {
    let cases = [
        attack(&["tcp", "127.0.0.1:7171", "x"]).fails(Errno::ECONNREFUSED),
        attack(&["tcp", "[::1]:7171", "x"]).fails(Errno::ECONNREFUSED),
        attack(&["udp", "127.0.0.1:7171", "x"]),
        attack(&["udp", "[::1]:7171", "x"]),
    ];
    for uid in [DEV, ROOT] {
        perform(uid, NETWORK, &cases).await;
    }
}

async fn a_broadcast_is_refused() {
    let service = UdpSocket::bind("0.0.0.0:7181").unwrap();
    let rule = "network none";
    let to = "127.255.255.255:7181";
    let case = attack(&["udp-broadcast", to, "attack"]).refused(
        Errno::EPERM,
        Right::Connect,
        "send",
        to,
        rule,
    );
    untouched(&[case], |_| received(&service)).await;
}

/// As a browser does.
async fn the_machine_reaches_a_sandboxs_server() {
    for (uid, at, to) in [
        (DEV, "127.0.0.1:7191", "127.0.0.1:7191"),
        (DEV, "[::]:7192", "127.0.0.1:7192"),
        (ROOT, "0.0.0.0:7193", "127.0.0.1:7193"),
    ] {
        ground::make(uid);
        let steps: &[&[&str]] = &[&["tcp-listen", "server", at], &["tcp-accept", "server"]];
        let spec = client::spec(uid, client::policy(&policy(NETWORK)), WORK);
        let mut client = client::root().await;
        let start = client::start(spec, &client::attacker(steps));
        let mut server = Run::start(&mut client, start).await.unwrap();
        assert_eq!(server.line().await, "ok");
        let mut stream = TcpStream::connect(to).unwrap();
        stream.write_all(b"hello").unwrap();
        let mut heard = String::new();
        stream.read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "hello");
        let ran = server.end().await;
        assert_eq!(ran.lines(), ["ok", "ok hello"], "{ran:?}");
        assert_eq!(ran.denials, [], "{ran:?}");
    }
}
