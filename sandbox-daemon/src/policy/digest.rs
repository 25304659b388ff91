//! The digest of a resolved policy: SHA-256 over a canonical form in which
//! every field is preceded by its length, so that no two policies share one.

use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

use sandbox_proxy::{
    credential::{GitRule, Scheme},
    rule::{HostPattern, HostRule},
};
use sha2::{Digest as _, Sha256};

use super::environment::VariablePattern;
use super::limits::Limits;
use super::model::{Credential, Mode, NamePattern, Place, Policy, WorkspaceMode};

/// The digest of all that decides; the name is not part of it.
pub(super) fn of(policy: &Policy) -> String {
    let mut form = Form(Sha256::new());
    form.text("sandboxd policy 1");
    form.text(match policy.mode {
        Mode::Enforce => "enforce",
        Mode::Observe => "observe",
    });
    form.list(&policy.files, |form, rule| {
        match &rule.place {
            Place::Path(path) => {
                form.text("path");
                form.bytes(path.as_os_str().as_bytes());
            }
            Place::Name { scope, pattern } => {
                form.text(if scope.is_some() { "name in" } else { "name" });
                form.bytes(
                    scope
                        .as_ref()
                        .map_or(&[], |path| path.as_os_str().as_bytes()),
                );
                let (kind, name) = match pattern {
                    NamePattern::Exact(name) => ("exact", name),
                    NamePattern::Suffix(name) => ("suffix", name),
                };
                form.text(kind);
                form.bytes(name);
            }
        }
        form.text(rule.access.as_str());
        form.text(&rule.label);
    });
    let network = &policy.network;
    form.text(network.mode.as_str());
    form.list(&network.direct, |form, direct| {
        form.text(&direct.address.to_string());
        form.port(direct.port);
        form.text(&direct.label);
    });
    form.list(&network.allow, Form::host);
    form.list(&network.deny, Form::host);
    form.list(&network.unix, |form, path| {
        form.bytes(path.as_os_str().as_bytes());
    });
    form.text(network.listen.as_str());
    form.number(policy.scope.user_namespaces.into());
    form.list(&policy.devices, |form, device| {
        form.bytes(device.path.as_os_str().as_bytes());
        form.text(&device.label);
    });
    form.list(&policy.credentials, Form::credential);
    form.list(&policy.untouched, Form::host);
    form.list(&policy.env.pass, Form::variable);
    form.list(&policy.env.refuse, Form::variable);
    form.number(policy.env.set.len() as u64);
    for (name, value) in &policy.env.set {
        form.text(name);
        form.bytes(value.as_bytes());
    }
    form.text(match policy.workspace_mode {
        WorkspaceMode::Direct => "direct",
        WorkspaceMode::Ephemeral => "ephemeral",
    });
    let Limits {
        timeout,
        sandbox_timeout,
        memory,
        cpu_millis,
        pids,
        disk,
        output,
    } = policy.limits;
    for time in [timeout, sandbox_timeout] {
        form.option(time.as_ref(), |form, time: &Duration| {
            form.text(&time.as_nanos().to_string());
        });
    }
    let (cpu_millis, pids) = (cpu_millis.map(u64::from), pids.map(u64::from));
    for amount in [memory, cpu_millis, pids, disk, output] {
        form.option(amount.as_ref(), |form, amount| form.number(*amount));
    }
    form.finish()
}

struct Form(Sha256);

impl Form {
    fn number(&mut self, number: u64) {
        self.0.update(number.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.update(bytes);
    }

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    fn port(&mut self, port: Option<u16>) {
        // Port 0 is not a port that a policy can name.
        self.number(port.unwrap_or(0).into());
    }

    fn list<T>(&mut self, items: &[T], mut each: impl FnMut(&mut Self, &T)) {
        self.number(items.len() as u64);
        for item in items {
            each(self, item);
        }
    }

    fn host(&mut self, rule: &HostRule) {
        match &rule.host {
            HostPattern::Any => self.text("any"),
            HostPattern::Exact(name) => {
                self.text("exact");
                self.text(name.as_str());
            }
            HostPattern::Below(name) => {
                self.text("below");
                self.text(name.as_str());
            }
        }
        self.port(rule.port);
        self.text(&rule.label);
    }

    fn credential(&mut self, credential: &Credential) {
        let Credential { rule, env } = credential;
        self.text(&rule.name);
        self.text(&rule.secret);
        self.list(&rule.hosts, Self::host);
        let (scheme, name) = match &rule.scheme {
            Scheme::Bearer => ("bearer", ""),
            Scheme::Basic { username } => ("basic", username.as_str()),
            Scheme::Header { name } => ("header", name.as_str()),
            Scheme::Query { name } => ("query", name.as_str()),
        };
        self.text(scheme);
        self.text(name);
        self.list(&rule.methods, |form, it| form.text(it));
        self.list(&rule.paths, |form, it| form.text(it));
        self.option(rule.git.as_ref(), |form, git: &GitRule| {
            form.list(&git.repositories, |form, it| form.text(it));
            form.list(&git.push, |form, it| form.text(it));
            form.number(git.force.into());
            form.number(git.delete.into());
        });
        // A dummy is the sandbox's, not the policy's.
        self.option(env.as_ref(), |form, name| form.text(name));
    }

    fn option<T>(&mut self, value: Option<&T>, each: impl FnOnce(&mut Self, &T)) {
        self.number(value.is_some().into());
        if let Some(value) = value {
            each(self, value);
        }
    }

    fn variable(&mut self, pattern: &VariablePattern) {
        self.text(&pattern.to_string());
    }

    fn finish(self) -> String {
        self.0
            .finalize()
            .iter()
            .fold(String::with_capacity(64), |mut hex, byte| {
                // Writing to a `String` cannot fail.
                let _ = write!(hex, "{byte:02x}");
                hex
            })
    }
}

#[cfg(test)]
mod tests {
    use sandbox_proxy::credential;

