//! Running a command: the life of a `Run` stream, from `started` to `exited`.

use std::{
    io,
    path::PathBuf,
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use tokio_stream::Stream;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{
    Caller, Cause, Ending, Exec, Registry, Sandbox, SandboxError, Spec, Target, Variable,
    exec::{Kind, interval},
    jobs::Detached,
    registry::flatten,
    spawn::spawn,
    stdio::End,
    streams::{Feeder, Meter, Pumps, Streams},
};
use crate::{
    chain::Chain,
    escape,
    events::{Item, Subscription},
    launch::{Child, ExitStatus, Size, foreground_group, signal_group},
    policy::Limits,
    steps,
};

/// A command to run.
#[derive(Clone, Debug)]
pub struct RunSpec {
    /// Where.
    pub target: Target,
    /// Name and arguments.
    pub argv: Vec<Vec<u8>>,
    /// Absolute; `None`: the workspace, or the home directory without one.
    pub cwd: Option<PathBuf>,
    /// The caller's environment, from which the policy picks.
    pub env: Vec<Variable>,
    /// Set whatever the policy says.
    pub env_set: Vec<Variable>,
    /// Its standard streams.
    pub stdio: Stdio,
    /// File creation mask.
    pub umask: Option<u32>,
    /// When it is killed.
    pub deadline: Option<Instant>,
    /// Wall clock, in place of that of the sandbox's limits.
    pub timeout: Option<Duration>,
    /// Whether it outlives the call.
    pub detach: bool,
    /// With `detach`: its stdin is at its end from the beginning.
    pub no_stdin: bool,
}

/// Where the standard streams of a command lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stdio {
    /// Over the call.
    Relay,
    /// To the caller's own descriptors; its start time proves who it is.
    Inherit {
        /// Field 22 of `/proc/PID/stat`.
        start_time: u64,
    },
    /// To a pseudo-terminal.
    Pty {
        /// Its size.
        size: Size,
        /// stderr is a pipe of its own.
        stderr_apart: bool,
    },
}

/// What a caller sends to a running command.
#[derive(Clone, Debug)]
pub enum Input {
    /// For stdin.
    Stdin(Bytes),
    /// No more of it.
    CloseStdin,
    /// A signal, by its number.
    Signal(i32),
    /// Of the pseudo-terminal.
    WindowSize(Size),
    /// Nobody reads it any more.
    CloseOutput(OutputStream),
}

/// One of a command's outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputStream {
    /// Descriptor 1.
    Stdout,
    /// Descriptor 2.
    Stderr,
}

/// What a running command sends.
#[derive(Clone, Debug)]
pub enum Output {
    /// First.
    Started(Started),
    /// What it wrote.
    Bytes(OutputStream, Bytes),
    /// What it was refused.
    Item(Item),
    /// Processes that were killed and have not ended.
    Unkillable(Vec<u32>),
    /// Last.
    Exited(Exited),
}

/// A command runs.
#[derive(Clone, Debug)]
pub struct Started {
    /// Where.
    pub sandbox: String,
    /// Its exec.
    pub exec: String,
    /// Its first process.
    pub pid: u32,
    /// Of the policy in force.
    pub policy_name: String,
    /// Of the policy in force.
    pub policy_digest: String,
    /// Names of the caller's variables that did not come in.
    pub withheld_env: Vec<String>,
    /// Nothing is refused, only told.
    pub observe: bool,
}

/// A command ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exited {
    /// As wait(2) has it.
    pub status: ExitStatus,
    /// Why it was killed, if it was.
    pub cause: Option<Cause>,
    /// Its refusals.
    pub ending: Ending,
    /// In force when it ended.
    pub limits: Limits,
}

impl Registry {
    /// Runs a command; returns once it runs, or does not. From then on its
    /// life is `output`'s: when nobody can receive from it any more, all that
    /// runs is killed.
    pub async fn run(
        self: &Arc<Self>,
        caller: &Caller,
        spec: RunSpec,
        input: Pin<Box<dyn Stream<Item = Input> + Send>>,
        output: mpsc::Sender<Output>,
    ) -> Result<(), SandboxError> {
        self.may_run(caller)?;
        spec.check_detach()?;
        let (registry, caller) = (self.clone(), caller.clone());
        // To its end even if the caller goes away, so that nothing is left.
        let started = tokio::spawn(async move {
            let (sandbox, one_shot) = registry.target(&caller, &spec.target).await?;
            let begun = registry.begin(caller, spec, &sandbox, input, output);
            match begun.await {
                Ok(life) => {
                    tokio::spawn(life.live(one_shot));
                    Ok(())
                }
                Err(error) => {
                    if one_shot {
                        registry.remove(sandbox, Cause::Request).await?;
                    }
                    Err(error)
                }
            }
        });
        flatten(started.await)
    }

