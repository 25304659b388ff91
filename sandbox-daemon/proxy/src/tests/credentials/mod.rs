//! Credentials: hosts that speak TLS, clients that believe the proxy.

mod protocols;
mod pushes;
mod strange;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio_rustls::{TlsAcceptor, client::TlsStream as ToHost, server::TlsStream as FromHost};

use super::*;
use crate::{
    authority::{Alpn, Authority},
    channel::Used,
    credential::{Credential, Scheme, SecretValue},
    testing::credential,
    tls::{Offer, TlsError},
};

const DUMMY: &str = "ghp_DUMMYdummyDUMMYdummy0000";
const SECRET: &str = "ghp_s3cretS3cretS3cretS3cret";

const HTTP1: Offer = Offer {
    http1: true,
    http2: false,
};

/// A stage with a host that speaks TLS, and a credential for it.
struct Scene {
    stage: Stage,
    host: Host,
    authority: Authority,
}

impl Scene {
    /// `host.test` with a credential, `second.test` without.
    async fn new(change: impl FnOnce(&mut Credential)) -> Self {
        let host = Host::new().await;
        let mut credential =
            credential("github", &format!("host.test:{}", host.port()), Some(DUMMY));
        change(&mut credential);
        Self::with(host, vec![credential]).await
    }

    async fn with(host: Host, credentials: Vec<Credential>) -> Self {
        let port = host.port();
        let allow = [format!("host.test:{port}"), format!("second.test:{port}")];
        let stage = Stage::with(SandboxPolicy {
            allow: allow.iter().map(|it| rule(it)).collect(),
            uid: 1000,
            credentials,
            ..SandboxPolicy::default()
        })
        .await;
        let secret = SecretValue::new(SECRET.into());
        stage.sandboxes.secrets().put(1000, "github".into(), secret);
        let authority = Authority::new().unwrap();
        stage.dialer.tls().believe(&authority.pem());
        Self {
            stage,
            host,
            authority,
        }
    }

    /// A client's TLS to a host through a tunnel.
    async fn client(&self, name: &str, offer: Offer) -> Result<ToHost<TcpStream>, TlsError> {
        let mut peer = self.stage.connect().await;
        let to = format!("{name}:{}", self.host.port());
        peer.say(format!("CONNECT {to} HTTP/1.1\r\nhost: {to}\r\n\r\n"))
            .await;
        peer.hear("\r\n\r\n").await;
        let believing = Tls::new().unwrap();
        believing.believe(&self.stage.dialer.tls().authority.pem());
        let name = crate::testing::name(name);
        let connected = believing.connect(&name, offer, peer.0).await;
        connected.map(|(stream, _)| stream)
    }

    /// The host's end of the next connection.
    async fn accept(&self, name: &str, alpn: Alpn) -> Option<FromHost<TcpStream>> {
        let accepted = self.host.accept().await.0;
        let config = self.authority.speak_for(&crate::testing::name(name), alpn);
        TlsAcceptor::from(config.unwrap())
            .accept(accepted)
            .await
            .ok()
    }

    /// What the host gets of a request, and what the client of its answer.
    async fn ask(&self, request: &str) -> (String, String) {
        let host = async {
            let mut host = self.accept("host.test", Alpn::Http1).await.unwrap();
            let mut heard = Vec::new();
            let mut some = [0; 4096];
            // Everything, as soon as it is quiet.
            while let Ok(Ok(length)) =
                timeout(Duration::from_millis(300), host.read(&mut some)).await
                && length > 0
            {
                heard.extend(&some[..length]);
            }
            if !heard.is_empty() {
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
                host.write_all(answer).await.unwrap();
            }
            (String::from_utf8_lossy(&heard).into_owned(), host)
        };
        let client = async {
            let mut client = self.client("host.test", HTTP1).await.unwrap();
            let request = request.replace("HOST", &format!("host.test:{}", self.host.port()));
            client.write_all(request.as_bytes()).await.unwrap();
            let mut heard = Vec::new();
            let mut some = [0; 4096];
            while !String::from_utf8_lossy(&heard).contains("\r\n\r\n") {
                let length = timeout(LONG, client.read(&mut some))
                    .await
                    .unwrap()
                    .unwrap_or(0);
                heard.extend(&some[..length]);
                if length == 0 {
                    break;
                }
            }
            String::from_utf8_lossy(&heard).into_owned()
        };
        let ((heard, _host), answer) = tokio::join!(host, client);
        (heard, answer)
    }

