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

use crate::verdict::{self, Errno, Reason};

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

const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// `task_alloc(task, clone_flags)`. A process is made in its parent's cgroup,
/// unless clone3(2) names another: whoever may write there (root, where no
/// capability is needed) would leave.
#[inline(always)]
pub fn alloc(ctx: &LsmContext) -> i32 {
    let flags: u64 = ctx.arg(1);
    if flags & CLONE_INTO_CGROUP == 0 {
        return 0;
    }
    let member = enter!();
    let reason = reason(Operation::Clone, builtin::LEAVING);
    // SAFETY: the helper takes no arguments.
    verdict::process(&member, reason, unsafe { bpf_get_current_task() })
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
