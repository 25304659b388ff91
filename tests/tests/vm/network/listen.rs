//! What listens inside: at which ports, and who gets in.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream, UdpSocket},
    time::Duration,
};

use nix::errno::Errno;
use sandbox_daemon::proto::Right;

use super::{control, perform, policy};
use crate::{
    client::{self, Run},
    expect::{Case, attack},
    ground::{self, WORK},
    host::{DEV, ROOT},
    outside::there,
};

crate::trials![
    nothing_listens_where_the_policy_says_none,
    another_machine_does_not_get_in_over_loopback_alone,
    another_machine_gets_in_where_the_policy_says_any,
    the_port_of_a_service_of_the_machines_cannot_be_shared,
    a_port_that_is_taken_is_no_denial,
    a_sandbox_shares_its_own_ports,
];

fn refused(step: &[&'static str], operation: &'static str, at: &str) -> Case {
    attack(step).refused(Errno::EPERM, Right::Connect, operation, at, "listen")
}

async fn nothing_listens_where_the_policy_says_none() {
    let cases = [
        refused(&["bind", "tcp", "127.0.0.1:7201"], "bind", "127.0.0.1:7201"),
        refused(&["bind", "tcp", "[::]:7202"], "bind", "[::]:7202"),
        refused(&["bind", "udp", "0.0.0.0:7203"], "bind", "0.0.0.0:7203"),
        refused(&["listen-unbound"], "listen", "0.0.0.0"),
    ];
    for uid in [DEV, ROOT] {
        perform(uid, "listen = \"none\"", &cases).await;
        for case in &cases {
            control(uid, &case.step);
        }
        // What programs do that only ask.
        let free = attack(&["bind", "udp", "127.0.0.1:0"]);
        perform(uid, "listen = \"none\"", &[free]).await;
    }
}

/// A server in a sandbox at all addresses.
async fn server(uid: u32, network: &str, at: &str) -> Run {
    ground::make(uid);
    let steps: &[&[&str]] = &[&["tcp-listen", "server", at], &["tcp-accept", "server"]];
    let spec = client::spec(uid, client::policy(&policy(network)), WORK);
    let mut client = client::root().await;
    let start = client::start(spec, &client::attacker(steps));
    let mut server = Run::start(&mut client, start).await.unwrap();
    assert_eq!(server.line().await, "ok");
    server
}

fn greet(to: &str, patience: Duration) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&to.parse().unwrap(), patience)?;
    stream.write_all(to.as_bytes())?;
    let mut heard = String::new();
    stream.read_to_string(&mut heard)?;
    Ok(heard)
}

const PATIENCE: Duration = Duration::from_mins(1);
/// For what does not come: only a test that should fail may be misled by it.
const A_WHILE: Duration = Duration::from_secs(2);

async fn another_machine_does_not_get_in_over_loopback_alone() {
    for (uid, at, from_outside, from_here) in [
        (DEV, "0.0.0.0:7211", "192.0.2.2:7211", "127.0.0.1:7211"),
        (ROOT, "[::]:7212", "[2001:db8::2]:7212", "[::1]:7212"),
    ] {
        let server = server(uid, "listen = \"loopback\"", at).await;
        let answer = there(move || greet(from_outside, A_WHILE));
        assert!(answer.is_err(), "{answer:?}");
        assert_eq!(greet(from_here, PATIENCE).unwrap(), from_here);
        let ran = server.end().await;
        // The first whom it accepted.
        assert_eq!(ran.lines()[1], format!("ok {from_here}"), "{ran:?}");
        assert_eq!(ran.denials, [], "{ran:?}");
    }
    // Without a sandbox it does.
    let listener = TcpListener::bind("0.0.0.0:7213").unwrap();
    let answer =
        there(move || TcpStream::connect_timeout(&"192.0.2.2:7213".parse().unwrap(), PATIENCE));
    answer.unwrap();
    drop(listener);
}

