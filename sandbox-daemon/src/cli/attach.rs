//! `sandbox attach`: a command that was detached, as if it ran here.

use std::{
    cell::RefCell,
    io::{self, IsTerminal as _},
    thread,
};

use bytes::{BufMut as _, Bytes, BytesMut};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt as _},
    sync::mpsc,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::{
    args::AttachArgs,
    caller::Caller,
    error::{CliError, Exit},
    host::Host,
    request,
    run::{ended, io_error, listen, runtime, stop},
    signals::{Arrived, Signals},
    stdio::{Terminals, copy, foreground},
    target, tell,
    terminal::RawTerminal,
};
use crate::proto::{
    AttachRequest, AttachStart, CloseStdin, Exec, RunResponse, WindowSize, attach_request::Request,
    run_response::Response,
};

/// Requests under way.
const QUEUE: usize = 16;

/// Ctrl-P, and then Ctrl-Q: leave it.
const LEAVE: [u8; 2] = [0x10, 0x11];

/// Connects, and returns the command's status when it has ended.
pub fn attach(args: &AttachArgs, host: &Host) -> Result<Exit, CliError> {
    let caller = Caller::current()?;
    if let Some(id) = caller.sandbox {
        return Err(CliError::InsideSandbox { id });
    }
    let runtime = runtime()?;
    let result = runtime.block_on(async {
        let mut client = host.connect().await?;
        let exec = target::find(&mut client, &args.id).await?.detached()?;
        let terminals = Terminals::current();
        let own_terminal = exec.terminal
            && !args.no_stdin
            && terminals.stdin
            && terminals.stdout
            && foreground(io::stdin());
        let signals = listen(&caller, own_terminal)?;
        let (requests, receiver) = mpsc::channel(QUEUE);
        let start = start(args, &exec, own_terminal)?;
        let _ = requests.send(attach_request(Request::Start(start))).await;
        let responses = client.attach(ReceiverStream::new(receiver)).await?;
        let attached = Attached {
            exec,
            own_terminal,
            no_stdin: args.no_stdin,
            requests,
            terminal: RefCell::new(None),
        };
        attached.drive(responses.into_inner(), signals).await
    });
    // Not dropped: that would wait for a reader that does not read.
    runtime.shutdown_background();
    result
}

fn start(args: &AttachArgs, exec: &Exec, own_terminal: bool) -> Result<AttachStart, CliError> {
    // First one that is wrong: of a size that stays as it is no program is told,
    // and none would draw anew.
    let window_size = own_terminal.then(request::window).transpose()?;
    let wrong = |size: WindowSize| WindowSize {
        rows: size.rows + 1,
        ..size
    };
    Ok(AttachStart {
        exec_id: exec.id.clone(),
        window_size: window_size.map(wrong),
        history: args.history,
    })
}

struct Attached {
    exec: Exec,
    own_terminal: bool,
    no_stdin: bool,
    requests: mpsc::Sender<AttachRequest>,
    terminal: RefCell<Option<RawTerminal>>,
}

impl Attached {
    async fn drive(
        &self,
        responses: Streaming<RunResponse>,
        mut signals: Signals,
    ) -> Result<Exit, CliError> {
        let (leave, mut left) = mpsc::channel(1);
        let exchange = self.follow(responses, leave.clone());
        tokio::pin!(exchange);
        let result = loop {
            tokio::select! {
                biased;
                arrived = signals.next() => match arrived {
                    Arrived::Signal(signal) if self.is_for_it(signal) => {
                        self.send(Request::Signal(signal));
                    }
                    // The command is not this client's to end.
                    Arrived::Signal(signal) => break Ok(Exit::signal(signal)),
                    Arrived::WindowChanged => self.tell_window(),
                    Arrived::Stopped => {
                        if let Some(terminal) = &*self.terminal.borrow() {
                            terminal.suspend();
                        }
                        stop();
                    }
                    Arrived::Continued => if let Some(terminal) = &*self.terminal.borrow() {
                        // If it is gone there is nothing to set.
                        let _ = terminal.resume();
                        self.tell_window();
                    },
                },
                _ = left.recv() => {
                    self.terminal.take();
                    tell(&format!("\nsandbox: left `{}`; it goes on\n", self.exec.id));
                    break Ok(Exit::Success);
                }
                result = &mut exchange => break result,
            }
        };
        self.terminal.take();
        result
    }

    /// Whether a signal is passed on: those that a terminal's keys send.
    fn is_for_it(&self, signal: u32) -> bool {
        let keys = [libc::SIGINT, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2];
        !self.no_stdin && keys.iter().any(|key| key.unsigned_abs() == signal)
    }

