//! What git may fetch and push with a credential that it does not have, on a host
//! that lets everybody who has it do everything.

mod protocols;
mod raw;
mod rules;
mod tokens;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use serde_json::Value;

use sandbox_tests::egress::Daemon;

use super::{Held, NOTHING};
use crate::{
    Test,
    attacks::{Attack, number, under},
    world::{self, World},
};

pub(super) fn tests() -> Vec<Test> {
    let mut tests = protocols::tests();
    tests.extend(raw::tests());
    tests.extend(rules::tests());
    tests.extend(tokens::tests());
    tests
}

const HOST: &str = "code.example";
/// What most of these policies let be pushed.
const AGENT: &str = r#"push = ["refs/heads/agent/*"]"#;

/// A repository of a test's own, and the token that opens it.
struct Repository<'a> {
    world: &'a World,
    daemon: &'a Daemon,
    held: Held,
    /// `o/project-N`
    name: String,
}

impl<'a> Repository<'a> {
    /// One with two commits on `main`, of which `agent/old` has the first.
    fn make(world: &'a World) -> Self {
        Self::of(world, world.daemon(), "sha1")
    }

    fn of(world: &'a World, daemon: &'a Daemon, format: &str) -> Self {
        let name = format!("o/project-{}", number());
        let repository = Self {
            world,
            daemon,
            held: Held::by(world, daemon),
            name,
        };
        fill(world, &repository.bare(), format);
        repository
    }

    /// Where it lies on the server.
    fn bare(&self) -> PathBuf {
        bare(&self.name)
    }

    /// A policy that lets git fetch it, and push what `rule` says.
    fn policy(&self, rule: &str) -> PathBuf {
        self.policy_with(rule, "")
    }

    fn policy_with(&self, rule: &str, more: &str) -> PathBuf {
        let (name, secret) = (&self.name, &self.held.name);
        let comma = if rule.is_empty() { "" } else { ", " };
        self.daemon.policy(&format!(
            "allow = [\"{HOST}\"]\n[[credential]]\nname = \"{secret}\"\nhosts = [\"{HOST}\"]\n\
             {more}\ngit = {{ repositories = [\"{name}\"]{comma}{rule} }}\n"
        ))
    }

    /// Runs a script in a sandbox, in which `$URL` is the repository.
    fn inside(&self, rule: &str, script: &str) -> Attack {
        under(self.daemon, &self.policy(rule), &self.script(script))
    }

