//! The walk from a file to its file system's root: the nearest place for which
//! the policy has a rule decides. It follows the dentries of the superblock,
//! so links, renames, bind mounts, chroot and mount namespaces do not matter,
//! and no path string is built.

use sandbox_common::{Key, MAX_DEPTH, UNREADABLE, Value, asked, bits, builtin, kind};

use super::{name, process, subvolume};
use crate::{
    layout::{Dentry, Steps, SuperBlock, probe},
    maps::{Filter, Rules, lookup, zero},
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
    /// The number of the directory at which the walk ended, if it has name
    /// patterns; otherwise 0.
    pub scope: u64,
}

impl Place {
    #[inline(always)]
    pub fn allows(&self, rights: u32) -> bool {
        self.rights & rights == rights
    }
}

/// Where a walk starts.
#[derive(Clone, Copy)]
pub struct Leaf {
    pub dentry: Dentry,
    exists: bool,
    /// A name that a directory is about to have.
    directory: bool,
}

const S_IFMT: u16 = 0o170_000;
const S_IFREG: u16 = 0o100_000;

impl Leaf {
    /// A file that exists.
    #[inline(always)]
    pub fn file(dentry: Dentry) -> Self {
        Self {
            dentry,
            exists: true,
            directory: false,
        }
    }

    /// A name that a file, or a directory, is about to have. It may be nobody's.
    /// To the verifier of 6.12 a dentry that a hook is called with always has an
    /// inode: it takes the question away, and the load that follows is one that
    /// may fault. So these are asked by probe.
    #[inline(always)]
    pub fn name(dentry: Dentry, directory: bool) -> Self {
        Self {
            dentry,
            exists: false,
            directory,
        }
    }

    #[inline(always)]
    fn ino(self) -> u64 {
        if self.exists {
            self.dentry.inode().ino()
        } else {
            probe::inode(self.dentry.raw()).0
        }
    }

    #[inline(always)]
    fn generation(self) -> u32 {
        if self.exists {
            self.dentry.inode().generation()
        } else {
            probe::generation(self.dentry.raw())
        }
    }

    /// Whether name patterns are about it: a regular file, or a name for anything
    /// but a directory. A link or a pipe of that name would be read for the file.
    #[inline(always)]
    pub fn has_patterns(self) -> bool {
        if self.exists {
            self.dentry.inode().mode() & S_IFMT == S_IFREG
        } else {
            !self.directory
        }
    }

    #[inline(always)]
    pub fn name_address(self) -> u64 {
        self.dentry.name() as u64
    }
}

/// Of a place's rights: it is another process's, whose files of proc may be
/// looked at and not opened.
pub const FOREIGN: u32 = 1 << 31;

/// The kernel's own file systems, by `super_block.s_magic`.
mod magic {
    pub const PROC: u64 = 0x9fa0;
    pub const SYSFS: u64 = 0x6265_6572;
    pub const CGROUP: u64 = 0x0027_e0eb;
    pub const CGROUP2: u64 = 0x6367_7270;
    pub const SECURITYFS: u64 = 0x7363_6673;
    /// AppArmor's own, which securityfs leads to.
    pub const APPARMORFS: u64 = 0x5a3c_69f0;
    pub const SELINUXFS: u64 = 0xf97c_ff8c;
    pub const SMACKFS: u64 = 0x4341_5d53;
    pub const EFIVARFS: u64 = 0xde5e_81e4;
    pub const CONFIGFS: u64 = 0x6265_6570;
    /// Whose connections a user may abort.
    pub const FUSECTL: u64 = 0x6573_5543;
    pub const BINFMT_MISC: u64 = 0x4249_4e4d;
    pub const RESCTRL: u64 = 0x0765_5821;
    pub const NFSD: u64 = 0x6e66_7364;
    pub const RPC_PIPEFS: u64 = 0x6759_6969;
    pub const BPF: u64 = 0xcafe_4a11;
    pub const TRACEFS: u64 = 0x7472_6163;
    pub const DEBUGFS: u64 = 0x6462_6720;
    /// What the kernel said before it crashed.
    pub const PSTORE: u64 = 0x6165_676c;
    /// POSIX message queues: reading one takes its messages.
    pub const MQUEUE: u64 = 0x1980_0202;
    pub const BINDERFS: u64 = 0x6c6f_6f70;
}
pub use magic::PROC;
use magic::*;

/// `super_block.s_flags`: mounted by the kernel for itself.
const SB_KERNMOUNT: u64 = 1 << 22;

