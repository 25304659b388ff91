//! How the command's standard streams reach the caller's.

use std::{
    io::{self, IsTerminal as _},
    os::fd::AsFd,
    thread,
    time::Duration,
};

use bytes::Bytes;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::termios::{LocalFlags, tcgetattr},
    unistd::{getpgrp, read, tcgetpgrp},
};
use tokio::sync::mpsc;

use crate::proto::{CloseStdin, RunRequest, Stdio, run_request::Request};

/// How often to look whether a terminal that somebody else drives is free.
const TERMINAL_RECHECK: Duration = Duration::from_millis(50);

/// Which of the caller's standard streams are terminals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Terminals {
    /// Descriptor 0.
    pub(super) stdin: bool,
    /// Descriptor 1.
    pub(super) stdout: bool,
    /// Descriptor 2.
    pub(super) stderr: bool,
}

/// The kind of standard streams to ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The command gets the caller's own descriptors: no byte is copied.
    Inherit,
    /// Three pipes, copied.
    Relay,
    /// A terminal of its own, copied to and from the caller's.
    Pty {
        /// stderr is a pipe: the caller redirected it.
        stderr_apart: bool,
    },
}

impl Terminals {
    /// Those of this process.
    pub(super) fn current() -> Self {
        Self {
            stdin: io::stdin().is_terminal(),
            stdout: io::stdout().is_terminal(),
            stderr: io::stderr().is_terminal(),
        }
    }

    /// A caller's terminal is never handed in: whoever holds it can read its
    /// keys and write its screen after the command has ended. In the background
    /// the client would be stopped if it changed the terminal's modes.
    pub(super) fn kind(self, foreground: bool) -> Kind {
        match self {
            Self {
                stdin: false,
                stdout: false,
                stderr: false,
            } => Kind::Inherit,
            Self {
                stdin: true,
                stdout: true,
                stderr,
            } if foreground => Kind::Pty {
                stderr_apart: !stderr,
            },
            _ => Kind::Relay,
        }
    }
}

impl Kind {
    /// Its name in the API.
    pub(super) fn proto(self) -> Stdio {
        match self {
            Self::Inherit => Stdio::Inherit,
            Self::Relay => Stdio::Relay,
            Self::Pty { .. } => Stdio::Pty,
        }
    }

    /// Starts to send the caller's stdin. The thread ends with the process: a
    /// read of a terminal cannot be taken back.
    pub(super) fn send_stdin(self, requests: mpsc::Sender<RunRequest>) -> io::Result<()> {
        if self == Self::Inherit {
            return Ok(());
        }
        let shared_terminal = self == Self::Relay && io::stdin().is_terminal();
        thread::Builder::new()
            .name("stdin".to_owned())
            .spawn(move || {
                copy(io::stdin(), shared_terminal, |piece| {
                    let piece = match piece {
                        Some(bytes) => Request::Stdin(bytes),
                        None => Request::CloseStdin(CloseStdin {}),
                    };
                    requests.blocking_send(request(piece)).is_ok()
                });
            })
            .map(drop)
    }
}

/// Sends what can be read until the end, which is `None`, or until nobody takes it
/// any more.
pub(super) fn copy(
    source: impl AsFd,
    shared_terminal: bool,
    mut send: impl FnMut(Option<Bytes>) -> bool,
) {
    let mut buffer = vec![0; 32 * 1024];
    loop {
        let mut ready = [PollFd::new(source.as_fd(), PollFlags::POLLIN)];
        match poll(&mut ready, PollTimeout::NONE) {
            Ok(_) => {}
            Err(Errno::EINTR) => continue,
            Err(_) => break,
        }
        if shared_terminal && !ours(&source) {
            thread::sleep(TERMINAL_RECHECK);
            continue;
        }
        match read(&source, &mut buffer) {
            Ok(0) => break,
            Ok(length) => {
                if !send(Some(Bytes::copy_from_slice(&buffer[..length]))) {
                    return;
                }
            }
            Err(Errno::EINTR | Errno::EAGAIN) => {}
            Err(_) => break,
        }
    }
    send(None);
}

/// Whether what can be read from a terminal is meant for the command. In
/// `sandbox run -- git log | less` the keys are for `less`, which has switched
/// the terminal to single characters; in the background they are for the
/// shell. A terminal that is gone has an end to be read.
fn ours(terminal: impl AsFd) -> bool {
    match tcgetattr(&terminal) {
        Ok(modes) => foreground(&terminal) && modes.local_flags.contains(LocalFlags::ICANON),
        Err(_) => true,
    }
}

/// Whether a terminal is this process group's to use. One that is not the
/// controlling terminal has no job control.
pub(super) fn foreground(terminal: impl AsFd) -> bool {
    match tcgetpgrp(terminal) {
        Ok(group) => group == getpgrp(),
        Err(_) => true,
    }
}

/// A request of the stream.
pub(super) fn request(request: Request) -> RunRequest {
    RunRequest {
        request: Some(request),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use nix::{
        pty::openpty,
        sys::termios::{SetArg, cfmakeraw, tcsetattr},
        unistd::{pipe, write},
    };

    use super::*;

    fn terminals(stdin: bool, stdout: bool, stderr: bool) -> Terminals {
        Terminals {
            stdin,
            stdout,
            stderr,
        }
    }

    #[test]
    fn a_terminal_is_never_inherited() {
        assert_eq!(terminals(false, false, false).kind(true), Kind::Inherit);
        for bits in 1..8 {
            let some = terminals(bits & 1 != 0, bits & 2 != 0, bits & 4 != 0);
            for foreground in [false, true] {
                assert_ne!(some.kind(foreground), Kind::Inherit, "{some:?}");
            }
        }
    }

    #[test]
    fn a_pseudo_terminal_needs_a_terminal_to_type_and_one_to_see() {
        let whole = Kind::Pty {
            stderr_apart: false,
        };
        assert_eq!(terminals(true, true, true).kind(true), whole);
        let apart = Kind::Pty { stderr_apart: true };
        assert_eq!(terminals(true, true, false).kind(true), apart);
        // `| less`, `< file`, and a log on the terminal alone.
        assert_eq!(terminals(true, false, true).kind(true), Kind::Relay);
        assert_eq!(terminals(false, true, true).kind(true), Kind::Relay);
        assert_eq!(terminals(false, false, true).kind(true), Kind::Relay);
        // `&`: setting the terminal's modes would stop the client.
        assert_eq!(terminals(true, true, true).kind(false), Kind::Relay);
    }

    #[test]
    fn keys_for_somebody_else_are_left_alone() {
        let pty = openpty(None, None).unwrap();
        assert!(ours(&pty.slave));
        let mut modes = tcgetattr(&pty.slave).unwrap();
        cfmakeraw(&mut modes);
        tcsetattr(&pty.slave, SetArg::TCSANOW, &modes).unwrap();
        assert!(!ours(&pty.slave));
        drop(pty.master);
        assert!(ours(&pty.slave), "its end is for everybody");
    }

    #[test]
    fn everything_is_sent_and_then_the_end() {
        let (reader, writer) = pipe().unwrap();
        write(&writer, b"hello").unwrap();
        drop(writer);
        let sent = Mutex::new(Vec::new());
        copy(reader, false, |piece| {
            sent.lock().unwrap().push(piece);
            true
        });
        let hello = Bytes::from_static(b"hello");
        assert_eq!(sent.into_inner().unwrap(), [Some(hello), None]);
    }
}
