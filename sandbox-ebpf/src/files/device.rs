//! Devices: by their numbers, whatever their names are and wherever their
//! nodes lie. Block devices are never opened: what is on them has no walls.

use aya_ebpf::helpers::generated::bpf_get_current_task;
use sandbox_common::{Key, kind};

use crate::{
    layout::{Dentry, File, Inode, probe},
    maps::{TERMINALS, lookup},
    member::{self, Member, Who},
};

const S_IFMT: u16 = 0o170_000;
const S_IFCHR: u16 = 0o020_000;
const S_IFBLK: u16 = 0o060_000;

/// Majors of the slaves of pseudo-terminals.
const PTS: core::ops::RangeInclusive<u32> = 136..=143;

const PTMX: u32 = number(5, 2);

/// Unlocks a slave. Whoever made a pseudo-terminal does so before anybody can
/// open it.
const TIOCSPTLCK: u32 = 0x4004_5431;

#[inline(always)]
const fn number(major: u32, minor: u32) -> u32 {
    major << 20 | minor
}

/// Whether a mode is that of a device.
#[inline(always)]
pub fn is(mode: u16) -> bool {
    // The two differ in one bit.
    mode & S_IFMT & !(S_IFCHR ^ S_IFBLK) == S_IFCHR
}

/// Whether mknod(2) of a mode and number makes a device. Overlayfs makes white
/// ones, 0:0, in the name of whoever removes a file.
#[inline(always)]
pub fn made(mode: u16, number: u32) -> bool {
    is(mode) && (mode & S_IFMT == S_IFBLK || number != 0)
}

/// Whether a sandbox opens a device.
#[inline(always)]
pub fn opens(member: &Member, dentry: Dentry, inode: Inode) -> bool {
    if inode.mode() & S_IFMT != S_IFCHR {
        return false;
    }
    let device = inode.rdev();
    const NULL: u32 = number(1, 3);
    const ZERO: u32 = number(1, 5);
    const FULL: u32 = number(1, 7);
    const RANDOM: u32 = number(1, 8);
    const URANDOM: u32 = number(1, 9);
    const TTY: u32 = number(5, 0);
    if matches!(device, NULL | ZERO | FULL | RANDOM | URANDOM | TTY | PTMX) {
        return true;
    }
    let key = if PTS.contains(&(device >> 20)) {
        // Of its own devpts all, of the host's the one that it is controlled by,
        // and those that it made.
        // SAFETY: the helper takes no arguments.
        if probe::terminal_data(unsafe { bpf_get_current_task() }) == dentry.raw() {
            return true;
        }
        let key = slave(dentry.super_block().dev(), inode.ino());
        if TERMINALS.get_ptr(key).is_some_and(|owner| {
            // SAFETY: map values are valid for as long as the program runs.
            unsafe { *owner == member.sandbox }
        }) {
            return true;
        }
        own(dentry.super_block().dev())
    } else {
        Key {
            kind: kind::DEVICE,
            dev: device,
            ..Key::ZERO
        }
    };
    lookup(member.rules, &key).is_some()
}

/// The key of a devpts that is the sandbox's own.
#[inline(always)]
fn own(dev: u32) -> Key {
    Key {
        kind: kind::TERMINALS,
        dev,
        ..Key::ZERO
    }
}

/// Takes note of who makes a pseudo-terminal of the host's, of everybody: a
/// slave's number is used again. There is room for all that a devpts may have.
#[inline(always)]
pub fn note(file: File, command: u32) {
    if command != TIOCSPTLCK || file.dentry().inode().rdev() != PTMX {
        return;
    }
    let dentry = probe::slave(file.raw());
    let dev = probe::dev(dentry);
    let key = slave(dev, probe::inode(dentry).0);
    match member::current() {
        Who::Inside(member) if lookup(member.rules, &own(dev)).is_some() => {}
        Who::Inside(member) => {
            let _ = TERMINALS.insert(key, member.sandbox, 0);
        }
        _ => {
            let _ = TERMINALS.remove(key);
        }
    }
}

#[inline(always)]
fn slave(dev: u32, ino: u64) -> u64 {
    u64::from(dev) << 32 | ino
}
