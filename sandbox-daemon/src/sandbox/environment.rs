//! The environment of a command: what the policy lets in, who it runs as,
//! where its caches are, and what the caller insists on.

use std::{collections::BTreeMap, ffi::CString, os::unix::ffi::OsStrExt as _, path::Path};

use super::SandboxError;
use crate::{
    egress,
    launch::{Account, cache_environment},
    policy::{Environment, Network, NetworkMode},
};

/// Name and value.
pub type Variable = (Vec<u8>, Vec<u8>);

/// What programs look for when nothing sets `PATH`.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// What goes into an environment.
pub(super) struct Ingredients<'a> {
    /// The policy's.
    pub policy: &'a Environment,
    /// The caller's own.
    pub caller: &'a [Variable],
    /// Set whatever the policy says.
    pub insisted: &'a [Variable],
    /// Who it runs as.
    pub account: &'a Account,
    /// `${cache}`, if the policy grants it.
    pub cache: Option<&'a Path>,
    /// The policy's: whether the proxy is the way out, and what is reached without.
    pub network: &'a Network,
    /// What its credentials add.
    pub credentials: egress::Environment,
    /// Of the sandbox.
    pub sandbox: &'a str,
    /// Name of its policy.
    pub policy_name: &'a str,
}

/// An environment, and what did not come in.
pub(super) struct Composed {
    /// `NAME=VALUE`.
    pub variables: Vec<CString>,
    /// Names.
    pub withheld: Vec<String>,
}

impl Ingredients<'_> {
    /// Puts it together; later ones replace earlier ones.
    pub(super) fn compose(&self) -> Result<Composed, SandboxError> {
        let selected = self.policy.select(self.caller);
        let account = self.account;
        let mut variables: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        let mut set = |name: &str, value: &[u8]| {
            variables.insert(name.into(), value.into());
        };
        set("PATH", DEFAULT_PATH.as_bytes());
        let mut policy_set = Vec::new();
        for (name, value) in selected.passed {
            let by_policy = self.policy.set.keys().any(|set| set.as_bytes() == name);
            if by_policy {
                policy_set.push((name, value));
            } else {
                variables.insert(name, value);
            }
        }
        let mut set = |name: &str, value: &[u8]| {
            variables.insert(name.into(), value.into());
        };
        set("HOME", account.home.as_os_str().as_bytes());
        set("USER", account.name.as_bytes());
        set("LOGNAME", account.name.as_bytes());
        set("SHELL", account.shell.as_os_str().as_bytes());
        set("TMPDIR", b"/tmp");
        if let Some(cache) = self.cache {
            for (name, path) in cache_environment(cache) {
                set(&name, path.as_bytes());
            }
        }
        if self.network.mode == NetworkMode::Proxy {
            for (name, value) in egress::variables(&self.network.direct) {
                set(name, value.as_bytes());
            }
        }
        for (name, value) in &self.credentials.set {
            variables.insert(name.clone(), value.clone());
        }
        if let Some(name) = self.credentials.unset {
            variables.remove(name.as_bytes());
        }
        let mut set = |name: &str, value: &[u8]| {
            variables.insert(name.into(), value.into());
        };
        set("SANDBOX", b"1");
        set("SANDBOX_ID", self.sandbox.as_bytes());
        set("SANDBOX_POLICY", self.policy_name.as_bytes());
        variables.extend(policy_set);
        for (name, value) in self.insisted {
            if name.is_empty() || name.contains(&b'=') {
                let problem = "has a name that is empty or holds `=`";
                return Err(SandboxError::invalid("env_set", problem));
            }
            variables.insert(name.clone(), value.clone());
        }
        let mut withheld = selected.withheld;
        withheld.retain(|name| !variables.contains_key(name.as_bytes()));
        let variables = variables
            .into_iter()
            .map(|(name, value)| CString::new([name, b"=".to_vec(), value].concat()))
            .collect::<Result<_, _>>()
            .map_err(|_| SandboxError::invalid("env_set", "holds a NUL byte"))?;
        Ok(Composed {
            variables,
            withheld,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::VariablePattern;

    fn compose(caller: &[(&str, &str)], insisted: &[(&str, &str)]) -> (Vec<String>, Vec<String>) {
        let policy = Environment {
            pass: vec![VariablePattern::parse("PATH").unwrap()],
            refuse: vec![],
            set: [("CI".to_owned(), "1".into())].into(),
        };
        let bytes = |variables: &[(&str, &str)]| -> Vec<Variable> {
            variables
                .iter()
                .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
                .collect()
        };
        let account = Account {
            uid: 1000,
            gid: 1000,
            groups: vec![],
            home: "/home/dev".into(),
            name: "dev".into(),
            shell: "/bin/sh".into(),
        };
        let composed = Ingredients {
            policy: &policy,
            caller: &bytes(caller),
            insisted: &bytes(insisted),
            account: &account,
            cache: Some(Path::new("/c")),
            network: &Network::default(),
            credentials: egress::Environment::default(),
            sandbox: "0123",
            policy_name: "default",
        }
        .compose()
        .unwrap();
        let variables = composed.variables;
        let variables = variables.iter().map(|it| it.to_str().unwrap().to_owned());
        (variables.collect(), composed.withheld)
    }

    #[test]
    fn the_account_decides_who_it_is_and_the_policy_what_comes_in() {
        let (variables, withheld) = compose(
            &[("PATH", "/p"), ("HOME", "/other"), ("GITHUB_TOKEN", "x")],
            &[],
        );
        for expected in [
            "PATH=/p",
            "HOME=/home/dev",
            "USER=dev",
            "CI=1",
            "npm_config_cache=/c/npm",
        ] {
            assert!(variables.iter().any(|it| it == expected), "{expected}");
        }
        assert_eq!(withheld, ["GITHUB_TOKEN"]);
    }

    #[test]
    fn what_the_caller_insists_on_wins() {
        let (variables, withheld) = compose(
            &[("GITHUB_TOKEN", "x")],
            &[("GITHUB_TOKEN", "y"), ("CI", "0"), ("TMPDIR", "/w")],
        );
        for expected in [
            "GITHUB_TOKEN=y",
            "CI=0",
            "TMPDIR=/w",
            "PATH=/usr/local/bin:/usr/bin:/bin",
        ] {
            assert!(variables.iter().any(|it| it == expected), "{expected}");
        }
        assert!(withheld.is_empty());
    }
}
