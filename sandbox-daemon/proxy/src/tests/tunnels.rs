//! CONNECT, and transparent connections that are no HTTP.

use std::sync::Arc as StdArc;

use super::*;

async fn connect(stage: &Stage, at: &str) -> Peer {
    let mut client = stage.connect().await;
    client
        .say(format!("CONNECT {at} HTTP/1.1\r\nHost: {at}\r\n\r\n"))
        .await;
    client
}

/// A hello of a client that wants this server.
pub(super) fn hello(server: &'static str) -> Vec<u8> {
    let provider = StdArc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let server = server.try_into().unwrap();
    let mut client = rustls::ClientConnection::new(config.into(), server).unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    bytes
}

pub(super) const ALERT: &[u8] = &[21, 3, 3, 0, 2, 2, 49];

#[tokio::test]
async fn a_tunnel_ends_with_its_sandbox() {
    let host = Host::new().await;
    let stage = Stage::for_host(&host).await;
    let at = format!("host.test:{}", host.port());
    let mut client = connect(&stage, &at).await;
    let mut upstream = host.accept().await;
    client.hear("\r\n\r\n").await;
    client.say("\0here").await;
    upstream.hear("\0here").await;
    // Neither end says anything any more.
    stage.sandboxes.forget(7);
    assert_eq!(upstream.rest().await, "");
}

