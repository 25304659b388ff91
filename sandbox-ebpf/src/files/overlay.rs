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
    let lent = borrows();
    if denied && matches!(reason.right, Right::Read) {
        // What is denied is denied on the daemon's overlay, too.
        return lent == DAEMON;
    }
    lent != 0
}

/// The daemon's own overlays borrow the credentials of a thread that has given up
/// what its programs could do, and can do everything itself: no program is so, and
/// no other thread of root's.
const DAEMON: u64 = 2;

/// Whether the kernel works with credentials for the current process that can do
/// more than its own, and whether they are the daemon's: 0, 1, or [`DAEMON`]. No
/// process gets there by itself.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn borrows() -> u64 {
    // SAFETY: the helper takes no arguments.
    let task = unsafe { bpf_get_current_task() };
    let (borrowed, own) = probe::credentials(task);
    if borrowed == own {
        return 0;
    }
    if probe::capabilities(borrowed) & !probe::capabilities(own) == 0 {
        return 0;
    }
    if probe::bounding_set(borrowed) == 0 && probe::uid(borrowed) == 0 {
        return DAEMON;
    }
    1
}
