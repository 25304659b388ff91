//! Follows the machine's files: where mounts, or names that lead to a policy's
//! places, come and go, the policy is applied anew. Until then what is new is
//! refused.

use std::{
    collections::HashMap,
    fs::File,
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    io::Interest,
    sync::{Semaphore, mpsc},
    task::JoinSet,
};

use super::{Registry, SandboxError, registry::flatten, run::sleep_until, watches::Changed};
use crate::{chain::Chain, sys::Watched};

/// What changes together is looked at together.
const PAUSE: Duration = Duration::from_millis(50);

/// Of its time, a sandbox's policy is applied for a tenth at most.
const REST: u32 = 9;

/// And how long to wait after it failed.
const RETRY: Duration = Duration::from_secs(5);

/// So many are applied at the same time,
const AT_ONCE: usize = 4;

/// and one that takes longer is not counted: a file system may be to blame.
const LONG: Duration = Duration::from_secs(1);

impl Registry {
    /// Applies policies anew when what their places lead to has changed; ends
    /// only where the machine does not say so.
    pub async fn follow(self: &Arc<Self>) {
        let followed = match Follower::new(self) {
            Ok(follower) => follower.run().await,
            Err(error) => Err(error),
        };
        if let Err(error) = followed {
            tracing::error!(%error, "cannot follow mounts and files: new ones stay refused");
        }
    }

    /// Looks up again what a sandbox's policy is about.
    async fn reapply(self: &Arc<Self>, id: &str, places: bool) -> Result<(), SandboxError> {
        let Some(sandbox) = self.find(id) else {
            return Ok(());
        };
        let updating = sandbox.updating.lock().await;
        if sandbox.lock().closing {
            return Ok(());
        }
        let (ground, target) = (self.ground().clone(), sandbox.clone());
        let reapplied = tokio::task::spawn_blocking(move || ground.reapply(&target, places));
        if let Some(watches) = flatten(reapplied.await)? {
            tracing::debug!(sandbox = id, "looked its places up again");
            self.watch(&sandbox, watches);
        }
        drop(updating);
        Ok(())
    }
}

struct Follower {
    registry: Arc<Registry>,
    mounts: Watched,
    files: Option<Watched>,
    early: mpsc::UnboundedReceiver<String>,
    sandboxes: HashMap<String, Due>,
    running: JoinSet<(String, Duration)>,
    room: Arc<Semaphore>,
}

/// A sandbox whose policy is to be applied anew, or just was.
struct Due {
    /// When to begin; none: nothing to do.
    at: Option<Instant>,
    /// Not before.
    rests: Instant,
    /// Its places may be others, and not just mounts.
    places: bool,
    running: bool,
}

impl Follower {
    fn new(registry: &Arc<Registry>) -> io::Result<Self> {
        let early = registry.watches().changes();
        Ok(Self {
            registry: registry.clone(),
            // Views get what is mounted here.
            mounts: Watched::new(File::open("/proc/self/mountinfo")?, Interest::PRIORITY)?,
            files: registry.watches().watched()?,
            early: early.ok_or(io::ErrorKind::AlreadyExists)?,
            sandboxes: HashMap::new(),
            running: JoinSet::new(),
            room: Arc::new(Semaphore::new(AT_ONCE)),
        })
    }

    async fn run(mut self) -> io::Result<()> {
        loop {
            let next = self.next();
            tokio::select! {
                ready = self.mounts.ready(Interest::PRIORITY) => {
                    ready?;
                    self.all(false);
                }
                ready = ready(self.files.as_ref()) => {
                    ready?;
                    match self.registry.watches().read() {
                        Changed::All => self.all(true),
                        Changed::These(ids) => ids.into_iter().for_each(|id| self.note(id, true)),
                    }
                }
                Some(id) = self.early.recv() => self.note(id, true),
                () = sleep_until(next) => self.begin(),
                Some(ended) = self.running.join_next() => {
                    if let Ok((id, rest)) = ended {
                        self.ended(&id, rest);
                    }
                }
            }
        }
    }

    fn next(&self) -> Option<Instant> {
        let due = self.sandboxes.values().filter(|due| !due.running);
        due.filter_map(|due| Some(due.at?.max(due.rests))).min()
    }

    fn all(&mut self, places: bool) {
        for sandbox in self.registry.sandboxes() {
            self.note(sandbox.id.clone(), places);
        }
    }

    fn note(&mut self, id: String, places: bool) {
        let now = Instant::now();
        let due = self.sandboxes.entry(id).or_insert(Due {
            at: None,
            rests: now,
            places: false,
            running: false,
        });
        due.at.get_or_insert(now + PAUSE);
        due.places |= places;
    }

    fn begin(&mut self) {
        let now = Instant::now();
        for (id, due) in &mut self.sandboxes {
            let begins = due.at.is_some_and(|at| at.max(due.rests) <= now);
            if due.running || !begins {
                continue;
            }
            due.at = None;
            due.running = true;
            let places = std::mem::take(&mut due.places);
            let (registry, room, id) = (self.registry.clone(), self.room.clone(), id.clone());
            self.running.spawn(async move {
                let rest = apply(&registry, &room, &id, places).await;
                (id, rest)
            });
        }
    }

    fn ended(&mut self, id: &str, rest: Duration) {
        let now = Instant::now();
        if let Some(due) = self.sandboxes.get_mut(id) {
            due.running = false;
            due.rests = now + rest;
            if rest == RETRY {
                due.places = true;
                due.at.get_or_insert(now);
            }
        }
        self.sandboxes
            .retain(|_, due| due.running || due.at.is_some() || due.rests > now);
    }
}

/// Applies a sandbox's policy anew; how long it is to rest afterwards.
async fn apply(registry: &Arc<Registry>, room: &Semaphore, id: &str, places: bool) -> Duration {
    let mut permit = room.acquire().await.ok();
    let begun = Instant::now();
    let reapplied = registry.reapply(id, places);
    tokio::pin!(reapplied);
    let result = tokio::select! {
        result = &mut reapplied => result,
        () = tokio::time::sleep(LONG) => {
            permit = None;
            reapplied.await
        }
    };
    drop(permit);
    match result {
        Ok(()) => begun.elapsed() * REST,
        Err(error) => {
            tracing::warn!(sandbox = id, error = %Chain::of(&error), "cannot look its places up again; what is new stays refused");
            RETRY
        }
    }
}

async fn ready(files: Option<&Watched>) -> io::Result<()> {
    match files {
        Some(files) => files.ready(Interest::READABLE).await,
        None => std::future::pending().await,
    }
}
