//! The kernel's side of the boundary: programs loaded, maps filled, pins kept.
//! Knows nothing of TOML, cgroup files or clients.

mod btf;
mod compile;
mod error;
mod filter;
mod known;
mod layout;
mod pins;
mod probe;
mod programs;
mod rules;
mod tree;

use std::{
    collections::BTreeSet,
    ffi::OsString,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use aya::{
    Btf as AyaBtf, EbpfError, EbpfLoader, VerifierLogLevel,
    maps::{Array, HashMap, HashOfMaps, Map, MapData, MapError, RingBuf},
};
pub use btf::BtfError;
pub use compile::{Circumstances, Lower, compile};
pub use error::KernelError;
use filter::{Filter, FilterMap};
pub use known::{Lookups, renew};
use pins::{Adopted, Earlier, Pins};
pub use probe::{Probe, probe};
pub use programs::{Class, HookState, Wall};
use rules::{Rules, Spares};
use sandbox_common::{Counters, Entrances, Identity, Key, Lent, Value, filter_bits};
use tokio::io::Interest;

use crate::sys::{self, Watched};
pub use tree::Identify;

/// Where the pins are.
pub const PIN_DIRECTORY: &str = "/sys/fs/bpf/sandboxd";

/// All programs; tests load a part of them by themselves.
pub static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/sandbox-ebpf"));

/// What the programs are told before they are loaded.
pub struct Options<'a> {
    /// Cgroup directory that is the parent of all sandboxes.
    pub slice: BorrowedFd<'a>,
    /// Its id.
    pub slice_id: u64,
    /// Depth of a sandbox's cgroup; the host's root is 0.
    pub sandbox_level: u32,
    /// Events of an exec: at once, and per second.
    pub event_burst: u64,
    /// See `event_burst`.
    pub event_rate: u64,
    /// A constant of the layout, and the member of its structure that is wrongly
    /// taken for it. Tests set it: the self-test must notice.
    pub mistake: Option<(&'a str, &'a str)>,
}

/// A policy as the programs read it.
#[derive(Clone, Debug, Default)]
pub struct Compiled {
    /// Entries of the rule map, the header among them.
    pub entries: Vec<(Key, Value)>,
    /// And those that other sandboxes have as well.
    pub shared: Arc<Shared>,
    /// What would make them others.
    pub watches: Vec<Watch>,
    /// Rules that make something read-only which the sandbox is to make.
    pub own: BTreeSet<u32>,
    /// Until when another sandbox would get the same; none: that cannot be said.
    pub lookups: Option<Arc<Lookups>>,
}

/// Entries that several sandboxes have.
#[derive(Debug, Default)]
pub struct Shared {
    keys: Vec<Key>,
    values: Vec<Value>,
}

/// A directory in which something that comes or goes would change a policy's
/// rules.
#[derive(Clone, Debug)]
pub struct Watch {
    /// `O_PATH`.
    pub file: Arc<OwnedFd>,
    /// Where it is.
    pub path: PathBuf,
    /// Names, and whether they are there.
    pub names: Vec<(OsString, bool)>,
}

impl Compiled {
    fn filter_bits(&self) -> impl Iterator<Item = u32> {
        let own = self
            .entries
            .iter()
            .flat_map(|(key, value)| filter_bits(key, value));
        self.shared.filter_bits().chain(own)
    }
}

impl Shared {
    fn filter_bits(&self) -> impl Iterator<Item = u32> {
        let entries = self.keys.iter().zip(&self.values);
        entries.flat_map(|(key, value)| filter_bits(key, value))
    }
}

type Policies = HashOfMaps<MapData, u64, HashMap<MapData, Key, Value>>;

/// Programs in force, and their maps.
pub struct Kernel {
    state: Mutex<State>,
    /// `POLICIES` once more.
    policies: Arc<OwnedFd>,
    resolved: Mutex<HashMap<MapData, u32, Identity>>,
    counters: Mutex<HashMap<MapData, u64, Counters>>,
    lent: Mutex<LentFiles>,
    flows: OwnedFd,
    asked: OwnedFd,
    entrances: Mutex<Array<MapData, Entrances>>,
    hooks: Vec<HookState>,
    seed: u64,
}

/// How many files a sandbox is lent at once; pipes are files of their own, and
/// every command has its own.
const LENT_FILES: usize = 24;

struct LentFiles {
    map: HashMap<MapData, Lent, u8>,
    keys: std::collections::HashMap<u64, Vec<Lent>>,
}

struct State {
    policies: Policies,
    /// What is in force, by sandbox.
    rules: std::collections::HashMap<u64, Arc<Rules>>,
    spares: Spares,
    /// Of earlier daemons' programs, while these are still in force.
    adopted: Vec<Adopted>,
    earlier: Earlier,
    pins: Pins,
    filter: Filter,
    events: Option<RingBuf<MapData>>,
}

