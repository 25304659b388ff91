//! Events: what was refused, written into the ring buffer. Written after the
//! decision, so nothing here can let anything through.

use core::intrinsics::{AtomicOrdering, atomic_xadd};

use aya_ebpf::helpers::generated::{
    bpf_get_current_comm, bpf_get_current_pid_tgid, bpf_get_current_task, bpf_get_current_uid_gid,
    bpf_ktime_get_boot_ns, bpf_probe_read_kernel_str,
};
use sandbox_common::{
    Counters, EVENT_VERSION, EXE_BYTES, EventHeader, FacilityEvent, FileEvent, MAX_DEPTH,
    NAME_BYTES, NetEvent, Object, Operation, PATH_BYTES, ProcessEvent, UNIX_BYTES, UnixEvent,
    flags,
};

use crate::{
    layout::probe,
    maps::{COUNTERS, EVENT_BURST, EVENT_INTERVAL_NS, EVENTS, TOTAL},
};

/// What the header of a record says. Without padding: the verifier lets only
/// initialised bytes pass into a global function.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Refusal {
    pub sandbox: u64,
    pub exec: u64,
    /// Address of what was refused: a dentry, a task, a Unix socket; of a
    /// facility its number, and the detail above it. In here and not beside it:
    /// an argument of a global function may not be a kernel pointer.
    pub target: u64,
    pub operation: u16,
    pub right: u8,
    pub verdict: u8,
    pub errno: u32,
    pub rule: u32,
    pub generation: u32,
}

/// Where a packet or a connection would have gone. Without padding, too.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Destination {
    pub family: u16,
    pub port: u16,
    pub protocol: u32,
    pub address: [u32; 4],
}

impl Destination {
    /// No address. Not a constant: the verifier lets only what can be written
    /// pass into a global function.
    #[inline(always)]
    pub fn none() -> Self {
        Self {
            family: 0,
            port: 0,
            protocol: 0,
            address: [0; 4],
        }
    }
}

/// Records a refused operation on a file.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn event_file(refusal: *const Refusal) -> i32 {
    // SAFETY: the callers' own.
    let Some((refusal, counters)) = (unsafe { admitted(refusal) }) else {
        return 0;
    };
    placed(refusal, counters, Object::File, refusal.target)
}

/// Records a refused connection to a Unix socket.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn event_unix(refusal: *const Refusal) -> i32 {
    // SAFETY: the callers' own.
    let Some((refusal, counters)) = (unsafe { admitted(refusal) }) else {
        return 0;
    };
    let dentry = probe::unix_dentry(refusal.target);
    if dentry != 0 {
        return placed(refusal, counters, Object::UnixPath, dentry);
    }
    let Some(mut entry) = EVENTS.reserve_untyped::<UnixEvent>(0) else {
        return dropped(counters);
    };
    let record: *mut UnixEvent = entry.as_mut_ptr();
    // SAFETY: as in `placed`.
    unsafe {
        fill::<true>(&raw mut (*record).header, refusal, Object::UnixName);
        let (name, len) = probe::unix_name(refusal.target);
        (*record).name = name;
        (*record).name_len = if len > UNIX_BYTES as u32 {
            UNIX_BYTES as u32
        } else {
            len
        };
    }
    entry.submit(0);
    emitted(counters)
}

/// Records a refused operation on another process.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn event_process(refusal: *const Refusal) -> i32 {
    // SAFETY: the callers' own.
    let Some((refusal, counters)) = (unsafe { admitted(refusal) }) else {
        return 0;
    };
    let Some(mut entry) = EVENTS.reserve_untyped::<ProcessEvent>(0) else {
        return dropped(counters);
    };
    let record: *mut ProcessEvent = entry.as_mut_ptr();
    // SAFETY: as in `placed`.
    unsafe {
        fill::<true>(&raw mut (*record).header, refusal, Object::Process);
        (*record).pid = probe::tgid(refusal.target);
        (*record).reserved = 0;
        (*record).comm = probe::comm(refusal.target);
    }
    entry.submit(0);
    emitted(counters)
}

/// Records a refused use of the kernel.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn event_facility(refusal: *const Refusal) -> i32 {
    // SAFETY: the callers' own.
    let Some((refusal, counters)) = (unsafe { admitted(refusal) }) else {
        return 0;
    };
    let Some(mut entry) = EVENTS.reserve_untyped::<FacilityEvent>(0) else {
        return dropped(counters);
    };
    let record: *mut FacilityEvent = entry.as_mut_ptr();
    // SAFETY: as in `placed`.
    unsafe {
        fill::<true>(&raw mut (*record).header, refusal, Object::Facility);
        (*record).facility = refusal.target as u32;
        (*record).detail = (refusal.target >> 32) as u32;
    }
    entry.submit(0);
    emitted(counters)
}