    /// The sandbox for an exec, and whether it is for that one alone.
    pub(super) async fn target(
        self: &Arc<Self>,
        caller: &Caller,
        target: &Target,
    ) -> Result<(Arc<Sandbox>, bool), SandboxError> {
        Ok(match target {
            Target::Existing(id) => (self.get(caller, id)?, false),
            Target::OneShot(spec) => (self.make(caller, Spec::clone(spec), true).await?, true),
        })
    }

    /// Commands are started outside of whatever confines the caller.
    pub(super) fn may_run(&self, caller: &Caller) -> Result<(), SandboxError> {
        let Some(peer) = &caller.peer else {
            return Ok(());
        };
        let confined = peer.confinement(self.slice())?;
        if confined.is_empty() {
            return Ok(());
        }
        let reasons: Vec<_> = confined.iter().map(ToString::to_string).collect();
        Err(SandboxError::Confined(reasons.join(", ")))
    }

    async fn begin(
        self: &Arc<Self>,
        caller: Caller,
        spec: RunSpec,
        sandbox: &Arc<Sandbox>,
        input: Pin<Box<dyn Stream<Item = Input> + Send>>,
        output: mpsc::Sender<Output>,
    ) -> Result<Life, SandboxError> {
        let shown = spec.argv.iter().map(|it| escape::display(it)).collect();
        let kind = Kind::Run {
            timeout: spec.timeout,
        };
        let (exec, denials) = Exec::begin(self, sandbox, shown, kind)?;
        let detach = spec.detach;
        let how = Detached {
            terminal: matches!(spec.stdio, Stdio::Pty { .. }),
            no_stdin: spec.no_stdin,
        };
        let deadline = spec.deadline.filter(|_| !detach);
        let beginning = exec.clone();
        // Looks users up and enters directories, which may take its time.
        let registry = self.clone();
        let spawned = tokio::task::spawn_blocking(move || {
            // Before anything runs that writes to it.
            let log = detach.then(|| registry.make_log()).transpose()?;
            let spawned = spawn(
                registry.enforcer(),
                registry.egress(),
                &caller,
                &spec,
                &beginning,
            )?;
            Ok((spawned, log))
        });
        match flatten(spawned.await) {
            Ok((spawned, log)) => {
                let (input, output) = match log {
                    Some(log) => self.detach(&exec, &spawned.started, log, how, output),
                    None => (input, output),
                };
                Ok(Life {
                    registry: self.clone(),
                    exec,
                    denials,
                    child: spawned.child,
                    streams: spawned.streams,
                    started: spawned.started,
                    deadline,
                    input,
                    output,
                })
            }
            Err(error) => {
                exec.end(self).await;
                Err(error)
            }
        }
    }
}

impl RunSpec {
    /// Whether what it says about detaching goes together.
    fn check_detach(&self) -> Result<(), SandboxError> {
        let (field, problem) = match (self.detach, &self.target, self.stdio) {
            (false, _, _) if self.no_stdin => ("no_stdin", "goes with `detach`"),
            (true, _, Stdio::Pty { .. }) if self.no_stdin => {
                ("no_stdin", "does not go with a pseudo-terminal")
            }
            (true, Target::OneShot(_), _) => (
                "detach",
                "needs `sandbox_id`: an inline sandbox ends with its call",
            ),
            (true, _, Stdio::Inherit { .. }) => {
                ("detach", "does not go with the caller's own descriptors")
            }
            _ => return Ok(()),
        };
        Err(SandboxError::invalid(field, problem))
    }
}

/// A running command, and the call that it belongs to.
struct Life {
    registry: Arc<Registry>,
    exec: Arc<Exec>,
    denials: Subscription,
    child: Child,
    streams: Streams,
    started: Started,
    deadline: Option<Instant>,
    input: Pin<Box<dyn Stream<Item = Input> + Send>>,
    output: mpsc::Sender<Output>,
}