    /// A request that is refused for this reason, and of which the host gets
    /// nothing.
    async fn refused(&self, request: &str, rule: &str) {
        let (heard, answer) = self.ask(request).await;
        assert!(!heard.contains(DUMMY) && !heard.contains(SECRET), "{heard}");
        assert!(answer.starts_with("HTTP/1.1 403 "), "{request} {answer}");
        let told = format!("denied host.test:{} ({rule})", self.host.port());
        assert_eq!(self.stage.refusals(), [told], "{request}");
    }

    fn uses(&self) -> Vec<Used> {
        let told = self.stage.outbox.take().into_iter();
        told.filter_map(|message| match message {
            FromProxy::Used(used) => Some(used),
            _ => None,
        })
        .collect()
    }
}

fn basic(pair: &str) -> String {
    format!("Basic {}", BASE64_STANDARD.encode(pair))
}

#[tokio::test]
async fn a_dummy_is_replaced_in_its_place_and_every_use_is_told() {
    let scene = Scene::new(|_| {}).await;
    for (given, sent) in [
        (format!("Bearer {DUMMY}"), format!("Bearer {SECRET}")),
        (format!("token {DUMMY}"), format!("token {SECRET}")),
        (basic(&format!("u:{DUMMY}")), basic(&format!("u:{SECRET}"))),
        (basic(&format!("{DUMMY}:x")), basic(&format!("{SECRET}:x"))),
    ] {
        let request =
            format!("GET /a?b=c HTTP/1.1\r\nhost: HOST\r\nauthorization: {given}\r\n\r\n");
        let (heard, answer) = scene.ask(&request).await;
        assert!(heard.starts_with("GET /a?b=c HTTP/1.1\r\n"), "{heard}");
        assert!(
            heard.contains(&format!("authorization: {sent}\r\n")),
            "{heard}"
        );
        assert!(answer.ends_with("\r\n\r\nok"), "{answer}");
        let uses = scene.uses();
        let [only] = &uses[..] else {
            panic!("{uses:?}");
        };
        assert_eq!((only.credential.as_str(), only.exec), ("github", 8));
        assert_eq!((only.method.as_str(), only.path.as_str()), ("GET", "/a"));
        assert_eq!(
            (only.host.as_str(), only.port),
            ("host.test", scene.host.port())
        );
        assert!(!format!("{uses:?}").contains(SECRET));
    }
}

#[tokio::test]
async fn a_dummy_anywhere_else_is_refused_and_nothing_of_it_arrives() {
    let scene = Scene::new(|it| it.methods = vec!["GET".into()]).await;
    let encoded = BASE64_STANDARD.encode(DUMMY);
    let escaped = utf8_percent_encode(DUMMY, NON_ALPHANUMERIC).to_string();
    assert_ne!(escaped, DUMMY);
    let bearer = format!("authorization: Bearer {DUMMY}\r\n");
    let with = |line: &str| format!("GET / HTTP/1.1\r\nhost: HOST\r\n{line}\r\n");
    let dummy = |wrong: &str| format!("the dummy of `github` {wrong}");
    let outside = dummy("outside its place");
    for (request, rule) in [
        (with(&format!("x-key: {DUMMY}\r\n")), &outside),
        (with(&format!("x-key: {encoded}\r\n")), &outside),
        (with(&format!("cookie: a=b; c={DUMMY}\r\n")), &outside),
        (with(&format!("authorization: {DUMMY}\r\n")), &outside),
        (
            with(&format!("authorization: Bearer x{DUMMY}\r\n")),
            &outside,
        ),
        (
            with(&format!("authorization: Digest {DUMMY}\r\n")),
            &outside,
        ),
        (
            format!("GET /{DUMMY} HTTP/1.1\r\nhost: HOST\r\n\r\n"),
            &outside,
        ),
        (
            format!("GET /?q={DUMMY} HTTP/1.1\r\nhost: HOST\r\n\r\n"),
            &outside,
        ),
        (
            format!("GET /?q={escaped} HTTP/1.1\r\nhost: HOST\r\n\r\n"),
            &outside,
        ),
        (with(&format!("{bearer}{bearer}")), &dummy("more than once")),
        (
            with(&format!("{bearer}x-key: {DUMMY}\r\n")),
            &dummy("more than once"),
        ),
        (
            format!("GET /?q={DUMMY} HTTP/1.1\r\nhost: HOST\r\n{bearer}\r\n"),
            &dummy("more than once"),
        ),
        (
            with(&format!(
                "authorization: {}\r\n",
                basic(&format!("{DUMMY}:{DUMMY}"))
            )),
            &dummy("more than once"),
        ),
        (
            format!("POST / HTTP/1.1\r\nhost: HOST\r\ncontent-length: 0\r\n{bearer}\r\n"),
            &dummy("in a request that it does not cover"),
        ),
    ] {
        scene.refused(&request, rule).await;
    }
    assert!(scene.uses().is_empty());
}