/// A record about a dentry.
#[inline(always)]
fn placed(refusal: &Refusal, counters: *mut Counters, object: Object, dentry: u64) -> i32 {
    let Some(mut entry) = EVENTS.reserve_untyped::<FileEvent>(0) else {
        return dropped(counters);
    };
    let record: *mut FileEvent = entry.as_mut_ptr();
    // SAFETY: `record` is the reserved memory; every field that is read on the
    // other side is written here, and `path` and `exe` up to their lengths.
    unsafe {
        fill::<true>(&raw mut (*record).header, refusal, object);
        let (ino, mode) = probe::inode(dentry);
        (*record).ino = ino;
        (*record).magic = probe::magic(dentry);
        (*record).dev = probe::dev(dentry);
        if mode & 0o170_000 == 0o040_000 {
            (*record).header.flags |= flags::DIRECTORY;
        }
        let (len, whole) = path::<PATH_BYTES>((&raw mut (*record).path).cast(), dentry);
        (*record).path_len = len;
        if !whole {
            (*record).header.flags |= flags::PATH_TRUNCATED;
        }
    }
    entry.submit(0);
    emitted(counters)
}

/// Records a refused network operation of the current process.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn event_network(refusal: *const Refusal, destination: *const Destination) -> i32 {
    destined::<true>(refusal, destination)
}

/// Records a refused packet: who sent it is not known where it is seen.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn event_packet(refusal: *const Refusal, destination: *const Destination) -> i32 {
    destined::<false>(refusal, destination)
}

#[inline(always)]
fn destined<const TASK: bool>(refusal: *const Refusal, destination: *const Destination) -> i32 {
    // SAFETY: the callers' own. The verifier wants the question asked.
    let Some(destination) = (unsafe { destination.as_ref() }) else {
        return 0;
    };
    // SAFETY: likewise.
    let Some((refusal, counters)) = (unsafe { admitted(refusal) }) else {
        return 0;
    };
    let Some(mut entry) = EVENTS.reserve_untyped::<NetEvent>(0) else {
        return dropped(counters);
    };
    let record: *mut NetEvent = entry.as_mut_ptr();
    // SAFETY: as in `placed`.
    unsafe {
        // Of a socket that is being made there is no address yet.
        let object = match destination.family {
            2 | 10 if refusal.operation != Operation::Socket as u16 => Object::Address,
            _ => Object::Socket,
        };
        fill::<TASK>(&raw mut (*record).header, refusal, object);
        (*record).family = destination.family;
        (*record).port = destination.port;
        (*record).protocol = destination.protocol;
        core::ptr::write_unaligned(
            (&raw mut (*record).address).cast::<[u32; 4]>(),
            destination.address,
        );
    }
    entry.submit(0);
    emitted(counters)
}

/// Writes the header, with the current process if there is one.
///
/// # Safety
///
/// `header` must lie in a reserved record.
#[inline(always)]
unsafe fn fill<const TASK: bool>(header: *mut EventHeader, refusal: &Refusal, object: Object) {
    // SAFETY: by contract; the helpers write within the given sizes.
    unsafe {
        (*header).version = EVENT_VERSION;
        (*header).operation = refusal.operation;
        (*header).right = refusal.right;
        (*header).verdict = refusal.verdict;
        (*header).object = object as u8;
        (*header).flags = 0;
        (*header).time_ns = bpf_ktime_get_boot_ns();
        (*header).sandbox = refusal.sandbox;
        (*header).exec = refusal.exec;
        (*header).errno = refusal.errno;
        (*header).rule = refusal.rule;
        (*header).generation = refusal.generation;
        (*header).exe_len = 0;
        (*header).exe_dev = 0;
        if !TASK {
            (*header).flags |= flags::NO_TASK;
            (*header).pid = 0;
            (*header).tid = 0;
            (*header).uid = 0;
            (*header).comm = [0; 16];
            return;
        }
        let pid_tgid = bpf_get_current_pid_tgid();
        (*header).pid = (pid_tgid >> 32) as u32;
        (*header).tid = pid_tgid as u32;
        (*header).uid = bpf_get_current_uid_gid() as u32;
        bpf_get_current_comm((&raw mut (*header).comm).cast(), 16);
        let executable = probe::executable(bpf_get_current_task());
        if executable != 0 {
            (*header).exe_dev = probe::dev(executable);
            let (len, whole) = path::<EXE_BYTES>((&raw mut (*header).exe).cast(), executable);
            (*header).exe_len = len;
            if !whole {
                (*header).flags |= flags::EXE_TRUNCATED;
            }
        }
    }
}