impl Life {
    async fn live(self, one_shot: bool) {
        let Self {
            registry,
            exec,
            denials,
            child,
            mut streams,
            started,
            deadline,
            input,
            output,
        } = self;
        let timer = exec.keep_time();
        // Nobody receiving is noticed below.
        let _ = output.send(Output::Started(started)).await;
        let ended = CancellationToken::new();
        let meter = Arc::new(Meter::new(&exec));
        let mut pumps = Pumps::start(&mut streams, &output, &meter, &ended);
        let told = output.clone();
        let telling = tell(denials, ended.clone(), move |item| {
            let told = told.clone();
            async move { told.send(Output::Item(item)).await.is_ok() }
        });
        let telling = AbortOnDropHandle::new(tokio::spawn(telling));
        let waiting = tell_stuck(exec.stuck(), output.clone(), ended.clone());
        let waiting = AbortOnDropHandle::new(tokio::spawn(waiting));
        let (control, controls) = mpsc::channel(16);
        let feeder = Feeder::new(&mut streams, control);
        let feeding = AbortOnDropHandle::new(tokio::spawn(feeder.feed(input)));
        let watch = Watch {
            registry: &registry,
            exec: &exec,
            child: &child,
            terminal: streams.terminal.take(),
            output: &output,
            deadline,
        };
        let status = watch.until_exit(controls, &mut pumps).await;
        drop((feeding, watch, timer));
        steps::done("ended");
        let ending = exec.end(&registry).await;
        if one_shot {
            let removed = registry.remove(exec.sandbox.clone(), Cause::Request).await;
            if let Err(error) = removed {
                tracing::error!(sandbox = exec.sandbox.id, error = %Chain::of(&error), "cannot remove a sandbox");
            }
        }
        // Nothing writes any more and nothing is refused any more: what is in
        // the pipes and in the queue is all there is.
        ended.cancel();
        pumps.finish().await;
        let _ = telling.await;
        let _ = waiting.await;
        let exited = Exited {
            status,
            cause: exec.cause().filter(|cause| cause.explains(status)),
            ending,
            limits: exec.limits(),
        };
        steps::done("gone");
        let _ = output.send(Output::Exited(exited)).await;
    }
}

/// What is watched until the first process ends.
struct Watch<'a> {
    registry: &'a Registry,
    exec: &'a Exec,
    child: &'a Child,
    terminal: Option<End>,
    output: &'a mpsc::Sender<Output>,
    deadline: Option<Instant>,
}

impl Watch<'_> {
    async fn until_exit(
        &self,
        mut controls: mpsc::Receiver<Input>,
        pumps: &mut Pumps,
    ) -> ExitStatus {
        let mut moments = interval();
        let exit = self.child.wait();
        tokio::pin!(exit);
        let (mut gone, mut late) = (false, false);
        loop {
            tokio::select! {
                status = &mut exit => return status.unwrap_or_else(|error| {
                    tracing::error!(exec = self.exec.id, error = %Chain::of(&error), "cannot wait for a command");
                    ExitStatus::Signal(9)
                }),
                Some(input) = controls.recv() => self.act(&input, pumps),
                () = self.output.closed(), if !gone => {
                    gone = true;
                    self.kill(Cause::Request);
                }
                () = sleep_until(self.deadline), if !late => {
                    late = true;
                    self.kill(Cause::Timeout);
                }
                _ = moments.tick() => self.exec.look(self.registry),
            }
        }
    }

    fn kill(&self, cause: Cause) {
        if let Err(error) = self.exec.kill(cause) {
            tracing::error!(exec = self.exec.id, error = %Chain::of(&error), "cannot kill an exec");
        }
    }

    fn act(&self, input: &Input, pumps: &mut Pumps) {
        let done = match input {
            Input::Signal(signal) => self.signal(*signal),
            Input::WindowSize(size) => self.resize(*size),
            Input::CloseOutput(stream) => {
                pumps.close(*stream);
                Ok(())
            }
            Input::Stdin(_) | Input::CloseStdin => Ok(()),
        };
        if let Err(error) = done {
            // A process that has just ended, or a number that is no signal.
            tracing::debug!(exec = self.exec.id, error = %Chain::of(&error), "a request to a command failed");
        }
    }

    fn signal(&self, signal: i32) -> io::Result<()> {
        let Some(terminal) = &self.terminal else {
            return self.child.signal_group(signal);
        };
        let Some(group) = foreground_group(terminal.fd())? else {
            return self.child.signal_group(signal);
        };
        signal_group(self.exec.cgroup(), group, signal).map_err(io::Error::other)
    }

    fn resize(&self, size: Size) -> io::Result<()> {
        match &self.terminal {
            Some(terminal) => size.apply(terminal.fd()).map_err(io::Error::other),
            None => Ok(()),
        }
    }
}

/// Says which processes were killed and cannot end, until all have ended.
async fn tell_stuck(
    mut stuck: watch::Receiver<Vec<u32>>,
    output: mpsc::Sender<Output>,
    ended: CancellationToken,
) {
    loop {
        tokio::select! {
            () = ended.cancelled() => return,
            changed = stuck.changed() => if changed.is_err() { return },
        }
        let pids = stuck.borrow_and_update().clone();
        if output.send(Output::Unkillable(pids)).await.is_err() {
            return;
        }
    }
}

/// Hands on refusals until the exec has ended, and then those that are left.
pub(super) async fn tell<F: Future<Output = bool>>(
    mut denials: Subscription,
    ended: CancellationToken,
    hand_on: impl Fn(Item) -> F,
) {
    loop {
        let item = tokio::select! {
            item = denials.next() => item,
            () = ended.cancelled() => denials.try_next(),
        };
        let Some(item) = item else { return };
        if !hand_on(item).await {
            return;
        }
    }
}

pub(super) async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}
