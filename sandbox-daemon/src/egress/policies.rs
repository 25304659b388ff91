//! Policies on their way to the proxy, and back where one was not taken.

use std::mem;

use sandbox_proxy::{
    channel::{SandboxPolicy, ToProxy},
    synthetic::FIRST_ADDRESSES,
};

use super::{
    Egress, EgressError, Entry, Identity, Inner,
    credentials::{self, Dummies, with_dummies},
    report::Table,
};
use crate::{
    chain::Chain,
    policy::{Mode, NetworkMode, Policy},
};

/// What was in force for a sandbox before; none: nothing was.
#[derive(Debug)]
pub struct Earlier(Option<Box<(SandboxPolicy, Dummies)>>);

impl Egress {
    /// Lets a sandbox reach what its policy says. When it returns, every later
    /// decision follows it. Of a thread that may block.
    ///
    /// # Errors
    /// There is no proxy, or a secret cannot be used; nothing has changed then.
    pub fn put(
        &self,
        cgroup: u64,
        identity: &Identity,
        policy: &Policy,
        generation: u32,
    ) -> Result<Earlier, EgressError> {
        let drawn = {
            let inner = self.lock();
            let entry = inner.sandboxes.get(&cgroup);
            entry.map(|entry| entry.dummies.clone())
        };
        let known = drawn.is_some();
        if policy.network.mode != NetworkMode::Proxy && !known {
            return Ok(Earlier(None));
        }
        let dummies = self.dummies(identity.uid, policy, &drawn.unwrap_or_default())?;
        let (policy, gone, earlier) = {
            let mut inner = self.lock();
            let entry = inner.sandboxes.entry(cgroup).or_insert_with(|| Entry {
                identity: identity.clone(),
                policy: SandboxPolicy {
                    first_address: getrandom::u32().unwrap_or_default() % FIRST_ADDRESSES,
                    ..SandboxPolicy::default()
                },
                dummies: Dummies::new(),
                table: Table::default(),
            });
            let policy = SandboxPolicy {
                sandbox: cgroup,
                generation,
                uid: entry.identity.uid,
                credentials: with_dummies(policy, &dummies),
                ..translate(policy, &entry.policy)
            };
            let gone = mem::replace(&mut entry.policy, policy.clone());
            let earlier = (gone.clone(), mem::replace(&mut entry.dummies, dummies));
            (policy, gone, Earlier(known.then(|| Box::new(earlier))))
        };
        match self.follow(&policy, &gone) {
            Ok(()) => Ok(earlier),
            Err(error) => {
                self.restore(cgroup, earlier);
                Err(error)
            }
        }
    }

    /// Puts back what was in force before, with the dummies that were given out. Of a
    /// thread that may block.
    pub fn restore(&self, cgroup: u64, earlier: Earlier) {
        let Some(earlier) = earlier.0 else {
            self.lock().remove(cgroup);
            return;
        };
        let (mut policy, dummies) = *earlier;
        let gone = {
            let mut inner = self.lock();
            let Some(entry) = inner.sandboxes.get_mut(&cgroup) else {
                return;
            };
            // Names that have become known since stay known.
            policy.names.clone_from(&entry.policy.names);
            entry.dummies = dummies;
            mem::replace(&mut entry.policy, policy.clone())
        };
        match self.follow(&policy, &gone) {
            // The next proxy is told when it begins.
            Ok(()) | Err(EgressError::Away(_)) => {}
            Err(error) => {
                tracing::error!(error = %Chain::of(&error), "the proxy may follow a policy that was not taken");
            }
        }
    }

    /// Has the proxy follow a policy, in the place of one that is gone.
    fn follow(&self, policy: &SandboxPolicy, gone: &SandboxPolicy) -> Result<(), EgressError> {
        self.told(|inner| {
            let secrets = self.secrets_of(policy).into_iter();
            let mut messages = secrets.collect::<Result<Vec<_>, _>>()?;
            messages.push(ToProxy::Policy(Box::new(policy.clone())));
            messages.extend(inner.unused(gone));
            Ok(messages)
        })
    }
}

