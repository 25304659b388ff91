//! Thin, typed wrappers of the system calls and `/proc` files for which `nix`
//! and `std` have nothing. No policy and no state lives here.

mod bpf;
mod caller;
mod clone;
mod credentials;
mod keyring;
mod memory;
mod mount;
mod mountinfo;
mod pidfd;
mod process;
mod socket;
mod statx;
mod terminal;
mod watched;
mod wiping;

pub use bpf::{map_has_map, map_insert_all, map_insert_map, map_remove_map, map_set_first};
pub use caller::{duplicate, window_size};
pub use clone::clone_in_place;
pub use credentials::{
    Capabilities, Credentials, bounding_set_drop_all, clear_ambient_capabilities, no_new_privileges,
};
pub use keyring::join_new_session_keyring;
pub use memory::{forget_constant, share_free_memory, trim};
pub use mount::{attach_tree, clone_tree};
pub use mountinfo::{Mount, OWN as OWN_MOUNT, ParseMountError, parse as parse_mountinfo};
pub use pidfd::{ExitStatus, pidfd_getfd, pidfd_open, pidfd_send_signal, reap, try_reap};
pub use process::{
    Ids, ProcessStat, Status, process_stat, process_status, share_descriptors, start_time,
};
pub use socket::socket_cookie;
pub use statx::stat;
pub use terminal::{open_master, open_slave, set_window_size};
pub use watched::Watched;
pub use wiping::Wiping;

use std::io;

/// The result of a raw system call as `std` has it.
pub(crate) fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}
