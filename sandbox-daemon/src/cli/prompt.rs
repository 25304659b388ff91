//! A line from the caller's terminal that nobody sees. However this ends, the
//! terminal is as it was.

use std::{
    io::{self, Read as _},
    os::fd::AsFd as _,
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{SigSet, Signal, raise},
        signalfd::{SfdFlags, SignalFd},
        termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr},
    },
};
use zeroize::Zeroizing;

use super::{error::CliError, tell};

/// A line that is as long as a terminal takes may be a part of a longer one.
const MAX_LINE: usize = 4095;

/// Those that would end or stop this process and leave the terminal without echo.
const SIGNALS: [Signal; 5] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGTSTP,
];

/// What came.
pub(super) enum Answer {
    /// A line, with its end.
    Given(Zeroizing<Vec<u8>>),
    /// The signal that is to end this process.
    Signal(u32),
}

/// Asks on stderr and reads from stdin's terminal.
pub(super) fn ask(question: &str) -> Result<Answer, CliError> {
    let error = |operation| move |source: io::Error| CliError::Io { operation, source };
    let answer = wait(question).map_err(error("ask on the terminal"))?;
    match &answer {
        Answer::Given(line) if line.len() >= MAX_LINE => Err(CliError::LongLine),
        _ => Ok(answer),
    }
}

fn wait(question: &str) -> io::Result<Answer> {
    // Before the terminal is changed; they are let through again below.
    let blocked = Blocked::new()?;
    loop {
        let hidden = Hidden::new()?;
        tell(question);
        let arrived = blocked.until_input()?;
        let line = match arrived {
            None => Some(read_line()?),
            Some(_) => None,
        };
        drop(hidden);
        // The one that was typed was not shown.
        tell("\n");
        match (line, arrived) {
            (Some(line), _) => return Ok(Answer::Given(line)),
            // Stopped like anybody else, and asked again later.
            (None, Some(Signal::SIGTSTP)) => raise(Signal::SIGSTOP)?,
            (None, Some(signal)) => return Ok(Answer::Signal((signal as i32).unsigned_abs())),
            (None, None) => {}
        }
    }
}

/// One read is one line: the terminal hands out whole ones.
fn read_line() -> io::Result<Zeroizing<Vec<u8>>> {
    let mut line = Zeroizing::new(vec![0; MAX_LINE + 1]);
    // Not by `io::stdin`, which keeps what it has read.
    let stdin = io::stdin().as_fd().try_clone_to_owned()?;
    let length = std::fs::File::from(stdin).read(&mut line)?;
    line.truncate(length);
    Ok(line)
}

/// Signals that are read instead of obeyed.
struct Blocked {
    signals: SignalFd,
    before: SigSet,
}

impl Blocked {
    fn new() -> io::Result<Self> {
        let set: SigSet = SIGNALS.into_iter().collect();
        let before = SigSet::thread_get_mask()?;
        set.thread_block()?;
        let signals = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC);
        let signals = signals.inspect_err(|_| {
            let _ = before.thread_set_mask();
        })?;
        Ok(Self { signals, before })
    }

    /// Waits for input, or for a signal.
    fn until_input(&self) -> io::Result<Option<Signal>> {
        let stdin = io::stdin();
        let mut ready = [
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(stdin.as_fd(), PollFlags::POLLIN),
        ];
        loop {
            match poll(&mut ready, PollTimeout::NONE) {
                Ok(_) => break,
                Err(nix::Error::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if ready[0].any() != Some(true) {
            return Ok(None);
        }
        let arrived = self.signals.read_signal()?;
        let number = arrived.map(|it| it.ssi_signo.cast_signed());
        Ok(number.map(Signal::try_from).transpose()?)
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        let _ = self.before.thread_set_mask();
    }
}

/// A terminal that does not show what is typed; unwinding restores it too.
struct Hidden(Termios);

impl Hidden {
    fn new() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut quiet = before.clone();
        quiet
            .local_flags
            .remove(LocalFlags::ECHO | LocalFlags::ECHONL);
        quiet
            .local_flags
            .insert(LocalFlags::ICANON | LocalFlags::ISIG);
        // What was typed before was shown: it is no answer.
        tcsetattr(io::stdin(), SetArg::TCSAFLUSH, &quiet)?;
        Ok(Self(before))
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        // If the terminal is gone, there is nothing to restore.
        let _ = tcsetattr(io::stdin(), SetArg::TCSADRAIN, &self.0);
    }
}