    async fn follow(
        &self,
        mut responses: Streaming<RunResponse>,
        leave: mpsc::Sender<()>,
    ) -> Result<Exit, CliError> {
        let (mut stdout, mut stderr) = (tokio::io::stdout(), tokio::io::stderr());
        let mut leave = Some(leave);
        while let Some(message) = responses.message().await? {
            let goes_on = match message.response {
                Some(Response::Started(_)) => {
                    if let Some(leave) = leave.take() {
                        self.begin(leave)?;
                    }
                    true
                }
                Some(Response::Stdout(bytes)) => write(&mut stdout, &bytes).await?,
                Some(Response::Stderr(bytes)) => write(&mut stderr, &bytes).await?,
                Some(Response::Exited(exited)) => {
                    self.terminal.take();
                    if exited.denied > 0 && io::stderr().is_terminal() {
                        let denied = exited.denied;
                        tell(&format!(
                            "sandbox: {denied} refused; see `sandbox events`\n"
                        ));
                    }
                    return Ok(ended(&exited));
                }
                _ => true,
            };
            if !goes_on {
                return Ok(Exit::Success);
            }
        }
        Err(CliError::ConnectionLost)
    }

    fn begin(&self, leave: mpsc::Sender<()>) -> Result<(), CliError> {
        if self.own_terminal {
            let raw = RawTerminal::enter().map_err(io_error("set the terminal to raw"))?;
            self.terminal.replace(Some(raw));
            self.tell_window();
        }
        if self.no_stdin {
            return Ok(());
        }
        let (requests, own_terminal) = (self.requests.clone(), self.own_terminal);
        let shared_terminal = !own_terminal && io::stdin().is_terminal();
        let mut keys = Keys::default();
        let mut empty = true;
        let mut send = move |piece: Option<Bytes>| {
            let request = match piece {
                Some(bytes) if own_terminal => {
                    let (bytes, left) = keys.take(&bytes);
                    if left {
                        let _ = leave.blocking_send(());
                        return false;
                    }
                    Request::Stdin(bytes)
                }
                Some(bytes) => Request::Stdin(bytes),
                // Of a client that never had anything to say, such as one with
                // `/dev/null`, it means nothing.
                None if empty => return false,
                None => Request::CloseStdin(CloseStdin {}),
            };
            empty = false;
            requests.blocking_send(attach_request(request)).is_ok()
        };
        // It ends with the process: a read of a terminal cannot be taken back.
        thread::Builder::new()
            .name("stdin".to_owned())
            .spawn(move || copy(io::stdin(), shared_terminal, &mut send))
            .map(drop)
            .map_err(io_error("start to read stdin"))
    }

    fn tell_window(&self) {
        // A terminal that is gone has no size.
        if let Ok(window) = request::window() {
            self.send(Request::WindowSize(window));
        }
    }

    /// Without waiting: stdin may be ahead of it in the queue.
    fn send(&self, request: Request) {
        let request = attach_request(request);
        if let Err(mpsc::error::TrySendError::Full(request)) = self.requests.try_send(request) {
            let requests = self.requests.clone();
            tokio::spawn(async move { requests.send(request).await });
        }
    }
}

/// False: nobody reads it any more.
async fn write(to: &mut (impl AsyncWrite + Unpin), bytes: &Bytes) -> Result<bool, CliError> {
    let written = async {
        to.write_all(bytes).await?;
        to.flush().await
    };
    match written.await {
        Ok(()) => Ok(true),
        Err(error)
            if error.kind() == io::ErrorKind::BrokenPipe
                || error.raw_os_error() == Some(libc::EIO) =>
        {
            Ok(false)
        }
        Err(source) => Err(io_error("write the command's output")(source)),
    }
}

fn attach_request(request: Request) -> AttachRequest {
    AttachRequest {
        request: Some(request),
    }
}

/// Looks for the keys that leave a command.
#[derive(Debug, Default)]
struct Keys {
    /// The first was seen; it is held back until the next one.
    held: bool,
}

impl Keys {
    /// What of this is for the command, and whether it is left.
    fn take(&mut self, bytes: &[u8]) -> (Bytes, bool) {
        let mut kept = BytesMut::with_capacity(bytes.len() + 1);
        for byte in bytes {
            if self.held && *byte == LEAVE[1] {
                return (kept.freeze(), true);
            }
            if std::mem::take(&mut self.held) {
                kept.put_u8(LEAVE[0]);
            }
            if *byte == LEAVE[0] {
                self.held = true;
            } else {
                kept.put_u8(*byte);
            }
        }
        (kept.freeze(), false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_that_leave_are_found_across_reads_and_others_pass() {
        let mut keys = Keys::default();
        let mut take = |bytes: &[u8]| {
            let (kept, left) = keys.take(bytes);
            (kept.to_vec(), left)
        };
        assert_eq!(take(b"ab\x11"), (b"ab\x11".to_vec(), false));
        assert_eq!(take(b"c\x10"), (b"c".to_vec(), false));
        assert_eq!(take(b"d"), (b"\x10d".to_vec(), false));
        assert_eq!(take(b"\x10\x10e"), (b"\x10\x10e".to_vec(), false));
        assert_eq!(take(b"\x10\x10"), (b"\x10".to_vec(), false));
        assert_eq!(take(b"\x11f"), (vec![], true));
    }
}
