//! The daemon's API as a harness uses it.

use std::{
    fmt, io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::net::UnixStream,
    },
    process::ExitCode,
    thread,
};

use bytes::Bytes;
use hyper_util::rt::TokioIo;
use sandbox_daemon::proto::{
    self, CreateSandboxRequest, CredentialUse, DeleteSandboxRequest, Denial, Exited, Lost,
    PolicySource, PolicyText, RunRequest, Sandbox, SandboxSpec, Start, Started, Stdio, exited,
    policy_source, run_request, run_response, sandboxes_client::SandboxesClient, start,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Status, Streaming,
    transport::{Channel, Endpoint, Uri},
};
use tonic_types::StatusExt as _;
use tower::service_fn;

use crate::{attack, host};

/// Where the daemon listens.
pub(crate) const SOCKET: &str = "/run/sandboxd/sandboxd.sock";

/// The daemon's client.
pub(crate) type Client = SandboxesClient<Channel>;

/// A client that is root.
pub(crate) async fn root() -> Client {
    over(UnixStream::connect(SOCKET).unwrap()).await
}

/// A client that is somebody else: a process of theirs, which passes on what
/// it is sent.
pub(crate) async fn of(uid: u32) -> Client {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut command = host::command(uid, &[host::this_program(), RELAY]);
    let mut relay = command.stdin(OwnedFd::from(theirs)).spawn().unwrap();
    thread::spawn(move || relay.wait());
    over(ours).await
}

/// The argument that makes a relay of this program.
pub(crate) const RELAY: &str = "--relay";

/// Between stdin, which is a socket, and the daemon, until either ends.
pub(crate) fn relay() -> ExitCode {
    let caller = io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .map(UnixStream::from);
    let (Ok(mut caller), Ok(mut daemon)) = (caller, UnixStream::connect(SOCKET)) else {
        return ExitCode::FAILURE;
    };
    let (Ok(mut from), Ok(mut to)) = (daemon.try_clone(), caller.try_clone()) else {
        return ExitCode::FAILURE;
    };
    thread::spawn(move || {
        let _ = io::copy(&mut from, &mut to);
        std::process::exit(0);
    });
    let _ = io::copy(&mut caller, &mut daemon);
    ExitCode::SUCCESS
}

async fn over(stream: UnixStream) -> Client {
    let mut stream = Some(stream);
    let connector = service_fn(move |_: Uri| {
        let stream = stream
            .take()
            .ok_or_else(|| io::Error::other("the connection was lost"));
        async move {
            let stream = stream?;
            stream.set_nonblocking(true)?;
            io::Result::Ok(TokioIo::new(tokio::net::UnixStream::from_std(stream)?))
        }
    });
    let channel = Endpoint::from_static("http://sandboxd")
        // What is not read is soon not sent.
        .initial_stream_window_size(1 << 16)
        .connect_with_connector(connector)
        .await
        .unwrap();
    SandboxesClient::new(channel)
}

/// A policy as text.
pub(crate) fn policy(toml: &str) -> PolicySource {
    PolicySource {
        source: Some(policy_source::Source::Text(PolicyText {
            display_name: "test.toml".into(),
            toml: toml.into(),
            origin: String::new(),
        })),
        ..PolicySource::default()
    }
}

/// A policy of the host's.
pub(crate) fn named(name: &str) -> PolicySource {
    PolicySource {
        source: Some(policy_source::Source::Name(name.into())),
        ..PolicySource::default()
    }
}

/// A sandbox for a user.
pub(crate) fn spec(uid: u32, policy: PolicySource, workspace: &str) -> SandboxSpec {
    SandboxSpec {
        policy: Some(policy),
        workspace: workspace.into(),
        uid: Some(uid),
        ..SandboxSpec::default()
    }
}

/// Makes a sandbox.
pub(crate) async fn create(client: &mut Client, spec: SandboxSpec) -> Sandbox {
    let request = CreateSandboxRequest {
        spec: Some(spec),
        ..CreateSandboxRequest::default()
    };
    client.create_sandbox(request).await.unwrap().into_inner()
}

/// Deletes one.
pub(crate) async fn delete(client: &mut Client, id: &str) {
    let request = DeleteSandboxRequest { id: id.into() };
    client.delete_sandbox(request).await.unwrap();
}

/// A command in a sandbox that lives as long as it.
pub(crate) fn start(spec: SandboxSpec, argv: &[&str]) -> Start {
    Start {
        sandbox: Some(start::Sandbox::Inline(spec)),
        argv: words(argv),
        stdio: Stdio::Relay.into(),
        ..Start::default()
    }
}

/// A command in a sandbox that is there.
pub(crate) fn start_in(sandbox: &str, argv: &[&str]) -> Start {
    Start {
        sandbox: Some(start::Sandbox::SandboxId(sandbox.into())),
        argv: words(argv),
        stdio: Stdio::Relay.into(),
        ..Start::default()
    }
}

/// The attacker's command line.
pub(crate) fn attacker<'a>(steps: &[&'a [&'a str]]) -> Vec<&'a str> {
    let mut argv = vec![host::this_program(), attack::ARGUMENT];
    argv.extend(steps.join(&attack::THEN));
    argv
}

fn words(argv: &[&str]) -> Vec<Bytes> {
    argv.iter()
        .map(|word| Bytes::copy_from_slice(word.as_bytes()))
        .collect()
}

/// A `Run` call that has started.
pub(crate) struct Run {
    pub(crate) started: Started,
    pub(crate) requests: mpsc::Sender<RunRequest>,
    responses: Streaming<proto::RunResponse>,
    ran: Ran,
    /// How much of the output was looked at.
    seen: usize,
}

/// What a run left.
#[derive(Default)]
pub(crate) struct Ran {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) denials: Vec<Denial>,
    pub(crate) uses: Vec<CredentialUse>,
    pub(crate) lost: Vec<Lost>,
    /// What was killed and could not end, each time that it was told.
    pub(crate) unkillable: Vec<Vec<u32>>,
    pub(crate) exited: Exited,
}

