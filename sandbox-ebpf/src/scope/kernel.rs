//! Parts of the kernel that no sandbox needs, or only one whose policy says so.

use aya_ebpf::programs::LsmContext;
use sandbox_common::{Facility, Operation, builtin};

use super::{enter, reason};
use crate::verdict;

/// `userns_create(cred)`
#[inline(always)]
pub fn user_namespace(_: &LsmContext) -> i32 {
    refuse(Facility::UserNamespace, 0)
}

#[inline(always)]
fn refuse(facility: Facility, detail: u32) -> i32 {
    let member = enter!();
    let reason = reason(Operation::Use, builtin::FACILITY);
    verdict::facility(&member, reason, facility, detail)
}
