//! HTTP/2 from a client, HTTP/1.1 to the host.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::{Request, client::conn::http2, header::COOKIE};
use hyper_util::rt::{TokioExecutor, TokioIo};

use super::*;

type Sender = http2::SendRequest<Empty<Bytes>>;

async fn connect(stage: &Stage) -> Sender {
    let client = stage.connect().await;
    let io = TokioIo::new(client.0);
    let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    sender
}

fn request(method: &str, uri: &str) -> Request<Empty<Bytes>> {
    let builder = Request::builder().method(method).uri(uri);
    builder.body(Empty::new()).unwrap()
}

#[tokio::test]
async fn requests_of_http_2_go_out_as_http_1() {
    let host = Host::new().await;
    let stage = Stage::for_host(&host).await;
    let at = format!("host.test:{}", host.port());
    let mut sender = connect(&stage).await;
    let mut asked = request("GET", &format!("http://{at}/a"));
    asked.headers_mut().append(COOKIE, "a=1".parse().unwrap());
    asked.headers_mut().append(COOKIE, "b=2".parse().unwrap());
    let answer = tokio::spawn(sender.send_request(asked));
    let mut upstream = host.accept().await;
    let head = upstream.hear("\r\n\r\n").await;
    assert!(head.starts_with("GET /a HTTP/1.1\r\n"), "{head}");
    assert!(head.contains(&format!("host: {at}\r\n")), "{head}");
    assert!(head.contains("cookie: a=1; b=2\r\n"), "{head}");
    upstream
        .say("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nconnection: x-hop\r\nx-hop: 1\r\n\r\n2\r\nok\r\n0\r\n\r\n")
        .await;
    let answer = answer.await.unwrap().unwrap();
    assert!(!answer.headers().contains_key("x-hop"));
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, "ok");

    let other = request("GET", &format!("http://other.test:{}/", host.port()));
    let answer = sender.send_request(other).await.unwrap();
    assert_eq!(answer.status(), 403);
    assert_eq!(
        answer.headers()["x-sandbox-denied"],
        "not in the allow list"
    );
    let mut fronted = request("GET", &format!("http://{at}/"));
    fronted
        .headers_mut()
        .insert("host", "second.test".parse().unwrap());
    let answer = sender.send_request(fronted).await.unwrap();
    assert_eq!(answer.status(), 400);
}

#[tokio::test]
async fn a_tunnel_in_http_2_carries_bytes_and_both_ends_of_them() {
    let host = Host::new().await;
    let stage = Stage::for_host(&host).await;
    let at = format!("host.test:{}", host.port());
    let mut sender = connect(&stage).await;
    let answer = sender.send_request(request("CONNECT", &at)).await.unwrap();
    assert_eq!(answer.status(), 200);
    let mut upstream = host.accept().await;
    let tunnel = hyper::upgrade::on(answer).await.unwrap();
    let mut tunnel = TokioIo::new(tunnel);
    tunnel.write_all(b"\0up").await.unwrap();
    upstream.hear("\0up").await;
    upstream.say("down").await;
    let mut heard = [0; 4];
    tunnel.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"down");
    tunnel.shutdown().await.unwrap();
    assert_eq!(upstream.rest().await, "");
    upstream.end().await;
    assert_eq!(tunnel.read(&mut heard).await.unwrap(), 0);

    let other = format!("other.test:{}", host.port());
    let answer = sender
        .send_request(request("CONNECT", &other))
        .await
        .unwrap();
    assert_eq!(answer.status(), 403);
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags, 0, 0, 0, stream]);
    frame.extend(payload);
    frame
}

/// A header that is in no table (RFC 7541, 6.2.2), without compression.
fn literal(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = vec![0];
    for text in [name, value] {
        bytes.push(u8::try_from(text.len()).unwrap());
        bytes.extend(text.as_bytes());
    }
    bytes
}

#[tokio::test]
async fn what_would_be_more_than_one_line_in_http_1_gets_nowhere() {
    let host = Host::new().await;
    let stage = Stage::for_host(&host).await;
    let at = format!("host.test:{}", host.port());
    let plain = [
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", &at),
    ];
    let with = |name: &'static str, value: &'static str| {
        let mut all: Vec<(&str, &str)> = plain.to_vec();
        match all.iter_mut().find(|it| it.0 == name) {
            Some(it) => it.1 = value,
            None => all.push((name, value)),
        }
        all.iter()
            .flat_map(|(name, value)| literal(name, value))
            .collect::<Vec<u8>>()
    };
    for (name, value) in [
        ("x-a", "1\r\nHost: other.test"),
        ("x-a\r\nhost", "other.test"),
        ("x-a", "1\0"),
        (":path", "/ HTTP/1.1\r\nHost: other.test\r\n\r\nGET /"),
        (":method", "GET / HTTP/1.1\r\nX:"),
        (":scheme", "http\r\nHost: other.test"),
        ("transfer-encoding", "chunked"),
        ("connection", "keep-alive"),
        ("x-a", "control"),
    ] {
        let mut client = stage.connect().await;
        client.say("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
        client.say(frame(4, 0, 0, &[])).await;
        client.say(frame(1, 5, 1, &with(name, value))).await;
        if value == "control" {
            let head = host.accept().await.hear("\r\n\r\n").await;
            assert!(head.contains("x-a: control\r\n"), "{head}");
        } else {
            assert!(host.is_idle().await, "{name}: {value}");
        }
    }
}