/// The constants that [`OBJECT`] must be given for this kernel.
///
/// # Errors
/// A member of a structure that is missing.
pub fn offsets() -> Result<Vec<(&'static str, u32)>, BtfError> {
    layout::offsets(&btf::Btf::of_kernel()?, None)
}

impl Kernel {
    /// Loads and attaches the programs, and pins them. Those of an earlier
    /// daemon stay in force beside them until [`Kernel::settle`].
    pub fn load(options: &Options<'_>) -> Result<Self, KernelError> {
        let btf = btf::Btf::of_kernel()?;
        let offsets = layout::offsets(&btf, options.mistake)?;
        let mut earlier = Earlier::find()?;
        let seed = match earlier.seed()? {
            Some(seed) => seed,
            None => getrandom::u64().map_err(KernelError::Random)?,
        };
        let pid = std::process::id();
        let interval = 1_000_000_000 / options.event_rate.max(1);
        let mut loader = EbpfLoader::new();
        loader
            .verifier_log_level(VerifierLogLevel::STATS)
            .override_global("SANDBOX_LEVEL", &options.sandbox_level, true)
            .override_global("SLICE_ID", &options.slice_id, true)
            .override_global("DAEMON_PID", &pid, true)
            .override_global("NAME_SEED", &seed, true)
            .override_global("EVENT_BURST", &options.event_burst, true)
            .override_global("EVENT_INTERVAL_NS", &interval, true);
        for (constant, offset) in &offsets {
            loader.override_global(constant, offset, true);
        }
        let mut ebpf = loader
            .load(OBJECT)
            .map_err(|error| KernelError::Maps(Box::new(error)))?;
        let types = AyaBtf::from_sys_fs()
            .map_err(|error| KernelError::Maps(Box::new(EbpfError::BtfError(error))))?;
        programs::load(&mut ebpf, &btf, &types)?;

        let pins = Pins::begin(&ebpf)?;
        let outer = share(&ebpf, "POLICIES")?;
        let mut policies: Policies = take(&mut ebpf, "POLICIES")?;
        let mut filter = Filter::new(share(&ebpf, "FILTER")?);
        let adopted = earlier.adopt(&mut policies, &mut filter)?;
        // Policies are in place before any program looks for them.
        let attached = programs::attach(&mut ebpf, &btf, options.slice)?;
        pins.links(attached.links)?;
        pins.finish(&mut ebpf, seed)?;
        earlier.remove_other()?;
        Ok(Self {
            resolved: Mutex::new(take(&mut ebpf, "RESOLVED")?),
            counters: Mutex::new(take(&mut ebpf, "COUNTERS")?),
            lent: Mutex::new(LentFiles {
                map: take(&mut ebpf, "LENT")?,
                keys: std::collections::HashMap::new(),
            }),
            policies: Arc::new(outer),
            flows: share(&ebpf, "FLOWS")?,
            asked: share(&ebpf, "ASKED")?,
            entrances: Mutex::new(take(&mut ebpf, "ENTRANCES")?),
            state: Mutex::new(State {
                policies,
                rules: std::collections::HashMap::new(),
                spares: Spares::default(),
                adopted,
                earlier,
                pins,
                filter,
                events: Some(take(&mut ebpf, "EVENTS")?),
            }),
            hooks: attached.hooks,
            seed,
        })
    }

    /// Ends the reign of an earlier daemon's programs, now that these are known
    /// to work.
    pub fn settle(&self) -> Result<(), KernelError> {
        let mut state = self.state();
        state.adopted.clear();
        state.earlier.remove()
    }

    /// Takes these programs away again, because they do not work. An earlier
    /// daemon's go on.
    pub fn retreat(&self) -> Result<(), KernelError> {
        self.state().pins.remove()
    }

    /// Puts a policy in force for a sandbox, or replaces it. When it returns,
    /// every later check uses it.
    pub fn install(&self, sandbox: u64, compiled: &Compiled) -> Result<(), KernelError> {
        let spare = self.state().spares.take(compiled);
        let rules = Arc::new(Rules::new(compiled, spare)?);
        let mut state = self.state();
        // The filter first: a file that it does not know has no rule.
        let bits = state.filter.raise(compiled)?;
        let installed = if state.is_new(sandbox) {
            drop(state);
            self.insert_first(sandbox, rules.clone())
        } else {
            let installed = state.insert(sandbox, rules.map(), compiled);
            drop(state);
            installed
        };
        let mut state = self.state();
        match installed {
            // Nobody reads a replaced policy any more.
            Ok(()) => {
                state.filter.assign(sandbox, Some(bits));
                state.rules.insert(sandbox, rules);
            }
            Err(_) => state.filter.lower(bits),
        }
        installed
    }

