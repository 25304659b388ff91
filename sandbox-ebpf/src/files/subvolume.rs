//! Subvolumes of btrfs: inode numbers and generations are the same in a
//! subvolume and in its snapshots, and all have one `s_dev`. What tells them
//! apart is where the inode of a subvolume's root is in memory, where the daemon
//! keeps it for as long as a policy is about it.

use sandbox_common::{MAX_DEPTH, bits};

use crate::layout::{Dentry, probe};

/// `BTRFS_FIRST_FREE_OBJECTID`: the root of every subvolume.
const ROOT: u64 = 256;

/// A dentry by its address, and a subvolume, as a global function takes them.
#[repr(C)]
pub struct Question {
    dentry: u64,
    number: u64,
}

/// No subvolume's number.
const WHICH: u64 = u64::MAX;

/// The number of the subvolume that a dentry is in: never 0, and never another
/// one's while both are in memory, but for chance.
#[inline(always)]
pub fn subvolume(dentry: Dentry) -> u64 {
    let dentry = dentry.raw();
    ask(&Question {
        dentry,
        number: WHICH,
    })
}

/// The bits that a rule must not have to be about a file: none in the subvolume
/// that it was made in, which is 0 where there are no subvolumes. Asked without
/// a condition, of which the verifier would follow both ways.
#[inline(always)]
pub fn foreign(dentry: Dentry, number: u64) -> u64 {
    let dentry = dentry.raw();
    ask(&Question { dentry, number })
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn ask(question: *const Question) -> u64 {
    // SAFETY: the callers' own.
    let Some(question) = (unsafe { question.as_ref() }) else {
        return u64::from(RIGHTS);
    };
    if question.number == 0 {
        return 0;
    }
    let mut current = question.dentry;
    for _ in 0..MAX_DEPTH {
        let (ino, _) = probe::inode(current);
        if ino == ROOT {
            break;
        }
        let parent = probe::parent(current);
        if parent == current {
            break;
        }
        current = parent;
    }
    let address = probe::inode_address(current);
    let found = address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 | 1;
    if question.number == WHICH {
        found
    } else if question.number == found {
        0
    } else {
        u64::from(RIGHTS)
    }
}

const RIGHTS: u32 = bits::READ | bits::WRITE;
