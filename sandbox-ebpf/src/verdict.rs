//! Where every hook ends: enforce or observe, the errno, the event.

use aya_ebpf::helpers::generated::bpf_set_retval;
use sandbox_common::{Facility, Operation, Right, Value, Verdict, builtin, header};

use crate::{
    event::{self, Destination, Refusal},
    layout::Dentry,
    member::{self, Member},
};

/// The errors that hooks return. Programs return literals, so that the
/// verifier sees their range (6.12 requires -4095..=0, 6.1 takes anything).
/// Not ESRCH (kill_pid_info() retries on it), ESTALE or ECHILD (path walks do).
#[derive(Clone, Copy)]
#[repr(u32)]
pub enum Errno {
    Perm = 1,
    NoEnt = 2,
    Acces = 13,
    Xdev = 18,
    AddrInUse = 98,
    ConnRefused = 111,
}

impl Errno {
    #[inline(always)]
    pub fn refused(self) -> i32 {
        match self {
            Self::Perm => -1,
            Self::NoEnt => -2,
            Self::Acces => -13,
            Self::Xdev => -18,
            Self::AddrInUse => -98,
            Self::ConnRefused => -111,
        }
    }
}

/// What is refused, and why.
#[derive(Clone, Copy)]
pub struct Reason {
    pub operation: Operation,
    pub right: Right,
    pub errno: Errno,
    pub rule: u32,
}

/// Refuses an operation on a file.
#[inline(always)]
pub fn file(member: &Member, reason: Reason, dentry: Dentry) -> i32 {
    let header = member.header();
    event::event_file(&refusal(member, header, reason, dentry.raw()));
    errno(header, reason)
}

/// Refuses a connection to a Unix socket (`struct sock`), by its address.
#[inline(always)]
pub fn unix(member: &Member, reason: Reason, sock: u64) -> i32 {
    let header = member.header();
    event::event_unix(&refusal(member, header, reason, sock));
    errno(header, reason)
}

/// Refuses an operation on another process, by the address of its task.
#[inline(always)]
pub fn process(member: &Member, reason: Reason, task: u64) -> i32 {
    let header = member.header();
    event::event_process(&refusal(member, header, reason, task));
    errno(header, reason)
}

/// Refuses what was only asked about: no event.
#[inline(always)]
pub fn silent(member: &Member, reason: Reason) -> i32 {
    errno(member.header(), reason)
}

/// Refuses the use of a part of the kernel; for `detail` see [`Facility`].
#[inline(always)]
pub fn facility(member: &Member, reason: Reason, facility: Facility, detail: u32) -> i32 {
    let header = member.header();
    let target = facility as u64 | u64::from(detail) << 32;
    event::event_facility(&refusal(member, header, reason, target));
    errno(header, reason)
}

/// Refuses a network operation in an LSM hook.
#[inline(always)]
pub fn socket(member: &Member, reason: Reason, destination: &Destination) -> i32 {
    let header = member.header();
    event::event_network(&refusal(member, header, reason, 0), destination);
    errno(header, reason)
}

/// Refuses an operation of a process whose sandbox has no policy.
#[inline(always)]
pub fn orphan(sandbox: u64, operation: Operation, right: Right, dentry: Dentry) -> i32 {
    let refusal = Refusal {
        sandbox,
        exec: member::current_exec(),
        target: dentry.raw(),
        operation: operation as u16,
        right: right as u8,
        verdict: Verdict::Denied as u8,
        errno: Errno::Perm as u32,
        rule: builtin::NO_POLICY,
        generation: 0,
    };
    event::event_file(&refusal);
    Errno::Perm.refused()
}

/// Refuses a network operation in a program on addresses: 0, and 1 in observe
/// mode.
#[inline(always)]
pub fn network(member: &Member, reason: Reason, destination: &Destination) -> i32 {
    let header = member.header();
    event::event_network(&refusal(member, header, reason, 0), destination);
    answer(header, reason.errno)
}

/// Answers what the kernel would answer anyway, which is no refusal.
#[inline(always)]
pub fn unheard(member: &Member, errno: Errno) -> i32 {
    answer(member.header(), errno)
}

/// Of a program on addresses: 0 is EPERM unless it says something else.
#[inline(always)]
fn answer(header: Value, errno: Errno) -> i32 {
    if observes(header) {
        return 1;
    }
    if !matches!(errno, Errno::Perm) {
        // SAFETY: the helper takes any error.
        unsafe { bpf_set_retval(errno.refused()) };
    }
    0
}

/// Refuses a packet, likewise.
#[inline(always)]
pub fn packet(member: &Member, reason: Reason, destination: &Destination) -> i32 {
    let header = member.header();
    event::event_packet(&refusal(member, header, reason, 0), destination);
    i32::from(observes(header))
}

#[inline(always)]
fn observes(header: Value) -> bool {
    header.bits & header::OBSERVE != 0
}

#[inline(always)]
fn errno(header: Value, reason: Reason) -> i32 {
    if observes(header) {
        0
    } else {
        reason.errno.refused()
    }
}

#[inline(always)]
fn refusal(member: &Member, header: Value, reason: Reason, target: u64) -> Refusal {
    Refusal {
        sandbox: member.sandbox,
        exec: member.exec(),
        target,
        operation: reason.operation as u16,
        right: reason.right as u8,
        verdict: if observes(header) {
            Verdict::Observed
        } else {
            Verdict::Denied
        } as u8,
        errno: reason.errno as u32,
        rule: reason.rule,
        generation: header.rule,
    }
}
