//! Pseudo-terminals for commands whose caller has a terminal.

use std::{
    io,
    os::fd::{AsFd, AsRawFd as _, OwnedFd},
};

use nix::{
    sys::stat::{Mode, fchmod},
    unistd::{Uid, fchown},
};

use super::{Account, LaunchError};
use crate::sys;

/// Both sides of a pseudo-terminal.
#[derive(Debug)]
pub struct Pty {
    /// The daemon's side.
    pub master: OwnedFd,
    /// The command's side: its descriptors 0 to 2.
    pub slave: OwnedFd,
}

/// Of a terminal, in cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Lines.
    pub rows: u16,
    /// Columns.
    pub columns: u16,
}

/// Makes a pseudo-terminal that belongs to the account.
pub fn open_pty(account: &Account, size: Size) -> Result<Pty, LaunchError> {
    let failed = |step| move |source| LaunchError::Terminal { step, source };
    let master = sys::open_master().map_err(failed("open `/dev/ptmx`"))?;
    let slave = sys::open_slave(&master).map_err(failed("open its other side"))?;
    fchown(&slave, Some(Uid::from_raw(account.uid)), None)
        .map_err(io::Error::from)
        .map_err(failed("give it to the user"))?;
    // Nobody else writes to it, whatever the mount of devpts says.
    fchmod(&slave, Mode::S_IRUSR | Mode::S_IWUSR)
        .map_err(io::Error::from)
        .map_err(failed("set its mode"))?;
    size.apply(&master)?;
    Ok(Pty { master, slave })
}

impl Size {
    /// Gives a terminal this size; its foreground process group gets SIGWINCH.
    pub fn apply(self, terminal: impl AsFd) -> Result<(), LaunchError> {
        sys::set_window_size(terminal, self.rows, self.columns).map_err(|source| {
            LaunchError::Terminal {
                step: "set its size",
                source,
            }
        })
    }
}

/// The process group in the foreground of the terminal, if there is one.
pub fn foreground_group(master: impl AsFd) -> io::Result<Option<i32>> {
    let mut group: libc::pid_t = 0;
    let master = master.as_fd().as_raw_fd();
    // SAFETY: TIOCGPGRP writes one pid_t, which outlives the call.
    let result = unsafe { libc::ioctl(master, libc::TIOCGPGRP, &raw mut group) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((group > 0).then_some(group))
}
