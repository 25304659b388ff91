//! A daemon with the network wall, on a thread of its own: commands go through
//! its API as everybody's do.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread::JoinHandle,
};

use sandbox_daemon::{
    api::{self, Lock, Socket},
    cgroup::Hierarchy,
    config::{Config, ProxySettings},
    egress::Egress,
    events::{Events, Journal},
    sandbox::Registry,
    secrets::Secrets,
};
use tokio::sync::oneshot;

use super::NetworkWall;

/// How a test's daemon differs from any other.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The directory with `sandbox` and `sandbox-proxy`.
    pub programs: PathBuf,
    /// As in `/etc/resolv.conf`.
    pub resolv_conf: String,
    /// As in `/etc/hosts`.
    pub hosts: String,
    /// Whose certificates are believed, beside the system's.
    pub roots: Vec<PathBuf>,
}

/// A daemon that is there until it is dropped.
pub struct Daemon {
    /// Its registry, for what no client can ask.
    pub registry: Arc<Registry>,
    /// Its wall.
    pub wall: Arc<NetworkWall>,
    programs: PathBuf,
    home: tempfile::TempDir,
    socket: PathBuf,
    slice: PathBuf,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    /// Starts one in the network namespace of the calling thread.
    ///
    /// # Panics
    /// Where anything is missing.
    #[must_use]
    pub fn start(settings: &Settings) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let home = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = home.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let config = Config {
            socket: home.path().join("run/sandboxd.sock"),
            slice: format!(
                "sandboxd-egress-{}-{}.slice",
                std::process::id(),
                COUNT.fetch_add(1, Ordering::Relaxed)
            ),
            policy_directories: vec![home.path().join("policies")],
            set_files: vec![],
            cache_directory: home.path().join("cache"),
            state_directory: home.path().join("state"),
            proxy: ProxySettings {
                program: settings.programs.join("sandbox-proxy"),
                resolv_conf: file("resolv.conf", &settings.resolv_conf),
                hosts: file("hosts", &settings.hosts),
                roots: settings.roots.clone(),
                ..ProxySettings::default()
            },
            ..Config::default()
        };
        let (begun, begins) = std::sync::mpsc::channel();
        let (stop, stopping) = oneshot::channel();
        let socket = config.socket.clone();
        // A thread has the network namespace of the one that makes it, and so
        // have the runtime's.
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let slice = Hierarchy::find().unwrap().slice(&config.slice).unwrap();
                let path = slice.cgroup().path().to_owned();
                let wall = NetworkWall::raise(&slice).unwrap();
                let events = Arc::new(Events::new(Journal::new("epoch".into(), 65_536)));
                wall.tell(events.clone());
                let secrets = Secrets::open(&config.state_directory).unwrap();
                let egress = Egress::start(&config, wall.clone(), secrets, events.clone()).unwrap();
                let raised = wall.clone();
                let folding = events.clone();
                tokio::spawn(async move { folding.close_windows().await });
                let registry = Registry::new(&config, slice, wall, egress, events);
                let lock = Lock::take(&config).unwrap();
                let socket = Socket::bind(&config, lock).unwrap();
                begun.send((registry.clone(), raised, path)).unwrap();
                let ending = registry.clone();
                let shutdown = async move {
                    let _ = stopping.await;
                    ending.shut_down().await;
                };
                api::serve(registry, &socket, shutdown).await.unwrap();
            });
        });
        let (registry, wall, slice) = begins.recv().unwrap();
        Self {
            registry,
            wall,
            programs: settings.programs.clone(),
            home,
            socket,
            slice,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// `sandbox ARGUMENTS`, as a client of this daemon.
    #[must_use]
    pub fn client(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.programs.join("sandbox"));
        command
            .env("SANDBOX_HOST", format!("unix://{}", self.socket.display()))
            .args(arguments);
        command
    }

    /// A policy with this `[network]` table under which everything may be read
    /// and `/tmp` and `extra` written; its file.
    ///
    /// # Panics
    /// Where the file cannot be written.
    #[must_use]
    pub fn policy(&self, network: &str) -> PathBuf {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = self.home.path().join(format!("policy-{number}.toml"));
        let text = format!(
            "version = 1\n[files]\nread = [\"/\"]\nwrite = [\"${{workspace}}\", \"${{tmp}}\"]\n\
             [env]\npass = [\"*\"]\n[network]\nmode = \"proxy\"\n{network}\n"
        );
        fs::write(&path, text).unwrap();
        path
    }

    /// `sandbox run --policy POLICY -w WORKSPACE -- sh -c SCRIPT`, with its
    /// denials on stderr.
    ///
    /// # Panics
    /// Where the client cannot be started.
    #[must_use]
    pub fn script(&self, policy: &Path, script: &str) -> Output {
        let workspace = self.home.path().join("work");
        fs::create_dir_all(&workspace).unwrap();
        self.client(&["run", "--denials", "always", "--policy"])
            .arg(policy)
            .arg("-w")
            .arg(&workspace)
            .args(["--", "sh", "-c", script])
            .output()
            .unwrap()
    }

    /// The cgroup of all its sandboxes.
    #[must_use]
    pub fn slice(&self) -> &Path {
        &self.slice
    }

    /// The directory for what a test needs.
    #[must_use]
    pub fn home(&self) -> &Path {
        self.home.path()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking());
        }
        let removed = fs::remove_dir(&self.slice);
        assert!(removed.is_ok() || std::thread::panicking(), "{removed:?}");
    }
}
