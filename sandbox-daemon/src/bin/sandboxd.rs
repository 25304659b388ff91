//! `sandboxd`: reads its settings, raises the walls, serves until told to end.

#![forbid(unsafe_code)]

use std::{
    alloc::System,
    io::{self, IsTerminal as _},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use nix::sys::{
    prctl,
    resource::{Resource, getrlimit, setrlimit},
};
use sandbox_daemon::{
    api::{self, Lock, Socket},
    cgroup::{Hierarchy, Slice},
    chain::Chain,
    config::Config,
    egress::Egress,
    events::{Events, Journal},
    kernel::{self, EventSource, Kernel, Options},
    sandbox::{KernelEnforcer, Registry, new_id},
    secrets::Secrets,
    selftest, sys, walls,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;
use zeroizing_alloc::ZeroAlloc;

/// Overwrites what is freed: secrets pass through buffers of HTTP/2 and of JSON
/// that are not this program's to wipe.
#[global_allocator]
static ALLOCATOR: ZeroAlloc<System> = ZeroAlloc(System);

/// How long clients have to take the last of their streams.
const FAREWELL: Duration = Duration::from_secs(5);

/// The daemon that runs commands in sandboxes.
#[derive(Parser)]
#[command(name = "sandboxd", version)]
struct Arguments {
    /// Settings [default: /etc/sandboxd/config.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Stay in the foreground, which it always does
    #[arg(long)]
    foreground: bool,
    /// The self-test's command, which the daemon runs in a sandbox of its own
    #[arg(long, value_name = "DIRECTORY", hide = true)]
    canary: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(directory) = arguments.canary {
        return selftest::canary(&directory);
    }
    match run(arguments.config.as_deref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sandboxd: {}", Chain::of(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn run(config: Option<&Path>) -> Result<()> {
    log();
    sys::share_free_memory();
    let config = Config::load(config)?;
    if !nix::unistd::geteuid().is_root() {
        bail!("sandboxd must run as root\n\nhint: `sudo sandboxd --foreground`");
    }
    // No core dump has a secret in it. A limit on their size would not do: it does
    // not bind programs that take them from a pipe, and commands would have it.
    prctl::set_dumpable(false).context("cannot keep this process's memory to itself")?;
    let lock = Lock::take(&config)?;
    raise_open_files();
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        // A user's file system may block what is done for that user for as
        // long as it likes: more than one user's quota of it.
        .max_blocking_threads(8192)
        .build()
        .context("cannot start the runtime")?
        .block_on(serve(config, lock))
}

async fn serve(config: Config, lock: Lock) -> Result<()> {
    // From here on a signal ends what was begun.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let slice = Hierarchy::find()?.slice(&config.slice)?;
    let (kernel, source) = raise_walls(&config, &slice).await?;
    // Loading needs more than all that follows.
    if let Err(error) = sys::forget_constant(kernel::OBJECT) {
        tracing::debug!(%error, "cannot give memory back");
    }

    let journal = Journal::new(new_id(), config.event_buffer);
    let events = Arc::new(Events::new(journal));
    let enforcer = Arc::new(KernelEnforcer::new(kernel));
    let secrets = Secrets::open(&config.state_directory).context("cannot keep secrets")?;
    let egress = Egress::start(&config, enforcer.clone(), secrets, events.clone());
    let egress = egress.context("there is no way out for sandboxes")?;
    let registry = Registry::new(&config, slice, enforcer, egress, events.clone());
    tokio::spawn(read_events(source, events.clone()));
    tokio::spawn(async move { events.close_windows().await });
    let following = registry.clone();
    tokio::spawn(async move { following.follow().await });
    registry
        .recover()
        .await
        .context("cannot clear what an earlier daemon left")?;
    let expiring = registry.clone();
    tokio::spawn(async move { expiring.expire().await });

    let socket = Socket::bind(&config, lock)?;
    sys::trim();
    tracing::info!(socket = %config.socket.display(), "ready");
    // Whoever started it may not have asked to be told.
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    let ending = registry.clone();
    let ended = CancellationToken::new();
    let all_ended = ended.clone();
    let shutdown = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hangup.recv() => {}
        }
        tracing::info!("ending");
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
        ending.shut_down().await;
        all_ended.cancel();
    };
    tokio::select! {
        served = api::serve(registry, &socket, shutdown) => served?,
        // Clients that do not take what is there for them are not waited for.
        () = async { ended.cancelled().await; tokio::time::sleep(FAREWELL).await } => {}
    }
    Ok(())
}

async fn raise_walls(config: &Config, slice: &Slice) -> Result<(Arc<Kernel>, EventSource)> {
    use std::os::fd::AsFd as _;
    let options = Options {
        slice: slice.cgroup().as_fd(),
        slice_id: slice.id(),
        sandbox_level: slice.sandbox_level(),
        event_burst: config.event_burst,
        event_rate: config.event_rate,
        mistake: None,
    };
    let program = std::env::current_exe().context("cannot find this program")?;
    Ok(walls::raise(&options, slice, config.runtime_directory(), &program).await?)
}

async fn read_events(mut source: EventSource, events: Arc<Events>) {
    loop {
        if let Err(error) = source.next(|record| events.accept(record)).await {
            // Without events there is no promise left to keep.
            tracing::error!(%error, "cannot read events; ending");
            std::process::exit(1);
        }
    }
}

/// To stderr: systemd puts it into the journal, with its own time.
fn log() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false);
    if std::env::var_os("JOURNAL_STREAM").is_some() {
        lines.without_time().init();
    } else {
        lines.init();
    }
}

/// Every command takes several descriptors. A lower limit is met later, with
/// an error of its own.
fn raise_open_files() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::warn!(%error, "cannot raise the limit on open files");
    }
}