    use super::super::{Access, Environment, FileRule, Network};
    use super::*;

    fn policy(files: Vec<FileRule>) -> Policy {
        Policy::new(
            "p".into(),
            Mode::Enforce,
            files,
            Network::default(),
            Environment::default(),
        )
    }

    fn rule(place: &str, access: Access) -> FileRule {
        FileRule {
            place: Place::Path(place.into()),
            access,
            label: place.into(),
        }
    }

    #[test]
    fn a_digest_is_stable_and_changes_with_what_it_covers() {
        let one = policy(vec![rule("/a", Access::Read)]);
        assert_eq!(one.digest.len(), 64);
        assert_eq!(one.digest, policy(vec![rule("/a", Access::Read)]).digest);
        assert_ne!(one.digest, policy(vec![rule("/a", Access::Write)]).digest);
        assert_ne!(one.digest, policy(vec![rule("/b", Access::Read)]).digest);
        assert_ne!(one.digest, policy(vec![]).digest);
    }

    fn named(scheme: fn(String) -> Scheme) -> Scheme {
        scheme("n".into())
    }

    #[expect(clippy::unnecessary_wraps, reason = "the field's type")]
    fn git(edit: fn(&mut GitRule)) -> Option<GitRule> {
        let mut rule = GitRule::default();
        edit(&mut rule);
        Some(rule)
    }

    #[test]
    fn every_limit_and_the_workspaces_mode_are_part_of_the_digest() {
        let edits: [fn(&mut Limits); 8] = [
            |_| (),
            |it| it.timeout = Some(Duration::from_secs(1)),
            |it| it.sandbox_timeout = Some(Duration::from_secs(1)),
            |it| it.memory = Some(1),
            |it| it.cpu_millis = Some(1),
            |it| it.pids = Some(1),
            |it| it.disk = Some(1),
            |it| it.output = Some(1),
        ];
        let digest = |mode, limits| policy(vec![]).with_bounds(mode, limits).digest;
        let mut digests: Vec<String> = edits
            .iter()
            .map(|edit| {
                let mut limits = Limits::default();
                edit(&mut limits);
                digest(WorkspaceMode::Direct, limits)
            })
            .collect();
        digests.push(digest(WorkspaceMode::Ephemeral, Limits::default()));
        let count = digests.len();
        digests.sort();
        digests.dedup();
        assert_eq!(digests.len(), count);
    }

    #[test]
    fn every_field_of_a_credential_is_part_of_the_digest() {
        let host = HostRule {
            host: HostPattern::Any,
            port: Some(8443),
            label: "h".into(),
        };
        let first = Credential {
            rule: credential::Credential {
                name: "n".into(),
                secret: "s".into(),
                hosts: vec![host.clone()],
                scheme: Scheme::Bearer,
                methods: vec![],
                paths: vec![],
                dummy: None,
                git: None,
            },
            env: None,
        };
        let edits: [fn(&mut Credential); 15] = [
            |_| (),
            |it| it.rule.name = "m".into(),
            |it| it.rule.secret = "t".into(),
            |it| it.rule.hosts[0].port = None,
            |it| it.rule.scheme = named(|username| Scheme::Basic { username }),
            |it| it.rule.scheme = named(|name| Scheme::Header { name }),
            |it| it.rule.scheme = named(|name| Scheme::Query { name }),
            |it| it.rule.methods = vec!["GET".into()],
            |it| it.rule.paths = vec!["GET".into()],
            |it| it.env = Some("N".into()),
            |it| it.rule.git = git(|_| ()),
            |it| it.rule.git = git(|git| git.repositories = vec!["a".into()]),
            |it| it.rule.git = git(|git| git.push = vec!["a".into()]),
            |it| it.rule.git = git(|git| git.force = true),
            |it| it.rule.git = git(|git| git.delete = true),
        ];
        let mut digests: Vec<String> = edits
            .iter()
            .map(|edit| {
                let mut credential = first.clone();
                edit(&mut credential);
                let policy = policy(vec![]).with_credentials(vec![credential], vec![]);
                policy.digest
            })
            .collect();
        digests.push(policy(vec![]).digest);
        digests.push(policy(vec![]).with_credentials(vec![], vec![host]).digest);
        let count = digests.len();
        digests.sort();
        digests.dedup();
        assert_eq!(digests.len(), count);

        let mut with_dummy = first.clone();
        with_dummy.rule.dummy = Some("d".into());
        let of = |it| policy(vec![]).with_credentials(vec![it], vec![]).digest;
        assert_eq!(of(with_dummy), of(first));
    }
}
