//! Addresses where most requests have names.

use super::*;
use crate::channel::Decision;

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// The policy names 127.0.0.1, at every port.
async fn named() -> (Host, Stage) {
    (Host::new().await, Stage::new(&[]).await)
}

/// It observes, and names no address of this machine but that one.
async fn observing() -> Stage {
    Stage::with(SandboxPolicy {
        observe: true,
        ..SandboxPolicy::default()
    })
    .await
}

async fn tunnel(stage: &Stage, host: &Host, at: &str) -> (Peer, Peer) {
    let mut client = stage.connect().await;
    client
        .say(format!("CONNECT {at} HTTP/1.1\r\nHost: {at}\r\n\r\n"))
        .await;
    let upstream = host.accept().await;
    let answer = client.hear("\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    (client, upstream)
}

#[tokio::test]
async fn an_address_that_the_policy_names_is_reached_under_that_rule() {
    let (host, stage) = named().await;
    let at = format!("127.0.0.1:{}", host.port());
    let mut client = stage.connect().await;
    client
        .say(format!("GET http://{at}/ HTTP/1.1\r\nHost: {at}\r\n\r\n"))
        .await;
    let mut upstream = host.accept().await;
    let head = upstream.hear("\r\n\r\n").await;
    assert_eq!(head, format!("GET / HTTP/1.1\r\nHost: {at}\r\n\r\n"));
    upstream.say(OK).await;
    client.hear("ok").await;
    let (mut client, mut upstream) = tunnel(&stage, &host, &at).await;
    client.say("\0").await;
    upstream.hear("\0").await;
    let traffic = stage.traffic();
    let [row] = &traffic[..] else {
        panic!("{traffic:?}");
    };
    assert_eq!((row.host.as_str(), row.port), ("127.0.0.1", host.port()));
    assert_eq!((row.rule.as_str(), row.requests), ("127.0.0.1", 2));
    assert_eq!(row.decision, Decision::Allowed);
    assert!(stage.refusals().is_empty());
}

#[tokio::test]
async fn an_address_that_the_policy_does_not_name_is_refused() {
    let stage = Stage::new(&["*", "*:7"]).await;
    for at in ["127.0.0.2:7", "192.0.2.1:7", "[::1]:7", "[2001:db8::1]:443"] {
        let told = format!("denied {at} (an address instead of a name)");
        for request in [
            format!("GET http://{at}/ HTTP/1.0\r\n\r\n"),
            format!("CONNECT {at} HTTP/1.0\r\n\r\n"),
        ] {
            let answer = stage.tell(&request).await;
            assert!(answer.contains(" 403 Forbidden\r\n"), "{answer}");
            assert!(answer.ends_with(&format!("{told}\n")), "{answer}");
        }
        assert_eq!(stage.refusals(), [told.clone(), told]);
    }
}

#[tokio::test]
async fn an_address_is_named_at_its_port_only() {
    let host = Host::new().await;
    let port = host.port();
    let stage = Stage::with(SandboxPolicy {
        direct: vec![("127.0.0.3".parse().unwrap(), Some(port))],
        ..SandboxPolicy::default()
    })
    .await;
    let listener = TcpListener::bind(("127.0.0.3", port)).await.unwrap();
    let near = Host(listener);
    tunnel(&stage, &near, &format!("127.0.0.3:{port}")).await;
    let rule = stage.traffic().remove(0).rule;
    assert_eq!(rule, format!("127.0.0.3:{port}"));
    let other = port ^ 1;
    let answer = stage
        .tell(format!("CONNECT 127.0.0.3:{other} HTTP/1.0\r\n\r\n"))
        .await;
    assert!(answer.contains(" 403 Forbidden\r\n"), "{answer}");
}

#[tokio::test]
async fn observing_lets_an_address_through_and_tells() {
    let stage = observing().await;
    let near = Host(TcpListener::bind("127.0.0.4:0").await.unwrap());
    let at = format!("127.0.0.4:{}", near.port());
    let (mut client, mut upstream) = tunnel(&stage, &near, &at).await;
    client.say("\0").await;
    upstream.hear("\0").await;
    let told = stage.told();
    let [refused] = &told[..] else {
        panic!("{told:?}");
    };
    assert!(refused.observed);
    assert_eq!(refused.rule, "an address instead of a name");
}

#[tokio::test]
async fn what_cannot_go_on_is_denied_even_while_observing() {
    let stage = observing().await;
    for request in [
        "GET http://127.1/ HTTP/1.0\r\n\r\n",
        "CONNECT 0x7f000001:80 HTTP/1.0\r\n\r\n",
        "CONNECT [::ffff:127.0.0.1]:80 HTTP/1.0\r\n\r\n",
    ] {
        let answer = stage.tell(request).await;
        assert!(answer.contains(" 403 Forbidden\r\n"), "{answer}");
        let told = stage.told();
        let [refused] = &told[..] else {
            panic!("{told:?}");
        };
        assert!(!refused.observed, "{request}");
        assert_eq!(refused.rule, "an address instead of a name");
    }
}

#[tokio::test]
async fn tls_in_a_tunnel_to_an_address_may_name_no_host() {
    let (host, stage) = named().await;
    let at = format!("127.0.0.1:{}", host.port());
    let (mut client, _upstream) = tunnel(&stage, &host, &at).await;
    client.say(tunnels::hello("host.test")).await;
    assert_eq!(client.bytes().await.unwrap(), tunnels::ALERT);
    let rule = "TLS for another name than 127.0.0.1";
    assert_eq!(
        stage.refusals(),
        [format!("denied host.test:{} ({rule})", host.port())]
    );
    // A client that wants an address names no host.
    let (mut client, mut upstream) = tunnel(&stage, &host, &at).await;
    client.say(tunnels::hello("127.0.0.1")).await;
    assert_eq!(upstream.0.read_u8().await.unwrap(), 22);
    assert!(stage.refusals().is_empty());
}

#[tokio::test]
async fn http_in_a_tunnel_to_an_address_has_that_address_for_its_host() {
    let (host, stage) = named().await;
    let port = host.port();
    let at = format!("127.0.0.1:{port}");
    let (mut client, mut upstream) = tunnel(&stage, &host, &at).await;
    let request = |to: &str| format!("GET / HTTP/1.1\r\nHost: {to}\r\n\r\n");
    client.say(request(&at)).await;
    upstream.hear("\r\n\r\n").await;
    upstream.say(OK).await;
    client.hear("ok").await;
    for other in [format!("127.0.0.2:{port}"), format!("host.test:{port}")] {
        client.say(request(&other)).await;
        let answer = client.hear(")\n").await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        let rule = format!("a request on a connection to {at}");
        assert_eq!(stage.refusals(), [format!("denied {other} ({rule})")]);
    }
}