#[tokio::test]
async fn a_tunnel_carries_bytes_and_both_ends_of_them() {
    let host = Host::new().await;
    let stage = Stage::for_host(&host).await;
    let at = format!("host.test:{}", host.port());
    let mut client = stage.connect().await;
    // What is said ahead of the answer is not lost.
    client
        .say(format!(
            "CONNECT {at} HTTP/1.1\r\nHost: {at}\r\n\r\n\0ahead"
        ))
        .await;
    let mut upstream = host.accept().await;
    let answer = client.hear("\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    upstream.hear("\0ahead").await;
    client.end().await;
    assert_eq!(upstream.rest().await, "");
    let large = vec![7; 3 << 20];
    let (said, heard) = tokio::join!(
        async {
            upstream.say(&large).await;
            upstream.end().await;
        },
        client.bytes()
    );
    let () = said;
    assert!(heard.unwrap() == large);
    let traffic = stage.traffic();
    assert_eq!((traffic[0].sent, traffic[0].received), (6, 3 << 20));
}

#[tokio::test]
async fn a_tunnel_to_a_host_that_is_not_allowed_is_refused_with_the_reason() {
    let host = Host::new().await;
    let stage = Stage::for_host(&host).await;
    let at = format!("other.test:{}", host.port());
    let mut client = connect(&stage, &at).await;
    client.end().await;
    let answer = client.rest().await;
    assert!(answer.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{answer}");
    assert!(
        answer.contains("x-sandbox-denied: not in the allow list\r\n"),
        "{answer}"
    );
    let told = format!("denied {at} (not in the allow list)");
    assert!(answer.ends_with(&format!("{told}\n")), "{answer}");
    assert_eq!(stage.refusals(), [told]);
    assert!(host.is_idle().await);
}

#[tokio::test]
async fn what_is_broken_off_at_one_end_is_broken_off_at_the_other() {
    let host = Host::new().await;
    let stage = Stage::for_host(&host).await;
    let at = format!("host.test:{}", host.port());
    let mut client = connect(&stage, &at).await;
    let mut upstream = host.accept().await;
    client.hear("\r\n\r\n").await;
    client.say("\0").await;
    upstream.hear("\0").await;
    client.0.set_zero_linger().unwrap();
    drop(client);
    assert!(upstream.is_reset().await);
    let mut client = connect(&stage, &at).await;
    let upstream = host.accept().await;
    client.hear("\r\n\r\n").await;
    upstream.0.set_zero_linger().unwrap();
    drop(upstream);
    assert!(client.is_reset().await);
}

#[tokio::test]
async fn tls_for_another_name_than_that_of_the_tunnel_is_refused_by_an_alert() {
    let host = Host::new().await;
    let stage = Stage::for_host(&host).await;
    let at = format!("host.test:{}", host.port());
    let mut client = connect(&stage, &at).await;
    let mut upstream = host.accept().await;
    client.hear("\r\n\r\n").await;
    // Allowed as such: domain fronting needs no more.
    client.say(hello("second.test")).await;
    assert_eq!(client.bytes().await.unwrap(), ALERT);
    assert!(
        upstream
            .bytes()
            .await
            .is_err_and(|it| it.kind() == io::ErrorKind::ConnectionReset)
    );
    let rule = "TLS for another name than host.test";
    assert_eq!(
        stage.refusals(),
        [format!("denied second.test:{} ({rule})", host.port())]
    );

    let mut client = connect(&stage, &at).await;
    let mut upstream = host.accept().await;
    client.hear("\r\n\r\n").await;
    let hello = hello("host.test");
    // In pieces.
    client.say(&hello[..50]).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    client.say(&hello[50..]).await;
    let mut heard = vec![0; hello.len()];
    upstream.0.read_exact(&mut heard).await.unwrap();
    assert!(heard == hello);
    assert!(stage.refusals().is_empty());
}

#[tokio::test]
async fn transparent_tls_is_refused_by_an_alert_before_anything_is_dialled() {
    let host = Host::new().await;
    let stage = Stage::for_host(&host).await;
    let port = host.port();
    for (to, sni, rule) in [
        ("other.test", "other.test", "not in the allow list"),
        (
            "host.test",
            "other.test",
            "TLS for another name than host.test",
        ),
    ] {
        let mut client = stage.client_first(to, port).await;
        client.say(hello(sni)).await;
        assert_eq!(client.bytes().await.unwrap(), ALERT);
        assert_eq!(stage.refusals(), [format!("denied {sni}:{port} ({rule})")]);
    }
    assert!(host.is_idle().await);
    let mut client = stage.client_first("host.test", port).await;
    client.say(hello("host.test")).await;
    let mut upstream = host.accept().await;
    assert_eq!(upstream.0.read_u8().await.unwrap(), 22);
}

#[tokio::test]
async fn http_in_a_tunnel_is_held_to_the_tunnels_host() {
    let host = Host::new().await;
    let stage = Stage::for_host(&host).await;
    let port = host.port();
    let at = format!("host.test:{port}");
    let mut client = connect(&stage, &at).await;
    let mut upstream = host.accept().await;
    client.hear("\r\n\r\n").await;
    client
        .say(format!("GET /a HTTP/1.1\r\nHost: {at}\r\n\r\n"))
        .await;
    let head = upstream.hear("\r\n\r\n").await;
    assert_eq!(head, format!("GET /a HTTP/1.1\r\nHost: {at}\r\n\r\n"));
    upstream
        .say("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        .await;
    client.hear("ok").await;
    client
        .say(format!(
            "GET /b HTTP/1.1\r\nHost: second.test:{port}\r\n\r\n"
        ))
        .await;
    let answer = client.hear("\n").await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    client.hear(")\n").await;
    client
        .say(format!(
            "CONNECT second.test:{port} HTTP/1.1\r\nHost: second.test:{port}\r\n\r\n"
        ))
        .await;
    let answer = client.hear("\n").await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    assert_eq!(
        stage.refusals(),
        [
            format!("denied second.test:{port} (CONNECT on a connection to a host)"),
            format!("denied second.test:{port} (a request on a connection to {at})"),
        ]
    );
    assert!(host.is_idle().await);
}

#[tokio::test]
async fn a_server_may_speak_first_and_then_no_http_is_let_through() {
    let host = Host::new().await;
    let stage = Stage::for_host(&host).await;
    let port = host.port();
    stage.transparent("host.test", port);
    let mut client = stage.connect().await;
    let mut upstream = host.accept().await;
    upstream.say("220 hello\r\n").await;
    client.hear("220 hello\r\n").await;
    client.say("EHLO a\r\n").await;
    upstream.hear("EHLO a\r\n").await;
    client.say("GET / HTTP/1.1\r\n").await;
    upstream.hear("GET / HTTP/1.1\r\n").await;

    let mut client = stage.connect().await;
    let mut upstream = host.accept().await;
    upstream.say("220 hello\r\n").await;
    client.hear("220 hello\r\n").await;
    client
        .say("GET / HTTP/1.1\r\nHost: second.test\r\n\r\n")
        .await;
    assert!(client.is_reset().await);
    assert!(upstream.is_reset().await);
    assert_eq!(
        stage.refusals(),
        [format!(
            "denied host.test:{port} (HTTP where the server spoke first)"
        )]
    );
}

#[tokio::test]
async fn an_address_that_stands_for_no_name_leads_nowhere() {
    let stage = Stage::new(&["*"]).await;
    stage.ask("198.18.200.200:443".parse().unwrap());
    let mut client = stage.connect().await;
    let _ = client.0.write_all(&hello("host.test")).await;
    assert!(client.is_reset().await);
    assert_eq!(
        stage.refusals(),
        ["denied 198.18.200.200:443 (an address that stands for no name)"]
    );
}

#[tokio::test]
async fn a_stranger_is_told_so_and_told_of() {
    let stage = Stage::new(&["*"]).await;
    *stage.asked.lock().unwrap() = None;
    let answer = stage
        .tell("GET http://host.test/ HTTP/1.1\r\nHost: host.test\r\n\r\n")
        .await;
    assert!(answer.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{answer}");
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(
        answer.contains(&format!("content-length: {}\r\n", body.len())),
        "{answer}"
    );
    let told = stage.outbox.take();
    assert!(matches!(told[..], [FromProxy::Stranger { .. }]), "{told:?}");
    // One that has gone by itself may have been of a sandbox.
    drop(stage.connect().await);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(stage.outbox.take().is_empty());
}
