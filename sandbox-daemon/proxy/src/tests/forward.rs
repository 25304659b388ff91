//! Requests in absolute form, and those of transparent connections.

use super::*;

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

#[tokio::test]
async fn a_request_goes_to_its_host_without_what_is_for_the_proxy() {
    let host = Host::new().await;
    let stage = Stage::for_host(&host).await;
    let port = host.port();
    let mut client = stage.connect().await;
    client
        .say(format!(
            "GET http://host.test:{port}/a?b HTTP/1.1\r\nHost: host.test:{port}\r\n\
             X-Z: 1\r\nProxy-Authorization: x\r\nProxy-Connection: keep-alive\r\nX-A: 2\r\n\r\n"
        ))
        .await;
    let mut upstream = host.accept().await;
    assert_eq!(
        upstream.hear("\r\n\r\n").await,
        format!("GET /a?b HTTP/1.1\r\nHost: host.test:{port}\r\nX-Z: 1\r\nX-A: 2\r\n\r\n")
    );
    upstream
        .say("HTTP/1.1 200 Fine\r\nX-Y: 1\r\nKeep-Alive: timeout=5\r\nConnection: X-Hop\r\nX-Hop: 1\r\nContent-Length: 2\r\n\r\nok")
        .await;
    let answer = client.hear("\r\n\r\nok").await;
    assert!(answer.contains("X-Y: 1\r\n"), "{answer}");
    assert!(!answer.to_lowercase().contains("x-hop"), "{answer}");
    assert!(!answer.to_lowercase().contains("keep-alive"), "{answer}");
    assert!(stage.refusals().is_empty());
}

#[tokio::test]
async fn the_connection_to_a_host_is_used_again_by_its_client_only() {
    let host = Host::new().await;
    let stage = Stage::for_host(&host).await;
    let port = host.port();
    let request =
        format!("GET http://host.test:{port}/ HTTP/1.1\r\nHost: host.test:{port}\r\n\r\n");
    let mut client = stage.connect().await;
    client.say(&request).await;
    let mut upstream = host.accept().await;
    upstream.hear("\r\n\r\n").await;
    upstream.say(OK).await;
    client.hear("ok").await;
    client.say(&request).await;
    upstream.hear("\r\n\r\n").await;
    upstream.say(OK).await;
    client.hear("ok").await;
    let mut second = stage.connect().await;
    second.say(&request).await;
    let mut other = host.accept().await;
    other.hear("\r\n\r\n").await;
    other.say(OK).await;
    second.hear("ok").await;
    // And when the host has ended it, a new one is made.
    drop(upstream);
    client.say(&request).await;
    let mut third = host.accept().await;
    third.hear("\r\n\r\n").await;
    third.say(OK).await;
    client.hear("ok").await;
    let traffic = stage.traffic();
    assert_eq!(traffic.len(), 1);
    assert_eq!(traffic[0].requests, 4);
    assert_eq!(traffic[0].received, 4 * OK.len() as u64);
}

#[tokio::test]
async fn each_request_of_a_connection_is_decided_on_its_own() {
    let host = Host::new().await;
    let stage = Stage::for_host(&host).await;
    let port = host.port();
    let mut client = stage.connect().await;
    client
        .say(format!(
            "GET http://host.test:{port}/ HTTP/1.1\r\nHost: host.test:{port}\r\n\r\n\
             GET http://other.test:{port}/ HTTP/1.1\r\nHost: other.test:{port}\r\n\
             Connection: close\r\n\r\n"
        ))
        .await;
    let mut upstream = host.accept().await;
    upstream.hear("\r\n\r\n").await;
    upstream
        .say("HTTP/1.1 302 Found\r\nlocation: http://other.test/\r\ncontent-length: 0\r\n\r\n")
        .await;
    let answer = client.rest().await;
    assert!(answer.starts_with("HTTP/1.1 302 Found\r\n"), "{answer}");
    assert!(answer.contains("HTTP/1.1 403 Forbidden\r\n"), "{answer}");
    assert!(
        answer.contains("x-sandbox-denied: not in the allow list\r\n"),
        "{answer}"
    );
    let told = format!("denied other.test:{port} (not in the allow list)");
    assert!(answer.ends_with(&format!("\r\n\r\n{told}\n")), "{answer}");
    assert_eq!(stage.refusals(), [told]);
    assert!(host.is_idle().await);
}

#[tokio::test]
async fn a_name_that_leads_to_a_private_address_is_refused_with_the_reason() {
    let stage = Stage::new(&["private.test"]).await;
    let answer = stage
        .tell("GET http://private.test/ HTTP/1.0\r\n\r\n")
        .await;
    assert!(answer.contains(" 403 Forbidden\r\n"), "{answer}");
    let rule = "resolves to 10.9.9.9, a private address";
    assert!(
        answer.contains(&format!("x-sandbox-denied: {rule}\r\n")),
        "{answer}"
    );
    assert_eq!(
        stage.refusals(),
        [format!("denied private.test:80 ({rule})")]
    );
}

