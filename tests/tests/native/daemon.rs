//! A daemon with the real API and real commands, and no kernel programs: what
//! they would do is told by the test.

use std::{
    collections::HashMap,
    fs,
    mem::offset_of,
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
};

use sandbox_common::{
    Counters, EVENT_VERSION, Entrances, EventHeader, FileEvent, Object, Operation, Right, Verdict,
};
use sandbox_daemon::{
    api::{self, Lock, Socket},
    cgroup::Hierarchy,
    config::Config,
    egress::Egress,
    events::{Events, Journal},
    proto::{
        self, RunRequest, RunResponse, SandboxSpec, Start, run_request, run_response,
        sandboxes_client::SandboxesClient, start,
    },
    sandbox::{EnforceError, Enforcer, EnforcerState, FlowMaps, Installation, Installed, Registry},
    secrets::Secrets,
};
use tokio::{sync::mpsc, task::JoinHandle};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Status, Streaming,
    transport::{Channel, Endpoint},
};

use tonic_types::StatusExt as _;

use crate::support::wait_until;

/// What the kernel programs would have counted.
#[derive(Default)]
pub(crate) struct Told {
    counters: Mutex<HashMap<u64, Counters>>,
    installed: Mutex<HashMap<u64, u32>>,
    refuse: Mutex<bool>,
}

impl Enforcer for Told {
    fn install(&self, installation: &Installation<'_>) -> Result<Installed, EnforceError> {
        if *self.refuse.lock().unwrap() {
            return Err(EnforceError("the map is full".into()));
        }
        let mut installed = self.installed.lock().unwrap();
        installed.insert(installation.sandbox, installation.generation);
        Ok(Installed::default())
    }

    fn lend(&self, _: u64, _: BorrowedFd<'_>) -> Result<(), EnforceError> {
        Ok(())
    }

    fn remove(&self, sandbox: u64) {
        self.installed.lock().unwrap().remove(&sandbox);
    }

    fn watch_exec(&self, exec: u64) -> Result<(), EnforceError> {
        let mut counters = self.counters.lock().unwrap();
        counters.insert(exec, Counters::default());
        Ok(())
    }

    fn counters(&self, exec: u64) -> Counters {
        let counters = self.counters.lock().unwrap();
        counters.get(&exec).copied().unwrap_or_default()
    }

    fn unwatch_exec(&self, exec: u64) {
        self.counters.lock().unwrap().remove(&exec);
    }

    fn flows(&self) -> Result<FlowMaps, EnforceError> {
        Err(EnforceError("there are no maps".into()))
    }

    fn admit(&self, _: &Entrances) -> Result<(), EnforceError> {
        Ok(())
    }

    fn state(&self) -> EnforcerState {
        EnforcerState::default()
    }
}

impl Told {
    /// Policies in force: sandbox and generation.
    pub(crate) fn installed(&self) -> Vec<(u64, u32)> {
        let installed = self.installed.lock().unwrap();
        installed
            .iter()
            .map(|(id, generation)| (*id, *generation))
            .collect()
    }

    /// The cgroups of the execs that run.
    pub(crate) fn execs(&self) -> Vec<u64> {
        self.counters.lock().unwrap().keys().copied().collect()
    }

    pub(crate) fn count(&self, exec: u64, counters: Counters) {
        self.counters.lock().unwrap().insert(exec, counters);
    }

    /// From now on no policy can be put in force.
    pub(crate) fn refuse(&self) {
        *self.refuse.lock().unwrap() = true;
    }
}

/// A daemon that a test has to itself.
pub(crate) struct Daemon {
    pub(crate) config: Config,
    pub(crate) told: Arc<Told>,
    pub(crate) events: Arc<Events>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) client: SandboxesClient<Channel>,
    slice: PathBuf,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    server: Option<JoinHandle<()>>,
    _home: tempfile::TempDir,
}

/// Everything may be read, `/tmp` may be written.
const POLICY: &str = "version = 1\n[files]\nread = [\"/\"]\nwrite = [\"${tmp}\"]\n\
    [env]\npass = [\"PATH\"]\n";

