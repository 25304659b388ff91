//! The digest of a resolved policy: SHA-256 over a canonical form in which
//! every field is preceded by its length, so that no two policies share one.

use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;

use sandbox_proxy::rule::{HostPattern, HostRule};
use sha2::{Digest as _, Sha256};

use super::environment::VariablePattern;
use super::model::{Mode, NamePattern, Place, Policy};

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
    form.list(&policy.env.pass, Form::variable);
    form.list(&policy.env.refuse, Form::variable);
    form.number(policy.env.set.len() as u64);
    for (name, value) in &policy.env.set {
        form.text(name);
        form.bytes(value.as_bytes());
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
}
