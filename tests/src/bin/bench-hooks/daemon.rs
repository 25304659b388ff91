//! sandboxd, started here so that its start can be measured.

use std::{
    fs,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use sandbox_daemon::{cli::Host, proto::GetInfoRequest};

use crate::commands::milliseconds;

/// Between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(1);
/// By the guest's clock, which the emulation is slower than.
const LIMIT: Duration = Duration::from_mins(1);
const LOG: &str = "/var/log/sandboxd.log";

/// A daemon that answers.
pub(crate) struct Daemon {
    child: Child,
    /// Milliseconds from its start to its first answer.
    pub(crate) started: f64,
}

/// Starts it, and waits until it answers `GetInfo`.
pub(crate) fn start() -> Result<Daemon> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let log = fs::File::create(LOG)?;
    let start = Instant::now();
    let mut child = Command::new("sandboxd")
        .arg("--foreground")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("cannot start `sandboxd`")?;
    let host = Host::default();
    let mut client = loop {
        match runtime.block_on(host.connect()) {
            Ok(client) => break client,
            Err(error) if child.try_wait()?.is_some() || start.elapsed() > LIMIT => {
                let log = fs::read_to_string(LOG)?;
                bail!("sandboxd did not start: {error}\n{log}");
            }
            Err(_) => thread::sleep(PAUSE),
        }
    };
    runtime.block_on(client.get_info(GetInfoRequest {}))?;
    Ok(Daemon {
        child,
        started: milliseconds(start.elapsed()),
    })
}

impl Daemon {
    /// Ends it. The programs stay, as does the guest not much longer.
    pub(crate) fn end(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}
