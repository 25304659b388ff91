//! `sandbox run`: a command as if it ran directly.

use std::{
    cell::{Cell, RefCell},
    io::{self, IsTerminal as _},
    time::Duration,
};

use bytes::Bytes;
use nix::sys::signal::{Signal, raise};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt as _},
    runtime::Runtime,
    sync::mpsc,
    time::Instant,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::{
    args::{CommandArgs, RunArgs, When},
    caller::Caller,
    denials::Summary,
    error::{CliError, Exit},
    host::Host,
    json::Sink,
    lasting, limits, request,
    signals::{Arrived, Signals},
    stdio::{Kind, Terminals, foreground, request as run_request},
    tell,
    terminal::RawTerminal,
};
use crate::{
    escape::printable,
    proto::{
        Exited, Output, RunRequest, RunResponse, Start, Started, exited, run_request::Request,
        run_response::Response,
    },
};

/// Requests under way: window sizes and signals beside blocks of stdin.
const QUEUE: usize = 16;

/// A request has to leave before the client stops itself.
const BEFORE_STOP: Duration = Duration::from_millis(50);

/// The daemon's reason to refuse the caller's own descriptors: what goes to them
/// is not counted, and there is a limit on it.
const NOT_COUNTED: &str = "OUTPUT_NOT_COUNTED";

/// What a command does for the last time when nobody sees its terminal any more.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Runs the command and returns its status.
pub fn run(args: &RunArgs, host: &Host) -> Result<Exit, CliError> {
    with_sink(&args.how, |sink| attempt(args, host, sink))
}

/// Writes to the descriptor of `--json`, if there is one, also that it failed.
pub(super) fn with_sink(
    args: &CommandArgs,
    run: impl FnOnce(Option<&mut Sink>) -> Result<Exit, CliError>,
) -> Result<Exit, CliError> {
    let mut sink = args.json.map(Sink::open).transpose()?;
    let result = run(sink.as_mut());
    if let Some(mut sink) = sink {
        if let Err(error) = &result {
            sink.write(error);
        }
        if let Err(error) = sink.finish() {
            tell(&error.render());
        }
    }
    result
}

fn attempt(args: &RunArgs, host: &Host, sink: Option<&mut Sink>) -> Result<Exit, CliError> {
    let caller = Caller::current()?;
    if let Some(id) = caller.sandbox {
        return Err(CliError::InsideSandbox { id });
    }
    if args.how.left.detach {
        return lasting::run_detached(args, &caller, host);
    }
    let mut kind = Terminals::current().kind(foreground(io::stdin()));
    if kind == Kind::Inherit && args.sandbox.limits.output_limit.is_some() {
        // What is not relayed is not counted.
        kind = Kind::Relay;
    }
    let start = request::start(args, &caller, kind)?;
    let how = How::of(&args.how, kind);
    if args.keep {
        return lasting::run_kept(args, &caller, start, &how, host, sink);
    }
    attended(host, start, &how, &caller, sink)
}

/// What a command that somebody attends is run with.
pub(super) struct How {
    kind: Kind,
    verbose: bool,
    denials: When,
}

impl How {
    pub(super) fn of(args: &CommandArgs, kind: Kind) -> Self {
        Self {
            kind,
            verbose: args.verbose,
            denials: args.denials,
        }
    }
}

/// Runs a command from its start to its end.
pub(super) fn attended(
    host: &Host,
    start: Start,
    how: &How,
    caller: &Caller,
    sink: Option<&mut Sink>,
) -> Result<Exit, CliError> {
    let mut report = Report {
        sink,
        ..Report::default()
    };
    let runtime = runtime()?;
    let result = runtime.block_on(async {
        let own_terminal = matches!(how.kind, Kind::Pty { .. });
        let mut signals = listen(caller, own_terminal)?;
        let mut drive = async |start, how| drive(host, start, how, &mut signals, &mut report).await;
        match drive(start.clone(), how).await {
            // The policy limits it, which only the daemon knew.
            Err(error) if how.kind == Kind::Inherit && error.reason() == NOT_COUNTED => {
                let start = Start {
                    stdio: Kind::Relay.proto().into(),
                    ..start
                };
                let how = How {
                    kind: Kind::Relay,
                    ..*how
                };
                drive(start, &how).await
            }
            ended => ended,
        }
    });
    // Not dropped: that would wait for a reader that does not read.
    runtime.shutdown_background();
    let shown = match how.denials {
        When::Always => true,
        When::Never => false,
        When::Auto => io::stderr().is_terminal(),
    };
    if shown {
        tell(&report.summary.render(&report.sandbox));
    }
    result
}

pub(super) fn runtime() -> Result<Runtime, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.map_err(io_error("start the client's runtime"))
}

pub(super) fn listen(caller: &Caller, own_terminal: bool) -> Result<Signals, CliError> {
    Signals::listen(caller.ignored_signals, own_terminal).map_err(io_error("listen for signals"))
}

pub(super) fn io_error(operation: &'static str) -> impl Fn(io::Error) -> CliError {
    move |source| CliError::Io { operation, source }
}

