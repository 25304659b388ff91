//! The scope wall: nothing leaves the sandbox.

use aya_ebpf::{helpers::generated::bpf_get_current_task, programs::LsmContext};
use sandbox_common::{Operation, Right, builtin};

use crate::{
    layout::probe,
    member::{self, Who},
    verdict::{self, Errno, Reason},
};

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
    // SAFETY: the helper takes no arguments.
    let program = probe::executable(unsafe { bpf_get_current_task() });
    match member::current() {
        Who::Outside => 0,
        Who::Inside(member) => {
            let reason = Reason {
                operation: Operation::Clone,
                right: Right::Scope,
                errno: Errno::Perm,
                rule: builtin::LEAVING,
            };
            verdict::process(&member, reason, program)
        }
        Who::Orphan { .. } => Errno::Perm.refused(),
    }
}
