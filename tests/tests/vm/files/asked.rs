//! A sandbox that is asked again and again what a step comes to.

use std::time::Duration;

use sandbox_daemon::proto::Start;

use crate::{
    client::{self, Client},
    ground::{self, GROUND},
    host::DEV,
};

/// What a step comes to in a sandbox that is there.
pub(super) async fn answer(client: &mut Client, sandbox: &str, step: &[&'static str]) -> String {
    let start = Start {
        cwd: GROUND.into(),
        ..client::start_in(sandbox, &client::attacker(&[step]))
    };
    client::run(client, start).await.lines().concat()
}

/// Asks until it is so; until then it is refused.
pub(super) async fn becomes(
    client: &mut Client,
    sandbox: &str,
    step: &[&'static str],
    expected: &str,
) {
    for _ in 0..60 {
        let answer = answer(client, sandbox, step).await;
        if answer == expected {
            return;
        }
        assert!(
            ["ENOENT", "EACCES", "EPERM"].contains(&answer.as_str()),
            "{step:?}: {answer}"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{step:?} never came to `{expected}`");
}

/// A sandbox on the ground, asked by one step after the other.
pub(super) struct Asked {
    client: Client,
    sandbox: String,
}

impl Asked {
    pub(super) async fn begin() -> Self {
        let mut client = client::root().await;
        let sandbox = client::create(&mut client, ground::spec(DEV)).await.id;
        Self { client, sandbox }
    }

    pub(super) async fn is(&mut self, step: &[&'static str], expected: &str) {
        let answer = answer(&mut self.client, &self.sandbox, step).await;
        assert_eq!(answer, expected, "{step:?}");
    }

    pub(super) async fn becomes(&mut self, step: &[&'static str], expected: &str) {
        becomes(&mut self.client, &self.sandbox, step, expected).await;
    }

    pub(super) async fn end(mut self) {
        client::delete(&mut self.client, &self.sandbox).await;
    }
}
