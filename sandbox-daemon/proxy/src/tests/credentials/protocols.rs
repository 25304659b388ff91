//! What is spoken inside of TLS that ends at the proxy.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Full, combinators::BoxBody};
use hyper::{
    HeaderMap, Request, Response, Version, body::Incoming, client::conn::http2,
    header::AUTHORIZATION, server, service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};

use super::*;

const BOTH: Offer = Offer {
    http1: true,
    http2: true,
};

/// Says what it was asked, and ends with a trailer.
async fn echo(request: Request<Incoming>) -> hyper::Result<Response<BoxBody<Bytes, hyper::Error>>> {
    let (parts, body) = request.into_parts();
    assert_eq!(parts.version, Version::HTTP_2);
    let authorization = parts.headers.get(AUTHORIZATION);
    let authorization = authorization.map_or("", |it| it.to_str().unwrap());
    let sent = body.collect().await?.to_bytes();
    let said = format!(
        "{} {} {authorization} {}",
        parts.method,
        parts.uri,
        sent.len()
    );
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().unwrap());
    let body = Full::from(said)
        .with_trailers(async move { Some(Ok(trailers)) })
        .map_err(|never| match never {});
    Ok(Response::new(BoxBody::new(body)))
}

#[tokio::test]
async fn a_host_that_speaks_http_2_is_spoken_to_in_it() {
    let scene = Scene::new(|_| {}).await;
    let host = async {
        let accepted = scene.accept("host.test", Alpn::Http2).await.unwrap();
        let connection = server::conn::http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(accepted), service_fn(echo));
        tokio::spawn(connection);
    };
    let (client, ()) = tokio::join!(scene.client("host.test", BOTH), host);
    let client = client.unwrap();
    assert_eq!(client.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (sender, connection) = http2::handshake::<_, _, BoxBody<Bytes, hyper::Error>>(
        TokioExecutor::new(),
        TokioIo::new(client),
    )
    .await
    .unwrap();
    tokio::spawn(connection);
    let at = format!("host.test:{}", scene.host.port());
    let ask = |path: &str, token: &str| {
        let request = Request::builder()
            .method("POST")
            .uri(format!("https://{at}{path}"))
            .header(AUTHORIZATION, format!("Bearer {token}"))
            .body(BoxBody::new(Empty::new().map_err(|never| match never {})))
            .unwrap();
        let mut sender = sender.clone();
        async move { sender.send_request(request).await.unwrap() }
    };
    // On one connection to the host, at the same time.
    let (one, other) = tokio::join!(ask("/a", DUMMY), ask("/b?c=d", DUMMY));
    for (answer, path) in [(one, "/a"), (other, "/b?c=d")] {
        let answer = answer.into_body().collect().await.unwrap();
        assert_eq!(answer.trailers().unwrap()["grpc-status"], "0");
        let said = answer.to_bytes();
        let expected = format!("POST https://{at}{path} Bearer {SECRET} 0");
        assert_eq!(said, expected);
    }
    let refused = ask("/", "somebody-else").await;
    assert_eq!(refused.status(), 403);
    let refused = ask(&format!("/{DUMMY}"), DUMMY).await;
    assert_eq!(refused.status(), 403);
    assert!(scene.host.is_idle().await);
    assert_eq!(scene.stage.refusals().len(), 2);
}

#[tokio::test]
async fn the_parts_of_a_request_of_http_2_have_to_agree() {
    let scene = Scene::new(|it| it.dummy = None).await;
    let host = async {
        let accepted = scene.accept("host.test", Alpn::Http2).await.unwrap();
        let connection = server::conn::http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(accepted), service_fn(echo));
        tokio::spawn(connection);
    };
    let (client, ()) = tokio::join!(scene.client("host.test", BOTH), host);
    let (mut sender, connection) =
        http2::handshake::<_, _, Empty<Bytes>>(TokioExecutor::new(), TokioIo::new(client.unwrap()))
            .await
            .unwrap();
    tokio::spawn(connection);
    let port = scene.host.port();
    let here = format!("host.test:{port}");
    let there = format!("second.test:{port}");
    for (uri, header, status) in [
        (format!("https://{there}/"), None, 403),
        (format!("http://{here}/"), None, 400),
        (format!("https://{here}/"), Some(there.as_str()), 400),
        (format!("https://u@{here}/"), None, 400),
        (format!("https://{here}/"), Some(here.as_str()), 200),
    ] {
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = uri.parse().unwrap();
        if let Some(host) = header {
            request.headers_mut().insert("host", host.parse().unwrap());
        }
        let answer = sender.send_request(request).await.unwrap();
        assert_eq!(answer.status(), status, "{uri} {header:?}");
    }
    assert_eq!(scene.uses().len(), 1);
}

#[tokio::test]
async fn a_websocket_is_opened_with_the_credential_and_carries_what_it_likes() {
    let scene = Scene::new(|_| {}).await;
    let host = async {
        let mut host = scene.accept("host.test", Alpn::Http1).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(host.read_u8().await.unwrap());
        }
        host.write_all(
            b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\n\
              upgrade: websocket\r\n\r\nfirst",
        )
        .await
        .unwrap();
        let mut frame = [0; 4];
        host.read_exact(&mut frame).await.unwrap();
        host.write_all(&frame).await.unwrap();
        host.flush().await.unwrap();
        (String::from_utf8(head).unwrap(), host)
    };
    let client = async {
        let mut client = scene.client("host.test", HTTP1).await.unwrap();
        let request = format!(
            "GET /ws HTTP/1.1\r\nhost: host.test:{}\r\nconnection: Upgrade\r\n\
             upgrade: websocket\r\nauthorization: Bearer {DUMMY}\r\n\r\n",
            scene.host.port()
        );
        client.write_all(request.as_bytes()).await.unwrap();
        let mut heard = Vec::new();
        while !heard.ends_with(b"first") {
            heard.push(client.read_u8().await.unwrap());
        }
        client.write_all(b"\0\x01ab").await.unwrap();
        let mut echoed = [0; 4];
        client.read_exact(&mut echoed).await.unwrap();
        assert_eq!(&echoed, b"\0\x01ab");
        String::from_utf8(heard).unwrap()
    };
    let ((head, _host), answer) = timeout(LONG, async { tokio::join!(host, client) })
        .await
        .unwrap();
    assert!(head.contains(&format!("Bearer {SECRET}\r\n")), "{head}");
    assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
}

#[tokio::test]
async fn nothing_but_a_websocket_is_spoken_instead_of_http() {
    let scene = Scene::new(|it| it.dummy = None).await;
    for protocol in ["foo", "websocket, foo", "h2c", "TLS/1.2"] {
        let request = format!(
            "GET / HTTP/1.1\r\nhost: HOST\r\nconnection: Upgrade\r\nupgrade: {protocol}\r\n\r\n"
        );
        let (heard, _) = scene.ask(&request).await;
        assert!(heard.contains("authorization: "), "{heard}");
        assert!(!heard.to_lowercase().contains("upgrade"), "{heard}");
    }
}

#[tokio::test]
async fn a_dummy_in_a_trailer_breaks_the_request_off() {
    let scene = Scene::new(|_| {}).await;
    let request = format!(
        "POST / HTTP/1.1\r\nhost: HOST\r\ntransfer-encoding: chunked\r\n\
         trailer: x-key\r\n\r\n1\r\na\r\n0\r\nx-key: {DUMMY}\r\n\r\n"
    );
    scene
        .refused(&request, "the dummy of `github` in a body")
        .await;
}