impl Inner {
    /// Takes a sandbox and its secrets from the proxy.
    pub(super) fn remove(&mut self, cgroup: u64) -> Option<Entry> {
        let entry = self.sandboxes.remove(&cgroup)?;
        if let Ok(proxy) = &self.proxy {
            // One that is away forgets by itself.
            let _ = proxy.send(ToProxy::Forget { sandbox: cgroup });
            for message in self.unused(&entry.policy) {
                let _ = proxy.send(message);
            }
        }
        Some(entry)
    }

    /// Takes the secrets of a policy from the proxy that none has which is in force.
    fn unused(&self, gone: &SandboxPolicy) -> Vec<ToProxy> {
        let unused = |name: &str| {
            let mut entries = self.sandboxes.values();
            !entries.any(|entry| credentials::names(&entry.policy, gone.uid, name))
        };
        let named = gone.credentials.iter().map(|it| it.secret.clone());
        let unused = named.filter(|name| unused(name));
        let taken = unused.map(|name| ToProxy::Secret {
            uid: gone.uid,
            name,
            value: None,
        });
        taken.collect()
    }
}

/// What the proxy needs of a policy, but for its credentials. One whose mode is
/// another has no way out by it any more.
fn translate(policy: &Policy, earlier: &SandboxPolicy) -> SandboxPolicy {
    let network = &policy.network;
    let proxied = network.mode == NetworkMode::Proxy;
    SandboxPolicy {
        observe: policy.mode == Mode::Observe,
        allow: if proxied {
            network.allow.clone()
        } else {
            Vec::new()
        },
        deny: network.deny.clone(),
        direct: network
            .direct
            .iter()
            .map(|it| (it.address, it.port))
            .collect(),
        names: earlier.names.clone(),
        first_address: earlier.first_address,
        untouched: policy.untouched.clone(),
        ..SandboxPolicy::default()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        path::Path,
        sync::{Arc, Mutex},
    };

    use sandbox_proxy::{
        channel::FromProxy,
        credential::{Credential as Rule, Scheme, SecretValue},
    };
    use tokio::{sync::mpsc, task::spawn_blocking};

    use super::*;
    use crate::{
        events::{Events, Journal},
        policy::{Credential, Environment, Network},
        secrets::Secrets,
    };

    const UID: u32 = 1000;

    /// With a proxy that follows what it is told, and what it was told.
    fn egress(secrets: Arc<Secrets>) -> (Arc<Egress>, Arc<Mutex<Vec<ToProxy>>>) {
        let events = Arc::new(Events::new(Journal::new("epoch".into(), 16)));
        let egress = Egress::none(secrets, events, "it is not there yet");
        let (messages, mut queue) = mpsc::unbounded_channel();
        egress.begin(messages);
        egress.up();
        let told: Arc<Mutex<Vec<ToProxy>>> = Arc::default();
        let (proxy, hears) = (egress.clone(), told.clone());
        tokio::spawn(async move {
            while let Some(message) = queue.recv().await {
                match message {
                    ToProxy::Sync { serial } => proxy.take(FromProxy::Done { serial }),
                    other => hears.lock().unwrap().push(other),
                }
            }
        });
        (egress, told)
    }

    fn policy(credentials: Vec<Credential>) -> Policy {
        let network = Network {
            mode: NetworkMode::Proxy,
            ..Network::default()
        };
        let mode = Mode::Enforce;
        Policy::new(
            "p".into(),
            mode,
            Vec::new(),
            network,
            Environment::default(),
        )
        .with_credentials(credentials, Vec::new())
    }

    fn npm() -> Credential {
        let rule = Rule {
            name: "npm".into(),
            secret: "npm".into(),
            hosts: Vec::new(),
            scheme: Scheme::Bearer,
            methods: Vec::new(),
            paths: Vec::new(),
            dummy: None,
            git: None,
        };
        Credential {
            rule,
            env: Some("NPM_TOKEN".into()),
        }
    }

    /// Secrets of which `npm` is one.
    fn with_npm(home: &Path) -> Arc<Secrets> {
        let secrets = Secrets::open(home).unwrap();
        let value = SecretValue::new("npm_0123456789abcdefghij".into()).unwrap();
        secrets.set(UID, "npm", &value).unwrap();
        secrets
    }

    fn identity() -> Identity {
        Identity {
            id: "0123".into(),
            uid: UID,
        }
    }

    /// Of the last policy that the proxy was told: its generation and dummies.
    fn last(told: &Mutex<Vec<ToProxy>>) -> (u32, Vec<Option<String>>) {
        let told = told.lock().unwrap();
        let mut policies = told.iter().rev().filter_map(|message| match message {
            ToProxy::Policy(policy) => Some(policy),
            _ => None,
        });
        let policy = policies.next().unwrap();
        let dummies = policy.credentials.iter().map(|it| it.dummy.clone());
        (policy.generation, dummies.collect())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_put_back_has_the_dummies_that_were_given_out() {
        let home = tempfile::tempdir().unwrap();
        let secrets = with_npm(home.path());
        let (egress, told) = egress(secrets.clone());
        let identity = identity();
        let blocking = spawn_blocking(move || {
            let put = |credentials, generation| {
                egress.put(7, &identity, &policy(credentials), generation)
            };
            put(vec![npm()], 1).unwrap();
            let given_out = last(&told);
            assert!(given_out.1[0].is_some());
            let earlier = put(Vec::new(), 2).unwrap();
            assert_eq!(last(&told), (2, Vec::new()));
            // It is not asked for again, so it need not be there.
            secrets.remove(UID, "npm").unwrap();
            egress.restore(7, earlier);
            assert_eq!(last(&told), given_out);
            put(vec![npm()], 3).unwrap_err();
            assert_eq!(last(&told), given_out);
        });
        blocking.await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn of_the_first_policy_of_a_sandbox_nothing_is_left_when_it_is_not_taken() {
        let home = tempfile::tempdir().unwrap();
        let secrets = with_npm(home.path());
        let (egress, told) = egress(secrets);
        let identity = identity();
        let blocking = spawn_blocking(move || {
            let earlier = egress.put(7, &identity, &policy(vec![npm()]), 1).unwrap();
            assert!(egress.report("0123").is_some());
            egress.restore(7, earlier);
            assert!(egress.report("0123").is_none());
            // Whatever was told before this is heard.
            egress.put(8, &identity, &policy(Vec::new()), 1).unwrap();
            let told = told.lock().unwrap();
            let forgets = |it: &ToProxy| matches!(it, ToProxy::Forget { sandbox: 7 });
            let takes = |it: &ToProxy| matches!(it, ToProxy::Secret { value: None, .. });
            assert!(told.iter().any(forgets) && told.iter().any(takes));
        });
        blocking.await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_secret_goes_with_the_last_policy_that_names_it() {
        let home = tempfile::tempdir().unwrap();
        let secrets = with_npm(home.path());
        let (egress, told) = egress(secrets);
        let identity = identity();
        let blocking = spawn_blocking(move || {
            let put = |cgroup, credentials, generation| {
                let policy = policy(credentials);
                egress.put(cgroup, &identity, &policy, generation).unwrap();
            };
            let taken = || {
                let told = told.lock().unwrap();
                let takes = |it: &ToProxy| matches!(it, ToProxy::Secret { value: None, .. });
                told.iter().any(takes)
            };
            put(7, vec![npm()], 1);
            put(8, vec![npm()], 1);
            put(7, Vec::new(), 2);
            assert!(!taken(), "the other sandbox has it");
            put(8, Vec::new(), 2);
            assert!(taken());
        });
        blocking.await.unwrap();
    }
}
