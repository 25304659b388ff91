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
        let terminal = Self {
            before: tcgetattr(io::stdin())?,
        };
        terminal.resume()?;
        Ok(terminal)
    }

    /// Gives the terminal back as it was, for as long as this process is stopped.
    pub(super) fn suspend(&self) {
        // If the terminal is gone, there is nothing to restore.
        let _ = tcsetattr(io::stdin(), SetArg::TCSADRAIN, &self.before);
    }

    /// Raw again. In the background it stops this process until it is in the
    /// foreground.
    pub(super) fn resume(&self) -> io::Result<()> {
        let mut raw = self.before.clone();
        cfmakeraw(&mut raw);
        Ok(tcsetattr(io::stdin(), SetArg::TCSADRAIN, &raw)?)
    }

    /// Whether nobody will ever see it again.
    pub(super) fn is_gone() -> bool {
        tcgetattr(io::stdin()).is_err()
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        self.suspend();
    }
}