#[tokio::test]
async fn a_host_that_cannot_be_reached_is_a_bad_gateway() {
    let host = Host::new().await;
    let stage = Stage::for_host(&host).await;
    let port = host.port();
    drop(host);
    let answer = stage
        .tell(format!("GET http://host.test:{port}/ HTTP/1.0\r\n\r\n"))
        .await;
    assert!(answer.contains(" 502 Bad Gateway\r\n"), "{answer}");
    assert!(stage.refusals().is_empty());
}

#[tokio::test]
async fn the_answer_to_head_has_a_length_and_no_body() {
    let host = Host::new().await;
    let stage = Stage::for_host(&host).await;
    let port = host.port();
    let mut client = stage.connect().await;
    let request = |method: &str| {
        format!("{method} http://host.test:{port}/ HTTP/1.1\r\nHost: host.test:{port}\r\n\r\n")
    };
    client.say(request("HEAD")).await;
    let mut upstream = host.accept().await;
    upstream.hear("\r\n\r\n").await;
    upstream
        .say("HTTP/1.1 200 OK\r\ncontent-length: 77\r\n\r\n")
        .await;
    let answer = client.hear("\r\n\r\n").await;
    assert!(answer.contains("content-length: 77\r\n"), "{answer}");
    for status in ["204 No Content", "304 Not Modified"] {
        client.say(request("GET")).await;
        upstream.hear("\r\n\r\n").await;
        upstream.say(format!("HTTP/1.1 {status}\r\n\r\n")).await;
        let answer = client.hear("\r\n\r\n").await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}\r\n")),
            "{answer}"
        );
        assert!(!answer.contains("chunked"), "{answer}");
    }
}

#[tokio::test]
async fn trailers_come_through_in_both_directions() {
    let host = Host::new().await;
    let stage = Stage::for_host(&host).await;
    let port = host.port();
    let mut client = stage.connect().await;
    client
        .say(format!(
            "POST http://host.test:{port}/ HTTP/1.1\r\nHost: host.test:{port}\r\nTE: trailers\r\n\
             Connection: TE\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n\
             3\r\nabc\r\n0\r\nX-Sum: 6\r\n\r\n"
        ))
        .await;
    let mut upstream = host.accept().await;
    let head = upstream.hear("\r\n\r\n").await;
    assert!(
        head.to_lowercase()
            .contains("transfer-encoding: chunked\r\n"),
        "{head}"
    );
    let body = upstream.hear("\r\n\r\n").await.to_lowercase();
    assert_eq!(body, "3\r\nabc\r\n0\r\nx-sum: 6\r\n\r\n");
    upstream
        .say("HTTP/1.1 200 OK\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 9\r\n\r\n")
        .await;
    client.hear("\r\n\r\n").await;
    let body = client.hear("\r\n\r\n").await.to_lowercase();
    assert_eq!(body, "2\r\nok\r\n0\r\nx-sum: 9\r\n\r\n");
}

