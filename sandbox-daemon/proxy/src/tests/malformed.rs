//! Requests that two readers could read in two ways, as bytes.

use tokio::time::Instant;

use super::*;
use crate::{http::HEAD_PATIENCE, sniff::PATIENCE};

/// Each is refused as the client's mistake, and nothing goes anywhere.
#[tokio::test]
async fn a_request_that_is_ambiguous_is_refused() {
    let host = Host::new().await;
    let stage = Stage::for_host(&host).await;
    let port = host.port();
    let at = format!("host.test:{port}");
    for (what, request) in [
        (
            "another Host",
            format!("GET http://{at}/ HTTP/1.1\r\nHost: second.test:{port}\r\n\r\n"),
        ),
        (
            "another port in Host",
            format!("GET http://{at}/ HTTP/1.1\r\nHost: host.test:1\r\n\r\n"),
        ),
        (
            "two Hosts",
            format!("GET http://{at}/ HTTP/1.1\r\nHost: {at}\r\nHost: {at}\r\n\r\n"),
        ),
        ("no Host", format!("GET http://{at}/ HTTP/1.1\r\n\r\n")),
        (
            "userinfo",
            format!("GET http://other.test@{at}/ HTTP/1.1\r\nHost: {at}\r\n\r\n"),
        ),
        (
            "https",
            format!("GET https://{at}/ HTTP/1.1\r\nHost: {at}\r\n\r\n"),
        ),
        (
            "another scheme",
            format!("GET ftp://{at}/ HTTP/1.1\r\nHost: {at}\r\n\r\n"),
        ),
        (
            "no address",
            format!("GET / HTTP/1.1\r\nHost: {at}\r\n\r\n"),
        ),
        (
            "an obsolete fold",
            format!("GET http://{at}/ HTTP/1.1\r\nHost: {at}\r\nX-A: 1\r\n Host: b\r\n\r\n"),
        ),
        (
            "a space before the colon",
            format!("POST http://{at}/ HTTP/1.1\r\nHost: {at}\r\nContent-Length : 3\r\n\r\nabc"),
        ),
        (
            "two lengths",
            format!(
                "POST http://{at}/ HTTP/1.1\r\nHost: {at}\r\nContent-Length: 3\r\n\
                 Content-Length: 4\r\n\r\nabcd"
            ),
        ),
        (
            "two lengths in one",
            format!("POST http://{at}/ HTTP/1.1\r\nHost: {at}\r\nContent-Length: 3, 4\r\n\r\nabcd"),
        ),
        (
            "a signed length",
            format!("POST http://{at}/ HTTP/1.1\r\nHost: {at}\r\nContent-Length: +3\r\n\r\nabc"),
        ),
        (
            "another coding",
            format!(
                "POST http://{at}/ HTTP/1.1\r\nHost: {at}\r\n\
                 Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"
            ),
        ),
        (
            "chunked not last",
            format!(
                "POST http://{at}/ HTTP/1.1\r\nHost: {at}\r\n\
                 Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"
            ),
        ),
        (
            "chunked in HTTP/1.0",
            format!("POST http://{at}/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        ),
        (
            "a bare CR in a value",
            format!("GET http://{at}/ HTTP/1.1\r\nHost: {at}\r\nX-A: 1\rHost: b\r\n\r\n"),
        ),
        (
            "a NUL in a value",
            format!("GET http://{at}/ HTTP/1.1\r\nHost: {at}\r\nX-A: 1\0\r\n\r\n"),
        ),
    ] {
        let mut client = stage.connect().await;
        client.say(&request).await;
        client.end().await;
        let answer = client.rest().await;
        assert!(
            answer.starts_with("HTTP/1.1 400 ") || answer.starts_with("HTTP/1.0 400 "),
            "{what}: {answer}"
        );
    }
    assert!(host.is_idle().await);
    // The control: this is what they have in common.
    let mut client = stage.connect().await;
    client
        .say(format!("GET http://{at}/ HTTP/1.1\r\nHost: {at}\r\n\r\n"))
        .await;
    host.accept().await.hear("\r\n\r\n").await;
}

/// Where a length and a coding disagree, RFC 9112 (6.1) has the coding count, and
/// the connection end: the host sees only what the proxy read.
#[tokio::test]
async fn what_a_length_hides_from_a_coding_reaches_nobody() {
    let host = Host::new().await;
    let stage = Stage::for_host(&host).await;
    let port = host.port();
    let at = format!("host.test:{port}");
    let hidden =
        format!("GET http://other.test:{port}/ HTTP/1.1\r\nHost: other.test:{port}\r\n\r\n");
    let length = hidden.len() + 5;
    for framing in [
        format!("Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n"),
        format!("Transfer-Encoding: chunked\r\nContent-Length: {length}\r\n"),
    ] {
        let mut client = stage.connect().await;
        client
            .say(format!(
                "POST http://{at}/ HTTP/1.1\r\nHost: {at}\r\n{framing}\r\n0\r\n\r\n{hidden}"
            ))
            .await;
        client.end().await;
        let mut upstream = host.accept().await;
        let seen = upstream.hear("0\r\n\r\n").await;
        let seen = seen.to_lowercase();
        assert!(seen.contains("transfer-encoding: chunked\r\n"), "{seen}");
        assert!(!seen.contains("content-length"), "{seen}");
        upstream
            .say("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
            .await;
        let answer = client.rest().await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.contains("connection: close\r\n"), "{answer}");
        assert!(answer.ends_with("\r\n\r\nok"), "{answer}");
        assert_eq!(upstream.rest().await, "");
        assert!(host.is_idle().await);
    }
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused() {
    let stage = Stage::new(&["host.test"]).await;
    let large = "x".repeat(70 << 10);
    let many = "X-A: 1\r\n".repeat(101);
    for headers in [format!("X-Large: {large}\r\n"), many] {
        let mut client = stage.connect().await;
        let request = format!("GET http://host.test/ HTTP/1.1\r\nHost: host.test\r\n{headers}\r\n");
        // It may be refused before all of it is said.
        let _ = client.0.write_all(request.as_bytes()).await;
        let answer = client.hear("\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    }
}

#[tokio::test]
async fn an_address_in_an_odd_notation_is_no_host_even_where_it_is_named() {
    let host = Host::new().await;
    let stage = Stage::for_host(&host).await;
    let port = host.port();
    for address in [
        "127.1",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "017700000001",
        "[::ffff:127.0.0.1]",
        "[::1%25lo]",
        "127.0.0.1.",
    ] {
        for request in [
            format!("GET http://{address}:{port}/ HTTP/1.0\r\n\r\n"),
            format!("CONNECT {address}:{port} HTTP/1.0\r\n\r\n"),
        ] {
            let answer = stage.tell(&request).await;
            assert!(answer.contains(" 403 Forbidden\r\n"), "{request}: {answer}");
        }
        let told = format!("denied {address}:{port} (an address instead of a name)");
        assert_eq!(stage.refusals(), [told.clone(), told]);
    }
    assert!(host.is_idle().await);
}

/// Two lengths that agree are one (RFC 9112, 6.3): one goes on.
#[tokio::test]
async fn the_same_length_twice_is_said_once_to_the_host() {
    let host = Host::new().await;
    let stage = Stage::for_host(&host).await;
    let at = format!("host.test:{}", host.port());
    let mut client = stage.connect().await;
    client
        .say(format!(
            "POST http://{at}/ HTTP/1.1\r\nHost: {at}\r\nContent-Length: 3\r\n\
             Content-Length: 3\r\n\r\nabc"
        ))
        .await;
    let head = host.accept().await.hear("\r\n\r\nabc").await;
    let lengths = head.to_lowercase().matches("content-length: 3\r\n").count();
    assert_eq!(lengths, 1, "{head}");
}

#[tokio::test(start_paused = true)]
async fn a_head_that_trickles_in_ends_with_the_patience_for_it() {
    let stage = Stage::new(&["host.test"]).await;
    let head = "GET http://host.test/ HTTP/1.1\r\nHost: host.test\r\n";
    // What it speaks is known at once, or is never said.
    for (begin, patience) in [(head, HEAD_PATIENCE), ("BREW ", PATIENCE + HEAD_PATIENCE)] {
        let mut client = stage.connect().await;
        client.say(begin).await;
        let started = Instant::now();
        let mut end = [0];
        while let Err(_elapsed) = timeout(Duration::from_secs(5), client.0.read(&mut end)).await {
            assert!(started.elapsed() <= 2 * patience, "it never ends");
            let _ = client.0.write_all(b"x").await;
        }
        let took = started.elapsed();
        assert!(took >= patience, "{took:?}");
        assert!(took <= patience + Duration::from_secs(10), "{took:?}");
    }
}
