//! The file wall: one small function a hook.

mod control;
mod device;
mod name;
mod overlay;
mod process;
mod setuid;
mod subvolume;
mod walk;

pub use subvolume::subvolume;

use aya_ebpf::programs::LsmContext;
pub use control::{fcntl, ioctl, watch};
pub use name::hash;
use sandbox_common::{Lent, Operation, Right, bits, builtin};
use walk::{FOREIGN, Leaf, find};

use crate::{
    layout::{Attributes, Dentry, File, Path},
    maps::LENT,
    member::Member,
    verdict::{self, Errno, Reason},
};

const FMODE_READ: u32 = 1;
const FMODE_WRITE: u32 = 2;
const FMODE_PATH: u32 = 0x4000;

const ATTR_MODE: u32 = 1;
const S_IFMT: u16 = 0o170_000;
const S_IFIFO: u16 = 0o010_000;

/// The sandbox of the current process; whoever is outside is let through.
macro_rules! enter {
    ($operation:expr, $right:expr, $dentry:expr) => {
        match $crate::member::current() {
            $crate::member::Who::Outside => return 0,
            $crate::member::Who::Inside(member) => member,
            $crate::member::Who::Orphan { sandbox } => {
                return $crate::verdict::orphan(sandbox, $operation, $right, $dentry);
            }
        }
    };
}

use enter;

#[inline(always)]
fn refuse(
    member: &Member,
    operation: Operation,
    right: Right,
    errno: Errno,
    rule: u32,
    dentry: Dentry,
) -> i32 {
    let reason = Reason {
        operation,
        right,
        errno,
        rule,
    };
    if overlay::lets_through(&reason) {
        return 0;
    }
    verdict::file(member, reason, dentry)
}

/// `file_open(file)`
#[inline(always)]
pub fn open(ctx: &LsmContext) -> i32 {
    let file = File::arg(ctx, 0);
    let (dentry, mode) = (file.dentry(), file.mode());
    let member = enter!(Operation::Open, Right::Read, dentry);
    opened(&member, dentry, mode, Operation::Open)
}

/// `file_receive(file)`: a descriptor that another process sends, by a socket,
/// pidfd_getfd(2), or a filter of seccomp(2). Sockets are the network wall's.
#[inline(always)]
pub fn receive(ctx: &LsmContext) -> i32 {
    let file = File::arg(ctx, 0);
    let (dentry, mode) = (file.dentry(), file.mode());
    let member = enter!(Operation::Receive, Right::Read, dentry);
    // With one of `O_PATH` nothing is done but open again.
    if mode & FMODE_PATH != 0 || lent(&member, dentry) {
        return 0;
    }
    opened(&member, dentry, mode, Operation::Receive)
}

/// Whether a sandbox may have a file open in a mode: 0 or the error.
#[inline(always)]
fn opened(member: &Member, dentry: Dentry, mode: u32, operation: Operation) -> i32 {
    let place = find(member, Leaf::file(dentry));
    if !place.allows(bits::READ) {
        return refuse(
            member,
            operation,
            Right::Read,
            Errno::NoEnt,
            place.rule,
            dentry,
        );
    }
    // Access mode 3 grants neither, but ioctl(2): it takes both.
    let mut writes = mode & FMODE_WRITE != 0 || mode & FMODE_READ == 0;
    let inode = dentry.inode();
    let mode = inode.mode();
    // What is read from a pipe nobody else reads.
    if mode & S_IFMT == S_IFIFO && !lent(member, dentry) {
        writes = true;
    }
    if place.rights & FOREIGN != 0 {
        return refuse(
            member,
            operation,
            Right::Read,
            Errno::NoEnt,
            builtin::PROCESS,
            dentry,
        );
    }
    if writes && !place.allows(bits::WRITE) {
        return refuse(
            member,
            operation,
            Right::Write,
            Errno::Acces,
            place.rule,
            dentry,
        );
    }
    if writes && setuid::is(mode) {
        return refuse(
            member,
            operation,
            Right::Write,
            Errno::Perm,
            builtin::SETUID,
            dentry,
        );
    }
    if device::is(mode) && !device::opens(member, dentry, inode) {
        let right = if writes { Right::Write } else { Right::Read };
        return refuse(
            member,
            operation,
            right,
            Errno::Perm,
            builtin::DEVICE,
            dentry,
        );
    }
    0
}

/// `path_truncate(path)`
#[inline(always)]
pub fn path_truncate(ctx: &LsmContext) -> i32 {
    change(Operation::Truncate, Leaf::file(Path::arg(ctx, 0).dentry()))
}