async fn another_machine_gets_in_where_the_policy_says_any() {
    for (uid, at, from) in [
        (DEV, "0.0.0.0:7214", "192.0.2.2:7214"),
        (ROOT, "[::]:7215", "[2001:db8::2]:7215"),
    ] {
        let server = server(uid, "listen = \"any\"", at).await;
        assert_eq!(there(move || greet(from, PATIENCE)).unwrap(), from);
        let ran = server.end().await;
        assert_eq!(ran.lines()[1], format!("ok {from}"), "{ran:?}");
        assert_eq!(ran.denials, [], "{ran:?}");
    }
    // And nobody is reached from inside for that.
    let case = attack(&["tcp", "203.0.113.1:7216", "x"]).refused(
        Errno::EPERM,
        Right::Connect,
        "connect",
        "203.0.113.1:7216",
        "network none",
    );
    perform(DEV, "listen = \"any\"", &[case]).await;
}

fn taken(step: &[&'static str], at: &str) -> Case {
    attack(step).refused(Errno::EADDRINUSE, Right::Connect, "bind", at, "loopback")
}

/// A service of the same user's that lets others share its port.
fn sharing(uid: u32) -> std::process::Child {
    use std::io::BufRead as _;
    let steps: &[&[&str]] = &[
        &["tcp-listen-shared", "one", "127.0.0.1:7221"],
        &["tcp-listen-shared", "two", "0.0.0.0:7222"],
        &["tcp-listen-shared", "three", "[::]:7223"],
        &["udp-bind-shared", "four", "127.0.0.1:7224"],
        &["udp-bind-shared", "five", "0.0.0.0:7225"],
        &["wait"],
    ];
    let mut service = crate::host::attacker(uid, steps).spawn().unwrap();
    let output = std::io::BufReader::new(service.stdout.as_mut().unwrap());
    let answers: Vec<_> = output.lines().take(5).map(Result::unwrap).collect();
    assert_eq!(answers, ["ok"; 5]);
    service
}

async fn the_port_of_a_service_of_the_machines_cannot_be_shared() {
    let cases = [
        taken(
            &["bind-reuse-port", "tcp", "127.0.0.1:7221"],
            "127.0.0.1:7221",
        ),
        taken(&["bind-reuse-port", "tcp", "0.0.0.0:7221"], "0.0.0.0:7221"),
        taken(&["bind-reuse-port", "tcp", "[::]:7221"], "[::]:7221"),
        taken(&["bind-reuse-port", "tcp", "0.0.0.0:7222"], "0.0.0.0:7222"),
        taken(
            &["bind-reuse-port", "tcp", "127.0.0.1:7222"],
            "127.0.0.1:7222",
        ),
        taken(&["bind-reuse-port", "tcp", "[::1]:7223"], "[::1]:7223"),
        taken(
            &["bind-reuse-port", "tcp", "127.0.0.1:7223"],
            "127.0.0.1:7223",
        ),
        taken(
            &["bind-reuse-port", "udp", "127.0.0.1:7224"],
            "127.0.0.1:7224",
        ),
        taken(
            &["bind-reuse-address", "udp", "0.0.0.0:7224"],
            "0.0.0.0:7224",
        ),
        taken(
            &["bind-reuse-port", "udp", "127.0.0.1:7225"],
            "127.0.0.1:7225",
        ),
        taken(&["bind-reuse-address", "udp", "[::]:7225"], "[::]:7225"),
    ];
    for uid in [DEV, ROOT] {
        let mut service = sharing(uid);
        perform(uid, "mode = \"none\"", &cases).await;
        for case in &cases {
            control(uid, &case.step);
        }
        service.kill().unwrap();
        service.wait().unwrap();
    }
}

/// The kernel says so by itself.
async fn a_port_that_is_taken_is_no_denial() {
    let _stream = TcpListener::bind("127.0.0.1:7231").unwrap();
    let _datagram = UdpSocket::bind("127.0.0.1:7232").unwrap();
    let cases = [
        attack(&["bind", "tcp", "127.0.0.1:7231"]).fails(Errno::EADDRINUSE),
        attack(&["bind", "udp", "127.0.0.1:7232"]).fails(Errno::EADDRINUSE),
    ];
    perform(DEV, "mode = \"none\"", &cases).await;
}

async fn a_sandbox_shares_its_own_ports() {
    let cases = [
        attack(&["tcp-listen-shared", "one", "127.0.0.1:7241"]),
        attack(&["tcp-listen-shared", "two", "127.0.0.1:7241"]),
        attack(&["udp-bind-shared", "three", "0.0.0.0:7242"]),
        attack(&["bind-reuse-address", "udp", "127.0.0.1:7242"]),
    ];
    for uid in [DEV, ROOT] {
        perform(uid, "mode = \"none\"", &cases).await;
    }
}