/// What is told about a run beside its output.
#[derive(Debug, Default)]
struct Report<'a> {
    sink: Option<&'a mut Sink>,
    summary: Summary,
    sandbox: String,
}

/// The exchange with the daemon, and the signals meanwhile.
async fn drive(
    host: &Host,
    start: Start,
    how: &How,
    signals: &mut Signals,
    report: &mut Report<'_>,
) -> Result<Exit, CliError> {
    let (requests, receiver) = mpsc::channel(QUEUE);
    let started = Cell::new(false);
    let terminal = RefCell::new(None);
    let exchange = async {
        let mut client = host.connect().await?;
        let _ = requests.send(run_request(Request::Start(start))).await;
        let stream = client.run(ReceiverStream::new(receiver)).await?;
        let exchange = Exchange {
            how,
            started: &started,
            terminal: &terminal,
            requests: &requests,
            report,
        };
        exchange.follow(stream.into_inner()).await
    };
    tokio::pin!(exchange);
    let mut asked_to_end = false;
    let mut hung_up = None;
    loop {
        tokio::select! {
            biased;
            arrived = signals.next() => match arrived {
                // Dropping the exchange closes the stream, and the daemon
                // kills what belongs to it.
                Arrived::Signal(signal) if asked_to_end && ends(signal) || !started.get() => {
                    return Ok(Exit::signal(signal));
                }
                Arrived::Signal(signal) => {
                    asked_to_end |= ends(signal);
                    if terminal.borrow().is_some() && RawTerminal::is_gone() {
                        hung_up.get_or_insert(Instant::now() + LAST_WORDS);
                    }
                    pass_on(&requests, Request::Signal(signal));
                }
                // The start itself says what holds before it.
                Arrived::WindowChanged | Arrived::Continued if !started.get() => {}
                Arrived::WindowChanged => tell_window(&requests),
                Arrived::Stopped => {
                    if let Some(terminal) = &*terminal.borrow() {
                        // What runs on its own terminal goes on, until that is full.
                        terminal.suspend();
                    } else if started.get() {
                        pass_on(&requests, number(Signal::SIGSTOP));
                        tokio::time::sleep(BEFORE_STOP).await;
                    }
                    stop();
                }
                Arrived::Continued => match &*terminal.borrow() {
                    Some(terminal) => {
                        // If it is gone there is nothing to set.
                        let _ = terminal.resume();
                        tell_window(&requests);
                    }
                    None => pass_on(&requests, number(Signal::SIGCONT)),
                },
            },
            () = until(hung_up) => return Ok(Exit::signal(libc::SIGHUP.unsigned_abs())),
            result = &mut exchange => return result,
        }
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

fn tell_window(requests: &mpsc::Sender<RunRequest>) {
    // A terminal that is gone has no size.
    if let Ok(window) = request::window() {
        pass_on(requests, Request::WindowSize(window));
    }
}

/// Whether the second such signal means that the first did not help.
fn ends(signal: u32) -> bool {
    let signal = i32::try_from(signal).unwrap_or_default();
    [libc::SIGTERM, libc::SIGINT].contains(&signal)
}

fn number(signal: Signal) -> Request {
    Request::Signal((signal as i32).unsigned_abs())
}

/// Stops this process, as the shell that waits for it expects.
pub(super) fn stop() {
    // It can only fail for a signal that does not exist.
    let _ = raise(Signal::SIGSTOP);
}

/// Sends without waiting: stdin may be ahead of it in the queue.
fn pass_on(requests: &mpsc::Sender<RunRequest>, request: Request) {
    if let Err(mpsc::error::TrySendError::Full(request)) = requests.try_send(run_request(request)) {
        let requests = requests.clone();
        tokio::spawn(async move { requests.send(request).await });
    }
}

/// The responses of one run.
struct Exchange<'a, 'b> {
    how: &'a How,
    started: &'a Cell<bool>,
    terminal: &'a RefCell<Option<RawTerminal>>,
    requests: &'a mpsc::Sender<RunRequest>,
    report: &'a mut Report<'b>,
}

impl Exchange<'_, '_> {
    async fn follow(mut self, mut responses: Streaming<RunResponse>) -> Result<Exit, CliError> {
        let mut stdout = Copy::new(tokio::io::stdout(), Output::Stdout);
        let mut stderr = Copy::new(tokio::io::stderr(), Output::Stderr);
        // Whatever ends this.
        let _restored = Restored(self.terminal);
        loop {
            let message = responses.message().await?;
            let response = message
                .ok_or(CliError::ConnectionLost)?
                .response
                .unwrap_or(Response::Stdout(Bytes::new()));
            match response {
                Response::Started(started) => self.start(&started)?,
                Response::Stdout(bytes) => stdout.write(&bytes, self.requests).await?,
                Response::Stderr(bytes) => stderr.write(&bytes, self.requests).await?,
                Response::Denial(denial) => {
                    if let Some(sink) = &mut self.report.sink {
                        sink.write(&denial);
                    }
                    self.report.summary.add(denial);
                }
                Response::Used(used) => {
                    if let Some(sink) = &mut self.report.sink {
                        sink.write(&used);
                    }
                }
                Response::Lost(lost) => {
                    if let Some(sink) = &mut self.report.sink {
                        sink.write(&lost);
                    }
                    self.report.summary.lose(&lost);
                }
                Response::Unkillable(unkillable) => tell(&waiting(&unkillable.pids)),
                Response::Exited(exited) => {
                    self.terminal.take();
                    return Ok(self.end(&exited));
                }
            }
        }
    }

    fn start(&mut self, started: &Started) -> Result<(), CliError> {
        if let Some(sink) = &mut self.report.sink {
            sink.write(started);
        }
        self.report.sandbox.clone_from(&started.sandbox_id);
        self.started.set(true);
        if self.how.verbose {
            tell(&announcement(started));
        }
        if let Kind::Pty { .. } = self.how.kind {
            let raw = RawTerminal::enter().map_err(io_error("set the terminal to raw"))?;
            self.terminal.replace(Some(raw));
        }
        let sent = self.how.kind.send_stdin(self.requests.clone());
        sent.map_err(io_error("start to read stdin"))
    }

    fn end(&mut self, exited: &Exited) -> Exit {
        if let Some(sink) = &mut self.report.sink {
            sink.write(exited);
        }
        self.report.summary.settle(exited.lost);
        ended(exited)
    }
}

/// Gives the caller's terminal back.
struct Restored<'a>(&'a RefCell<Option<RawTerminal>>);

impl Drop for Restored<'_> {
    fn drop(&mut self) {
        self.0.take();
    }
}

