//! Files of proc: a process's own and those of others in its sandbox may be
//! written, as far as the kernel lets them be; those of processes outside are
//! not even opened. No check for ptrace(2) stands before most of them.

use sandbox_common::bits;

use super::walk::FOREIGN;
use crate::{
    layout::{Dentry, probe},
    member,
};

/// A sandbox, and the dentry that it asks about. Without padding.
#[repr(C)]
#[derive(Clone, Copy)]
struct Asked {
    sandbox: u64,
    dentry: u64,
}

/// What may be done with a file of proc at most.
#[inline(always)]
pub fn rights(sandbox: u64, dentry: Dentry) -> u32 {
    let asked = Asked {
        sandbox,
        dentry: dentry.raw(),
    };
    process_rights(&raw const asked)
}

/// The same, checked by the verifier once and not in every walk.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn process_rights(asked: *const Asked) -> u32 {
    // SAFETY: the caller's own. The verifier wants the question asked.
    let Some(asked) = (unsafe { asked.as_ref() }) else {
        return 0;
    };
    let pid = probe::proc_pid(asked.dentry);
    if pid == 0 {
        return bits::READ;
    }
    // One that has ended may be one that is just executing: execve(2) in a thread
    // takes its number away for a moment.
    let task = probe::pid_task(pid);
    if task != 0 && member::of_task(task) == asked.sandbox {
        return bits::READ | bits::WRITE;
    }
    bits::READ | FOREIGN
}
