//! The caller's terminal while a pseudo-terminal's bytes pass through it.

use std::io;

use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};

/// Raw for as long as this lives; unwinding restores it too.
#[derive(Debug)]
pub(super) struct RawTerminal {
    before: Termios,
}

impl RawTerminal {
    /// Switches stdin's terminal to raw: the keys, interrupt and all, are for
    /// the command's terminal to interpret.
    pub(super) fn enter() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(io::stdin(), SetArg::TCSADRAIN, &raw)?;
        Ok(Self { before })
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // If the terminal is gone, there is nothing to restore.
        let _ = tcsetattr(io::stdin(), SetArg::TCSADRAIN, &self.before);
    }
}
