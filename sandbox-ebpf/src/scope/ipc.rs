//! System V shared memory, semaphores and message queues: those that the same
//! sandbox made. Who made an object is kept by its address for as long as it
//! is there; an object of which nothing is known is somebody else's.

use aya_ebpf::programs::LsmContext;
use sandbox_common::{Facility, Operation, builtin};

use super::{enter, nullable};
use crate::{
    layout::probe,
    maps::IPC_OWNERS,
    member::{self, Who},
    verdict::{self, Errno},
};

/// `shm_alloc_security(perm)` and its kin
#[inline(always)]
pub fn made(ctx: &LsmContext) -> i32 {
    let object: u64 = ctx.arg(0);
    let Who::Inside(member) = member::current() else {
        // Whatever is known of this address was of another object.
        let _ = IPC_OWNERS.remove(object);
        return 0;
    };
    if IPC_OWNERS.insert(object, member.sandbox, 0).is_ok() {
        return 0;
    }
    // There is no room for another: it would be nobody's.
    let reason = super::reason(Operation::Use, builtin::FACILITY);
    verdict::facility(&member, reason, Facility::Ipc, 0)
}

/// `shm_free_security(perm)` and its kin, in whatever process
#[inline(always)]
pub fn freed(ctx: &LsmContext) -> i32 {
    let object: u64 = ctx.arg(0);
    let _ = IPC_OWNERS.remove(object);
    0
}

/// `ipc_permission(perm, flag)`; `shm_shmctl(perm, cmd)` and its kin, which
/// have no object when they ask about the limits.
#[inline(always)]
pub fn used(ctx: &LsmContext) -> i32 {
    let member = enter!();
    let object = nullable(ctx, 0);
    if object == 0 {
        return 0;
    }
    // SAFETY: a value that is removed meanwhile was this sandbox's or was not.
    let owner = IPC_OWNERS.get_ptr(object).map(|owner| unsafe { *owner });
    if owner == Some(member.sandbox) {
        return 0;
    }
    let reason = verdict::Reason {
        errno: Errno::Acces,
        ..super::reason(Operation::Use, builtin::FACILITY)
    };
    verdict::facility(&member, reason, Facility::Ipc, probe::ipc_id(object))
}
