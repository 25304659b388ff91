//! The scope wall: nothing reaches out of the sandbox through other processes,
//! privileges, or the rest of the kernel.

pub mod ipc;
pub mod kernel;
pub mod mount;
pub mod privilege;
pub mod process;

use aya_ebpf::{
    EbpfContext as _,
    helpers::{bpf_probe_read_kernel, generated::bpf_get_current_task},
    programs::LsmContext,
};
use sandbox_common::{Operation, Right, builtin};

use crate::{
    layout::probe,
    member,
    verdict::{self, Errno, Reason},
};

/// The sandbox of the current process; whoever is outside is let through.
macro_rules! enter {
    () => {
        match crate::member::current() {
            crate::member::Who::Outside => return 0,
            crate::member::Who::Inside(member) => member,
            crate::member::Who::Orphan { .. } => {
                return crate::verdict::Errno::Perm.refused();
            }
        }
    };
}
use enter;

// linux/sched.h
const CLONE_PARENT: u64 = 0x8000;
const CLONE_THREAD: u64 = 0x1_0000;
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// `task_alloc(task, clone_flags)`. A process is made in its parent's cgroup,
/// unless clone3(2) names another: whoever may write there (root, where no
/// capability is needed) would leave. And it is a child of whoever made it, unless
/// `CLONE_PARENT` makes it a sibling: of a command that is a child of the daemon's,
/// which knows nothing of it and never waits for it.
#[inline(always)]
pub fn alloc(ctx: &LsmContext) -> i32 {
    let flags: u64 = ctx.arg(1);
    let leaves = flags & CLONE_INTO_CGROUP != 0;
    if !leaves && flags & (CLONE_PARENT | CLONE_THREAD) != CLONE_PARENT {
        return 0;
    }
    let member = enter!();
    // SAFETY: the helper takes no arguments.
    let task = unsafe { bpf_get_current_task() };
    if leaves {
        return verdict::process(&member, reason(Operation::Clone, builtin::LEAVING), task);
    }
    let parent = probe::parent_task(task);
    if member::of_task(parent) == member.sandbox {
        return 0;
    }
    verdict::process(&member, reason(Operation::Clone, builtin::PROCESS), parent)
}

/// An argument that may be null. To the verifier a hook's pointer never is: it
/// takes the question away, and whatever was to be done without one with it. Read
/// like any other memory it is a number.
#[inline(always)]
fn nullable(ctx: &LsmContext, n: usize) -> u64 {
    let arguments: *const u64 = ctx.as_ptr().cast();
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_kernel(arguments.wrapping_add(n)) }.unwrap_or(0)
}

#[inline(always)]
fn reason(operation: Operation, rule: u32) -> Reason {
    Reason {
        operation,
        right: Right::Scope,
        errno: Errno::Perm,
        rule,
    }
}
