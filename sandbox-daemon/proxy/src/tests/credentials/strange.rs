//! Keys of somebody else's, and requests that are not what they seem.

use super::*;

const KEY: &str = "sk_live_somebodys0wnKey00";

#[tokio::test]
async fn a_key_beside_the_dummy_is_another_credential() {
    let scene = Scene::new(|_| {}).await;
    let rule = "another credential than `github`";
    for pair in [format!("{DUMMY}:{KEY}"), format!("{KEY}:{DUMMY}")] {
        let request = format!(
            "GET / HTTP/1.1\r\nhost: HOST\r\nauthorization: {}\r\n\r\n",
            basic(&pair)
        );
        scene.refused(&request, rule).await;
    }
    assert!(scene.uses().is_empty());
    // Names that stand there are none, and neither is what the policy says.
    let long = "somebody.with-a-name@example.org";
    let scene = Scene::new(|it| {
        it.scheme = Scheme::Basic {
            username: long.into(),
        };
    })
    .await;
    for name in [long, "gitlab-ci-token", "x-access-token", "me"] {
        let request = format!(
            "GET / HTTP/1.1\r\nhost: HOST\r\nauthorization: {}\r\n\r\n",
            basic(&format!("{name}:{DUMMY}"))
        );
        let (heard, _) = scene.ask(&request).await;
        let sent = basic(&format!("{name}:{SECRET}"));
        assert!(
            heard.contains(&format!("authorization: {sent}\r\n")),
            "{heard}"
        );
    }
}

#[tokio::test]
async fn a_place_that_is_spelt_in_another_way_is_the_same_place() {
    let rule = "another credential than `github`";
    let scene = Scene::new(|it| {
        it.scheme = Scheme::Header {
            name: "x-api-key".into(),
        };
    })
    .await;
    for more in ["", &format!("x-api-key: {DUMMY}\r\n")] {
        let request = format!("GET / HTTP/1.1\r\nhost: HOST\r\n{more}X_Api_Key: {KEY}\r\n\r\n");
        scene.refused(&request, rule).await;
    }
    let scene = Scene::new(|it| {
        it.scheme = Scheme::Query {
            name: "api_key".into(),
        };
    })
    .await;
    for query in [
        format!("API_KEY={KEY}"),
        format!("api_key={DUMMY}&api.key={KEY}"),
        format!("api_key={DUMMY}&api_key[]={KEY}"),
        format!("a;Api_Key={KEY}"),
    ] {
        let request = format!("GET /?{query} HTTP/1.1\r\nhost: HOST\r\n\r\n");
        scene.refused(&request, rule).await;
    }
}

#[tokio::test]
async fn another_key_over_plain_http_is_refused_as_well() {
    let scene = Scene::new(|_| {}).await;
    let at = format!("host.test:{}", scene.host.port());
    let answer = scene
        .stage
        .tell(format!(
            "GET http://{at}/ HTTP/1.1\r\nhost: {at}\r\nauthorization: Bearer {KEY}\r\n\
             connection: close\r\n\r\n"
        ))
        .await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    let told = format!("denied {at} (another credential than `github`)");
    assert_eq!(scene.stage.refusals(), [told]);
    assert!(scene.host.is_idle().await);
}

#[tokio::test]
async fn a_request_that_has_no_room_for_its_credential_does_not_go_without() {
    let scene = Scene::new(|it| {
        it.scheme = Scheme::Query { name: "key".into() };
        it.dummy = None;
    })
    .await;
    // The longest address is of 65,534 bytes.
    let get = |length| {
        let path = "a".repeat(length);
        format!("GET /{path} HTTP/1.1\r\nhost: HOST\r\n\r\n")
    };
    let (heard, _) = scene.ask(&get(65_400)).await;
    assert!(heard.contains(SECRET));
    assert_eq!(scene.uses().len(), 1);
    let long = SecretValue::new("a".repeat(200));
    scene
        .stage
        .sandboxes
        .secrets()
        .put(1000, "github".into(), long);
    let rule = "no room for credential `github`";
    scene.refused(&get(65_400), rule).await;
    assert!(scene.uses().is_empty());
}

