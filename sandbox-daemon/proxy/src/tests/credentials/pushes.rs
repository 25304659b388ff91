//! What pushes may take from others.

use std::fmt::Write as _;

use super::*;
use crate::credential::GitRule;

const NONE: &str = "0000000000000000000000000000000000000000";
const ONE: &str = "1111111111111111111111111111111111111111";
const TWO: &str = "2222222222222222222222222222222222222222";

async fn scene() -> Scene {
    Scene::new(|it| {
        it.git = Some(GitRule {
            repositories: vec!["o/r".into()],
            push: vec!["refs/heads/*".into()],
            ..GitRule::default()
        });
    })
    .await
}

/// A push that does this, and does not end; what the host hears of it.
async fn pushing(
    scene: &Scene,
    commands: impl Iterator<Item = String>,
) -> (ToHost<TcpStream>, FromHost<TcpStream>) {
    let host = scene.accept("host.test", Alpn::Http1);
    let (client, host) = tokio::join!(scene.client("host.test", HTTP1), host);
    let (mut client, host) = (client.unwrap(), host.unwrap());
    let mut body = String::new();
    for command in commands {
        write!(body, "{:04x}{command}", command.len() + 4).unwrap();
    }
    body += "0000PACK";
    let head = format!(
        "POST /o/r.git/git-receive-pack HTTP/1.1\r\nhost: host.test:{}\r\nauthorization: {}\r\n\
         transfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n",
        scene.host.port(),
        basic(&format!("git:{DUMMY}")),
        body.len()
    );
    client.write_all(head.as_bytes()).await.unwrap();
    (client, host)
}

/// How long a host is not to hear anything.
const QUIET: Duration = Duration::from_millis(500);

/// Whether the host hears anything within this time.
async fn hears(host: &mut FromHost<TcpStream>, within: Duration) -> bool {
    let mut some = [0; 64];
    let heard = timeout(within, host.read(&mut some)).await;
    matches!(heard, Ok(Ok(1..)))
}

/// Each may take much memory, and the proxy is there for all.
#[tokio::test]
async fn so_many_pushes_are_looked_into_at_a_time_and_others_wait() {
    let scene = scene().await;
    let update = || std::iter::once(format!("{ONE} {TWO} refs/heads/a"));
    let (first, mut host) = pushing(&scene, update()).await;
    assert!(hears(&mut host, LONG).await);
    let (_second, mut host) = pushing(&scene, update()).await;
    assert!(hears(&mut host, LONG).await);
    let (_third, mut host) = pushing(&scene, update()).await;
    assert!(!hears(&mut host, QUIET).await);
    drop(first);
    assert!(hears(&mut host, LONG).await);
}

#[tokio::test]
async fn pushes_that_force_nothing_wait_for_none() {
    let scene = scene().await;
    let mut held = Vec::new();
    for _ in 0..4 {
        let create = std::iter::once(format!("{NONE} {TWO} refs/heads/a"));
        let (client, mut host) = pushing(&scene, create).await;
        assert!(hears(&mut host, LONG).await);
        held.push((client, host));
    }
}

#[tokio::test]
async fn of_very_many_references_some_are_told_and_the_others_counted() {
    let scene = scene().await;
    let creates = (0..100).map(|it| format!("{NONE} {TWO} refs/heads/{it}"));
    let (_client, mut host) = pushing(&scene, creates).await;
    assert!(hears(&mut host, LONG).await);
    let uses = scene.uses();
    assert_eq!((uses[0].refs.len(), uses[0].further_refs), (64, 36));
}
