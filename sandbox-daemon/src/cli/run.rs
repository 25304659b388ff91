//! `sandbox run`: a command as if it ran directly.

use std::{
    cell::Cell,
    io::{self, IsTerminal as _},
    time::Duration,
};

use bytes::Bytes;
use nix::sys::signal::{Signal, raise};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt as _},
    sync::mpsc,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::{
    args::{RunArgs, When},
    caller::Caller,
    denials::Summary,
    error::{CliError, Exit},
    host::Host,
    json::Sink,
    limits, request,
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

/// Runs the command and returns its status.
pub fn run(args: &RunArgs, host: &Host) -> Result<Exit, CliError> {
    let mut sink = args.json.map(Sink::open).transpose()?;
    let result = attempt(args, host, sink.as_mut());
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
    let mut kind = Terminals::current().kind(foreground(io::stdin()));
    if kind == Kind::Inherit && args.sandbox.limits.output_limit.is_some() {
        // What is not relayed is not counted.
        kind = Kind::Relay;
    }
    let start = request::start(args, &caller, kind)?;
    let mut report = Report {
        sink,
        ..Report::default()
    };
    let io_error = |operation| move |source| CliError::Io { operation, source };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(io_error("start the client's runtime"))?;
    let result = runtime.block_on(async {
        let own_terminal = matches!(kind, Kind::Pty { .. });
        let mut signals = Signals::listen(caller.ignored_signals, own_terminal)
            .map_err(io_error("listen for signals"))?;
        let mut drive = async |start, kind| {
            drive(host, start, kind, args.verbose, &mut signals, &mut report).await
        };
        match drive(start.clone(), kind).await {
            // The policy limits it, which only the daemon knew.
            Err(error) if kind == Kind::Inherit && error.reason() == NOT_COUNTED => {
                let start = Start {
                    stdio: Kind::Relay.proto().into(),
                    ..start
                };
                drive(start, Kind::Relay).await
            }
            ended => ended,
        }
    });
    // Not dropped: that would wait for a reader that does not read.
    runtime.shutdown_background();
    let shown = match args.denials {
        When::Always => true,
        When::Never => false,
        When::Auto => io::stderr().is_terminal(),
    };
    if shown {
        tell(&report.summary.render(&report.sandbox));
    }
    result
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
    kind: Kind,
    verbose: bool,
    signals: &mut Signals,
    report: &mut Report<'_>,
) -> Result<Exit, CliError> {
    let (requests, receiver) = mpsc::channel(QUEUE);
    let started = Cell::new(false);
    let exchange = async {
        let mut client = host.connect().await?;
        let _ = requests.send(run_request(Request::Start(start))).await;
        let stream = client.run(ReceiverStream::new(receiver)).await?;
        let exchange = Exchange {
            kind,
            verbose,
            started: &started,
            requests: &requests,
            report,
        };
        exchange.follow(stream.into_inner()).await
    };
    tokio::pin!(exchange);
    let mut asked_to_end = false;
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
                    pass_on(&requests, Request::Signal(signal));
                }
                // The start itself says what holds before it.
                Arrived::WindowChanged | Arrived::Continued if !started.get() => {}
                Arrived::WindowChanged => {
                    pass_on(&requests, Request::WindowSize(request::window()?));
                }
                Arrived::Stopped => {
                    if started.get() {
                        pass_on(&requests, number(Signal::SIGSTOP));
                        tokio::time::sleep(BEFORE_STOP).await;
                    }
                    stop();
                }
                Arrived::Continued => pass_on(&requests, number(Signal::SIGCONT)),
            },
            result = &mut exchange => return result,
        }
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
fn stop() {
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
    kind: Kind,
    verbose: bool,
    started: &'a Cell<bool>,
    requests: &'a mpsc::Sender<RunRequest>,
    report: &'a mut Report<'b>,
}

impl Exchange<'_, '_> {
    async fn follow(mut self, mut responses: Streaming<RunResponse>) -> Result<Exit, CliError> {
        let mut stdout = Copy::new(tokio::io::stdout(), Output::Stdout);
        let mut stderr = Copy::new(tokio::io::stderr(), Output::Stderr);
        let mut terminal = None;
        loop {
            let message = responses.message().await?;
            let response = message
                .ok_or(CliError::ConnectionLost)?
                .response
                .unwrap_or(Response::Stdout(Bytes::new()));
            match response {
                Response::Started(started) => terminal = self.start(&started)?,
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
                    drop(terminal);
                    return Ok(self.end(&exited));
                }
            }
        }
    }

    fn start(&mut self, started: &Started) -> Result<Option<RawTerminal>, CliError> {
        if let Some(sink) = &mut self.report.sink {
            sink.write(started);
        }
        self.report.sandbox.clone_from(&started.sandbox_id);
        self.started.set(true);
        if self.verbose {
            tell(&announcement(started));
        }
        let io_error = |operation| move |source| CliError::Io { operation, source };
        let terminal = match self.kind {
            Kind::Pty { .. } => {
                Some(RawTerminal::enter().map_err(io_error("set the terminal to raw"))?)
            }
            Kind::Inherit | Kind::Relay => None,
        };
        self.kind
            .send_stdin(self.requests.clone())
            .map_err(io_error("start to read stdin"))?;
        Ok(terminal)
    }

    fn end(&mut self, exited: &Exited) -> Exit {
        if let Some(sink) = &mut self.report.sink {
            sink.write(exited);
        }
        self.report.summary.settle(exited.lost);
        tell(&limits::conclusion(
            exited.reason(),
            exited.limits,
            exited.usage,
        ));
        if let Some(exit) = limits::status(exited.reason()) {
            return exit;
        }
        match exited.status {
            Some(exited::Status::Code(code)) => {
                Exit::Command(u8::try_from(code).unwrap_or(u8::MAX))
            }
            Some(exited::Status::Signal(signal)) => Exit::signal(signal),
            None => Exit::Sandbox,
        }
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

fn announcement(started: &Started) -> String {
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