/// `file_truncate(file)`, from 6.2 on
#[inline(always)]
pub fn file_truncate(ctx: &LsmContext) -> i32 {
    change(Operation::Truncate, Leaf::file(File::arg(ctx, 0).dentry()))
}

/// `inode_setxattr(idmap, dentry, name, ...)`, `inode_set_acl(...)` and those
/// that remove: the same argument in each.
#[inline(always)]
pub fn attribute(ctx: &LsmContext, operation: Operation) -> i32 {
    change(operation, Leaf::file(Dentry::arg(ctx, 1)))
}

/// `inode_mknod(dir, dentry, mode, dev)`: no device, wherever.
#[inline(always)]
pub fn mknod(ctx: &LsmContext) -> i32 {
    let (dentry, mode, number): (_, u32, u32) = (Dentry::arg(ctx, 1), ctx.arg(2), ctx.arg(3));
    let refused = change(Operation::Mknod, Leaf::name(dentry, false));
    if refused != 0 || !device::made(mode as u16, number) {
        return refused;
    }
    let member = enter!(Operation::Mknod, Right::Write, dentry);
    refuse(
        &member,
        Operation::Mknod,
        Right::Write,
        Errno::Perm,
        builtin::DEVICE,
        dentry,
    )
}

/// `inode_create(dir, dentry, mode)` and its kin: a new name.
#[inline(always)]
pub fn create(ctx: &LsmContext, operation: Operation) -> i32 {
    let dentry = Dentry::arg(ctx, 1);
    // open(2) with `O_CREAT` asks before it has looked whether there is such a
    // file. In proc nothing is ever made: `/dev/fd/1` is there already.
    if dentry.super_block().magic() == walk::PROC {
        return 0;
    }
    let directory = matches!(operation, Operation::Mkdir);
    let refused = change(operation, Leaf::name(dentry, directory));
    // The others have something else there.
    let mode: u16 = ctx.arg(2);
    if refused != 0 || !matches!(operation, Operation::Create) || !setuid::is(mode) {
        return refused;
    }
    privileged(operation, dentry)
}

/// `inode_unlink(dir, dentry)`, `inode_rmdir(dir, dentry)`
#[inline(always)]
pub fn remove(ctx: &LsmContext, operation: Operation) -> i32 {
    let dentry = Dentry::arg(ctx, 1);
    let member = enter!(operation, Right::Write, dentry);
    if overlay::borrows() != 0 {
        return 0;
    }
    movable(&member, operation, Leaf::file(dentry)).0
}

/// `inode_link(old_dentry, dir, new_dentry)`: never more rights by a new name.
#[inline(always)]
pub fn link(ctx: &LsmContext) -> i32 {
    let (old, new) = (Dentry::arg(ctx, 0), Dentry::arg(ctx, 2));
    let member = enter!(Operation::Link, Right::Write, old);
    // The new name first: nothing of it is needed once it may be written, which
    // spares the verifier most of the combinations of two walks.
    let to = find(&member, Leaf::name(new, false));
    if !to.allows(bits::WRITE) {
        return refuse(
            &member,
            Operation::Link,
            Right::Write,
            Errno::Acces,
            to.rule,
            new,
        );
    }
    let from = find(&member, Leaf::file(old));
    if !from.allows(bits::READ) {
        return refuse(
            &member,
            Operation::Link,
            Right::Read,
            Errno::NoEnt,
            from.rule,
            old,
        );
    }
    if !from.allows(bits::WRITE) {
        return refuse(
            &member,
            Operation::Link,
            Right::Write,
            Errno::Xdev,
            from.rule,
            old,
        );
    }
    0
}

/// `inode_rename(old_dir, old_dentry, new_dir, new_dentry)`. The kernel calls
/// it both ways round for an exchange. What is moved could be written where it
/// was, so the move cannot raise what can be done with it; but a directory must
/// not carry what it holds away from a name pattern.
#[inline(always)]
pub fn rename(ctx: &LsmContext) -> i32 {
    let (old, new) = (Dentry::arg(ctx, 1), Dentry::arg(ctx, 3));
    let member = enter!(Operation::Rename, Right::Write, old);
    if overlay::borrows() != 0 {
        return 0;
    }
    let (refused, from) = movable(&member, Operation::Rename, Leaf::file(old));
    if refused != 0 {
        return refused;
    }
    let directory = old.is_directory();
    let (refused, to) = movable(&member, Operation::Rename, Leaf::name(new, directory));
    if refused == 0 && from != 0 && from != to && directory {
        let reason = Reason {
            operation: Operation::Rename,
            right: Right::Write,
            errno: Errno::Xdev,
            rule: builtin::PATTERN,
        };
        return verdict::file(&member, reason, old);
    }
    refused
}

