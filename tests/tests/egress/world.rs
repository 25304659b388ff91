//! A world in namespaces: this process at one end of a cable, the Internet at
//! the other. Nothing of the machine is changed, and everything is gone when
//! this process is, however it ended: the namespaces have no names, the files
//! are in a file system that only they see, and the servers end with their
//! standard input.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

use base64::{Engine as _, prelude::BASE64_STANDARD as BASE64};
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
};
use serde_json::Value;

use sandbox_tests::egress::{Daemon, Settings};

use crate::servers;

/// Where this process is.
pub(crate) const HERE: &str = "203.0.113.1";
const HERE_6: &str = "2001:db8::1";
/// Everything that belongs to the world, in this mount namespace only.
const ROOT: &str = "/srv";
const HOSTS: &str = "127.0.0.1 localhost\n::1 localhost\n";
/// This end of the cable.
const WIRE: &str = "wire";

pub(crate) struct World {
    servers: Child,
    homes: AtomicU32,
    records: PathBuf,
    daemon: OnceLock<Daemon>,
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
            daemon: OnceLock::new(),
        }
    }

    /// A new home for a command to work in.
    pub(crate) fn home(&self) -> PathBuf {
        let number = self.homes.fetch_add(1, Ordering::Relaxed);
        let home = root().join("home").join(number.to_string());
        fs::create_dir(&home).unwrap();
        home
    }

    /// A daemon that lives in the world, with its proxy.
    pub(crate) fn daemon(&self) -> &Daemon {
        self.daemon.get_or_init(another_daemon)
    }

    /// What the servers have seen so far.
    pub(crate) fn records(&self) -> Vec<Value> {
        fs::read_to_string(&self.records)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// Lets the servers know one more token.
    #[expect(clippy::unused_self, reason = "the servers are the world's")]
    pub(crate) fn know(&self, token: &str) {
        let mut file = fs::OpenOptions::new()
            .append(true)
            .open(root().join(servers::TOKENS))
            .unwrap();
        file.write_all(format!("{token}\n").as_bytes()).unwrap();
    }

    /// What the capturing server got, by connection.
    pub(crate) fn raw_bytes(&self) -> Vec<Vec<u8>> {
        let mut connections = BTreeMap::<String, Vec<u8>>::new();
        for record in self.records() {
            if record["kind"] == "raw" {
                let connection = record["connection"].as_str().unwrap().to_owned();
                let bytes = BASE64.decode(record["bytes"].as_str().unwrap()).unwrap();
                connections.entry(connection).or_default().extend(bytes);
            }
        }
        connections.into_values().collect()
    }

    /// The questions that came to the world's name server: names and types.
    pub(crate) fn questions(&self) -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        self.records()
            .iter()
            .filter(|record| record["kind"] == "dns")
            .map(|record| (text(&record["name"]), text(&record["type"])))
            .collect()
    }

    /// Whether one of them was for this name.
    pub(crate) fn was_asked_for(&self, name: &str) -> bool {
        self.questions().iter().any(|(asked, _)| asked == name)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        drop(self.daemon.take());
        drop(self.servers.stdin.take());
        let _ = self.servers.wait();
    }
}

/// One of a test's own, with a proxy of its own, for what others would notice.
pub(crate) fn another_daemon() -> Daemon {
    a_daemon_of(tool("programs"))
}

/// One of other programs.
pub(crate) fn a_daemon_of(programs: PathBuf) -> Daemon {
    Daemon::start(&Settings {
        programs,
        resolv_conf: resolv_conf(servers::DNS),
        hosts: HOSTS.to_owned(),
        roots: vec![root().join("tls/ca.pem")],
    })
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
    // Cargo puts the programs one directory above the tests.
    let exe = std::env::current_exe().unwrap();
    let programs = exe.ancestors().nth(2).unwrap();
    for (name, from) in [
        ("servers", tests.join("servers").as_path()),
        ("clients", &tests.join("clients")),
        ("attackers", &tests.join("attackers")),
        ("libraries", Path::new(&libraries)),
        ("rust", rust),
        ("programs", programs),
    ] {
        let to = tool(name);
        fs::create_dir_all(&to).unwrap();
        bind(from, &to);
    }
}

/// Has names looked up at this server, and nowhere else.
fn resolve_at(server: &str) {
    for (file, text) in [
        ("resolv.conf", resolv_conf(server)),
        ("hosts", HOSTS.to_owned()),
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

fn resolv_conf(server: &str) -> String {
    format!("nameserver {server}\n")
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
