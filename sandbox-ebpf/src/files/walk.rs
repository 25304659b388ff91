//! The walk from a file to its file system's root: the nearest place for which
//! the policy has a rule decides. It follows the dentries of the superblock,
//! so links, renames, bind mounts, chroot and mount namespaces do not matter,
//! and no path string is built.

use sandbox_common::{Key, MAX_DEPTH, UNREADABLE, Value, bits, builtin, filter_bit, header, kind};

use super::name::{self, Patterns};
use crate::{
    layout::{Dentry, SuperBlock},
    maps::{FILTER, Rules, lookup},
    member::Member,
};

/// What a policy says about a file.
#[derive(Clone, Copy)]
pub struct Place {
    /// `bits::READ` and `bits::WRITE`.
    pub rights: u32,
    /// The rule that said so.
    pub rule: u32,
    /// The rule below it that forbids moving it; 0: none.
    pub shields: u32,
}

impl Place {
    #[inline(always)]
    pub fn allows(&self, rights: u32) -> bool {
        self.rights & rights == rights
    }
}

/// `super_block.s_flags`: mounted by the kernel for itself.
const SB_KERNMOUNT: u64 = 1 << 22;

/// Finds the place of a file, or of a name that does not exist yet.
#[inline(always)]
pub fn find(member: &Member, leaf: Dentry) -> Place {
    let super_block = leaf.super_block();
    let mut place = nearest(member, leaf, super_block);
    // The kernel's own file systems are the host's: read, where that is safe.
    if place.rights != 0 {
        let kept = match super_block.magic() {
            // proc, sysfs, cgroup2, cgroup, securityfs, efivarfs
            0x9fa0 | 0x6265_6572 | 0x6367_7270 | 0x0027_e0eb | 0x7363_6673 | 0xde5e_81e4 => {
                bits::READ
            }
            // bpf, tracefs, debugfs
            0xcafe_4a11 | 0x7472_6163 | 0x6462_6720 => 0,
            _ => place.rights,
        };
        if place.rights & !kept != 0 {
            place.rights &= kept;
            place.rule = builtin::KERNEL_FILESYSTEM;
        }
    }
    place
}

#[inline(always)]
fn nearest(member: &Member, leaf: Dentry, super_block: SuperBlock) -> Place {
    let rules = member.rules;
    let dev = super_block.dev();
    // Zero, but a number like any other to the verifier: starting from constants
    // it would follow each path through the walk on its own.
    let zero = member.header.aux;
    let patterns = if member.is(header::PATTERNS) {
        Patterns::of(leaf, zero)
    } else {
        Patterns::none(zero)
    };
    // What name patterns leave of the rights, and the pattern that took some.
    let mut mask = Value {
        bits: zero as u32 ^ (bits::READ | bits::WRITE),
        rule: zero as u32,
        aux: zero,
    };
    let mut shields = zero as u32;
    let mut child = leaf;
    let mut current = leaf;
    for depth in 0..MAX_DEPTH {
        if let Some((key, entry)) = entry(rules, dev, current) {
            if depth == 0 {
                if entry.bits & bits::ANCESTOR != 0 {
                    shields = entry.aux as u32;
                }
            } else {
                if entry.bits & bits::NAMES != 0
                    && let Some(value) = guarded(rules, &key, child)
                {
                    // A full path is not subject to patterns.
                    let mask = if depth == 1 {
                        Value { bits: !0, ..mask }
                    } else {
                        mask
                    };
                    return place(value, mask, shields);
                }
                if entry.bits & bits::SCOPE != 0 {
                    mask = patterns.restrict(rules, dev, key.ino, mask);
                }
            }
            if entry.bits & bits::RULED != 0 {
                let mask = if depth == 0 {
                    Value { bits: !0, ..mask }
                } else {
                    mask
                };
                return place(entry, mask, shields);
            }
        }
        let parent = current.parent();
        if parent == current {
            return end(super_block, current, shields);
        }
        if depth == 0 {
            mask = patterns.restrict(rules, 0, 0, mask);
        }
        child = current;
        current = parent;
    }
    Place {
        rights: 0,
        rule: builtin::TOO_DEEP,
        shields,
    }
}

/// Stands for the directories above a file that have name patterns of their own
/// and that its walk reaches; 0: none.
#[inline(always)]
pub fn scope(member: &Member, leaf: Dentry) -> u64 {
    let dev = leaf.super_block().dev();
    let mut sum = member.header.aux;
    let mut current = leaf;
    for _ in 0..MAX_DEPTH {
        let parent = current.parent();
        if parent == current {
            break;
        }
        current = parent;
        if let Some((key, entry)) = entry(member.rules, dev, current) {
            if entry.bits & bits::SCOPE != 0 {
                sum = sum.wrapping_add(key.ino);
            }
            if entry.bits & bits::RULED != 0 {
                break;
            }
        }
    }
    sum
}

/// The policy's entry for a file. The filter that all policies share spares
/// most directories the lookup.
#[inline(always)]
fn entry(rules: &'static Rules, dev: u32, dentry: Dentry) -> Option<(Key, Value)> {
    let inode = dentry.inode();
    if inode.is_null() {
        return None;
    }
    let (ino, generation) = (inode.ino(), inode.generation());
    let bit = filter_bit(dev, ino, generation);
    let word = FILTER.get(bit >> 6)?;
    if word & (1 << (bit & 63)) == 0 {
        return None;
    }
    let key = Key {
        kind: kind::INODE,
        dev,
        ino,
        extra: u64::from(generation),
    };
    lookup(rules, &key).map(|value| (key, value))
}

/// The rule for a name in a directory of which some are guarded.
#[inline(always)]
fn guarded(rules: &'static Rules, directory: &Key, child: Dentry) -> Option<Value> {
    let extra = name::hash(child.name() as u64);
    if extra == UNREADABLE {
        return Some(name::REFUSED);
    }
    lookup(
        rules,
        &Key {
            kind: kind::NAME,
            extra,
            ..*directory
        },
    )
}

#[inline(always)]
fn place(value: Value, mask: Value, shields: u32) -> Place {
    let rights = value.bits & (bits::READ | bits::WRITE);
    if rights & !mask.bits != 0 {
        return Place {
            rights: rights & mask.bits,
            rule: mask.rule,
            shields,
        };
    }
    Place {
        rights,
        rule: value.rule,
        shields,
    }
}

/// The walk met no rule. Every root that the policy knows has one.
#[inline(always)]
fn end(super_block: SuperBlock, last: Dentry, shields: u32) -> Place {
    if super_block.root() == last {
        return Place {
            rights: 0,
            rule: builtin::UNKNOWN_FILESYSTEM,
            shields,
        };
    }
    // Pipes, sockets, memfds and anonymous inodes are their own parents.
    if super_block.flags() & SB_KERNMOUNT != 0 {
        return Place {
            rights: bits::READ | bits::WRITE,
            rule: 0,
            shields,
        };
    }
    Place {
        rights: 0,
        rule: builtin::DISCONNECTED,
        shields,
    }
}