/// Copies the names from `dentry` up to its root; returns the bytes used and
/// whether it is the whole path.
///
/// # Safety
///
/// `to` must have room for `SIZE` bytes.
#[inline(always)]
unsafe fn path<const SIZE: usize>(to: *mut u8, dentry: u64) -> (u32, bool) {
    let mut used = 0_usize;
    let mut dentry = dentry;
    for _ in 0..MAX_DEPTH {
        let parent = probe::parent(dentry);
        if parent == dentry || parent == 0 {
            return (used as u32, true);
        }
        // Opaque to the compiler, which would otherwise move the check away from
        // the use and leave the verifier without it.
        // SAFETY: `used` is a live local.
        let at = unsafe { core::ptr::read_volatile(&raw const used) };
        if at > SIZE - NAME_BYTES {
            return (used as u32, false);
        }
        // SAFETY: at least NAME_BYTES are left.
        let copied = unsafe {
            bpf_probe_read_kernel_str(
                to.add(at).cast(),
                NAME_BYTES as u32,
                probe::name(dentry) as *const _,
            )
        };
        if copied <= 0 {
            return (used as u32, false);
        }
        used += copied as usize;
        dentry = parent;
    }
    (used as u32, false)
}

/// A refusal that is to have an event, and what counts it.
///
/// # Safety
///
/// `refusal` must be null, which the verifier thinks possible, or valid.
#[inline(always)]
unsafe fn admitted<'r>(refusal: *const Refusal) -> Option<(&'r Refusal, *mut Counters)> {
    // SAFETY: by contract.
    let refusal = unsafe { refusal.as_ref() }?;
    Some((refusal, admit(refusal.exec)?))
}

/// Counts a refusal and takes a token for its event; none: over its rate.
#[inline(always)]
fn admit(exec: u64) -> Option<*mut Counters> {
    let total = TOTAL.get_ptr_mut(0)?;
    // SAFETY: map values are valid for as long as the program runs; the
    // counters are added to atomically, the bucket may be off by a race.
    unsafe {
        add(&raw mut (*total).denied);
        let Some(counters) = COUNTERS.get_ptr_mut(exec) else {
            // Of an exec that the daemon does not watch (an earlier daemon's, until
            // it is taken over) there is no bucket: its records could crowd out all
            // others.
            add(&raw mut (*total).limited);
            return None;
        };
        add(&raw mut (*counters).denied);
        let now = bpf_ktime_get_boot_ns();
        let elapsed = now.wrapping_sub((*counters).filled_ns);
        let refill = elapsed.checked_div(EVENT_INTERVAL_NS.load()).unwrap_or(0);
        if refill > 0 {
            let burst = EVENT_BURST.load();
            let tokens = (*counters).tokens.saturating_add(refill);
            (*counters).tokens = if tokens > burst { burst } else { tokens };
            (*counters).filled_ns = now;
        }
        if (*counters).tokens == 0 {
            add(&raw mut (*counters).limited);
            add(&raw mut (*total).limited);
            return None;
        }
        (*counters).tokens -= 1;
        Some(counters)
    }
}

#[inline(always)]
fn emitted(counters: *mut Counters) -> i32 {
    // SAFETY: as in `admit`.
    unsafe { tally(counters, |c| &raw mut (*c).emitted) }
}

#[inline(always)]
fn dropped(counters: *mut Counters) -> i32 {
    // SAFETY: as in `admit`.
    unsafe { tally(counters, |c| &raw mut (*c).dropped) }
}

/// Adds to the exec's counter and to the total's.
#[inline(always)]
unsafe fn tally(counters: *mut Counters, field: impl Fn(*mut Counters) -> *mut u64) -> i32 {
    // SAFETY: as in `admit`.
    unsafe {
        add(field(counters));
        if let Some(total) = TOTAL.get_ptr_mut(0)
            && total != counters
        {
            add(field(total));
        }
    }
    0
}

#[inline(always)]
unsafe fn add(counter: *mut u64) {
    // SAFETY: `counter` points into a map value.
    unsafe {
        atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(counter, 1);
    }
}
