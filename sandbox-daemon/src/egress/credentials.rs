//! What becomes of a policy's credentials: secrets go to the proxy, dummies into the
//! sandbox, and authorities where its programs look for them.

use std::collections::BTreeMap;

use sandbox_proxy::{
    channel::{SandboxPolicy, ToProxy},
    credential::SecretValue,
};

use super::{Egress, EgressError, dummy, trust::Trust, variables};
use crate::{
    launch::Account,
    policy::{Credential, Policy},
    sandbox::Variable,
};

/// Dummies of a sandbox, by the variable that has them.
pub(super) type Dummies = BTreeMap<String, String>;

/// What credentials add to an environment.
#[derive(Debug, Default)]
pub struct Environment {
    /// In the place of what was there.
    pub set: Vec<Variable>,
    /// Not to be there.
    pub unset: Option<&'static str>,
}

impl Egress {
    /// The directory of what programs inside believe; none: nothing is added to
    /// their requests.
    #[must_use]
    pub fn trust_directory(&self) -> Option<&std::path::Path> {
        self.trust.as_ref().map(Trust::directory)
    }

    /// What a command gets: dummies, and whose certificates it believes.
    ///
    /// # Errors
    /// The file of authorities cannot be written.
    pub fn environment(
        &self,
        cgroup: u64,
        account: &Account,
        caller: &[Variable],
    ) -> Result<Environment, EgressError> {
        let (id, dummies, any) = {
            let inner = self.lock();
            let Some(entry) = inner.sandboxes.get(&cgroup) else {
                return Ok(Environment::default());
            };
            let any = !entry.policy.credentials.is_empty();
            (entry.identity.id.clone(), entry.dummies.clone(), any)
        };
        let Some(trust) = self.trust.as_ref().filter(|_| any) else {
            return Ok(Environment::default());
        };
        let bundle = trust.bundle(&id, account, caller);
        let (mut set, unset) = variables::authorities(&bundle.map_err(EgressError::Trust)?);
        let dummies = dummies.into_iter();
        set.extend(dummies.map(|(name, value)| (name.into_bytes(), value.into_bytes())));
        Ok(Environment {
            set,
            unset: Some(unset),
        })
    }

    /// A secret has another value, or none. Of a thread that may block; returns when
    /// the next request gets it.
    ///
    /// # Errors
    /// The proxy does not answer.
    pub fn rotate(&self, uid: u32, name: &str) -> Result<(), EgressError> {
        let used = {
            let inner = self.lock();
            let mut entries = inner.sandboxes.values();
            entries.any(|entry| names(&entry.policy, uid, name))
        };
        if !used {
            return Ok(());
        }
        match self.told(|_| Ok(vec![self.secret(uid, name)?])) {
            // The next proxy reads it when it begins.
            Err(EgressError::Away(_)) => Ok(()),
            told => told,
        }
    }

    fn secret(&self, uid: u32, name: &str) -> Result<ToProxy, EgressError> {
        Ok(ToProxy::Secret {
            uid,
            name: name.to_owned(),
            value: self.secrets.get(uid, name)?,
        })
    }

    /// The secrets that a policy names, as the proxy is told.
    pub(super) fn secrets_of(&self, policy: &SandboxPolicy) -> Vec<Result<ToProxy, EgressError>> {
        let mut names: Vec<_> = policy.credentials.iter().map(|it| &it.secret).collect();
        names.sort();
        names.dedup();
        let names = names.into_iter();
        names.map(|name| self.secret(policy.uid, name)).collect()
    }

    /// The dummies for a policy, those that are there already among them.
    ///
    /// # Errors
    /// A secret is not set, or is too short to have a dummy.
    pub(super) fn dummies(
        &self,
        uid: u32,
        policy: &Policy,
        earlier: &Dummies,
    ) -> Result<Dummies, EgressError> {
        let mut dummies = Dummies::new();
        for Credential { rule, env } in &policy.credentials {
            let secret = self.secrets.get(uid, &rule.secret)?;
            let secret = secret.ok_or_else(|| EgressError::Unset {
                credential: rule.name.clone(),
                secret: rule.secret.clone(),
            })?;
            let Some(name) = env else {
                continue;
            };
            if !dummies.contains_key(name) {
                let dummy = match earlier.get(name) {
                    Some(dummy) => dummy.clone(),
                    None => made(name, rule, &secret)?,
                };
                dummies.insert(name.clone(), dummy);
            }
        }
        Ok(dummies)
    }
}

fn made(
    env: &str,
    rule: &sandbox_proxy::credential::Credential,
    secret: &SecretValue,
) -> Result<String, EgressError> {
    dummy::of_shape(secret.expose()).ok_or_else(|| EgressError::TooShort {
        credential: rule.name.clone(),
        secret: rule.secret.clone(),
        env: env.to_owned(),
    })
}

/// A policy's credentials, with the dummies of a sandbox.
pub(super) fn with_dummies(
    policy: &Policy,
    dummies: &Dummies,
) -> Vec<sandbox_proxy::credential::Credential> {
    let credentials = policy.credentials.iter();
    let with = |it: &Credential| {
        let mut rule = it.rule.clone();
        rule.dummy = it.env.as_ref().and_then(|env| dummies.get(env)).cloned();
        rule
    };
    credentials.map(with).collect()
}

/// Whether a policy names this secret.
pub(super) fn names(policy: &SandboxPolicy, uid: u32, name: &str) -> bool {
    policy.uid == uid && policy.credentials.iter().any(|it| it.secret == name)
}
