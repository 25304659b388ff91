//! Mounts and roots: what a path means is not the sandbox's to say. The walk
//! follows the file systems' own trees and would not be misled, but 6.1's
//! overlayfs opens files below it without a hook.

use aya_ebpf::programs::LsmContext;
use sandbox_common::{Operation, builtin, header};

use super::{enter, reason};
use crate::{
    layout::{Dentry, Mount, Path, SuperBlock},
    verdict,
};

/// `sb_mount(dev_name, path, type, flags, data)`, `move_mount(from, to)`,
/// `sb_pivotroot(old, new)`
#[inline(always)]
pub fn on_second_path(ctx: &LsmContext) -> i32 {
    refuse(Operation::Mount, Path::arg(ctx, 1).dentry())
}

/// `sb_kern_mount(sb)`, `sb_remount(sb, options)`
#[inline(always)]
pub fn file_system(ctx: &LsmContext) -> i32 {
    refuse(Operation::Mount, SuperBlock::arg(ctx, 0).root())
}

/// `sb_umount(mount, flags)`
#[inline(always)]
pub fn unmount(ctx: &LsmContext) -> i32 {
    refuse(Operation::Unmount, Mount::arg(ctx, 0).root())
}

/// `path_chroot(path)`. Harmless to the walls; browsers that are let have user
/// namespaces lock themselves in by it.
#[inline(always)]
pub fn chroot(ctx: &LsmContext) -> i32 {
    let member = enter!();
    if member.header().bits & header::USER_NAMESPACES != 0 {
        return 0;
    }
    let dentry = Path::arg(ctx, 0).dentry();
    let reason = reason(Operation::Chroot, builtin::MOUNT);
    verdict::file(&member, reason, dentry)
}

#[inline(always)]
fn refuse(operation: Operation, dentry: Dentry) -> i32 {
    let member = enter!();
    verdict::file(&member, reason(operation, builtin::MOUNT), dentry)
}
