//! `sandbox-proxy`: started by `sandboxd`, with the channel as its stdin.

use std::{alloc::System, os::fd::AsFd as _, os::unix::net::UnixStream, thread};

use anyhow::Context as _;
use sandbox_proxy::{confine, daemon::Daemon};
use tracing_subscriber::EnvFilter;
use zeroizing_alloc::ZeroAlloc;

/// Overwrites what is freed: secrets pass through buffers of JSON, HTTP and TLS
/// that are not this program's to wipe.
#[global_allocator]
static ALLOCATOR: ZeroAlloc<System> = ZeroAlloc(System);

/// More threads than this only get into each other's way.
const MAX_THREADS: usize = 4;

fn main() -> anyhow::Result<()> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    let stdin = std::io::stdin().as_fd().try_clone_to_owned()?;
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let daemon = Daemon::begin(UnixStream::from(stdin)).context("the daemon does not begin")?;
    // Before there are threads: Landlock binds those that begin later.
    confine::begin()?;
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads.min(MAX_THREADS))
        .enable_all()
        .build()?
        .block_on(async {
            let ready = daemon.ready().await?;
            confine::finish()?;
            ready.serve().await?;
            Ok(())
        })
}
