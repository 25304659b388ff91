//! Unix sockets: only those of the same sandbox, or that the policy names.

use aya_ebpf::programs::LsmContext;
use sandbox_common::{Key, Operation, Right, UNREADABLE, builtin, kind};

use crate::{
    files,
    layout::probe,
    maps::lookup,
    member::{self, Member, Who},
    verdict::{self, Errno, Reason},
};

/// `unix_stream_connect(sock, other, newsk)`
#[inline(always)]
pub fn stream(ctx: &LsmContext) -> i32 {
    reach(ctx.arg(1), Operation::Connect)
}

/// `unix_may_send(sock, other)`, of `struct socket`
#[inline(always)]
pub fn datagram(ctx: &LsmContext) -> i32 {
    match member::current() {
        Who::Outside => 0,
        _ => reach(probe::sock(ctx.arg(1)), Operation::Send),
    }
}

/// A socket (`struct sock`) of another process, by its address.
#[inline(always)]
fn reach(other: u64, operation: Operation) -> i32 {
    let member = match member::current() {
        Who::Outside => return 0,
        Who::Inside(member) => member,
        Who::Orphan { .. } => return Errno::Perm.refused(),
    };
    if member::of_sock(other) == member.sandbox || named(&member, other) {
        return 0;
    }
    let reason = Reason {
        operation,
        right: Right::Connect,
        errno: Errno::Perm,
        rule: builtin::UNIX,
    };
    verdict::unix(&member, reason, other)
}

/// Whether the policy names the path that a socket is bound to: by directory
/// and name, because a service that starts anew makes a new file.
#[inline(always)]
fn named(member: &Member, sock: u64) -> bool {
    let dentry = probe::unix_dentry(sock);
    if dentry == 0 {
        return false;
    }
    let parent = probe::parent(dentry);
    let name = files::hash(probe::name(dentry), probe::magic(dentry));
    if name == UNREADABLE {
        return false;
    }
    let (ino, _) = probe::inode(parent);
    let key = Key {
        kind: kind::UNIX,
        dev: probe::dev(parent),
        ino,
        extra: name,
    };
    lookup(member.rules, &key).is_some()
}
