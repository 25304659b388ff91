//! The way out: the proxy's process, its sockets, what it is told of sandboxes
//! and what it tells of them.
//!
//! The daemon holds the sockets, so nobody else gets their ports while it lives;
//! the kernel's programs compare their cookies in case it does not.

mod credentials;
mod dummy;
mod entrances;
mod policies;
mod process;
mod report;
mod trust;
mod variables;

use std::{
    collections::{HashMap, VecDeque},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use credentials::Dummies;
pub use credentials::Environment;
pub use policies::Earlier;
use report::Table;
pub use report::{Report, Row};
use sandbox_proxy::channel::{SandboxPolicy, ToProxy};
use tokio::sync::{mpsc, oneshot, watch};
use trust::Trust;
pub use variables::variables;

use crate::{
    config::Config,
    events::Events,
    sandbox::{EnforceError, Enforcer},
    secrets::{SecretError, Secrets},
};

/// How long the proxy may take to do what it is told, or to come back.
const PATIENCE: Duration = Duration::from_secs(10);

/// Sandboxes that are gone and of which the traffic is kept.
const MAX_ENDED: usize = 256;

/// Why there is no way out.
#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    /// The proxy does not run.
    #[error("the proxy does not run: {0}")]
    Away(String),
    /// It runs, and does not answer.
    #[error("the proxy does not answer")]
    Silent,
    /// Its sockets.
    #[error("cannot open the proxy's sockets")]
    Sockets(#[source] io::Error),
    /// The files of authorities.
    #[error("cannot put together whose certificates programs believe")]
    Trust(#[source] io::Error),
    /// A secret cannot be read.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// A policy names a secret that is not there.
    #[error(
        "secret `{secret}` of credential `{credential}` is not set: `sandbox secret set {secret}`"
    )]
    Unset {
        /// Of the policy.
        credential: String,
        /// Its secret.
        secret: String,
    },
    /// A dummy of it would be found in ordinary text.
    #[error(
        "secret `{secret}` is too short for a dummy that is told from other text: \
         leave `env = \"{env}\"` out of credential `{credential}`"
    )]
    TooShort {
        /// Of the policy.
        credential: String,
        /// Its secret.
        secret: String,
        /// The variable.
        env: String,
    },
    /// The kernel.
    #[error(transparent)]
    Enforce(#[from] EnforceError),
}

/// The proxy, and all that is known of the traffic of sandboxes.
pub struct Egress {
    events: Arc<Events>,
    secrets: Arc<Secrets>,
    /// None: there is no proxy whose certificates anybody could believe.
    trust: Option<Trust>,
    inner: Mutex<Inner>,
    up: watch::Sender<bool>,
}

struct Inner {
    /// Of the proxy that runs, or why none does.
    proxy: Result<mpsc::UnboundedSender<ToProxy>, String>,
    sandboxes: HashMap<u64, Entry>,
    /// Those that are gone, the latest last.
    ended: VecDeque<Entry>,
    waiting: HashMap<u64, oneshot::Sender<()>>,
    serial: u64,
}

/// A sandbox whose way out the proxy is.
struct Entry {
    identity: Identity,
    policy: SandboxPolicy,
    dummies: Dummies,
    table: Table,
}

/// Whose traffic it is.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Id of the sandbox.
    pub id: String,
    /// Whose it is.
    pub uid: u32,
}

impl Egress {
    /// No proxy, and why.
    #[must_use]
    pub fn none(secrets: Arc<Secrets>, events: Arc<Events>, why: &str) -> Arc<Self> {
        Self::new(secrets, events, None, why)
    }

    fn new(
        secrets: Arc<Secrets>,
        events: Arc<Events>,
        trust: Option<Trust>,
        why: &str,
    ) -> Arc<Self> {
        Arc::new(Self {
            events,
            secrets,
            trust,
            inner: Mutex::new(Inner {
                proxy: Err(why.into()),
                sandboxes: HashMap::new(),
                ended: VecDeque::new(),
                waiting: HashMap::new(),
                serial: 0,
            }),
            up: watch::Sender::new(false),
        })
    }

    /// Opens the sockets, and runs the proxy for as long as the runtime lasts:
    /// one that dies is started again.
    ///
    /// # Errors
    /// The sockets, files of authorities, or the kernel's maps. A proxy that cannot
    /// be started is told to whoever needs it.
    pub fn start(
        config: &Config,
        enforcer: Arc<dyn Enforcer>,
        secrets: Arc<Secrets>,
        events: Arc<Events>,
    ) -> Result<Arc<Self>, EgressError> {
        let directory = config.runtime_directory().join("trust");
        let trust = Trust::new(directory, &config.proxy.roots).map_err(EgressError::Trust)?;
        let egress = Self::new(secrets, events, Some(trust), "it is being started");
        let sockets = entrances::Sockets::open().map_err(EgressError::Sockets)?;
        let keeper = process::Keeper::new(&config.proxy, sockets, enforcer)?;
        let kept = egress.clone();
        tokio::spawn(async move { keeper.keep(&kept).await });
        Ok(egress)
    }

