//! Where it is measured: a network namespace with the clients and the proxies,
//! one with the server, and a cable between them. The server has an address that
//! is not this machine's to anybody.

use std::{
    env,
    ffi::OsStr,
    fs,
    io::{BufRead as _, BufReader},
    net::{Ipv4Addr, TcpStream},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use nix::{
    sched::{CloneFlags, unshare},
    sys::resource::{Resource, getrlimit, setrlimit},
};

use crate::secure::Files;

/// Where files are kept that no disk is to slow down; a sandbox has its own.
pub(crate) const MEMORY: &str = "/dev/shm";

/// The server's name.
pub(crate) const HOST: &str = "bench.example";
/// Where it is (RFC 5737).
pub(crate) const ADDRESS: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 2);

/// The namespaces, and the server.
pub(crate) struct Place {
    server: Child,
    files: tempfile::TempDir,
}

impl Place {
    /// Moves this process into a namespace of its own; threads that it has
    /// already stay behind.
    pub(crate) fn make() -> Result<Self> {
        unshare(CloneFlags::CLONE_NEWNET).context("a network namespace needs root")?;
        let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
        setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
        // Connections follow each other faster than their ports are let go; the
        // proxies' own ports are below.
        fs::write("/proc/sys/net/ipv4/ip_local_port_range", "10000 65535")?;
        fs::write("/proc/sys/net/ipv4/tcp_tw_reuse", "1")?;
        let files = tempfile::tempdir_in(MEMORY)?;
        Files(files.path()).certify(HOST)?;
        let mut server = Command::new(env::current_exe()?)
            .arg("serve")
            .arg(files.path())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = server.stdout.take().context("no stdout")?;
        let place = Self { server, files };
        // It is in its namespace, and listens.
        BufReader::new(stdout).read_line(&mut String::new())?;
        // Proxies read it as nobody.
        fs::set_permissions(place.files(), fs::Permissions::from_mode(0o755))?;
        fs::write(place.hosts(), Self::names())?;
        let pid = place.server.id().to_string();
        let far = ["nsenter", "--net", "--target", &pid, "ip"];
        let to = format!("{ADDRESS}/24");
        for (before, words) in [
            (&["ip"][..], &["link", "set", "lo", "up"][..]),
            (
                &["ip"],
                &[
                    "link", "add", "near", "type", "veth", "peer", "name", "far", "netns", &pid,
                ],
            ),
            (&["ip"], &["addr", "add", "203.0.113.1/24", "dev", "near"]),
            (&["ip"], &["link", "set", "near", "up"]),
            (&far, &["addr", "add", &to, "dev", "far"]),
            (&far, &["link", "set", "far", "up"]),
        ] {
            let words = [before, words].concat();
            let status = Command::new(words[0]).args(&words[1..]).status()?;
            if !status.success() {
                bail!("`{}` failed", words.join(" "));
            }
        }
        answers(ADDRESS, 80)?;
        Ok(place)
    }

    /// A directory for settings and repositories, in memory.
    pub(crate) fn files(&self) -> &Path {
        self.files.path()
    }

    /// The certificate that the server's is signed with.
    pub(crate) fn authority(&self) -> PathBuf {
        Files(self.files()).authority()
    }

    /// A file like `/etc/hosts`.
    pub(crate) fn hosts(&self) -> PathBuf {
        self.files().join("hosts")
    }

    /// A program that knows these names, and no other file of names.
    pub(crate) fn knowing(&self, program: impl AsRef<OsStr>) -> Command {
        let script = "mount --bind \"$0\" /etc/hosts && exec \"$@\"";
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "sh", "-c", script])
            .arg(self.hosts())
            .arg(program);
        command
    }

    /// What is in it.
    pub(crate) fn names() -> String {
        format!("127.0.0.1 localhost\n{ADDRESS} {HOST}\n")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Waits until something listens there.
pub(crate) fn answers(address: Ipv4Addr, port: u16) -> Result<()> {
    for _ in 0..100 {
        if TcpStream::connect((address, port)).is_ok() {
            return Ok(());
        }
        sleep(Duration::from_millis(100));
    }
    bail!("nothing listens at {address}:{port}")
}
