//! Where every hook ends: enforce or observe, the errno, the event.

use sandbox_common::{Operation, Right, Value, Verdict, builtin, header};

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
}

impl Errno {
    #[inline(always)]
    pub fn refused(self) -> i32 {
        match self {
            Self::Perm => -1,
            Self::NoEnt => -2,
            Self::Acces => -13,
            Self::Xdev => -18,
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
    process(member, reason, dentry.raw())
}

/// Refuses what a process would do, with the address of a dentry to show.
#[inline(always)]
pub fn process(member: &Member, reason: Reason, dentry: u64) -> i32 {
    let header = member.header();
    event::event_file(&Refusal {
        dentry,
        ..refusal(member, header, reason)
    });
    if observes(header) {
        0
    } else {
        reason.errno.refused()
    }
}

/// Refuses an operation of a process whose sandbox has no policy.
#[inline(always)]
pub fn orphan(sandbox: u64, operation: Operation, right: Right, dentry: Dentry) -> i32 {
    let refusal = Refusal {
        sandbox,
        exec: member::current_exec(),
        dentry: dentry.raw(),
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

/// Refuses a network operation: 0 as cgroup programs say it, 1 in observe mode.
#[inline(always)]
pub fn network(member: &Member, reason: Reason, destination: &Destination) -> i32 {
    let header = member.header();
    event::event_network(&refusal(member, header, reason), destination);
    i32::from(observes(header))
}

/// Refuses a packet, likewise.
#[inline(always)]
pub fn packet(member: &Member, reason: Reason, destination: &Destination) -> i32 {
    let header = member.header();
    event::event_packet(&refusal(member, header, reason), destination);
    i32::from(observes(header))
}

#[inline(always)]
fn observes(header: Value) -> bool {
    header.bits & header::OBSERVE != 0
}

#[inline(always)]
fn refusal(member: &Member, header: Value, reason: Reason) -> Refusal {
    Refusal {
        sandbox: member.sandbox,
        exec: member.exec(),
        dentry: 0,
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
