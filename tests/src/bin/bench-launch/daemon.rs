//! sandboxd, started here with the log that is asked for.

use std::{
    fs,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use sandbox_daemon::cli::Host;

const LOG: &str = "/var/log/sandboxd.log";
/// By the guest's clock, which the emulation is slower than.
const LIMIT: Duration = Duration::from_mins(1);
const PAUSE: Duration = Duration::from_millis(50);
/// For what is done after the last answer: it rests a second later.
const QUIET: Duration = Duration::from_secs(3);

/// A daemon that answers.
pub(crate) struct Daemon(Child);

impl Daemon {
    pub(crate) fn start(filter: &str) -> Result<Self> {
        let log = fs::File::create(LOG)?;
        let mut child = Command::new("sandboxd")
            .arg("--foreground")
            .env("RUST_LOG", filter)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start `sandboxd`")?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let start = Instant::now();
        while let Err(error) = runtime.block_on(Host::default().connect()) {
            if child.try_wait()?.is_some() || start.elapsed() > LIMIT {
                let log = fs::read_to_string(LOG)?;
                bail!("sandboxd did not start: {error}\n{log}");
            }
            thread::sleep(PAUSE);
        }
        Ok(Self(child))
    }

    /// Mebibytes that are resident.
    pub(crate) fn resident(&self) -> Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let text = line.context("no VmRSS")?.trim().trim_end_matches(" kB");
        Ok(f64::from(text.parse::<u32>()?) / 1024.0)
    }

    pub(crate) fn descriptors(&self) -> Result<f64> {
        let count = fs::read_dir(format!("/proc/{}/fd", self.0.id()))?.count();
        Ok(f64::from(u32::try_from(count)?))
    }

    pub(crate) fn end(mut self) -> Result<()> {
        let pid = nix::unistd::Pid::from_raw(self.0.id().cast_signed());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM)?;
        self.0.wait()?;
        Ok(())
    }
}

/// The steps that a daemon has told, with their times in microseconds.
pub(crate) fn steps() -> Result<Vec<(u64, String)>> {
    let log = fs::read_to_string(LOG)?;
    let steps = log.lines().filter_map(|line| {
        let (before, step) = line.split_once(sandbox_daemon::steps::MARK)?;
        let (_, time) = before.rsplit_once(' ')?;
        Some((time.parse().ok()?, step.trim().to_owned()))
    });
    Ok(steps.collect())
}

/// Until it has done what nobody waits for.
pub(crate) fn wait_until_quiet() {
    thread::sleep(QUIET);
}
