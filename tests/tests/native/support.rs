//! A slice that a test has to itself, and commands run in it.

use std::{
    ffi::CString,
    fs::{self, File},
    io::Read as _,
    os::{
        fd::OwnedFd,
        unix::fs::{PermissionsExt as _, chown},
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use sandbox_daemon::{
    cgroup::{Cgroup, Hierarchy, Slice},
    launch::{Account, Child, Command, ExitStatus, LaunchError, View, ViewSpec},
};

/// A user that is in no database and owns nothing.
pub(crate) const USER: u32 = 60_001;
/// Another one.
pub(crate) const OTHER: u32 = 60_002;

/// A slice with one sandbox, gone when the test is.
pub(crate) struct Scratch {
    pub(crate) slice: Slice,
    pub(crate) sandbox: Cgroup,
    execs: AtomicU32,
}

/// How a command ended and what it wrote.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Output {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
}

impl Scratch {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        assert!(nix::unistd::geteuid().is_root(), "these tests need root");
        let name = format!(
            "sandboxd-test-{}-{}.slice",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let slice = Hierarchy::find().unwrap().slice(&name).unwrap();
        let sandbox = slice.create("box").unwrap();
        Self {
            slice,
            sandbox,
            execs: AtomicU32::new(0),
        }
    }

    /// The cgroup of a new exec.
    pub(crate) fn exec(&self) -> Cgroup {
        let number = self.execs.fetch_add(1, Ordering::Relaxed);
        self.sandbox.child(&format!("exec-{number}")).unwrap()
    }

    /// A command with nothing on stdin and its output nowhere.
    pub(crate) fn command(&self, account: &Account, argv: &[&str]) -> Command {
        let null = || -> OwnedFd {
            File::options()
                .read(true)
                .write(true)
                .open("/dev/null")
                .unwrap()
                .into()
        };
        Command {
            argv: argv
                .iter()
                .map(|word| CString::new(*word).unwrap())
                .collect(),
            env: vec![c"PATH=/usr/bin:/bin".to_owned()],
            cwd: c"/".to_owned(),
            account: account.clone(),
            cgroup: self.exec().try_clone_dir().unwrap(),
            stdin: null(),
            stdout: null(),
            stderr: null(),
            controlling_terminal: false,
            umask: 0o022,
            limits: None,
        }
    }

    /// Runs a command to its end.
    pub(crate) async fn run(
        &self,
        view: &View,
        account: &Account,
        argv: &[&str],
    ) -> Result<Output, LaunchError> {
        output(view, self.command(account, argv)).await
    }

    /// Runs a script as a user in the host's view.
    pub(crate) async fn script(&self, account: &Account, script: &str) -> Output {
        self.run(&host_view(account), account, &["sh", "-c", script])
            .await
            .unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let slice = self.slice.cgroup().path().to_owned();
        fs::write(slice.join("cgroup.kill"), "1").unwrap();
        let gone = wait_until(|| remove_tree(&slice));
        assert!(gone || thread::panicking(), "{} is left", slice.display());
    }
}

/// Runs a command to its end with its output caught.
pub(crate) async fn output(view: &View, mut command: Command) -> Result<Output, LaunchError> {
    let (reader, writer) = nix::unistd::pipe().unwrap();
    command.stdout = writer.try_clone().unwrap();
    command.stderr = writer;
    let child = view.spawn(command)?;
    Ok(Output {
        stdout: read_all(reader),
        status: child.wait().await.unwrap(),
    })
}

pub(crate) fn read_all(fd: OwnedFd) -> String {
    let mut text = String::new();
    File::from(fd).read_to_string(&mut text).unwrap();
    text
}

/// An account that is in no database.
pub(crate) fn account(uid: u32) -> Account {
    Account {
        uid,
        gid: uid,
        groups: vec![uid, 60_100],
        home: "/nonexistent".into(),
        name: format!("user{uid}"),
        shell: "/bin/sh".into(),
    }
}

pub(crate) fn host_view(account: &Account) -> View {
    View::new(ViewSpec {
        account: account.clone(),
        keep: Vec::new(),
        private_places: false,
        ephemeral: None,
    })
    .unwrap()
}

pub(crate) fn private_view(account: &Account, keep: &[&Path]) -> Result<View, LaunchError> {
    View::new(ViewSpec {
        account: account.clone(),
        keep: keep.iter().map(PathBuf::from).collect(),
        private_places: true,
        ephemeral: None,
    })
}

/// A directory of the user's own below the host's /tmp.
pub(crate) fn work_dir(uid: u32) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
    chown(dir.path(), Some(uid), Some(uid)).unwrap();
    dir
}

/// Asks until it is so, for a generous while.
pub(crate) fn wait_until(mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(30) {
        if condition() {
            return true;
        }
        thread::sleep(Duration::from_millis(2));
    }
    false
}

/// The value of a field of `/proc/PID/status`.
pub(crate) fn field<'t>(status: &'t str, name: &str) -> &'t str {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .unwrap_or_else(|| panic!("no {name} in {status}"))
        .trim()
}

pub(crate) fn running(child: &Child) -> bool {
    child.try_wait().unwrap().is_none()
}

fn remove_tree(dir: &Path) -> bool {
    let Ok(entries) = fs::read_dir(dir) else {
        return true;
    };
    for entry in entries.flatten() {
        if entry.path().is_dir() {
            remove_tree(&entry.path());
        }
    }
    fs::remove_dir(dir).is_ok()
}