#[tokio::test]
async fn a_client_is_told_to_go_on_when_its_host_says_so() {
    let host = Host::new().await;
    let stage = Stage::for_host(&host).await;
    let port = host.port();
    let request = format!(
        "PUT http://host.test:{port}/ HTTP/1.1\r\nHost: host.test:{port}\r\n\
         Expect: 100-continue\r\nContent-Length: 4\r\n\r\n"
    );
    let mut client = stage.connect().await;
    client.say(&request).await;
    let mut upstream = host.accept().await;
    let head = upstream.hear("\r\n\r\n").await;
    assert!(head.contains("Expect: 100-continue\r\n"), "{head}");
    let mut early = [0; 1];
    assert!(
        timeout(Duration::from_millis(100), client.0.read(&mut early))
            .await
            .is_err()
    );
    upstream.say("HTTP/1.1 100 Continue\r\n\r\n").await;
    assert_eq!(
        client.hear("\r\n\r\n").await,
        "HTTP/1.1 100 Continue\r\n\r\n"
    );
    client.say("body").await;
    upstream.hear("body").await;
    upstream.say(OK).await;
    client.hear("ok").await;

    // A host that does not want the body says so, and never sees it.
    let mut client = stage.connect().await;
    client.say(&request).await;
    let mut upstream = host.accept().await;
    upstream.hear("\r\n\r\n").await;
    upstream
        .say("HTTP/1.1 413 Content Too Large\r\ncontent-length: 0\r\n\r\n")
        .await;
    let answer = client.hear("\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
}

#[tokio::test]
async fn a_websocket_is_a_tunnel_once_the_host_agrees() {
    let host = Host::new().await;
    let stage = Stage::for_host(&host).await;
    let port = host.port();
    let mut client = stage.connect().await;
    client
        .say(format!(
            "GET http://host.test:{port}/ HTTP/1.1\r\nHost: host.test:{port}\r\n\
             Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n"
        ))
        .await;
    let mut upstream = host.accept().await;
    let head = upstream.hear("\r\n\r\n").await.to_lowercase();
    assert!(head.contains("upgrade: websocket\r\n"), "{head}");
    assert!(head.contains("connection: upgrade\r\n"), "{head}");
    upstream
        .say("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhello")
        .await;
    let answer = client.hear("\r\n\r\nhello").await;
    assert!(
        answer.to_lowercase().contains("upgrade: websocket\r\n"),
        "{answer}"
    );
    client.say("GET / HTTP/1.1\r\n").await;
    upstream.hear("GET / HTTP/1.1\r\n").await;
    upstream.end().await;
    assert_eq!(client.rest().await, "");
    client.say("last").await;
    client.end().await;
    assert_eq!(upstream.rest().await, "last");
    let traffic = stage.traffic();
    assert!(
        traffic[0].sent > 20 && traffic[0].received > 20,
        "{traffic:?}"
    );
}

#[tokio::test]
async fn http_2_without_tls_is_not_hidden_in_an_upgrade() {
    let host = Host::new().await;
    let stage = Stage::for_host(&host).await;
    let port = host.port();
    let mut client = stage.connect().await;
    client
        .say(format!(
            "GET http://host.test:{port}/ HTTP/1.1\r\nHost: host.test:{port}\r\n\
             Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n"
        ))
        .await;
    let mut upstream = host.accept().await;
    let head = upstream.hear("\r\n\r\n").await.to_lowercase();
    assert!(
        !head.contains("h2c") && !head.contains("http2-settings"),
        "{head}"
    );
    upstream
        .say("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
        .await;
    let answer = client.hear("\n").await;
    assert!(answer.starts_with("HTTP/1.1 50"), "{answer}");
}

#[tokio::test]
async fn a_transparent_request_is_for_the_host_of_its_connection() {
    let host = Host::new().await;
    let stage = Stage::for_host(&host).await;
    let port = host.port();
    stage.transparent("host.test", port);
    let mut client = stage.client_first("host.test", port).await;
    client
        .say(format!("GET /a HTTP/1.1\r\nHost: HOST.test:{port}\r\n\r\n"))
        .await;
    let mut upstream = host.accept().await;
    let head = upstream.hear("\r\n\r\n").await;
    assert_eq!(
        head,
        format!("GET /a HTTP/1.1\r\nHost: HOST.test:{port}\r\n\r\n")
    );
    upstream.say(OK).await;
    client.hear("ok").await;
    // Allowed as such, but not on this connection.
    client
        .say(format!(
            "GET /b HTTP/1.1\r\nHost: second.test:{port}\r\nConnection: close\r\n\r\n"
        ))
        .await;
    let answer = client.rest().await;
    assert!(answer.contains(" 403 Forbidden\r\n"), "{answer}");
    let rule = format!("a request on a connection to host.test:{port}");
    assert_eq!(
        stage.refusals(),
        [format!("denied second.test:{port} ({rule})")]
    );
    assert!(host.is_idle().await);
}

#[tokio::test]
async fn a_transparent_request_to_a_host_that_is_not_allowed_reads_why() {
    let stage = Stage::new(&[]).await;
    stage.transparent("other.test", 80);
    let answer = stage
        .tell("GET / HTTP/1.1\r\nHost: other.test\r\nConnection: close\r\n\r\n")
        .await;
    let told = "denied other.test:80 (not in the allow list)";
    assert!(
        answer.contains("x-sandbox-denied: not in the allow list\r\n"),
        "{answer}"
    );
    assert!(answer.ends_with(&format!("{told}\n")), "{answer}");
    assert_eq!(stage.refusals(), [told]);
}

#[tokio::test]
async fn observing_lets_a_request_through_and_tells() {
    let host = Host::new().await;
    let port = host.port();
    let stage = Stage::with(SandboxPolicy {
        observe: true,
        ..SandboxPolicy::default()
    })
    .await;
    let mut client = stage.connect().await;
    client
        .say(format!("GET http://host.test:{port}/ HTTP/1.0\r\n\r\n"))
        .await;
    let mut upstream = host.accept().await;
    upstream.hear("\r\n\r\n").await;
    upstream.say(OK).await;
    assert!(client.rest().await.ends_with("ok"));
    assert_eq!(
        stage.refusals(),
        [format!("denied host.test:{port} (not in the allow list)")]
    );
}
