//! The maps, and the constants that the daemon writes before loading.

use aya_ebpf::{
    Global,
    btf_maps::{Array, HashMap, HashOfMaps, RingBuf},
    macros::btf_map,
};
use sandbox_common::{
    Asked, Counters, Entrances, FILTER_WORDS, FileEvent, FlowKey, Identity, Key, Lent, Value,
    filter_bit,
};

/// The rules of one policy. Filled before it is inserted and never changed
/// after; the size here is only that of the template. Its values are `Value`s,
/// which 6.1 must not see: it finds that a structure has no timer, and that a
/// map made without BTF cannot have one, and calls the two different
/// (`bpf_map_meta_equal`).
pub type Rules = HashMap<Key, [u64; 2], 1>;

/// Cgroup id of a sandbox -> its rules.
#[btf_map]
pub static POLICIES: HashOfMaps<u64, Rules, 4096> = HashOfMaps::new();

/// One bit for every place that some policy has, see `filter_bit`. One value:
/// found once, then indexed.
#[btf_map]
pub static FILTER: Array<[u64; FILTER_WORDS], 1> = Array::new();

#[btf_map]
pub static EVENTS: RingBuf<FileEvent, { 4 << 20 }> = RingBuf::new();

/// Cgroup id of an exec -> what became of its refusals.
#[btf_map]
pub static COUNTERS: HashMap<u64, Counters, 16384> = HashMap::new();

/// All refusals since loading.
#[btf_map]
pub static TOTAL: Array<Counters, 1> = Array::new();

/// Thread id of the daemon's -> the file that it stat'ed.
#[btf_map]
pub static RESOLVED: HashMap<u32, Identity, 1024> = HashMap::new();

/// The key of `name_hash`, for the daemon that adopts the policies.
#[btf_map]
pub static SEED: Array<u64, 1> = Array::new();

/// Files that sandboxes were given open, as standard streams.
#[btf_map]
pub static LENT: HashMap<Lent, u8, 16384> = HashMap::new();

/// Slaves of the host's pseudo-terminals (`s_dev` << 32 | `i_ino`) -> the
/// sandbox that opened their masters.
#[btf_map]
pub static TERMINALS: HashMap<u64, u64, 4096> = HashMap::new();

/// System V object (`struct kern_ipc_perm`) -> the sandbox that made it. Those
/// of everybody else are not in here.
#[btf_map]
pub static IPC_OWNERS: HashMap<u64, u64, 16384> = HashMap::new();

/// Cookie of a socket -> what it asked the proxy for. An entry is as old as its
/// socket at most.
#[btf_map]
pub static ASKED: HashMap<u64, Asked, 262144, NO_PREALLOC> = HashMap::new();

/// Where a socket sends to the proxy from -> its cookie.
#[btf_map]
pub static FLOWS: HashMap<FlowKey, u64, 262144, NO_PREALLOC> = HashMap::new();

/// The proxy's sockets.
#[btf_map]
pub static ENTRANCES: Array<Entrances, 1> = Array::new();

/// `BPF_F_NO_PREALLOC`
const NO_PREALLOC: usize = 1;

/// Depth of a sandbox's cgroup; the host's root is 0.
#[unsafe(no_mangle)]
pub static SANDBOX_LEVEL: Global<u32> = Global::new(0);

/// Cgroup id of the parent of all sandboxes.
#[unsafe(no_mangle)]
pub static SLICE_ID: Global<u64> = Global::new(0);

/// The daemon's process id, as the host has it.
#[unsafe(no_mangle)]
pub static DAEMON_PID: Global<u32> = Global::new(0);

/// Key of `name_hash`.
#[unsafe(no_mangle)]
pub static NAME_SEED: Global<u64> = Global::new(0);

/// Token bucket of an exec's events: its size, and the time for one more.
#[unsafe(no_mangle)]
pub static EVENT_BURST: Global<u64> = Global::new(1);
#[unsafe(no_mangle)]
pub static EVENT_INTERVAL_NS: Global<u64> = Global::new(1);

/// Not among the constants: to the verifier it could be any number. From
/// constants on it would follow each path through a walk on its own.
#[unsafe(no_mangle)]
static mut ZERO: u64 = 0;

/// Zero, see [`ZERO`].
#[inline(always)]
pub fn zero() -> u64 {
    // SAFETY: nobody writes it.
    unsafe { (&raw const ZERO).read_volatile() }
}

/// [`FILTER`], found.
#[derive(Clone, Copy)]
pub struct Filter(*const [u64; FILTER_WORDS]);

impl Filter {
    #[inline(always)]
    pub fn get() -> Option<Self> {
        FILTER.get_ptr(0).map(Self)
    }

    /// Whether some policy may have this place: spares most places the lookup.
    #[inline(always)]
    pub fn knows(self, dev: u32, ino: u64, asked: u64) -> bool {
        let bit = filter_bit(dev, ino, asked) as usize;
        // SAFETY: the map's value is there for as long as the map.
        let word = unsafe { (*self.0)[bit / 64 % FILTER_WORDS] };
        word >> (bit % 64) & 1 != 0
    }
}

/// What a policy's map has for a key.
#[inline(always)]
pub fn lookup(rules: &'static Rules, key: &Key) -> Option<Value> {
    let value: *const Value = rules.get_ptr(key)?.cast();
    // SAFETY: a `Value` is written there. Rules are never changed once inserted,
    // and freed after an RCU grace period, which this program is within.
    Some(unsafe { *value })
}
