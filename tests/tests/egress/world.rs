//! A world in namespaces: this process at one end of a cable, the Internet at
//! the other. Nothing of the machine is changed, and everything is gone when
//! this process is, however it ended: the namespaces have no names, the files
//! are in a file system that only they see, and the servers end with their
//! standard input.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
};
use serde_json::Value;

use crate::servers;

/// Where this process is.
pub(crate) const HERE: &str = "203.0.113.1";
const HERE_6: &str = "2001:db8::1";
/// Everything that belongs to the world, in this mount namespace only.
const ROOT: &str = "/srv";
/// This end of the cable.
const WIRE: &str = "wire";

pub(crate) struct World {
    servers: Child,
    homes: AtomicU32,
    records: PathBuf,
}

impl World {
    /// Moves this process, which must not have other threads yet, into a new
    /// world.
    pub(crate) fn make() -> Self {
        assert!(nix::unistd::geteuid().is_root(), "these tests need root");
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET).unwrap();
        let none = None::<&str>;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        mount(Some("srv"), ROOT, Some("tmpfs"), MsFlags::empty(), none).unwrap();
        fs::create_dir(root().join("home")).unwrap();
        tools();
        resolve_at(servers::DNS);
        servers::prepare(root());
        let servers = wire_up(servers::start(root(), &tool("servers/serve.py")));
        Self {
            servers,
            homes: AtomicU32::new(0),
            records: root().join("records.jsonl"),
        }
    }

    /// A new home for a command to work in.
    pub(crate) fn home(&self) -> PathBuf {
        let number = self.homes.fetch_add(1, Ordering::Relaxed);
        let home = root().join("home").join(number.to_string());
        fs::create_dir(&home).unwrap();
        home
    }

    /// What the servers have seen so far.
    pub(crate) fn records(&self) -> Vec<Value> {
        fs::read_to_string(&self.records)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// Whether the world's name server was ever asked for this name.
    pub(crate) fn was_asked_for(&self, name: &str) -> bool {
        self.records()
            .iter()
            .any(|record| record["kind"] == "dns" && record["name"] == name)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        drop(self.servers.stdin.take());
        let _ = self.servers.wait();
    }
}

/// The world's files.
pub(crate) fn root() -> &'static Path {
    Path::new(ROOT)
}

/// A file of the tools that the world brings.
pub(crate) fn tool(path: &str) -> PathBuf {
    root().join("tools").join(path)
}

/// Makes what is below somebody's home reachable for every user.
fn tools() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let libraries = std::env::var_os("SANDBOX_TEST_LIBRARIES")
        .expect("no libraries for the clients\n\nhint: run `cargo xtask test --filter egress`");
    let cargo = std::env::var_os("CARGO").expect("these tests are run by cargo");
    let rust = Path::new(&cargo).ancestors().nth(2).unwrap();
    for (name, from) in [
        ("servers", tests.join("servers").as_path()),
        ("clients", &tests.join("clients")),
        ("libraries", Path::new(&libraries)),
        ("rust", rust),
    ] {
        let to = tool(name);
        fs::create_dir_all(&to).unwrap();
        bind(from, &to);
    }
}

/// Has names looked up at this server, and nowhere else.
fn resolve_at(server: &str) {
    for (file, text) in [
        ("resolv.conf", format!("nameserver {server}\n")),
        ("hosts", "127.0.0.1 localhost\n::1 localhost\n".to_owned()),
        (
            "nsswitch.conf",
            "passwd: files\ngroup: files\nhosts: files dns\n".to_owned(),
        ),
    ] {
        let of_the_world = root().join(file);
        fs::write(&of_the_world, text).unwrap();
        bind(&of_the_world, &Path::new("/etc").join(file));
    }
}

fn bind(from: &Path, to: &Path) {
    let none = None::<&str>;
    mount(Some(from), to, none, MsFlags::MS_BIND, none)
        .unwrap_or_else(|error| panic!("{} on {}: {error}", from.display(), to.display()));
}

/// Lays the cable to the servers' namespace and waits until they listen.
fn wire_up(mut servers: Child) -> Child {
    let mut lines = BufReader::new(servers.stdout.take().unwrap()).lines();
    let mut says = |word: &str| {
        let line = lines.next().and_then(Result::ok);
        assert_eq!(line.as_deref(), Some(word), "the servers did not start");
    };
    says("here");
    let there = servers.id().to_string();
    ip("link set lo up");
    ip(&format!(
        "link add {WIRE} type veth peer name {} netns {there}",
        servers::WIRE
    ));
    ip(&format!("addr add {HERE}/24 dev {WIRE}"));
    ip(&format!("addr add {HERE_6}/64 dev {WIRE} nodad"));
    ip(&format!("link set {WIRE} up"));
    for address in servers::BEYOND {
        ip(&format!("route add {address} dev {WIRE}"));
    }
    servers
        .stdin
        .as_mut()
        .unwrap()
        .write_all(b"plugged in\n")
        .unwrap();
    says("ready");
    servers
}

fn ip(words: &str) {
    let status = Command::new("ip")
        .args(words.split(' '))
        .stdin(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success(), "`ip {words}` failed with {status}");
}