#[tokio::test]
async fn a_dummy_in_a_body_breaks_the_request_off() {
    let scene = Scene::new(|_| {}).await;
    let (front, back) = DUMMY.split_at(9);
    let length = DUMMY.len() + 4;
    for body in [
        format!("content-length: {length}\r\n\r\na={DUMMY}&b"),
        format!(
            "transfer-encoding: chunked\r\n\r\n9\r\n{front}\r\n{:x}\r\n{back}\r\n0\r\n\r\n",
            back.len()
        ),
    ] {
        let request = format!("POST / HTTP/1.1\r\nhost: HOST\r\n{body}");
        let (heard, answer) = scene.ask(&request).await;
        assert!(!heard.contains(DUMMY), "{heard}");
        assert!(!heard.contains(back), "{heard}");
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        let told = format!(
            "denied host.test:{} (the dummy of `github` in a body)",
            scene.host.port()
        );
        assert_eq!(scene.stage.refusals(), [told]);
    }
}

#[tokio::test]
async fn nobody_brings_another_key_to_a_host_with_a_credential() {
    let scene = Scene::new(|it| it.paths = vec!["/v1/**".into()]).await;
    let rule = "another credential than `github`";
    for line in [
        "authorization: Bearer somebody-else",
        "authorization: Basic YTpi",
    ] {
        for path in ["/v1/a", "/other"] {
            let request = format!("GET {path} HTTP/1.1\r\nhost: HOST\r\n{line}\r\n\r\n");
            scene.refused(&request, rule).await;
        }
    }
    // Without any, a request goes as it is.
    let (heard, _) = scene.ask("GET /other HTTP/1.1\r\nhost: HOST\r\n\r\n").await;
    assert!(heard.starts_with("GET /other "), "{heard}");
    assert!(!heard.contains("authorization"), "{heard}");
}

#[tokio::test]
async fn without_a_dummy_the_credential_is_added_to_what_it_covers() {
    for (scheme, added) in [
        (
            Scheme::Bearer,
            format!("authorization: Bearer {SECRET}\r\n"),
        ),
        (
            Scheme::Basic {
                username: "me".into(),
            },
            format!("authorization: {}\r\n", basic(&format!("me:{SECRET}"))),
        ),
        (
            Scheme::Header {
                name: "x-api-key".into(),
            },
            format!("x-api-key: {SECRET}\r\n"),
        ),
        (
            Scheme::Query { name: "key".into() },
            format!("GET /v1/a?b=1&key={SECRET} HTTP/1.1\r\n"),
        ),
    ] {
        let scene = Scene::new(|it| {
            it.dummy = None;
            it.scheme = scheme;
            it.paths = vec!["/v1/*".into()];
        })
        .await;
        let (heard, _) = scene
            .ask("GET /v1/a?b=1 HTTP/1.1\r\nhost: HOST\r\n\r\n")
            .await;
        assert!(heard.contains(&added), "{heard}");
        assert_eq!(scene.uses()[0].rule, "/v1/*");
        let (heard, _) = scene.ask("GET /v2/a HTTP/1.1\r\nhost: HOST\r\n\r\n").await;
        assert!(heard.starts_with("GET /v2/a "), "{heard}");
        assert!(!heard.contains(SECRET), "{heard}");
        assert!(scene.uses().is_empty());
    }
}

#[tokio::test]
async fn a_dummy_over_plain_http_or_towards_another_host_is_refused() {
    let scene = Scene::new(|_| {}).await;
    let port = scene.host.port();
    for host in ["host.test", "second.test"] {
        let at = format!("{host}:{port}");
        let answer = scene
            .stage
            .tell(format!(
                "GET http://{at}/ HTTP/1.1\r\nhost: {at}\r\nauthorization: Bearer {DUMMY}\r\n\
                 connection: close\r\n\r\n"
            ))
            .await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        let told = format!("denied {at} (the dummy of `github` over plain HTTP)");
        assert_eq!(scene.stage.refusals(), [told]);
    }
    assert!(scene.host.is_idle().await);
}

#[tokio::test]
async fn a_rotated_secret_is_used_from_the_next_request_on() {
    let scene = Scene::new(|it| it.dummy = None).await;
    let secrets = scene.stage.sandboxes.secrets();
    for value in ["one-of-them", "the-other"] {
        secrets.put(1000, "github".into(), SecretValue::new(value.into()));
        let (heard, _) = scene.ask("GET / HTTP/1.1\r\nhost: HOST\r\n\r\n").await;
        assert!(heard.contains(&format!("Bearer {value}\r\n")), "{heard}");
    }
    scene.uses();
    secrets.put(1000, "github".into(), None);
    let rule = "secret `github` of credential `github` is not set";
    scene
        .refused("GET / HTTP/1.1\r\nhost: HOST\r\n\r\n", rule)
        .await;
    // Somebody else's of that name is somebody else's.
    secrets.put(1001, "github".into(), SecretValue::new("x".into()));
    scene
        .refused("GET / HTTP/1.1\r\nhost: HOST\r\n\r\n", rule)
        .await;
}

