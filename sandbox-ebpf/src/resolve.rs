//! The daemon's question "which file is this?": when it stats a descriptor,
//! the file's identity is left for it under its thread's id. `stat(2)` itself
//! would answer with numbers that differ from the kernel's on btrfs and
//! overlayfs.

use aya_ebpf::{
    bindings::BPF_NOEXIST, helpers::generated::bpf_get_current_pid_tgid, programs::LsmContext,
};
use sandbox_common::Identity;

use crate::{
    files::subvolume,
    layout::Path,
    maps::{DAEMON_PID, RESOLVED},
};

/// `BTRFS_SUPER_MAGIC`
const BTRFS: u64 = 0x9123_683e;

/// Runs on every `inode_getattr`, before the wall.
#[inline(always)]
pub fn record(ctx: &LsmContext) {
    // SAFETY: the helper takes no arguments.
    let pid_tgid = unsafe { bpf_get_current_pid_tgid() };
    if (pid_tgid >> 32) as u32 != DAEMON_PID.load() {
        return;
    }
    let dentry = Path::arg(ctx, 0).dentry();
    let (inode, super_block) = (dentry.inode(), dentry.super_block());
    let identity = Identity {
        dev: super_block.dev(),
        generation: inode.generation(),
        ino: inode.ino(),
        magic: super_block.magic(),
        subvolume: if super_block.magic() == BTRFS {
            subvolume(dentry)
        } else {
            0
        },
    };
    // 6.1's overlayfs asks twice, for its own inode and then for the one below:
    // the first answer stays.
    let _ = RESOLVED.insert(pid_tgid as u32, identity, u64::from(BPF_NOEXIST));
}