impl Run {
    /// Starts a command.
    pub(crate) async fn start(client: &mut Client, start: Start) -> Result<Self, Status> {
        let (requests, receiver) = mpsc::channel(16);
        let request = run_request::Request::Start(start);
        requests.send(message(request)).await.unwrap();
        let call = client.run(ReceiverStream::new(receiver));
        let mut responses = call.await?.into_inner();
        let first = responses.message().await?.and_then(|first| first.response);
        let Some(run_response::Response::Started(started)) = first else {
            panic!("first came {first:?}");
        };
        Ok(Self {
            started,
            requests,
            responses,
            ran: Ran::default(),
            seen: 0,
        })
    }

    pub(crate) async fn send(&self, request: run_request::Request) {
        self.requests.send(message(request)).await.unwrap();
    }

    pub(crate) async fn write(&self, bytes: &str) {
        let bytes = Bytes::copy_from_slice(bytes.as_bytes());
        self.send(run_request::Request::Stdin(bytes)).await;
    }

    /// The next line of its output.
    pub(crate) async fn line(&mut self) -> String {
        loop {
            let rest = &self.ran.stdout[self.seen..];
            if let Some(length) = rest.iter().position(|&byte| byte == b'\n') {
                let line = String::from_utf8_lossy(&rest[..length]).into_owned();
                self.seen += length + 1;
                return line;
            }
            assert!(self.next().await.unwrap(), "it ended: {:?}", self.ran);
        }
    }

    /// Reads one message; false: the last one.
    async fn next(&mut self) -> Result<bool, Status> {
        let message = self.responses.message().await?;
        match message.and_then(|message| message.response) {
            Some(run_response::Response::Stdout(bytes)) => self.ran.stdout.extend(bytes),
            Some(run_response::Response::Stderr(bytes)) => self.ran.stderr.extend(bytes),
            Some(run_response::Response::Denial(denial)) => self.ran.denials.push(denial),
            Some(run_response::Response::Used(used)) => self.ran.uses.push(used),
            Some(run_response::Response::Lost(lost)) => self.ran.lost.push(lost),
            Some(run_response::Response::Unkillable(told)) => {
                self.ran.unkillable.push(told.pids);
            }
            Some(run_response::Response::Exited(exited)) => {
                self.ran.exited = exited;
                let after = self.responses.message().await?;
                assert_eq!(after, None, "`exited` is the last message");
                return Ok(false);
            }
            other => panic!("{other:?} came"),
        }
        Ok(true)
    }

    /// Until it is told that what was killed cannot end; which that is.
    pub(crate) async fn unkillable(&mut self) -> Vec<u32> {
        loop {
            if let Some(pids) = self.ran.unkillable.last() {
                return pids.clone();
            }
            assert!(self.next().await.unwrap(), "it ended: {:?}", self.ran);
        }
    }

    /// Until it has ended.
    pub(crate) async fn end(mut self) -> Ran {
        while self.next().await.unwrap() {}
        self.ran
    }
}

/// For a failed test: a line an event.
impl fmt::Debug for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        writeln!(f, "stdout: {:?}", text(&self.stdout))?;
        writeln!(f, "stderr: {:?}", text(&self.stderr))?;
        for denial in &self.denials {
            writeln!(
                f,
                "{:?} {} {} {:?} (rule {}) errno {} by {}[{}] x{}",
                denial.verdict(),
                denial.right().as_str_name(),
                denial.operation,
                denial.object_display,
                denial.rule,
                denial.errno,
                denial.exe_display,
                denial.pid,
                denial.count,
            )?;
        }
        for used in &self.uses {
            writeln!(
                f,
                "used {}: {} (rule {})",
                used.credential, used.request_display, used.rule
            )?;
        }
        writeln!(f, "{:?}", self.lost)?;
        write!(f, "{:?}", self.exited)
    }
}

impl Ran {
    /// What it wrote, by line.
    pub(crate) fn lines(&self) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.stdout);
        text.lines().map(str::to_owned).collect()
    }

    /// Its exit status.
    pub(crate) fn code(&self) -> Option<u32> {
        match self.exited.status {
            Some(exited::Status::Code(code)) => Some(code),
            _ => None,
        }
    }

    /// The signal that ended it.
    pub(crate) fn signal(&self) -> Option<u32> {
        match self.exited.status {
            Some(exited::Status::Signal(signal)) => Some(signal),
            _ => None,
        }
    }

    /// All refusals that it was told of, and all that it was told were lost.
    pub(crate) fn told(&self) -> (u64, u64) {
        let denied = self.denials.iter().map(|denial| denial.count).sum();
        (denied, self.lost.iter().map(|lost| lost.count).sum())
    }
}

/// Runs a command to its end.
pub(crate) async fn run(client: &mut Client, request: Start) -> Ran {
    Run::start(client, request).await.unwrap().end().await
}

/// The reason that a status has for programs.
pub(crate) fn reason(status: &Status) -> String {
    status
        .get_details_error_info()
        .map(|info| info.reason)
        .unwrap_or_default()
}

/// A request as it is sent.
pub(crate) fn message(request: run_request::Request) -> RunRequest {
    RunRequest {
        request: Some(request),
    }
}
