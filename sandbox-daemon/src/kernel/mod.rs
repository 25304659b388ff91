//! The kernel's side of the boundary: programs loaded, maps filled, pins kept.
//! Knows nothing of TOML, cgroup files or clients.

mod btf;
mod compile;
mod layout;
mod pins;
mod probe;
mod programs;
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
    maps::{Array, HashMap, HashOfMaps, MapData, MapError, RingBuf},
    programs::ProgramError,
};
pub use btf::BtfError;
pub use compile::{Circumstances, compile};
use pins::{Adopted, Earlier, Pins};
pub use probe::{Probe, probe};
pub use programs::{Class, HookState, Wall};
use sandbox_common::{Counters, FILTER_WORDS, Identity, Key, Lent, Value, filter_bits};
use tokio::io::Interest;

use crate::sys::{self, Watched};
pub use tree::Identify;

/// Where the pins are.
pub const PIN_DIRECTORY: &str = "/sys/fs/bpf/sandboxd";

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/sandbox-ebpf"));

/// The remedy where the kernel lacks something, which is found by trying.
const DOCTOR: &str = "\n\nhint: `sandbox doctor` says what this kernel lacks";

/// What went wrong between daemon and kernel.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// The kernel's types do not have what the programs need.
    #[error(transparent)]
    Btf(#[from] BtfError),
    /// The object cannot be loaded: maps, relocations.
    #[error("cannot load the kernel programs{DOCTOR}")]
    Maps(#[source] Box<EbpfError>),
    /// The object that was built in lacks something.
    #[error("the built-in object has no usable `{0}`")]
    Object(&'static str),
    /// The verifier, or a policy of the machine, refused a program.
    #[error("the kernel refuses the program `{program}`{DOCTOR}")]
    Load {
        /// Which.
        program: &'static str,
        /// Why, with the verifier's log.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Loaded, but not attached.
    #[error("cannot attach the program `{program}`{DOCTOR}")]
    Attach {
        /// Which.
        program: &'static str,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A map operation failed.
    #[error("cannot {action}")]
    Map {
        /// For example "install a policy".
        action: &'static str,
        /// Why.
        source: Box<MapError>,
    },
    /// The bpf file system.
    #[error(
        "cannot {action} at `{path}`\n\nhint: a bpf file system is needed at `/sys/fs/bpf`: `mount -t bpf bpf /sys/fs/bpf`"
    )]
    Pin {
        /// For example "pin a link".
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The event buffer was taken already, or cannot be polled.
    #[error("cannot read events")]
    Events(#[source] io::Error),
    /// The key of names.
    #[error("the kernel has no random numbers")]
    Random(#[source] getrandom::Error),
    /// A file's identity did not come back from the kernel.
    #[error(
        "the kernel did not say which file `{0}` is\n\nhint: sandboxd must run in the host's pid namespace"
    )]
    Unidentified(PathBuf),
}

impl KernelError {
    /// Without aya's words around it, which are there also when the verifier
    /// said nothing.
    fn load(program: &'static str, error: ProgramError) -> Self {
        let source = match error {
            ProgramError::LoadError {
                io_error,
                verifier_log,
            } => match verifier_log.to_string() {
                log if log.is_empty() => io_error.into(),
                log => format!("{io_error}\n{log}").into(),
            },
            other => other.into(),
        };
        Self::Load { program, source }
    }
}

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
    /// What would make them others.
    pub watches: Vec<Watch>,
    /// Rules that make something read-only which the sandbox is to make.
    pub own: BTreeSet<u32>,
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

type Policies = HashOfMaps<MapData, u64, HashMap<MapData, Key, Value>>;

/// Programs in force, and their maps.
pub struct Kernel {
    state: Mutex<State>,
    resolved: Mutex<HashMap<MapData, u32, Identity>>,
    counters: Mutex<HashMap<MapData, u64, Counters>>,
    lent: Mutex<LentFiles>,
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
    /// Of earlier daemons' programs, while these are still in force.
    adopted: Vec<Adopted>,
    earlier: Earlier,
    pins: Pins,
    filter: Filter,
    events: Option<RingBuf<MapData>>,
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
        let mut policies: Policies = take(&mut ebpf, "POLICIES")?;
        let mut filter = Filter::new(take(&mut ebpf, "FILTER")?);
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
            state: Mutex::new(State {
                policies,
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
        let size = u32::try_from(compiled.entries.len().max(1)).unwrap_or(u32::MAX);
        let mut rules =
            HashMap::<MapData, Key, Value>::create(size, 0).map_err(map("make a policy"))?;
        for (key, value) in &compiled.entries {
            rules.insert(key, value, 0).map_err(map("fill a policy"))?;
        }
        let State {
            policies,
            adopted,
            filter,
            ..
        } = &mut *self.state();
        // The filter first: a file that it does not know has no rule.
        let bits = filter.raise(&compiled.entries)?;
        for earlier in &mut *adopted {
            let mut words = earlier.filter.get(&0, 0).map_err(map("read the filter"))?;
            for bit in &bits {
                words[*bit as usize / 64] |= 1 << (bit % 64);
            }
            earlier
                .filter
                .set(0, words, 0)
                .map_err(map("write the filter"))?;
            earlier
                .policies
                .insert(sandbox, &rules, 0)
                .map_err(map("install a policy"))?;
        }
        policies
            .insert(sandbox, &rules, 0)
            .map_err(map("install a policy"))?;
        // Nobody reads a replaced policy any more.
        filter.assign(sandbox, bits)
    }

    /// Forgets a sandbox; processes that were still in it would be refused
    /// everything.
    pub fn remove(&self, sandbox: u64) -> Result<(), KernelError> {
        let State {
            policies,
            adopted,
            filter,
            ..
        } = &mut *self.state();
        for earlier in adopted {
            absent(earlier.policies.remove(&sandbox)).map_err(map("remove a policy"))?;
        }
        absent(policies.remove(&sandbox)).map_err(map("remove a policy"))?;
        filter.assign(sandbox, Vec::new())?;
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

/// The filter of all policies, with a count for every bit.
struct Filter {
    map: FilterMap,
    words: Box<[u64; FILTER_WORDS]>,
    counts: std::collections::HashMap<u32, u32>,
    /// The bits of each sandbox's policy.
    bits: std::collections::HashMap<u64, Vec<u32>>,
}

/// One value, so that programs find it once and then index into it.
type FilterMap = Array<MapData, [u64; FILTER_WORDS]>;

impl Filter {
    #[expect(
        clippy::large_stack_arrays,
        reason = "64 KiB, which is how the map's value is passed as well"
    )]
    fn new(map: FilterMap) -> Self {
        Self {
            map,
            words: Box::new([0; FILTER_WORDS]),
            counts: std::collections::HashMap::new(),
            bits: std::collections::HashMap::new(),
        }
    }

    /// Takes over the bits of an earlier filter, for good: whose they are is
    /// not known.
    fn adopt(&mut self, earlier: &FilterMap) -> Result<(), KernelError> {
        let words = earlier.get(&0, 0).map_err(map("read the filter"))?;
        for (word, at) in words.iter().zip(0..) {
            for bit in (0..64).filter(|bit| word >> bit & 1 == 1) {
                self.add(at * 64 + bit);
            }
        }
        self.write()
    }

    /// Sets the bits of a policy.
    fn raise(&mut self, entries: &[(Key, Value)]) -> Result<Vec<u32>, KernelError> {
        let bits: Vec<u32> = entries
            .iter()
            .flat_map(|(key, value)| filter_bits(key, value))
            .collect();
        for bit in &bits {
            self.add(*bit);
        }
        self.write()?;
        Ok(bits)
    }

    /// Says whose bits they are, in the place of those before.
    fn assign(&mut self, sandbox: u64, bits: Vec<u32>) -> Result<(), KernelError> {
        let before = if bits.is_empty() {
            self.bits.remove(&sandbox)
        } else {
            self.bits.insert(sandbox, bits)
        };
        for bit in before.unwrap_or_default() {
            if let Some(count) = self.counts.get_mut(&bit) {
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(&bit);
                    self.words[bit as usize / 64] &= !(1 << (bit % 64));
                }
            }
        }
        self.write()
    }

    fn add(&mut self, bit: u32) {
        *self.counts.entry(bit).or_default() += 1;
        self.words[bit as usize / 64] |= 1 << (bit % 64);
    }

    /// In one piece. A program that reads meanwhile sees each word as it was or
    /// as it will be, and those of the policies in force do not change.
    fn write(&mut self) -> Result<(), KernelError> {
        self.map
            .set(0, *self.words, 0)
            .map_err(map("write the filter"))
    }
}

fn take<T: TryFrom<aya::maps::Map, Error = MapError>>(
    ebpf: &mut aya::Ebpf,
    name: &'static str,
) -> Result<T, KernelError> {
    let found = ebpf.take_map(name).ok_or(KernelError::Object(name))?;
    T::try_from(found).map_err(map("open a map"))
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