    /// What policies name, and requests get on their way out.
    #[must_use]
    pub fn secrets(&self) -> &Arc<Secrets> {
        &self.secrets
    }

    /// A sandbox is gone; its traffic is kept for a while.
    pub fn forget(&self, cgroup: u64) {
        let mut inner = self.lock();
        let Some(entry) = inner.remove(cgroup) else {
            return;
        };
        if let Some(trust) = &self.trust {
            trust.forget(&entry.identity.id);
        }
        if inner.ended.len() == MAX_ENDED {
            inner.ended.pop_front();
        }
        inner.ended.push_back(entry);
    }

    /// Returns when all that the proxy has decided for a sandbox so far was told.
    pub async fn drain(&self, cgroup: u64) {
        let Some(done) = self.sync(cgroup) else {
            return;
        };
        // One that dies takes what it did not tell with it.
        let _ = tokio::time::timeout(PATIENCE, done).await;
    }

    /// Why the proxy does not run; none: it does.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.lock().proxy.as_ref().err().cloned()
    }

    /// What a sandbox's traffic was, by its id; none: it has none, or is not
    /// known any more.
    #[must_use]
    pub fn report(&self, id: &str) -> Option<(Identity, Report)> {
        let inner = self.lock();
        let mut all = inner.sandboxes.values().chain(inner.ended.iter().rev());
        let found = all.find(|entry| entry.identity.id == id)?;
        Some((found.identity.clone(), found.table.report(&found.policy)))
    }

    /// Tells the proxy something, and waits until it is in force. What is told is
    /// found out when nobody else tells anything, so that the last value is the last.
    fn told(
        &self,
        messages: impl FnOnce(&Inner) -> Result<Vec<ToProxy>, EgressError>,
    ) -> Result<(), EgressError> {
        self.wait_until_up()?;
        let done = {
            let mut inner = self.lock();
            let proxy = inner.proxy.clone().map_err(EgressError::Away)?;
            for message in messages(&inner)? {
                let _ = proxy.send(message);
            }
            inner.sync_on(&proxy)
        };
        let runtime = tokio::runtime::Handle::current();
        match runtime.block_on(tokio::time::timeout(PATIENCE, done)) {
            Ok(Ok(())) => Ok(()),
            // It died: the next one is told when it begins.
            Ok(Err(_)) => self.wait_until_up(),
            Err(_) => Err(EgressError::Silent),
        }
    }

    fn wait_until_up(&self) -> Result<(), EgressError> {
        let mut up = self.up.subscribe();
        let runtime = tokio::runtime::Handle::current();
        let came = runtime.block_on(tokio::time::timeout(PATIENCE, up.wait_for(|up| *up)));
        match (came, &self.lock().proxy) {
            (Ok(_), _) => Ok(()),
            (Err(_), Err(why)) => Err(EgressError::Away(why.clone())),
            (Err(_), Ok(_)) => Err(EgressError::Silent),
        }
    }

    /// None: the proxy has nothing to do with the sandbox, or is away.
    fn sync(&self, cgroup: u64) -> Option<oneshot::Receiver<()>> {
        let mut inner = self.lock();
        inner.sandboxes.get(&cgroup)?;
        let proxy = inner.proxy.clone().ok()?;
        Some(inner.sync_on(&proxy))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn sync_on(&mut self, proxy: &mpsc::UnboundedSender<ToProxy>) -> oneshot::Receiver<()> {
        self.serial += 1;
        let serial = self.serial;
        let (done, waiting) = oneshot::channel();
        if proxy.send(ToProxy::Sync { serial }).is_ok() {
            self.waiting.insert(serial, done);
        }
        waiting
    }
}

/// Where packages put the proxy's program.
const INSTALLED: &str = "/usr/lib/sandboxd";

/// The proxy's program: as it is, or beside the daemon's own, or where it is
/// installed.
fn program(setting: &Path) -> PathBuf {
    if setting.is_absolute() {
        return setting.into();
    }
    let own = std::env::current_exe().unwrap_or_default();
    let beside = own.with_file_name(setting);
    if beside.exists() {
        beside
    } else {
        Path::new(INSTALLED).join(setting)
    }
}
