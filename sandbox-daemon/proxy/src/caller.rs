//! Who is calling: a sandbox, under its policy, and the process that asks.

use std::{
    collections::HashMap,
    fmt,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
};

use sandbox_common::Asked;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::{
    channel::{Decision, FromProxy, Operation, Refused, SandboxPolicy, Used},
    covers,
    credential::SecretValue,
    flows,
    host::Host,
    ledger::{Ledger, Outbox, Tally},
    name::Name,
    policy::{Policy, Verdict},
    secrets::Secrets,
    synthetic::Names,
};

/// All sandboxes that may use the proxy.
#[derive(Debug)]
pub struct Sandboxes {
    all: RwLock<HashMap<u64, Arc<Sandbox>>>,
    secrets: Arc<Secrets>,
    outbox: Arc<Outbox>,
}

/// One of them.
#[derive(Debug)]
pub struct Sandbox {
    /// Its cgroup id.
    pub id: u64,
    policy: RwLock<Arc<Policy>>,
    names: Mutex<Names>,
    ledger: Ledger,
    secrets: Arc<Secrets>,
    outbox: Arc<Outbox>,
    connections: Arc<Semaphore>,
    pushes: Arc<Semaphore>,
    gone: CancellationToken,
}

/// Connections of one sandbox at a time.
const MAX_CONNECTIONS: usize = 16_384;

/// Pushes of one sandbox that are looked into at a time: each may take more than
/// 128 MiB. Others wait.
const MAX_PUSHES: usize = 2;

/// A socket of a sandbox.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Where it was made.
    pub sandbox: Arc<Sandbox>,
    /// Where it wanted to go.
    pub asked: SocketAddr,
    exec: u64,
    pid: u32,
    uid: u32,
    comm: [u8; 16],
    /// Its share of its sandbox's connections.
    share: Option<Arc<OwnedSemaphorePermit>>,
}

/// Something that is let through.
#[derive(Clone, Debug)]
pub struct Grant {
    /// The host.
    pub host: Host,
    /// The port; 0: none.
    pub port: u16,
    /// Where its bytes are counted.
    pub tally: Arc<Tally>,
}

/// A credential that goes out with a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// Which.
    pub credential: String,
    /// Of its entries, the one that covers the request.
    pub rule: String,
    /// The host.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Of the request.
    pub method: String,
    /// Of the request, without its query.
    pub path: String,
    /// Of git; empty: the request is none of git's.
    pub repository: String,
    /// That are pushed.
    pub refs: Vec<String>,
    /// How many more are.
    pub further_refs: u32,
}

/// Something that is not, and was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// A name, or what was given for one.
    pub host: String,
    /// 0: none.
    pub port: u16,
    /// Why.
    pub rule: String,
}

impl Refusal {
    /// Of something that is longer than any name, the beginning: it is kept, and
    /// told to the client. Reasons may name what a request does.
    fn new(host: &str, port: u16, rule: impl Into<String>) -> Self {
        const LONGEST: usize = 255;
        const LONGEST_RULE: usize = 1024;
        Self {
            host: beginning(host.into(), LONGEST),
            port,
            rule: beginning(rule.into(), LONGEST_RULE),
        }
    }
}

fn beginning(text: String, longest: usize) -> String {
    match text.char_indices().nth(longest) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port, rule } = self;
        match port {
            0 => write!(f, "denied {host} ({rule})"),
            port => write!(f, "denied {host}:{port} ({rule})"),
        }
    }
}

impl Sandboxes {
    /// None; what becomes of their calls goes to `outbox`.
    #[must_use]
    pub fn new(outbox: Arc<Outbox>) -> Self {
        Self {
            all: RwLock::default(),
            secrets: Arc::default(),
            outbox,
        }
    }

    /// Puts a policy in force, in the place of an earlier one.
    pub fn put(&self, mut policy: SandboxPolicy) {
        let id = policy.sandbox;
        let (names, first) = (std::mem::take(&mut policy.names), policy.first_address);
        let policy = Arc::new(Policy::new(policy));
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(sandbox) = all.get(&id) {
            *sandbox
                .policy
                .write()
                .unwrap_or_else(PoisonError::into_inner) = policy;
            return;
        }
        let mut known = Names::new(first);
        for name in names.iter().filter_map(|name| Name::parse(name).ok()) {
            known.address(&name);
        }
        let sandbox = Sandbox {
            id,
            policy: RwLock::new(policy),
            names: Mutex::new(known),
            ledger: Ledger::default(),
            secrets: self.secrets.clone(),
            outbox: self.outbox.clone(),
            connections: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            pushes: Arc::new(Semaphore::new(MAX_PUSHES)),
            gone: CancellationToken::new(),
        };
        all.insert(id, Arc::new(sandbox));
    }