#[tokio::test]
async fn a_host_without_a_credential_is_passed_untouched() {
    let scene = Scene::new(|_| {}).await;
    let host = scene.accept("second.test", Alpn::Http1);
    // The client believes the proxy alone, and sees the host's own certificate.
    let (client, _) = tokio::join!(scene.client("second.test", HTTP1), host);
    assert!(matches!(client, Err(TlsError::Invalid(_))), "{client:?}");
    assert!(scene.stage.refusals().is_empty());
}

#[tokio::test]
async fn a_host_that_is_not_who_it_should_be_gets_nothing() {
    let scene = Scene::new(|it| it.dummy = None).await;
    let strange = Authority::new().unwrap();
    let asks = async {
        let mut client = scene.client("host.test", HTTP1).await.unwrap();
        let request = format!(
            "GET / HTTP/1.1\r\nhost: host.test:{}\r\n\r\n",
            scene.host.port()
        );
        client.write_all(request.as_bytes()).await.unwrap();
        let mut some = vec![0; 4096];
        let length = timeout(LONG, client.read(&mut some))
            .await
            .unwrap()
            .unwrap();
        String::from_utf8_lossy(&some[..length]).into_owned()
    };
    let answers = async {
        let accepted = scene.host.accept().await.0;
        let config = strange.speak_for(&name("host.test"), Alpn::Http1).unwrap();
        TlsAcceptor::from(config).accept(accepted).await.is_ok()
    };
    let (answer, accepted) = tokio::join!(asks, answers);
    assert!(!accepted);
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    assert!(
        answer.contains("the host's certificate is not valid"),
        "{answer}"
    );
    assert_eq!(scene.stage.refusals().len(), 1);
    assert!(scene.uses().is_empty());
}

#[tokio::test]
async fn a_request_for_another_host_than_that_of_its_connection_is_refused() {
    let scene = Scene::new(|it| it.dummy = None).await;
    let at = format!("second.test:{}", scene.host.port());
    let (heard, answer) = scene
        .ask(&format!("GET / HTTP/1.1\r\nhost: {at}\r\n\r\n"))
        .await;
    assert_eq!(heard, "");
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    let bound = format!("host.test:{}", scene.host.port());
    let told = format!("denied {at} (a request on a connection to {bound})");
    assert_eq!(scene.stage.refusals(), [told]);
}

#[tokio::test]
async fn what_is_not_http_goes_to_no_host_of_a_credential() {
    let scene = Scene::new(|_| {}).await;
    let client = async {
        let mut client = scene.client("host.test", HTTP1).await.unwrap();
        client.write_all(b"\0\x01 not http\r\n").await.unwrap();
        let mut some = [0; 64];
        timeout(LONG, client.read(&mut some))
            .await
            .unwrap()
            .unwrap_or(0)
    };
    let host = async {
        let mut host = scene.accept("host.test", Alpn::Http1).await.unwrap();
        let mut some = [0; 64];
        timeout(LONG, host.read(&mut some))
            .await
            .unwrap()
            .unwrap_or(0)
    };
    let (answered, heard) = tokio::join!(client, host);
    assert_eq!((answered, heard), (0, 0));
    let told = format!(
        "denied host.test:{} (no HTTP on a connection to a host of credential `github`)",
        scene.host.port()
    );
    assert_eq!(scene.stage.refusals(), [told]);
}

/// A hello of SSL 2, by which servers still begin TLS, and what is nothing at all.
#[tokio::test]
async fn what_is_neither_tls_nor_http_goes_to_no_host_of_a_credential() {
    let scene = Scene::new(|_| {}).await;
    let at = format!("host.test:{}", scene.host.port());
    let hello = b"\x80\x2e\x01\x03\x03\0\x15\0\0\0\x10\0\0\x2f\0\0\x35";
    for bytes in [&hello[..], b"\0\0\0\0"] {
        let mut peer = scene.stage.connect().await;
        peer.say(format!("CONNECT {at} HTTP/1.1\r\nhost: {at}\r\n\r\n"))
            .await;
        peer.hear("\r\n\r\n").await;
        let mut host = scene.host.accept().await;
        peer.say(bytes).await;
        assert_eq!(host.bytes().await.unwrap_or_default(), b"");
        let told = format!("denied {at} (neither TLS nor HTTP to a host of credential `github`)");
        assert_eq!(scene.stage.refusals(), [told]);
    }
}
