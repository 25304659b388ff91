//! ioctl(2), fcntl(2) and watches: what changes a file, or waits for what
//! happens to it, without opening it for that.

use aya_ebpf::programs::LsmContext;
use sandbox_common::{Operation, Right, bits, builtin};

use super::{
    device, enter, lent, refuse,
    walk::{Leaf, find},
};
use crate::{
    layout::{File, Path},
    verdict::Errno,
};

/// `file_ioctl(file, cmd, arg)`, `file_ioctl_compat(file, cmd, arg)`. A
/// descriptor for reading is enough for many that write: they make subvolumes,
/// seal files, set flags. So on what may not be written only those are let
/// through that are known to read, and nowhere those that type into a terminal
/// or that no other hook sees.
#[inline(always)]
pub fn ioctl(ctx: &LsmContext) -> i32 {
    let file = File::arg(ctx, 0);
    let dentry = file.dentry();
    let command: u32 = ctx.arg(1);
    device::note(file, command);
    let member = enter!(Operation::Ioctl, Right::Write, dentry);
    if !(types(command) || bypasses(command)) {
        if reads(command) {
            return 0;
        }
        let place = find(&member, Leaf::file(dentry));
        // Names in a directory that rules lie in are known by how it compares
        // them, which can be set.
        if place.allows(bits::WRITE) && place.shields == 0 || lent(&member, dentry) {
            return 0;
        }
    }
    refuse(
        &member,
        Operation::Ioctl,
        Right::Write,
        Errno::Perm,
        builtin::IOCTL,
        dentry,
    )
}

/// Whether it types into a terminal, for whoever reads there next, or changes
/// what its keys mean.
#[inline(always)]
const fn types(command: u32) -> bool {
    matches!(
        command,
        0x5412 // TIOCSTI
        | 0x541c // TIOCLINUX
        | 0x541d // TIOCCONS
        | 0x5423 // TIOCSETD
        | 0x4b47 // KDSKBENT
        | 0x4b49 // KDSKBSENT
        | 0x4b4b // KDSKBDIACR
        | 0x4b4d // KDSETKEYCODE
        | 0x4bfb // KDSKBDIACRUC
    )
}

/// Whether it makes or removes directories with all that is in them, or copies
/// files, which is not seen where that is asked about; locks a file system up; or
/// gives a file another generation, by which rules know it.
#[inline(always)]
const fn bypasses(command: u32) -> bool {
    matches!(
        command,
        0x5000_940e // BTRFS_IOC_SUBVOL_CREATE
        | 0x5000_9418 // BTRFS_IOC_SUBVOL_CREATE_V2
        | 0x5000_9401 // BTRFS_IOC_SNAP_CREATE
        | 0x5000_9417 // BTRFS_IOC_SNAP_CREATE_V2
        | 0x5000_940f // BTRFS_IOC_SNAP_DESTROY
        | 0x5000_943f // BTRFS_IOC_SNAP_DESTROY_V2
        | 0x4020_bc10 // BCH_IOCTL_SUBVOLUME_CREATE
        | 0x4020_bc11 // BCH_IOCTL_SUBVOLUME_DESTROY
        | 0x4018_6f04 // OCFS2_IOC_REFLINK, which takes paths
        | 0x4008_7602 | 0x4004_7602 // FS_IOC_SETVERSION
        | 0x4008_6604 | 0x4004_6604 // EXT4_IOC_SETVERSION_OLD
        | 0xc040_6618 // FS_IOC_REMOVE_ENCRYPTION_KEY
        | 0xc040_6619 // FS_IOC_REMOVE_ENCRYPTION_KEY_ALL_USERS
    )
}

/// Whether it only reads, or is about the descriptor alone. Where the size of a
/// `long` is a part of the number, both.
#[inline(always)]
const fn reads(command: u32) -> bool {
    matches!(
        command,
        0x5450 // FIONCLEX
        | 0x5451 // FIOCLEX
        | 0x5421 // FIONBIO
        | 0x5452 // FIOASYNC
        | 0x541b // FIONREAD
        | 0x5460 // FIOQSIZE
        | 0x0001 // FIBMAP
        | 0x0002 // FIGETBSZ
        | 0x8008_6601 | 0x8004_6601 // FS_IOC_GETFLAGS
        | 0x8008_7601 | 0x8004_7601 // FS_IOC_GETVERSION
        | 0xc020_660b // FS_IOC_FIEMAP
        | 0x801c_581f // FS_IOC_FSGETXATTR
        | 0x8100_9431 // FS_IOC_GETFSLABEL
        | 0x8011_1500 // FS_IOC_GETFSUUID
        | 0x8081_1501 // FS_IOC_GETFSSYSFSPATH
        | 0xc004_6686 // FS_IOC_MEASURE_VERITY
        | 0xc028_6687 // FS_IOC_READ_VERITY_METADATA
        | 0x400c_6615 // FS_IOC_GET_ENCRYPTION_POLICY
        | 0xc009_6616 // FS_IOC_GET_ENCRYPTION_POLICY_EX
        | 0xc080_661a // FS_IOC_GET_ENCRYPTION_KEY_STATUS
        | 0x8010_661b // FS_IOC_GET_ENCRYPTION_NONCE
        | 0x8400_941f // BTRFS_IOC_FS_INFO
        | 0x8008_9419 // BTRFS_IOC_SUBVOL_GETFLAGS
        | 0x8018_9439 // BTRFS_IOC_GET_FEATURES
        | 0xc010_9414 // BTRFS_IOC_SPACE_INFO
        | 0x81f8_943c // BTRFS_IOC_GET_SUBVOL_INFO
        | 0x5401 // TCGETS
        | 0x802c_542a // TCGETS2
        | 0x5405 // TCGETA
        | 0x540f // TIOCGPGRP
        | 0x5411 // TIOCOUTQ
        | 0x5413 // TIOCGWINSZ
        | 0x5415 // TIOCMGET
        | 0x5419 // TIOCGSOFTCAR
        | 0x541e // TIOCGSERIAL
        | 0x5424 // TIOCGETD
        | 0x5429 // TIOCGSID
        | 0x8004_5430 // TIOCGPTN
        | 0x8004_5432 // TIOCGDEV
        | 0x8004_5438 // TIOCGPKT
        | 0x8004_5439 // TIOCGPTLCK
        | 0x8004_5440 // TIOCGEXCL
    )
}

const F_SETLEASE: u32 = 1024;

/// `file_fcntl(file, cmd, arg)`. Whoever holds a lease is asked before others
/// open the file, and may make them wait.
#[inline(always)]
pub fn fcntl(ctx: &LsmContext) -> i32 {
    let command: u32 = ctx.arg(1);
    if command != F_SETLEASE {
        return 0;
    }
    super::change(Operation::Fcntl, Leaf::file(File::arg(ctx, 0).dentry()))
}

/// `path_notify(path, mask, obj_type)`: inotify(7), fanotify(7), dnotify. What
/// is seen of a directory is its list.
#[inline(always)]
pub fn watch(ctx: &LsmContext) -> i32 {
    let dentry = Path::arg(ctx, 0).dentry();
    let member = enter!(Operation::Watch, Right::Read, dentry);
    let place = find(&member, Leaf::file(dentry));
    if place.allows(bits::READ) {
        return 0;
    }
    refuse(
        &member,
        Operation::Watch,
        Right::Read,
        Errno::NoEnt,
        place.rule,
        dentry,
    )
}
