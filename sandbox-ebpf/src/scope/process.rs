//! Other processes: only those of the same sandbox.

use aya_ebpf::{helpers::generated::bpf_get_current_task, programs::LsmContext};
use sandbox_common::{Facility, Operation, builtin};

use super::{enter, nullable, reason};
use crate::{
    layout::{File, probe},
    member, verdict,
};

/// `PTRACE_MODE_NOAUDIT`
const NOAUDIT: u32 = 0x04;

/// `ptrace_access_check(child, mode)`: ptrace(2), most of `/proc/PID`,
/// `process_vm_readv(2)`, `pidfd_getfd(2)`, setns(2), kcmp(2), ...
#[inline(always)]
pub fn inspect(ctx: &LsmContext) -> i32 {
    let (task, mode): (u64, u32) = (ctx.arg(0), ctx.arg(1));
    let member = enter!();
    if member::of_task(task) == member.sandbox {
        return 0;
    }
    let reason = reason(Operation::Ptrace, builtin::PROCESS);
    // ps(1) reads /proc/PID/stat, where the kernel only asks what to leave out.
    if mode & NOAUDIT != 0 {
        return verdict::silent(&member, reason);
    }
    verdict::process(&member, reason, task)
}

/// `task_kill(task, info, sig, cred)`
#[inline(always)]
pub fn signal(ctx: &LsmContext) -> i32 {
    let task: u64 = ctx.arg(0);
    let member = enter!();
    // With credentials it is the end of somebody's USB request, in whatever
    // process was interrupted.
    if member::of_task(task) == member.sandbox || nullable(ctx, 3) != 0 {
        return 0;
    }
    verdict::process(&member, reason(Operation::Signal, builtin::PROCESS), task)
}

/// An operation on the task that is a hook's first argument.
#[inline(always)]
pub fn other(ctx: &LsmContext, operation: Operation) -> i32 {
    let task: u64 = ctx.arg(0);
    let member = enter!();
    if member::of_task(task) == member.sandbox {
        return 0;
    }
    verdict::process(&member, reason(operation, builtin::PROCESS), task)
}

// asm-generic/fcntl.h
const F_SETFL: u32 = 4;
const F_SETOWN: u32 = 8;
const F_SETSIG: u32 = 10;
const F_SETOWN_EX: u32 = 15;
const O_ASYNC: u64 = 0o20_000;
const SIGIO: u32 = 29;

/// `file_fcntl(file, cmd, arg)`: who is sent which signal when a file can be
/// read. The kernel sends it for whoever causes it, and so past `task_kill`:
/// the owner may be nobody but the process itself, and the signal SIGIO.
/// `F_SETOWN_EX` has its owner in the process's memory, where another thread
/// may exchange it after it was looked at.
#[inline(always)]
pub fn set_owner(ctx: &LsmContext) -> i32 {
    let (command, argument): (u32, u64) = (ctx.arg(1), ctx.arg(2));
    let owner = match command {
        F_SETOWN if argument as u32 != 0 => argument as u32,
        F_SETSIG if argument as u32 != 0 && argument as u32 != SIGIO => 0,
        F_SETOWN_EX => 0,
        F_SETFL if argument & O_ASYNC != 0 && is_character_device(ctx) => 0,
        _ => return 0,
    };
    let member = enter!();
    // SAFETY: the helper takes no arguments.
    if owner != 0 && owner == probe::own_tgid(unsafe { bpf_get_current_task() }) {
        return 0;
    }
    let reason = reason(Operation::Fcntl, builtin::PROCESS);
    verdict::facility(&member, reason, Facility::SignalOwner, owner)
}

// asm-generic/{sockios,ioctls}.h
const FIOSETOWN: u32 = 0x8901;
const SIOCSPGRP: u32 = 0x8902;
const FIOASYNC: u32 = 0x5452;

/// The same for `file_ioctl(file, cmd, arg)`, whose argument is a pointer.
#[inline(always)]
pub fn set_owner_by_ioctl(ctx: &LsmContext) -> i32 {
    let command: u32 = ctx.arg(1);
    match command {
        FIOSETOWN | SIOCSPGRP => {}
        FIOASYNC if is_character_device(ctx) => {}
        _ => return 0,
    }
    let member = enter!();
    let reason = reason(Operation::Ioctl, builtin::PROCESS);
    verdict::facility(&member, reason, Facility::SignalOwner, 0)
}

/// Terminals choose an owner themselves: the group in the foreground, which may
/// be the shell that the sandbox was started from.
#[inline(always)]
fn is_character_device(ctx: &LsmContext) -> bool {
    let (_, mode) = probe::inode(File::arg(ctx, 0).dentry().raw());
    mode & 0o170_000 == 0o020_000
}