    /// Puts rules in force for a sandbox that has none. The kernel waits until no
    /// program reads those from before, which here there are not: that is left to
    /// another thread.
    fn insert_first(&self, sandbox: u64, rules: Arc<Rules>) -> Result<(), KernelError> {
        let action = "install a policy";
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            let inserted = sys::map_insert_map(&*self.policies, sandbox, rules.fd());
            return inserted.map_err(failed(action));
        };
        let outer = self.policies.clone();
        let insert = move || sys::map_insert_map(&*outer, sandbox, rules.fd());
        let mut inserting = runtime.spawn_blocking(insert);
        while !sys::map_has_map(&*self.policies, sandbox).map_err(failed(action))? {
            if inserting.is_finished() {
                let inserted = runtime.block_on(&mut inserting).map_err(io::Error::other);
                return inserted.flatten().map_err(failed(action));
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Forgets a sandbox; processes that were still in it would be refused
    /// everything. Waits until no program reads its policy.
    pub fn remove(&self, sandbox: u64) -> Result<(), KernelError> {
        sys::map_remove_map(&*self.policies, sandbox).map_err(failed("remove a policy"))?;
        let mut state = self.state();
        for earlier in &mut state.adopted {
            absent(earlier.policies.remove(&sandbox)).map_err(map("remove a policy"))?;
        }
        state.filter.assign(sandbox, None);
        let rules = state.rules.remove(&sandbox);
        drop(state);
        // Whoever put it in force may be about to let go of it.
        if let Some(rules) = rules.and_then(Arc::into_inner)
            && let Some(spare) = rules.into_spare()
        {
            self.state().spares.keep(spare);
        }
        let mut lent = lock(&self.lent);
        for key in lent.keys.remove(&sandbox).unwrap_or_default() {
            absent(lent.map.remove(&key)).map_err(map("take a file back"))?;
        }
        Ok(())
    }

    /// Lets a sandbox look at a file that it is given open, until it is removed.
    pub fn lend(&self, sandbox: u64, file: impl AsFd) -> Result<(), KernelError> {
        let identity = self.identify(file)?;
        let key = Lent {
            sandbox,
            ino: identity.ino,
            dev: identity.dev,
            generation: identity.generation,
        };
        let mut lent = lock(&self.lent);
        let LentFiles { map: files, keys } = &mut *lent;
        let keys = keys.entry(sandbox).or_default();
        if !keys.contains(&key) {
            // The map is everybody's: the first that was lent makes room.
            if keys.len() == LENT_FILES {
                absent(files.remove(&keys.remove(0))).map_err(map("take a file back"))?;
            }
            files.insert(key, 0, 0).map_err(map("lend a file"))?;
            keys.push(key);
        }
        Ok(())
    }

    /// Where sockets send to the proxy from, and what they asked it for.
    pub fn flows(&self) -> Result<(OwnedFd, OwnedFd), KernelError> {
        let clone = |map: &OwnedFd| map.try_clone().map_err(shared);
        Ok((clone(&self.flows)?, clone(&self.asked)?))
    }

    /// Leads sandboxes to these sockets from now on; to none: they are refused.
    pub fn admit(&self, entrances: &Entrances) -> Result<(), KernelError> {
        lock(&self.entrances)
            .set(0, entrances, 0)
            .map_err(map("open the way to the proxy"))
    }

    /// Starts counting the refusals of an exec.
    pub fn watch_exec(&self, exec: u64) -> Result<(), KernelError> {
        // Zero tokens, filled at boot: the first refusal fills the bucket.
        lock(&self.counters)
            .insert(exec, Counters::default(), 0)
            .map_err(map("count an exec"))
    }

    /// What was counted so far.
    pub fn counters(&self, exec: u64) -> Result<Counters, KernelError> {
        lock(&self.counters)
            .get(&exec, 0)
            .map_err(map("read an exec's counters"))
    }

    /// Ends the counting, with the last figures.
    pub fn unwatch_exec(&self, exec: u64) -> Result<Counters, KernelError> {
        let mut counters = lock(&self.counters);
        let last = counters
            .get(&exec, 0)
            .map_err(map("read an exec's counters"))?;
        counters.remove(&exec).map_err(map("forget an exec"))?;
        Ok(last)
    }

    /// Which file an `O_PATH` descriptor names, as the kernel sees it. The
    /// thread that asks is the thread that stats.
    pub fn identify(&self, file: impl AsFd) -> Result<Identity, KernelError> {
        let thread = nix::unistd::gettid().as_raw().cast_unsigned();
        self.forget(thread)?;
        let stat = sys::stat(file.as_fd());
        let answer = lock(&self.resolved).get(&thread, 0);
        self.forget(thread)?;
        match (stat, answer) {
            (Ok(_), Ok(identity)) => Ok(identity),
            _ => Err(KernelError::Unidentified(path_of(file.as_fd()))),
        }
    }

    fn forget(&self, thread: u32) -> Result<(), KernelError> {
        absent(lock(&self.resolved).remove(&thread)).map_err(map("ask for a file"))
    }

    /// The key of `sandbox_common::name_hash`.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The programs, as `GetInfo` shows them.
    pub fn hooks(&self) -> &[HookState] {
        &self.hooks
    }

    /// The stream of events; once.
    ///
    /// # Errors
    /// It was taken before, or there is no runtime.
    pub fn take_events(&self) -> Result<EventSource, KernelError> {
        let ring = self.state().events.take();
        let ring = ring.ok_or_else(|| KernelError::Events(io::ErrorKind::AlreadyExists.into()))?;
        let ready = ring
            .as_fd()
            .try_clone_to_owned()
            .and_then(|fd| Watched::new(fd, Interest::READABLE))
            .map_err(KernelError::Events)?;
        Ok(EventSource {
            ring,
            ready,
            kept: Vec::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    /// Whether no program, of this daemon's or an earlier one's, has rules for it.
    fn is_new(&self, sandbox: u64) -> bool {
        self.adopted.is_empty() && !self.filter.knows(sandbox)
    }

    /// Puts rules in force, first under the programs of earlier daemons.
    fn insert(
        &mut self,
        sandbox: u64,
        rules: &HashMap<MapData, Key, Value>,
        compiled: &Compiled,
    ) -> Result<(), KernelError> {
        for earlier in &mut self.adopted {
            let mut words = earlier.filter.get(&0, 0).map_err(map("read the filter"))?;
            for bit in compiled.filter_bits() {
                words[bit as usize / 64] |= 1 << (bit % 64);
            }
            earlier
                .filter
                .set(0, words, 0)
                .map_err(map("write the filter"))?;
            earlier
                .policies
                .insert(sandbox, rules, 0)
                .map_err(map("install a policy"))?;
        }
        self.policies
            .insert(sandbox, rules, 0)
            .map_err(map("install a policy"))
    }
}

impl Identify for Kernel {
    fn identify(&self, file: &OwnedFd) -> Result<Identity, KernelError> {
        Self::identify(self, file)
    }
}

/// The ring buffer that the programs write to.
pub struct EventSource {
    ring: RingBuf<MapData>,
    ready: Watched,
    /// Read before its turn.
    kept: Vec<Vec<u8>>,
}

impl EventSource {
    /// Waits for records and hands over each that is there.
    ///
    /// # Errors
    /// The descriptor cannot be polled.
    pub async fn next(&mut self, mut take: impl FnMut(&[u8])) -> io::Result<()> {
        for record in self.kept.drain(..) {
            take(&record);
        }
        self.ready.ready(Interest::READABLE).await?;
        while let Some(record) = self.ring.next() {
            take(&record);
        }
        Ok(())
    }

    /// Hands over each record that is there; what `take` does not want is kept
    /// for [`EventSource::next`].
    pub fn sift(&mut self, mut take: impl FnMut(&[u8]) -> bool) {
        while let Some(record) = self.ring.next() {
            if !take(&record) {
                self.kept.push(record.to_vec());
            }
        }
    }
}

fn take<T: TryFrom<aya::maps::Map, Error = MapError>>(
    ebpf: &mut aya::Ebpf,
    name: &'static str,
) -> Result<T, KernelError> {
    let found = ebpf.take_map(name).ok_or(KernelError::Object(name))?;
    T::try_from(found).map_err(map("open a map"))
}

/// A descriptor of a map that somebody else reads.
fn share(ebpf: &aya::Ebpf, name: &'static str) -> Result<OwnedFd, KernelError> {
    match ebpf.map(name) {
        Some(Map::Array(data) | Map::HashMap(data) | Map::HashOfMaps(data)) => {
            data.fd().as_fd().try_clone_to_owned().map_err(shared)
        }
        _ => Err(KernelError::Object(name)),
    }
}

fn shared(error: io::Error) -> KernelError {
    failed("share a map")(error)
}

fn failed(action: &'static str) -> impl FnOnce(io::Error) -> KernelError {
    move |error| map(action)(MapError::IoError(error))
}

/// Removing what is not there is no failure.
fn absent(result: Result<(), MapError>) -> Result<(), MapError> {
    match result {
        Err(MapError::SyscallError(error)) if error.io_error.kind() == io::ErrorKind::NotFound => {
            Ok(())
        }
        Err(MapError::KeyNotFound) => Ok(()),
        other => other,
    }
}

fn map(action: &'static str) -> impl FnOnce(MapError) -> KernelError {
    move |source| KernelError::Map {
        action,
        source: Box::new(source),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a descriptor names, for an error message.
fn path_of(file: BorrowedFd<'_>) -> PathBuf {
    let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    std::fs::read_link(link).unwrap_or_default()
}