/// The status of a command that has ended; what there is to say about it is told.
pub(super) fn ended(exited: &Exited) -> Exit {
    tell(&limits::conclusion(
        exited.reason(),
        exited.limits,
        exited.usage,
    ));
    if let Some(exit) = limits::status(exited.reason()) {
        return exit;
    }
    match exited.status {
        Some(exited::Status::Code(code)) => Exit::Command(u8::try_from(code).unwrap_or(u8::MAX)),
        Some(exited::Status::Signal(signal)) => Exit::signal(signal),
        None => Exit::Sandbox,
    }
}

/// One of the command's outputs on its way to the caller's.
struct Copy<W> {
    to: W,
    name: Output,
    closed: bool,
}

impl<W: AsyncWrite + Unpin> Copy<W> {
    fn new(to: W, name: Output) -> Self {
        Self {
            to,
            name,
            closed: false,
        }
    }

    async fn write(
        &mut self,
        bytes: &Bytes,
        requests: &mpsc::Sender<RunRequest>,
    ) -> Result<(), CliError> {
        if self.closed {
            return Ok(());
        }
        let written = async {
            self.to.write_all(bytes).await?;
            self.to.flush().await
        };
        match written.await {
            Ok(()) => Ok(()),
            // The reader, or the terminal, is gone: so it is for the command.
            Err(error)
                if error.kind() == io::ErrorKind::BrokenPipe
                    || error.raw_os_error() == Some(libc::EIO) =>
            {
                self.closed = true;
                pass_on(requests, Request::CloseOutput(self.name.into()));
                Ok(())
            }
            Err(source) => Err(CliError::Io {
                operation: "write the command's output",
                source,
            }),
        }
    }
}

pub(super) fn announcement(started: &Started) -> String {
    let digest = started.policy_digest.get(..12).unwrap_or_default();
    let mode = if started.observe { ", observing" } else { "" };
    let withheld = match started.withheld_env.as_slice() {
        [] => String::new(),
        names => format!("sandbox: withheld {}\n", printable(&names.join(", "))),
    };
    format!(
        "sandbox: `{}` with policy `{}` (sha256 {digest}{mode})\n{withheld}",
        started.sandbox_id, started.policy_name
    )
}

/// What is waited for although it was killed.
fn waiting(pids: &[u32]) -> String {
    let pids: Vec<_> = pids.iter().map(ToString::to_string).collect();
    format!(
        "sandbox: waiting for processes that were killed and cannot end yet: {}\n",
        pids.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_reader_that_goes_away_is_told_once_and_the_run_goes_on() {
        let (requests, mut received) = mpsc::channel(4);
        let (near, far) = tokio::io::duplex(16);
        drop(far);
        let mut copy = Copy::new(near, Output::Stdout);
        for _ in 0..2 {
            copy.write(&Bytes::from_static(b"text"), &requests)
                .await
                .unwrap();
        }
        drop(requests);
        let first = received.recv().await.unwrap().request;
        assert_eq!(first, Some(Request::CloseOutput(Output::Stdout.into())));
        assert_eq!(received.recv().await, None);
    }

    #[test]
    fn verbose_names_what_was_withheld() {
        let started = Started {
            sandbox_id: "SBX".into(),
            policy_name: "default".into(),
            policy_digest: "0123456789abcdef".into(),
            withheld_env: vec!["AWS_SECRET_ACCESS_KEY".into(), "GITHUB_TOKEN".into()],
            ..Started::default()
        };
        assert_eq!(
            announcement(&started),
            "sandbox: `SBX` with policy `default` (sha256 0123456789ab)\n\
             sandbox: withheld AWS_SECRET_ACCESS_KEY, GITHUB_TOKEN\n"
        );
    }
}