    /// The secrets that policies name.
    #[must_use]
    pub fn secrets(&self) -> &Secrets {
        &self.secrets
    }

    /// The sandbox is gone, and with it all that goes on for it.
    pub fn forget(&self, id: u64) {
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(sandbox) = all.remove(&id) {
            sandbox.gone.cancel();
        }
    }

    /// Who asked that; none: a sandbox that has no policy here.
    #[must_use]
    pub fn caller(&self, asked: &Asked) -> Option<Caller> {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        let sandbox = all.get(&asked.sandbox)?.clone();
        Some(Caller {
            sandbox,
            asked: flows::destination(asked),
            exec: asked.exec,
            pid: asked.pid,
            uid: asked.uid,
            comm: asked.comm,
            share: None,
        })
    }

    /// Tells what was counted since the last time.
    pub fn report(&self) {
        let all: Vec<_> = {
            let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
            all.values().cloned().collect()
        };
        for sandbox in all {
            let traffic = sandbox.ledger.take();
            if !traffic.is_empty() {
                self.outbox.send(FromProxy::Traffic {
                    sandbox: sandbox.id,
                    traffic,
                });
            }
        }
    }
}

impl Sandbox {
    /// The policy in force.
    pub fn policy(&self) -> Arc<Policy> {
        self.policy
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The address that stands for a name; none: it has too many names.
    pub fn address(&self, name: &Name) -> Option<std::net::Ipv4Addr> {
        let (address, new) = self.names().address(name)?;
        if new {
            // Before anybody uses it: a later proxy has to know.
            self.outbox.send(FromProxy::Named {
                sandbox: self.id,
                name: name.as_str().into(),
            });
        }
        Some(address)
    }

    /// The name that an address stands for.
    pub fn name(&self, address: std::net::Ipv4Addr) -> Option<Name> {
        self.names().name(address).cloned()
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Caller {
    /// A secret, as it is now; none: it is not set.
    #[must_use]
    pub fn secret(&self, name: &str) -> Option<Arc<SecretValue>> {
        let uid = self.sandbox.policy().uid();
        self.sandbox.secrets.get(uid, name)
    }

    /// Tells of a use of a credential.
    pub fn used(&self, used: Use) {
        self.sandbox.outbox.used(Used {
            sandbox: self.sandbox.id,
            exec: self.exec,
            generation: self.sandbox.policy().generation(),
            pid: self.pid,
            uid: self.uid,
            comm: self.comm,
            credential: used.credential,
            rule: used.rule,
            host: used.host,
            port: used.port,
            method: used.method,
            path: used.path,
            repository: covers::told(&used.repository),
            refs: used.refs,
            further_refs: used.further_refs,
            count: 1,
        });
    }

    /// Counts it among its sandbox's connections, for as long as there is a clone
    /// of it.
    ///
    /// # Errors
    /// There are too many.
    pub fn admitted(mut self) -> Result<Self, Refusal> {
        if let Ok(share) = self.sandbox.connections.clone().try_acquire_owned() {
            self.share = Some(Arc::new(share));
            return Ok(self);
        }
        let rule = format!("more than {MAX_CONNECTIONS} connections at a time");
        let host = self.asked.ip().to_string();
        Err(self.deny(Operation::Connect, &host, self.asked.port(), rule))
    }

    /// Waits until another push may be looked into, and counts it while there is
    /// what is given; none: never again.
    pub async fn looks_into_push(&self) -> Option<OwnedSemaphorePermit> {
        self.sandbox.pushes.clone().acquire_owned().await.ok()
    }

    /// Does something for as long as its sandbox is there.
    pub async fn alive<T>(&self, act: impl Future<Output = T>) -> Option<T> {
        self.sandbox.gone.run_until_cancelled(act).await
    }

    /// Lets a connection or a request through, or tells that it does not.
    ///
    /// # Errors
    /// It is refused.
    pub fn reach(&self, operation: Operation, host: &Host, port: u16) -> Result<Grant, Refusal> {
        let verdict = self.sandbox.policy().reach(host, port);
        self.settle(operation, host.clone(), port, verdict)
    }

    /// The same for a name.
    ///
    /// # Errors
    /// It is refused.
    pub fn resolve(&self, name: &Name) -> Result<Grant, Refusal> {
        let verdict = self.sandbox.policy().resolve(name);
        self.settle(Operation::Resolve, name.clone().into(), 0, verdict)
    }

    /// Tells of a refusal that no rule about names is behind.
    ///
    /// # Errors
    /// The refusal; in observe mode there is none, and things go on.
    pub fn refuse(
        &self,
        operation: Operation,
        host: &str,
        port: u16,
        rule: impl Into<String>,
    ) -> Result<Arc<Tally>, Refusal> {
        let policy = self.sandbox.policy();
        let refusal = Refusal::new(host, port, rule);
        let tally = self.tell(operation, &refusal, &policy, policy.observes());
        if policy.observes() {
            return Ok(tally);
        }
        Err(refusal)
    }

    /// The same where nothing can go on, in observe mode neither.
    pub fn deny(
        &self,
        operation: Operation,
        host: &str,
        port: u16,
        rule: impl Into<String>,
    ) -> Refusal {
        let refusal = Refusal::new(host, port, rule);
        self.tell(operation, &refusal, &self.sandbox.policy(), false);
        refusal
    }

    fn tell(
        &self,
        operation: Operation,
        refusal: &Refusal,
        policy: &Policy,
        observed: bool,
    ) -> Arc<Tally> {
        let Refusal { host, port, rule } = refusal;
        self.sandbox.outbox.refused(Refused {
            sandbox: self.sandbox.id,
            exec: self.exec,
            generation: policy.generation(),
            pid: self.pid,
            uid: self.uid,
            comm: self.comm,
            operation,
            host: host.clone(),
            port: *port,
            rule: rule.clone(),
            observed,
            count: 1,
        });
        let decision = if observed {
            Decision::Observed
        } else {
            Decision::Denied
        };
        self.sandbox.ledger.count(host, *port, rule, decision)
    }

    fn settle(
        &self,
        operation: Operation,
        host: Host,
        port: u16,
        verdict: Verdict,
    ) -> Result<Grant, Refusal> {
        let text = host.to_string();
        let tally = match verdict {
            Verdict::Allowed(rule) => {
                self.sandbox
                    .ledger
                    .count(&text, port, &rule, Decision::Allowed)
            }
            Verdict::Refused(rule) => self.refuse(operation, &text, port, rule)?,
        };
        Ok(Grant { host, port, tally })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_has_so_many_connections_and_no_more() {
        let outbox = Arc::new(Outbox::default());
        let sandboxes = Sandboxes::new(outbox.clone());
        for sandbox in [7, 8] {
            sandboxes.put(SandboxPolicy {
                sandbox,
                ..SandboxPolicy::default()
            });
        }
        let call = |sandbox| {
            let asked = Asked {
                sandbox,
                port: 443,
                ..Asked::default()
            };
            sandboxes.caller(&asked).unwrap().admitted()
        };
        let mut held: Vec<_> = (0..MAX_CONNECTIONS).map(|_| call(7).unwrap()).collect();
        let refusal = call(7).unwrap_err();
        assert!(refusal.rule.contains("16384"), "{refusal}");
        assert_eq!(outbox.take().len(), 1);
        // Others have their own.
        call(8).unwrap();
        let clone = held[0].clone();
        drop(held.swap_remove(0));
        call(7).unwrap_err();
        drop(clone);
        call(7).unwrap();
    }

    #[test]
    fn of_a_name_that_is_too_long_the_beginning_is_told() {
        let refusal = Refusal::new(&"ä".repeat(1 << 16), 443, "not a host name");
        assert_eq!(refusal.host.chars().count(), 256);
        assert!(refusal.host.ends_with("ä…"));
        let name = "a".repeat(253);
        assert_eq!(Refusal::new(&name, 443, "").host, name);
        let refusal = Refusal::new("a.test", 443, "r".repeat(1 << 16));
        assert_eq!(refusal.rule.chars().count(), 1025);
    }
}