    /// The same without a sandbox, with the token.
    fn outside(&self, script: &str) -> Output {
        let authority = world::root().join("tls/ca.pem");
        Command::new("sh")
            .args(["-c", &self.script(script)])
            .current_dir(self.world.home())
            .env("GIT_SSL_CAINFO", &authority)
            .env("CURL_CA_BUNDLE", &authority)
            .env("GIT_CONFIG_COUNT", "1")
            .env("GIT_CONFIG_KEY_0", "http.extraHeader")
            .env(
                "GIT_CONFIG_VALUE_0",
                format!("Authorization: Bearer {}", self.held.token),
            )
            .env("OUTSIDE_TOKEN", &self.held.token)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    fn script(&self, script: &str) -> String {
        format!(
            "set -e\nexport HOME=\"$PWD\" GIT_TERMINAL_PROMPT=0 GIT_CONFIG_NOSYSTEM=1\n\
             export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@a GIT_COMMITTER_NAME=a \
             GIT_COMMITTER_EMAIL=a@a\n\
             URL=https://{HOST}/{}.git\n\
             commit() {{ git commit -q --allow-empty -m \"$1\"; }}\n{script}\necho finished\n",
            self.name
        )
    }

    /// The script goes through, and nothing is refused.
    fn assert_allowed(&self, rule: &str, script: &str) -> Attack {
        let attack = self.inside(rule, script);
        assert!(attack.printed.ends_with("finished\n"), "{attack:?}");
        attack.assert_told(NOTHING);
        self.assert_kept(&attack);
        attack
    }

    /// The last command of the script fails, git prints these lines, exactly this
    /// is told, once, and the server is as it was. Without a sandbox the script goes
    /// through and changes something there.
    fn assert_refused(&self, rule: &str, script: &str, lines: &[&str], told: &str) {
        let before = self.references();
        let attack = self.inside(rule, script);
        assert!(!attack.printed.ends_with("finished\n"), "{attack:?}");
        for expected in lines {
            assert!(
                attack
                    .complaint
                    .lines()
                    .any(|line| line.trim_end() == *expected),
                "{expected}: {attack:?}"
            );
        }
        let told = format!("request {HOST}:443 ({told})");
        attack.assert_told(&[&told]);
        assert_eq!(attack.denials[&told], 1, "{attack:?}");
        assert_eq!(self.references(), before, "{attack:?}");
        self.assert_kept(&attack);
        let outside = self.outside(script);
        assert!(outside.status.success(), "{outside:?}");
        assert_ne!(self.references(), before, "{outside:?}");
    }

    /// The token is in nothing that came out.
    fn assert_kept(&self, attack: &Attack) {
        assert!(!format!("{attack:?}").contains(&self.held.token));
        assert!(!self.events().contains(&self.held.token));
    }

    /// What there is on the server.
    fn references(&self) -> String {
        git(
            &self.bare(),
            &["for-each-ref", "--format=%(refname) %(objectname)"],
        )
    }

    fn has(&self, reference: &str) -> bool {
        let all = self.references();
        all.lines()
            .any(|it| it.split(' ').next() == Some(reference))
    }

    /// What the daemon has told so far.
    fn events(&self) -> String {
        let output = self.daemon.client(&["events", "-o", "json"]).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The uses of its credential, each once.
    fn uses(&self) -> Vec<String> {
        let events = self.events();
        let events = events
            .lines()
            .map(|it| serde_json::from_str::<Value>(it).unwrap());
        let of_this =
            |it: &Value| it["type"] == "credential_use" && it["credential"] == *self.held.name;
        let mut uses: Vec<_> = events.filter(of_this).map(|it| told(&it)).collect();
        uses.sort_unstable();
        uses.dedup();
        uses
    }

    /// What the server was asked for this repository.
    fn requests(&self) -> Vec<Value> {
        let path = format!("/{}.git/", self.name);
        let of_this = |it: &Value| {
            it["kind"] == "repositories" && it["path"].as_str().unwrap().starts_with(&path)
        };
        self.world.records().into_iter().filter(of_this).collect()
    }
}

/// `METHOD HOST PATH RULE REPOSITORY REFERENCES`
fn told(used: &Value) -> String {
    let text = |field: &str| used[field].as_str().unwrap();
    let references = used["refs"].as_array().unwrap();
    let references: Vec<_> = references.iter().map(|it| it.as_str().unwrap()).collect();
    format!(
        "{} {} {} {} {} {}",
        text("method"),
        text("host"),
        text("path"),
        text("rule"),
        text("repository"),
        references.join(",")
    )
}

pub(super) fn bare(name: &str) -> PathBuf {
    world::root().join(format!("repositories/{name}.git"))
}

/// Makes a repository on the server.
pub(super) fn fill(world: &World, bare: &Path, format: &str) {
    let seed = world.home();
    let format = format!("--object-format={format}");
    fs::create_dir_all(bare).unwrap();
    git(bare, &["init", "-q", "--bare", "-b", "main", &format]);
    git(bare, &["config", "uploadpack.allowFilter", "true"]);
    git(bare, &["config", "receive.advertisePushOptions", "true"]);
    git(&seed, &["init", "-q", "-b", "main", &format]);
    fs::write(seed.join("says"), "the project works\n").unwrap();
    git(&seed, &["add", "says"]);
    let who = ["-c", "user.name=a", "-c", "user.email=a@a"];
    for message in ["first", "second"] {
        let commit = ["commit", "-q", "--allow-empty", "-m", message];
        git(&seed, &[&who[..], &commit].concat());
    }
    let to = bare.to_str().unwrap();
    git(
        &seed,
        &["push", "-q", to, "main", "main~1:refs/heads/agent/old"],
    );
}

/// What git prints outside of everything.
pub(super) fn git(directory: &Path, words: &[&str]) -> String {
    let output = Command::new("git")
        .arg("-C")
        .arg(directory)
        .args(words)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}