/// `inode_setattr(dentry, attr)`; from 6.2 on `(idmap, dentry, attr)`.
#[inline(always)]
pub fn setattr(ctx: &LsmContext, argument: usize) -> i32 {
    let (dentry, attributes) = (
        Dentry::arg(ctx, argument),
        Attributes::arg(ctx, argument + 1),
    );
    let refused = change(Operation::Setattr, Leaf::file(dentry));
    if refused != 0
        || attributes.valid() & ATTR_MODE == 0
        || !setuid::becomes(dentry.inode().mode(), attributes.mode())
    {
        return refused;
    }
    privileged(Operation::Setattr, dentry)
}

/// Refuses to make a program that runs as somebody else.
#[inline(always)]
fn privileged(operation: Operation, dentry: Dentry) -> i32 {
    let member = enter!(operation, Right::Write, dentry);
    refuse(
        &member,
        operation,
        Right::Write,
        Errno::Perm,
        builtin::SETUID,
        dentry,
    )
}

/// `inode_file_setattr(dentry, attr)`, from 6.17 on: flags.
#[inline(always)]
pub fn set_flags(ctx: &LsmContext) -> i32 {
    change(Operation::Setattr, Leaf::file(Dentry::arg(ctx, 0)))
}

/// `inode_getattr(path)`
#[inline(always)]
pub fn getattr(ctx: &LsmContext) -> i32 {
    see(Operation::Stat, Leaf::file(Path::arg(ctx, 0).dentry()))
}

/// `inode_getxattr(dentry, name)`, `inode_listxattr(dentry)`,
/// `inode_get_acl(idmap, dentry, name)`
#[inline(always)]
pub fn attributes(ctx: &LsmContext, argument: usize) -> i32 {
    see(Operation::Getxattr, Leaf::file(Dentry::arg(ctx, argument)))
}

/// `inode_readlink(dentry)`
#[inline(always)]
pub fn readlink(ctx: &LsmContext) -> i32 {
    see(Operation::Readlink, Leaf::file(Dentry::arg(ctx, 0)))
}

#[inline(always)]
fn change(operation: Operation, leaf: Leaf) -> i32 {
    let dentry = leaf.dentry;
    let member = enter!(operation, Right::Write, dentry);
    let place = find(&member, leaf);
    if place.allows(bits::WRITE) {
        return 0;
    }
    refuse(
        &member,
        operation,
        Right::Write,
        Errno::Acces,
        place.rule,
        dentry,
    )
}

/// Directories above a readable place are seen too, because programs resolve
/// paths, and so are standard streams, which they ask about when they start.
#[inline(always)]
fn see(operation: Operation, leaf: Leaf) -> i32 {
    let dentry = leaf.dentry;
    let member = enter!(operation, Right::Read, dentry);
    let place = find(&member, leaf);
    if place.allows(bits::READ) || place.shields != 0 || lent(&member, dentry) {
        return 0;
    }
    refuse(
        &member,
        operation,
        Right::Read,
        Errno::NoEnt,
        place.rule,
        dentry,
    )
}

/// Whether the sandbox was given the file open.
#[inline(always)]
fn lent(member: &Member, dentry: Dentry) -> bool {
    let inode = dentry.inode();
    if inode.is_null() {
        return false;
    }
    let key = Lent {
        sandbox: member.sandbox,
        ino: inode.ino(),
        dev: dentry.super_block().dev(),
        generation: inode.generation(),
    };
    LENT.get_ptr(key).is_some()
}

/// Whether a name may go away, or be taken by another file: 0 or the error; and
/// the place's `scope`.
#[inline(always)]
fn movable(member: &Member, operation: Operation, leaf: Leaf) -> (i32, u64) {
    let dentry = leaf.dentry;
    let place = find(member, leaf);
    if place.allows(bits::WRITE) && place.shields == 0 {
        return (0, place.scope);
    }
    let rule = if place.allows(bits::WRITE) {
        place.shields
    } else {
        place.rule
    };
    let reason = Reason {
        operation,
        right: Right::Write,
        errno: Errno::Acces,
        rule,
    };
    (verdict::file(member, reason, dentry), place.scope)
}