impl Daemon {
    pub(crate) async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    pub(crate) async fn start_with(adjust: impl FnOnce(&mut Config)) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let home = tempfile::tempdir().unwrap();
        let policies = home.path().join("policies");
        fs::create_dir(&policies).unwrap();
        fs::write(policies.join("default.toml"), POLICY).unwrap();
        let mut config = Config {
            socket: home.path().join("run/sandboxd.sock"),
            slice: format!(
                "sandboxd-api-{}-{}.slice",
                std::process::id(),
                COUNT.fetch_add(1, Ordering::Relaxed)
            ),
            policy_directories: vec![policies],
            set_files: vec![],
            cache_directory: home.path().join("cache"),
            state_directory: home.path().join("state"),
            ..Config::default()
        };
        adjust(&mut config);
        let slice = Hierarchy::find().unwrap().slice(&config.slice).unwrap();
        let path = slice.cgroup().path().to_owned();
        let told = Arc::new(Told::default());
        let events = Arc::new(Events::new(Journal::new(
            "epoch".into(),
            config.event_buffer,
        )));
        let secrets = Secrets::open(&config.state_directory).unwrap();
        let egress = Egress::none(secrets, events.clone(), "there are no kernel programs");
        let registry = Registry::new(&config, slice, told.clone(), egress, events.clone());
        let lock = Lock::take(&config).unwrap();
        let socket = Socket::bind(&config, lock).unwrap();
        let (quit, ending) = tokio::sync::oneshot::channel();
        let served = registry.clone();
        let task = tokio::spawn(async move {
            let expiring = served.clone();
            let expiry = tokio::spawn(async move { expiring.expire().await });
            let closing = served.clone();
            let shutdown = async move {
                let _ = ending.await;
                closing.shut_down().await;
            };
            api::serve(served, &socket, shutdown).await.unwrap();
            expiry.abort();
        });
        let uri = format!("unix://{}", config.socket.display());
        let channel = Endpoint::from_shared(uri).unwrap().connect().await.unwrap();
        Self {
            config,
            told,
            events,
            registry,
            client: SandboxesClient::new(channel),
            slice: path,
            stop: Some(quit),
            server: Some(task),
            _home: home,
        }
    }

    /// Runs a command in a sandbox of its own.
    pub(crate) async fn run(&self, argv: &[&str]) -> Result<Run, Status> {
        self.run_with(start(argv)).await
    }

    pub(crate) async fn run_with(&self, start: Start) -> Result<Run, Status> {
        let (requests, queued) = mpsc::channel(64);
        let first = RunRequest {
            request: Some(run_request::Request::Start(start)),
        };
        requests.send(first).await.unwrap();
        let mut client = self.client.clone();
        let responses = client.run(ReceiverStream::new(queued)).await?.into_inner();
        Ok(Run {
            requests: Some(requests),
            responses,
        })
    }

    /// Names of the sandboxes' cgroups.
    pub(crate) fn cgroups(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.slice).unwrap().flatten();
        entries
            .filter(|entry| entry.path().is_dir())
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect()
    }

    /// Nothing is left: no cgroup, no policy in force, nothing counted.
    pub(crate) async fn is_clean(&self) -> bool {
        wait_until_async(|| {
            self.cgroups().is_empty()
                && self.told.installed().is_empty()
                && self.told.execs().is_empty()
        })
        .await
    }

    /// Another daemon in its place, as after a `kill -9`: nothing was ended,
    /// nothing was told.
    pub(crate) async fn replace(&mut self) {
        self.server.take().unwrap().abort();
        // What it would have done for its calls it does no more.
        self.client = SandboxesClient::new(Endpoint::from_static("http://[::1]:1").connect_lazy());
        let config = self.config.clone();
        wait_until_async(|| Lock::take(&config).is_ok()).await;
        let slice = Hierarchy::find().unwrap().slice(&config.slice).unwrap();
        let told = Arc::new(Told::default());
        let events = Arc::new(Events::new(Journal::new(
            "next".into(),
            config.event_buffer,
        )));
        let secrets = Secrets::open(&config.state_directory).unwrap();
        let egress = Egress::none(secrets, events.clone(), "there are no kernel programs");
        let registry = Registry::new(&config, slice, told.clone(), egress, events.clone());
        registry.recover().await.unwrap();
        (self.told, self.events, self.registry) = (told, events, registry);
    }

    pub(crate) async fn stop(mut self) {
        let _ = self.stop.take().unwrap().send(());
        // The server ends once its connections have.
        let server = self.server.take().unwrap();
        self.client = SandboxesClient::new(Endpoint::from_static("http://[::1]:1").connect_lazy());
        server.await.unwrap();
        assert!(!self.config.socket.exists());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        fs::write(self.slice.join("cgroup.kill"), "1").unwrap();
        wait_until(|| remove_tree(&self.slice));
    }
}

fn remove_tree(dir: &Path) -> bool {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            remove_tree(&entry.path());
        }
    }
    fs::remove_dir(dir).is_ok() || !dir.exists()
}

