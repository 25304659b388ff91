//! Other processes: only those of the same sandbox.

use aya_ebpf::programs::LsmContext;
use sandbox_common::{Operation, builtin};

use super::{enter, reason};
use crate::{member, verdict};

/// `task_kill(task, info, sig, cred)`
#[inline(always)]
pub fn signal(ctx: &LsmContext) -> i32 {
    other(ctx.arg(0), Operation::Signal)
}

/// An operation on a task, by its address.
#[inline(always)]
fn other(task: u64, operation: Operation) -> i32 {
    let member = enter!();
    if member::of_task(task) == member.sandbox {
        return 0;
    }
    verdict::process(&member, reason(operation, builtin::PROCESS), task)
}