/// Finds the place of a file, or of a name that does not exist yet.
#[inline(always)]
pub fn find(member: &Member, leaf: Leaf) -> Place {
    let super_block = leaf.dentry.super_block();
    let mut place = nearest(member, leaf, super_block);
    // The kernel's own file systems are the host's: read, where that is safe.
    if place.rights != 0 {
        let kept = match super_block.magic() {
            PROC => {
                let kept = process::rights(member.sandbox, leaf.dentry);
                // What its own processes have is its own where proc may be read.
                place.rights |= kept & bits::WRITE;
                kept
            }
            SYSFS | CGROUP2 | CGROUP | SECURITYFS | APPARMORFS | SELINUXFS | SMACKFS | EFIVARFS
            | CONFIGFS | FUSECTL | BINFMT_MISC | RESCTRL | NFSD | RPC_PIPEFS => bits::READ,
            BPF | TRACEFS | DEBUGFS | PSTORE | MQUEUE | BINDERFS => 0,
            _ => place.rights,
        };
        if place.rights & !kept != 0 {
            place.rights &= kept;
            place.rule = builtin::KERNEL_FILESYSTEM;
        }
        place.rights |= kept & FOREIGN;
    }
    place
}

#[inline(always)]
fn nearest(member: &Member, leaf: Leaf, super_block: SuperBlock) -> Place {
    let rules = member.rules;
    let dev = super_block.dev();
    let mut shields = zero() as u32;
    let Some(filter) = Filter::get() else {
        return nothing(builtin::NO_POLICY, shields);
    };
    // A rule for the file itself: no pattern takes from a full path.
    let ino = leaf.ino();
    if filter.knows(dev, ino, asked::FILE)
        && let Some(value) = lookup(rules, &inode(dev, ino, leaf.generation()))
    {
        if value.bits & bits::ANCESTOR != 0 {
            shields = value.aux as u32;
        }
        let foreign = subvolume::foreign(leaf.dentry, value.aux >> 32) as u32;
        if value.bits & (bits::RULED | foreign) == bits::RULED {
            return place(value, shields);
        }
    }
    let steps = Steps::get();
    let magic = super_block.magic();
    let mut child = leaf.dentry;
    for _ in 0..MAX_DEPTH {
        let current = steps.parent(child);
        if current == child {
            return end(super_block, child, shields);
        }
        let (file, ino) = steps.inode(current);
        if filter.knows(dev, ino, asked::BELOW) {
            let key = inode(dev, ino, file.generation());
            if let Some(value) = lookup(rules, &key) {
                let scope = if value.bits & bits::SCOPE != 0 {
                    ino
                } else {
                    0
                };
                // What takes rights away does so in every subvolume, from
                // snapshots of what is denied; what gives some, in its own.
                let foreign = subvolume::foreign(current, value.aux >> 32) as u32;
                if value.bits & bits::NAMES != 0
                    && let Some(value) = guarded(rules, filter, &key, (child, magic))
                    && value.bits & foreign == 0
                {
                    let place = Place {
                        scope,
                        ..place(value, shields)
                    };
                    return if child == leaf.dentry {
                        place
                    } else {
                        name::restrict(rules, filter, leaf, value.bits, (dev, magic), place)
                    };
                }
                if value.bits & (bits::RULED | foreign) == bits::RULED {
                    let place = Place {
                        scope,
                        ..place(value, shields)
                    };
                    return name::restrict(rules, filter, leaf, value.bits, (dev, magic), place);
                }
            }
        }
        child = current;
    }
    nothing(builtin::TOO_DEEP, shields)
}

#[inline(always)]
fn inode(dev: u32, ino: u64, generation: u32) -> Key {
    Key {
        kind: kind::INODE,
        dev,
        ino,
        extra: u64::from(generation),
    }
}

/// The rule for a name in a directory of which some are guarded.
#[inline(always)]
fn guarded(
    rules: &'static Rules,
    filter: Filter,
    directory: &Key,
    (child, magic): (Dentry, u64),
) -> Option<Value> {
    let extra = name::hash(child.name() as u64, magic);
    if extra == UNREADABLE {
        return Some(name::REFUSED);
    }
    if !filter.knows(directory.dev, directory.ino, extra) {
        return None;
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
fn place(value: Value, shields: u32) -> Place {
    Place {
        rights: value.bits & (bits::READ | bits::WRITE),
        rule: value.rule,
        ..nothing(0, shields)
    }
}

/// No rights at all.
#[inline(always)]
fn nothing(rule: u32, shields: u32) -> Place {
    Place {
        rights: 0,
        rule,
        shields,
        scope: zero(),
    }
}

/// The walk met no rule. Every root that the policy knows has one.
#[inline(always)]
fn end(super_block: SuperBlock, last: Dentry, shields: u32) -> Place {
    if super_block.root() == last {
        return nothing(builtin::UNKNOWN_FILESYSTEM, shields);
    }
    // Pipes, sockets, memfds and anonymous inodes are their own parents.
    if super_block.flags() & SB_KERNMOUNT != 0 {
        return Place {
            rights: bits::READ | bits::WRITE,
            ..nothing(0, shields)
        };
    }
    nothing(builtin::DISCONNECTED, shields)
}
