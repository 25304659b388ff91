//! Parts of the kernel that no sandbox needs, or only one whose policy says so.

use aya_ebpf::{helpers::generated::bpf_get_current_task, programs::LsmContext};
use sandbox_common::{Facility, Operation, builtin, header};

use super::{enter, reason};
use crate::{layout::probe, verdict};

/// `userns_create(cred)`
#[inline(always)]
pub fn user_namespace(_: &LsmContext) -> i32 {
    let member = enter!();
    if member.header().bits & header::USER_NAMESPACES != 0 {
        return 0;
    }
    let reason = reason(Operation::Use, builtin::FACILITY);
    verdict::facility(&member, reason, Facility::UserNamespace, 0)
}

/// A hook that means the use of a facility.
#[inline(always)]
pub fn facility(facility: Facility) -> i32 {
    let member = enter!();
    let reason = reason(Operation::Use, builtin::FACILITY);
    verdict::facility(&member, reason, facility, 0)
}

const IO_URING: [u8; 16] = *b"[io_uring]\0\0\0\0\0\0";
const USERFAULTFD: [u8; 16] = *b"[userfaultfd]\0\0\0";

/// `inode_init_security_anon(inode, name, context_inode)`: the one hook that all
/// kernels call before there is a ring. By the whole name: others are files like
/// those that memfd_create(2) makes.
#[inline(always)]
pub fn anonymous_inode(ctx: &LsmContext) -> i32 {
    let member = enter!();
    let name = u128::from_ne_bytes(probe::short_name(ctx.arg(1)));
    let facility = if name == u128::from_ne_bytes(IO_URING) {
        Facility::IoUring
    } else if name == u128::from_ne_bytes(USERFAULTFD) {
        Facility::Userfaultfd
    } else {
        return 0;
    };
    let reason = reason(Operation::Use, builtin::FACILITY);
    verdict::facility(&member, reason, facility, 0)
}

/// `key_alloc(key, cred, flags)`, `key_permission(key, cred, need)`
#[inline(always)]
pub fn key(ctx: &LsmContext) -> i32 {
    let member = enter!();
    // File systems and the resolver keep keys of their own.
    if is_the_kernels(ctx.arg(1)) {
        return 0;
    }
    let reason = reason(Operation::Use, builtin::FACILITY);
    verdict::facility(&member, reason, Facility::Keyring, 0)
}

/// Whether the kernel acts with these credentials, and not with the process's:
/// for a file system below an overlay, say.
#[inline(always)]
pub fn is_the_kernels(cred: u64) -> bool {
    // SAFETY: the helper takes no arguments.
    let (acting, own) = probe::credentials(unsafe { bpf_get_current_task() });
    acting != own && cred == acting
}