/// Servers answer it with what they were asked, the secret too.
#[tokio::test]
async fn no_credential_goes_with_trace() {
    let scene = Scene::new(|_| {}).await;
    let trace = format!("TRACE / HTTP/1.1\r\nhost: HOST\r\nauthorization: Bearer {DUMMY}\r\n\r\n");
    let rule = "the dummy of `github` in a request that it does not cover";
    scene.refused(&trace, rule).await;
    let scene = Scene::new(|it| it.dummy = None).await;
    let (heard, _) = scene.ask("TRACE / HTTP/1.1\r\nhost: HOST\r\n\r\n").await;
    assert!(
        heard.starts_with("TRACE / ") && !heard.contains(SECRET),
        "{heard}"
    );
    assert!(scene.uses().is_empty());
}

#[tokio::test]
async fn a_request_that_is_to_be_taken_for_another_one_is_not_covered() {
    let rule = "the dummy of `github` in a request that it does not cover";
    let scene = Scene::new(|it| {
        it.methods = vec!["POST".into()];
        it.paths = vec!["/v1/a".into()];
    })
    .await;
    for (query, line) in [
        ("", "x-http-method-override: DELETE\r\n"),
        ("", "X_HTTP_Method_Override: DELETE\r\n"),
        ("", "x-method-override: DELETE\r\n"),
        ("", "x-original-url: /admin\r\n"),
        ("", "x-rewrite-url: /admin\r\n"),
        ("?_method=DELETE", ""),
        ("?a=b;_METHOD=DELETE", ""),
    ] {
        let request = format!(
            "POST /v1/a{query} HTTP/1.1\r\nhost: HOST\r\ncontent-length: 0\r\n{line}\
             authorization: Bearer {DUMMY}\r\n\r\n"
        );
        scene.refused(&request, rule).await;
    }
    // Where every request is covered, that one is too.
    let scene = Scene::new(|_| {}).await;
    let (heard, _) = scene
        .ask(&format!(
            "POST / HTTP/1.1\r\nhost: HOST\r\ncontent-length: 0\r\nx-http-method-override: PUT\r\n\
             authorization: Bearer {DUMMY}\r\n\r\n"
        ))
        .await;
    assert!(heard.contains(SECRET), "{heard}");
}

/// As servers do that add a slash, or tell of the next page.
#[tokio::test]
async fn an_address_that_repeats_the_secret_of_a_query_comes_with_the_dummy() {
    let secret = "k/+~ey of 24 characters!";
    for (dummy, shown) in [(Some(DUMMY), DUMMY), (None, "")] {
        let scene = Scene::new(|it| {
            it.scheme = Scheme::Query { name: "key".into() };
            it.dummy = dummy.map(Into::into);
        })
        .await;
        let secrets = scene.stage.sandboxes.secrets();
        secrets.put(1000, "github".into(), SecretValue::new(secret.into()));
        let host = async {
            let mut host = scene.accept("host.test", Alpn::Http1).await.unwrap();
            let mut heard = String::new();
            while !heard.ends_with("\r\n\r\n") {
                heard.push(host.read_u8().await.unwrap().into());
            }
            let target = heard.split(' ').nth(1).unwrap();
            let sent = utf8_percent_encode(secret, NON_ALPHANUMERIC).to_string();
            assert!(target.contains(&sent.replace("%7E", "~")), "{target}");
            let answer = format!(
                "HTTP/1.1 301 Moved\r\nlocation: {target}/&key={sent}\r\nlink: <{target}&page=2>\r\n\
                 content-length: 0\r\n\r\n"
            );
            host.write_all(answer.as_bytes()).await.unwrap();
            host
        };
        let client = async {
            let mut client = scene.client("host.test", HTTP1).await.unwrap();
            let at = format!("host.test:{}", scene.host.port());
            let query = dummy.map_or(String::new(), |it| format!("&key={it}"));
            let request = format!("GET /a?b=c{query} HTTP/1.1\r\nhost: {at}\r\n\r\n");
            client.write_all(request.as_bytes()).await.unwrap();
            let mut heard = String::new();
            while !heard.ends_with("\r\n\r\n") {
                heard.push(client.read_u8().await.unwrap().into());
            }
            heard
        };
        let (_host, answer) = tokio::join!(host, client);
        let location = format!("location: /a?b=c&key={shown}/&key={shown}\r\n");
        assert!(answer.contains(&location), "{answer}");
        let link = format!("link: </a?b=c&key={shown}&page=2>\r\n");
        assert!(answer.contains(&link), "{answer}");
    }
}
