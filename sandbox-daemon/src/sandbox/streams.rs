//! The standard streams of a running command: opened, pumped to the caller
//! and fed by it.

use std::{
    io,
    os::fd::OwnedFd,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use nix::unistd::fchown;
use tokio::{
    io::Interest,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
};
use tokio_stream::{Stream, StreamExt as _};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{Caller, Cause, Exec, Input, Output, OutputStream, SandboxError, Stdio, stdio::End};
use crate::{
    chain::Chain,
    launch::{Account, View, open_pty},
};

/// What a caller may send to a stdin that nobody reads before a signal behind
/// it is held up too.
const STDIN_BYTES: u32 = 1 << 20;

/// What a terminal takes for the end of its input (`VEOF`, Ctrl-D).
const END_OF_INPUT: &[u8] = &[4];

/// The daemon's ends.
pub(super) struct Streams {
    pub(super) stdin: Option<End>,
    pub(super) stdout: Option<End>,
    pub(super) stderr: Option<End>,
    /// The master, also in `stdin` and `stdout`.
    pub(super) terminal: Option<End>,
}

/// The command's ends.
pub(super) struct Theirs {
    pub(super) stdin: OwnedFd,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
}

impl Streams {
    pub(super) fn open(
        caller: &Caller,
        account: &Account,
        view: &View,
        stdio: Stdio,
    ) -> Result<(Self, Theirs), SandboxError> {
        match stdio {
            Stdio::Relay => Self::relay(account).map_err(failed("make a pipe")),
            Stdio::Inherit { start_time } => {
                let Some(peer) = &caller.peer else {
                    let problem = "STDIO_INHERIT is for local callers only";
                    return Err(SandboxError::invalid("stdio", problem));
                };
                let [input, output, errors] = peer.take_stdio(start_time)?;
                let none = Self {
                    stdin: None,
                    stdout: None,
                    stderr: None,
                    terminal: None,
                };
                let theirs = Theirs {
                    stdin: input,
                    stdout: output,
                    stderr: errors,
                };
                Ok((none, theirs))
            }
            Stdio::Pty { size, stderr_apart } => {
                // Among the sandbox's own pseudo-terminals.
                let user = account.clone();
                let pty = view.call(move || open_pty(&user, size))?;
                let apart = stderr_apart.then_some(account);
                Self::terminal(pty.master, pty.slave, apart)
                    .map_err(failed("set up a pseudo-terminal"))
            }
        }
    }

    fn relay(account: &Account) -> io::Result<(Self, Theirs)> {
        let (input, read) = End::to_command()?;
        let (output, write) = End::from_command()?;
        let (errors, write_errors) = End::from_command()?;
        for pipe in [&read, &write, &write_errors] {
            give(pipe, account)?;
        }
        let ours = Self {
            stdin: Some(input),
            stdout: Some(output),
            stderr: Some(errors),
            terminal: None,
        };
        let theirs = Theirs {
            stdin: read,
            stdout: write,
            stderr: write_errors,
        };
        Ok((ours, theirs))
    }

    /// With stderr apart for an account.
    fn terminal(
        master: OwnedFd,
        slave: OwnedFd,
        apart: Option<&Account>,
    ) -> io::Result<(Self, Theirs)> {
        let master = End::new(master, Interest::READABLE | Interest::WRITABLE)?;
        let (errors, stderr) = if let Some(account) = apart {
            let (errors, stderr) = End::from_command()?;
            give(&stderr, account)?;
            (Some(errors), stderr)
        } else {
            (None, slave.try_clone()?)
        };
        let ours = Self {
            stdin: Some(master.clone()),
            stdout: Some(master.clone()),
            stderr: errors,
            terminal: Some(master),
        };
        let theirs = Theirs {
            stdin: slave.try_clone()?,
            stdout: slave,
            stderr,
        };
        Ok((ours, theirs))
    }
}

fn failed(what: &'static str) -> impl Fn(io::Error) -> SandboxError {
    move |source| SandboxError::Step { what, source }
}

/// Counts what an exec writes, and ends it once that is more than it may.
pub(super) struct Meter {
    exec: Arc<Exec>,
    left: Option<AtomicU64>,
}

impl Meter {
    pub(super) fn new(exec: &Arc<Exec>) -> Self {
        Self {
            exec: exec.clone(),
            left: exec.limits().output.map(AtomicU64::new),
        }
    }

    /// What of these bytes may be carried on, and whether more may be.
    fn take(&self, bytes: Bytes) -> (Bytes, bool) {
        let Some(left) = &self.left else {
            return (bytes, true);
        };
        let size = bytes.len() as u64;
        let take = |left: u64| Some(left.saturating_sub(size));
        let had = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        let had = had.unwrap_or_default();
        if size <= had {
            return (bytes, true);
        }
        if let Err(error) = self.exec.kill(Cause::Output) {
            tracing::error!(exec = self.exec.id, error = %Chain::of(&error), "cannot kill an exec");
        }
        // It is less than there are.
        let kept = usize::try_from(had).unwrap_or(bytes.len());
        (bytes.slice(..kept), false)
    }
}

/// What carries a command's output to its caller.
pub(super) struct Pumps {
    stdout: Option<AbortOnDropHandle<()>>,
    stderr: Option<AbortOnDropHandle<()>>,
    is_terminal: bool,
}

impl Pumps {
    /// Starts to carry. A caller that reads slowly blocks the command's
    /// writes, as a pipe would.
    pub(super) fn start(
        streams: &mut Streams,
        output: &mpsc::Sender<Output>,
        meter: &Arc<Meter>,
        ended: &CancellationToken,
    ) -> Self {
        let pump = |end: Option<End>, stream| {
            let (output, meter, ended) = (output.clone(), meter.clone(), ended.clone());
            let carry = end?.pump(ended, move |bytes| {
                let output = output.clone();
                let (bytes, more) = meter.take(bytes);
                async move {
                    if bytes.is_empty() {
                        return more;
                    }
                    let sent = output.send(Output::Bytes(stream, bytes)).await.is_ok();
                    sent && more
                }
            });
            Some(AbortOnDropHandle::new(tokio::spawn(carry)))
        };
        Self {
            stdout: pump(streams.stdout.take(), OutputStream::Stdout),
            stderr: pump(streams.stderr.take(), OutputStream::Stderr),
            is_terminal: streams.terminal.is_some(),
        }
    }

    /// Closes the daemon's end: the command's next write fails, as with a
    /// reader that is gone. A terminal stays open.
    pub(super) fn close(&mut self, stream: OutputStream) {
        match stream {
            OutputStream::Stdout if self.is_terminal => {}
            OutputStream::Stdout => self.stdout = None,
            OutputStream::Stderr => self.stderr = None,
        }
    }

    /// Waits until all has been carried.
    pub(super) async fn finish(self) {
        for pump in [self.stdout, self.stderr].into_iter().flatten() {
            // It panicked, which is in the log.
            let _ = pump.await;
        }
    }
}

/// What carries a caller's requests to a command.
pub(super) struct Feeder {
    stdin: Option<End>,
    is_terminal: bool,
    control: mpsc::Sender<Input>,
}

impl Feeder {
    pub(super) fn new(streams: &mut Streams, control: mpsc::Sender<Input>) -> Self {
        Self {
            stdin: streams.stdin.take(),
            is_terminal: streams.terminal.is_some(),
            control,
        }
    }

    /// Until the caller says no more.
    pub(super) async fn feed(self, mut input: Pin<Box<dyn Stream<Item = Input> + Send>>) {
        let room = Arc::new(Semaphore::new(STDIN_BYTES as usize));
        let (queue, queued) = mpsc::unbounded_channel();
        let mut queue = Some(queue);
        let writing =
            AbortOnDropHandle::new(tokio::spawn(write(self.stdin, self.is_terminal, queued)));
        while let Some(input) = input.next().await {
            match input {
                Input::Stdin(bytes) => {
                    let Some(queue) = &queue else { continue };
                    let size = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                    let permits = size.min(STDIN_BYTES);
                    // The semaphore is never closed.
                    let Ok(permit) = room.clone().acquire_many_owned(permits).await else {
                        return;
                    };
                    // Nobody writes any more once writing failed.
                    let _ = queue.send((bytes, permit));
                }
                Input::CloseStdin => queue = None,
                control => {
                    if self.control.send(control).await.is_err() {
                        return;
                    }
                }
            }
        }
        drop(queue);
        let _ = writing.await;
    }
}

/// Writes what is queued, and closes stdin behind it.
async fn write(
    stdin: Option<End>,
    is_terminal: bool,
    mut queued: mpsc::UnboundedReceiver<(Bytes, OwnedSemaphorePermit)>,
) {
    let Some(stdin) = stdin else { return };
    while let Some((bytes, permit)) = queued.recv().await {
        if let Err(error) = stdin.write_all(bytes).await {
            tracing::warn!(%error, "cannot write to a command's stdin");
            return;
        }
        drop(permit);
    }
    if is_terminal {
        // A terminal that was hung up has no input to end.
        let _ = stdin.write_all(Bytes::from_static(END_OF_INPUT)).await;
    }
}

/// Makes a pipe the user's: whoever opens `/dev/stdout` opens it anew.
fn give(pipe: &OwnedFd, account: &Account) -> io::Result<()> {
    let (uid, gid) = (account.uid.into(), account.gid.into());
    Ok(fchown(pipe, Some(uid), Some(gid))?)
}
