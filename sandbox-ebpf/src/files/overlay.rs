//! What overlayfs does below itself, on behalf of a process whose operation was
//! decided where the process performs it: on the overlay.

use aya_ebpf::helpers::generated::bpf_get_current_task;
use sandbox_common::{Right, builtin};

use crate::{layout::probe, verdict::Reason};

/// Whether a refusal is one that the process does not get: on a layer of an
/// overlay, where it is not denied by name. Who mounted an overlay may reach its
/// layers, and overlayfs takes on that one's credentials.
#[inline(always)]
pub fn lets_through(reason: &Reason) -> bool {
    let denied = reason.rule != builtin::NONE && reason.rule < builtin::TOO_DEEP;
    if denied && matches!(reason.right, Right::Read) {
        return false;
    }
    borrows() != 0
}

/// Whether the kernel works with credentials for the current process that can do
/// more than its own. No process gets there by itself.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn borrows() -> u64 {
    // SAFETY: the helper takes no arguments.
    let task = unsafe { bpf_get_current_task() };
    let (borrowed, own) = probe::credentials(task);
    if borrowed == own {
        return 0;
    }
    u64::from(probe::capabilities(borrowed) & !probe::capabilities(own) != 0)
}
