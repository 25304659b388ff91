//! The machine outside of any sandbox: commands as its users, and what can be
//! seen of sandboxes from there.

use std::{
    fs,
    io::Write as _,
    os::unix::{fs::MetadataExt as _, net::UnixStream, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::LazyLock,
    time::{Duration, Instant},
};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

use crate::client;

/// The developer.
pub(crate) const DEV: u32 = 1000;
/// And root.
pub(crate) const ROOT: u32 = 0;

/// How long to wait for what must happen.
const PATIENCE: Duration = Duration::from_mins(5);

/// The parent of all sandboxes.
pub(crate) const SLICE: &str = "/sys/fs/cgroup/sandboxd.slice";

/// Whether there is time for the long variants of tests (`xtask test --long`).
pub(crate) fn long() -> bool {
    std::env::var_os("SANDBOX_TEST_LONG").is_some()
}

/// This program, which is also the attacker.
pub(crate) fn this_program() -> &'static str {
    static PROGRAM: LazyLock<String> = LazyLock::new(|| {
        let program = std::env::current_exe().unwrap();
        program.into_os_string().into_string().unwrap()
    });
    &PROGRAM
}

/// A user's home directory.
pub(crate) fn home(uid: u32) -> &'static str {
    if uid == ROOT { "/root" } else { "/home/dev" }
}

/// A command as a user, with nothing of this process's environment.
pub(crate) fn command(uid: u32, argv: &[&str]) -> Command {
    let mut command = Command::new(argv[0]);
    command
        .args(&argv[1..])
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
        .env("HOME", home(uid))
        .env("USER", if uid == ROOT { "root" } else { "dev" })
        .env("LANG", "C.UTF-8")
        .current_dir("/")
        .stdin(Stdio::null())
        .gid(uid)
        .uid(uid);
    command
}

/// Runs a command as a user.
pub(crate) fn run(uid: u32, argv: &[&str]) -> Output {
    command(uid, argv).output().unwrap()
}

/// The same in a directory and with something on stdin.
pub(crate) fn run_with(uid: u32, directory: &str, argv: &[&str], stdin: &str) -> Output {
    let mut child = command(uid, argv)
        .current_dir(directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    // Nobody need read it.
    let _ = input.write_all(stdin.as_bytes());
    drop(input);
    child.wait_with_output().unwrap()
}

/// What a command that must succeed wrote.
pub(crate) fn output(uid: u32, argv: &[&str]) -> String {
    let output = run(uid, argv);
    assert!(output.status.success(), "{argv:?}: {output:?}");
    text(&output.stdout)
}

/// Bytes as text.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Performs an attack outside of any sandbox; its answer.
pub(crate) fn attack(uid: u32, directory: &str, step: &[&str]) -> String {
    let argv = client::attacker(&[step]);
    let output = command(uid, &argv).current_dir(directory).output().unwrap();
    assert!(output.status.success(), "{step:?}: {output:?}");
    text(&output.stdout).trim_end().to_owned()
}

/// Starts an attacker outside, with pipes.
pub(crate) fn attacker(uid: u32, steps: &[&[&str]]) -> Command {
    let mut command = command(uid, &client::attacker(steps));
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command
}

/// Asks until it is so.
pub(crate) async fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "still not: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Whether a process is there and is no zombie.
pub(crate) fn alive(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        stat.rsplit_once(") ")
            .is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    })
}

/// The cgroup of a process, without the first slash.
pub(crate) fn cgroup(pid: u32) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    text.trim_end()
        .strip_prefix("0::/")
        .unwrap_or("")
        .to_owned()
}

/// The daemon's process.
pub(crate) fn daemon() -> u32 {
    let socket = UnixStream::connect(client::SOCKET).unwrap();
    let peer = getsockopt(&socket, PeerCredentials).unwrap();
    peer.pid().cast_unsigned()
}

/// Cgroups of sandboxes.
pub(crate) fn sandboxes() -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(SLICE) else {
        return Vec::new();
    };
    let mut found: Vec<_> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .collect();
    found.sort();
    found
}

/// This machine's mounts.
pub(crate) fn mounts() -> String {
    fs::read_to_string("/proc/self/mountinfo").unwrap()
}

/// Every file of a tree with what `stat` tells and, of small ones, the content.
pub(crate) fn snapshot(root: impl AsRef<Path>) -> Vec<String> {
    let mut found = Vec::new();
    let mut left = vec![root.as_ref().to_owned()];
    while let Some(path) = left.pop() {
        let stat = fs::symlink_metadata(&path).unwrap();
        let content = if stat.is_file() && stat.len() < 1 << 16 {
            fs::read(&path).unwrap_or_default()
        } else {
            Vec::new()
        };
        found.push(format!(
            "{} {} {:o} {}:{} {} {}",
            path.display(),
            stat.ino(),
            stat.mode(),
            stat.uid(),
            stat.gid(),
            stat.mtime(),
            String::from_utf8_lossy(&content)
        ));
        if stat.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|it| it.unwrap().path()));
        }
    }
    found.sort();
    found
}
