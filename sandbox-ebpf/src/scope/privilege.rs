//! Capabilities: root inside is not root.

use aya_ebpf::programs::LsmContext;
use sandbox_common::{Facility, Operation, builtin, header};

use super::{enter, kernel::is_the_kernels, reason};
use crate::{layout::probe, verdict};

/// `CAP_OPT_NOAUDIT`
const NOAUDIT: u32 = 1 << 1;

/// What root inside keeps, by number (linux/capability.h).
const KEPT: u64 = mask(&[
    // Files of other users: the file wall decides about each.
    0,  // CHOWN
    1,  // DAC_OVERRIDE
    2,  // DAC_READ_SEARCH
    3,  // FOWNER
    4,  // FSETID
    28, // LEASE
    // Processes: the scope wall decides about each.
    5,  // KILL
    19, // SYS_PTRACE, which ps(1) asks for
    23, // SYS_NICE
    // Becoming somebody else: package managers, su(1), tar(1).
    6, // SETGID
    7, // SETUID
    8, // SETPCAP: only takes away
    // The network wall decides about each.
    10, // NET_BIND_SERVICE
    // Memory, and System V objects of the same sandbox.
    14, // IPC_LOCK
    15, // IPC_OWNER
    // Each has one door, where a hook refuses and says what was attempted:
    // `path_chroot`, `bpf`.
    18, // SYS_CHROOT
    39, // BPF
]);

const fn mask(numbers: &[u32]) -> u64 {
    let mut mask = 0;
    let mut at = 0;
    while at < numbers.len() {
        mask |= 1 << numbers[at];
        at += 1;
    }
    mask
}

/// `capable(cred, ns, cap, opts)`. Runs only for whoever has the capability.
#[inline(always)]
pub fn capability(ctx: &LsmContext) -> i32 {
    let member = enter!();
    let number: u32 = ctx.arg(2);
    if KEPT >> (number & 63) & 1 != 0 && number < 64 {
        return 0;
    }
    // Over what a namespace of its own holds; what that must not be is refused
    // where it is attempted.
    if member.header().bits & header::USER_NAMESPACES != 0
        && probe::user_namespace_level(ctx.arg(1)) > 0
    {
        return 0;
    }
    if is_the_kernels(ctx.arg(0)) {
        return 0;
    }
    let reason = reason(Operation::Use, builtin::CAPABILITY);
    let options: u32 = ctx.arg(3);
    if options & NOAUDIT != 0 {
        return verdict::silent(&member, reason);
    }
    verdict::facility(&member, reason, Facility::Capability, number)
}