/// Asks until it is so, for a generous while.
pub(crate) async fn wait_until_async(mut condition: impl FnMut() -> bool) -> bool {
    for _ in 0..3000 {
        if condition() {
            return true;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    false
}

/// A command in a sandbox of its own.
pub(crate) fn start(argv: &[&str]) -> Start {
    Start {
        sandbox: Some(start::Sandbox::Inline(SandboxSpec::default())),
        argv: argv
            .iter()
            .map(|word| word.as_bytes().to_vec().into())
            .collect(),
        cwd: b"/".as_slice().into(),
        ..Start::default()
    }
}

/// A running command.
pub(crate) struct Run {
    pub(crate) requests: Option<mpsc::Sender<RunRequest>>,
    pub(crate) responses: Streaming<RunResponse>,
}

/// All that a command sent.
#[derive(Default)]
pub(crate) struct Transcript {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) denials: Vec<proto::Denial>,
    pub(crate) used: Vec<proto::CredentialUse>,
    pub(crate) lost: u64,
    pub(crate) exited: proto::Exited,
}

impl Run {
    pub(crate) async fn send(&self, request: run_request::Request) {
        let request = RunRequest {
            request: Some(request),
        };
        // A command that has ended takes nothing any more.
        let _ = self.requests.as_ref().unwrap().send(request).await;
    }

    pub(crate) async fn next(&mut self) -> Option<run_response::Response> {
        let response = self.responses.message().await.unwrap()?;
        Some(response.response.unwrap())
    }

    pub(crate) async fn started(&mut self) -> proto::Started {
        match self.next().await {
            Some(run_response::Response::Started(started)) => started,
            other => panic!("not started: {other:?}"),
        }
    }

    /// Until stdout has this in it.
    pub(crate) async fn wait_for(&mut self, text: &str) {
        let mut seen = Vec::new();
        while !String::from_utf8_lossy(&seen).contains(text) {
            match self.next().await {
                Some(run_response::Response::Stdout(bytes)) => seen.extend_from_slice(&bytes),
                Some(run_response::Response::Started(_)) => {}
                other => panic!("{text} did not come: {other:?}"),
            }
        }
    }

    /// Until the stream ends, which it does after `exited`.
    pub(crate) async fn finish(mut self) -> Transcript {
        let mut transcript = Transcript::default();
        let mut exited = None;
        while let Some(response) = self.next().await {
            assert!(exited.is_none(), "{response:?} after exited");
            match response {
                run_response::Response::Started(_) => {}
                run_response::Response::Stdout(bytes) => {
                    transcript.stdout.extend_from_slice(&bytes);
                }
                run_response::Response::Stderr(bytes) => {
                    transcript.stderr.extend_from_slice(&bytes);
                }
                run_response::Response::Denial(denial) => transcript.denials.push(denial),
                run_response::Response::Used(used) => transcript.used.push(used),
                run_response::Response::Lost(lost) => transcript.lost += lost.count,
                run_response::Response::Unkillable(it) => panic!("{it:?}"),
                run_response::Response::Exited(it) => exited = Some(it),
            }
        }
        transcript.exited = exited.expect("the stream ends with exited");
        transcript
    }
}

/// A record as the kernel would write it: `path` was not to be read.
pub(crate) fn record(sandbox: u64, exec: u64, path: &str) -> Vec<u8> {
    let mut raw = vec![0; size_of::<FileEvent>()];
    let mut put = |offset: usize, bytes: &[u8]| {
        raw[offset..offset + bytes.len()].copy_from_slice(bytes);
    };
    put(
        offset_of!(EventHeader, version),
        &EVENT_VERSION.to_ne_bytes(),
    );
    put(
        offset_of!(EventHeader, operation),
        &(Operation::Open as u16).to_ne_bytes(),
    );
    put(offset_of!(EventHeader, right), &[Right::Read as u8]);
    put(offset_of!(EventHeader, verdict), &[Verdict::Denied as u8]);
    put(offset_of!(EventHeader, object), &[Object::File as u8]);
    put(offset_of!(EventHeader, comm), b"cat");
    put(offset_of!(EventHeader, sandbox), &sandbox.to_ne_bytes());
    put(offset_of!(EventHeader, exec), &exec.to_ne_bytes());
    put(offset_of!(EventHeader, errno), &2u32.to_ne_bytes());
    let names: Vec<u8> = path
        .split('/')
        .rev()
        .filter(|name| !name.is_empty())
        .flat_map(|name| [name.as_bytes(), b"\0"].concat())
        .collect();
    let len = u32::try_from(names.len()).unwrap();
    put(offset_of!(FileEvent, path_len), &len.to_ne_bytes());
    put(offset_of!(FileEvent, path), &names);
    raw
}

/// What a status says for programs.
pub(crate) fn reason(status: &Status) -> String {
    status.get_details_error_info().unwrap().reason
}
