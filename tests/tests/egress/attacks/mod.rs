//! What others have used to get past proxies, done for real: each attack is
//! made in a sandbox and, where it would work there, outside of one.

mod callers;
mod crowd;
mod fronting;
mod names;
mod policies;
mod requests;
mod smuggling;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use base64::{Engine as _, prelude::BASE64_STANDARD as BASE64};
use nix::unistd::Pid;
use serde_json::{Value, json};

use sandbox_tests::egress::Daemon;

use crate::{
    Test,
    world::{self, World},
};

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = callers::tests();
    tests.extend(crowd::tests());
    tests.extend(fronting::tests());
    tests.extend(policies::tests());
    tests.extend(requests::tests());
    tests.extend(names::tests());
    tests.extend(smuggling::tests());
    tests
}

/// No refusal at all.
const NOTHING: &[&str] = &[];

/// What a transparent TLS client reads when it is refused: fatal,
/// `access_denied`.
const ALERT: [u8; 7] = [21, 3, 3, 0, 2, 2, 49];

/// A connection that an attacker makes, and what it sends.
#[derive(Clone, Debug)]
pub(crate) struct Shot {
    to: (String, u16),
    tunnel: bool,
    tls: Option<Tls>,
    datagrams: bool,
    parts: Vec<Vec<u8>>,
    /// Milliseconds after each part.
    pause: u32,
    /// Whether it says that this was all.
    half: bool,
}

#[derive(Clone, Debug)]
struct Tls {
    /// To whom; one that is empty is not sent.
    name: String,
    /// Whether its certificate has to be believed.
    verify: bool,
}

impl Shot {
    /// To a name or an address, as if there were no proxy.
    pub(crate) fn at(host: &str, port: u16, bytes: impl AsRef<[u8]>) -> Self {
        Self {
            to: (host.into(), port),
            tunnel: false,
            tls: None,
            datagrams: false,
            parts: vec![bytes.as_ref().to_vec()],
            pause: 0,
            half: false,
        }
    }

    /// To the proxy.
    pub(crate) fn proxy(bytes: impl AsRef<[u8]>) -> Self {
        Self::at("198.18.0.1", 3128, bytes)
    }

    /// Through the proxy, by CONNECT.
    pub(crate) fn through(host: &str, port: u16, bytes: impl AsRef<[u8]>) -> Self {
        Self {
            tunnel: true,
            ..Self::at(host, port, bytes)
        }
    }

    /// The same in TLS.
    pub(crate) fn in_tls(self) -> Self {
        let name = self.to.0.clone();
        self.in_tls_to(&name)
    }

    /// The same in TLS to another name.
    pub(crate) fn in_tls_to(self, name: &str) -> Self {
        Self {
            tls: Some(Tls {
                name: name.into(),
                verify: true,
            }),
            ..self
        }
    }

    /// The same, whatever certificate is shown.
    pub(crate) fn believing(mut self) -> Self {
        if let Some(tls) = &mut self.tls {
            tls.verify = false;
        }
        self
    }

    /// A datagram.
    fn datagram(host: &str, port: u16, bytes: impl AsRef<[u8]>) -> Self {
        Self {
            datagrams: true,
            ..Self::at(host, port, bytes)
        }
    }

    /// The same in pieces of this size, each in a packet of its own.
    pub(crate) fn pieces(self, size: usize) -> Self {
        let bytes = self.parts.concat();
        Self {
            parts: bytes.chunks(size).map(<[u8]>::to_vec).collect(),
            pause: 2,
            ..self
        }
    }

    /// Then more, after a while.
    pub(crate) fn then(mut self, bytes: impl AsRef<[u8]>) -> Self {
        self.parts.push(bytes.as_ref().to_vec());
        self.pause = 300;
        self
    }
}

/// What came of a [`Shot`].
pub(crate) struct Got {
    pub(crate) bytes: Vec<u8>,
    pub(crate) end: String,
    /// Of the certificate, as openssl says it.
    pub(crate) issuer: String,
}

impl std::fmt::Debug for Got {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { bytes, end, issuer } = self;
        let bytes = String::from_utf8_lossy(bytes);
        write!(f, "Got {{ {bytes:?} {end} {issuer} }}")
    }
}

impl Got {
    /// Each answer's status, and the rule that a refusal names.
    pub(crate) fn answers(&self) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.bytes);
        text.split("HTTP/1.1 ")
            .skip(1)
            .map(|answer| {
                let rule = answer
                    .lines()
                    .find_map(|line| line.strip_prefix("x-sandbox-denied: "));
                match rule {
                    Some(rule) => format!("{} {rule}", &answer[..3]),
                    None => answer[..3].to_owned(),
                }
            })
            .collect()
    }
}

/// What came of an attack in a sandbox.
#[derive(Debug)]
pub(crate) struct Attack {
    pub(crate) printed: String,
    pub(crate) complaint: String,
    /// Refusals: what, and how often.
    pub(crate) denials: BTreeMap<String, u64>,
    /// Uses of credentials: which, for what.
    pub(crate) uses: BTreeMap<String, u64>,
}

impl Attack {
    /// Exactly these refusals were told, however often each.
    pub(crate) fn assert_told<T: AsRef<str>>(&self, denials: &[T]) {
        let told: Vec<_> = self.denials.keys().collect();
        let mut expected: Vec<_> = denials.iter().map(AsRef::as_ref).collect();
        expected.sort_unstable();
        expected.dedup();
        assert_eq!(told, expected, "{}{}", self.printed, self.complaint);
    }
}

/// A program of `tests/attackers`, as words for a shell.
pub(crate) fn attacker(name: &str, arguments: &[&str]) -> String {
    let program = world::tool("attackers").join(name);
    let mut command = format!("/usr/bin/python3 -B {}", program.display());
    for argument in arguments {
        command.extend([" '", &argument.replace('\'', r"'\''"), "'"]);
    }
    command
}

/// Runs a script in a sandbox with this `[network]`.
pub(crate) fn inside(daemon: &Daemon, network: &str, script: &str) -> Attack {
    under(daemon, &daemon.policy(network), script)
}

/// Runs a script under a policy.
pub(crate) fn under(daemon: &Daemon, policy: &Path, script: &str) -> Attack {
    let workspace = daemon.home().join(format!("attack-{}", number()));
    fs::create_dir(&workspace).unwrap();
    in_workspace(daemon, policy, &workspace, script)
}

pub(crate) fn in_workspace(
    daemon: &Daemon,
    policy: &Path,
    workspace: &Path,
    script: &str,
) -> Attack {
    let events = daemon.home().join(format!("events-{}", number()));
    let client = daemon.client(&["run", "--json", "3", "--policy"]);
    let output = Command::new("sh")
        .args(["-c", r#"exec "$@" 3>"$EVENTS""#, "sh"])
        .arg(client.get_program())
        .args(client.get_args())
        .arg(policy)
        .arg("-w")
        .arg(workspace)
        .args(["--", "sh", "-c", script])
        .envs(
            client
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        )
        .env("EVENTS", &events)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    Attack {
        printed: String::from_utf8_lossy(&output.stdout).into_owned(),
        complaint: String::from_utf8_lossy(&output.stderr).into_owned(),
        denials: denials(&events),
        uses: uses(&events),
    }
}

fn told(events: &PathBuf) -> Vec<Value> {
    let text = fs::read_to_string(events).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines.collect()
}

fn uses(events: &PathBuf) -> BTreeMap<String, u64> {
    let mut uses = BTreeMap::new();
    for event in told(events) {
        let text = |field: &str| event[field].as_str().unwrap_or_default().to_owned();
        if event["type"] == "credential_use" {
            let what = format!(
                "{} {} {}{} ({})",
                text("credential"),
                text("method"),
                text("host"),
                text("path"),
                text("rule")
            );
            *uses.entry(what).or_default() += event["count"].as_u64().unwrap_or(1);
        }
    }
    uses
}

fn denials(events: &PathBuf) -> BTreeMap<String, u64> {
    let mut denials = BTreeMap::new();
    for event in told(events) {
        let text = |field: &str| event[field].as_str().unwrap_or_default().to_owned();
        if event["type"] != "denial" {
            continue;
        }
        let verdict = match text("verdict").as_str() {
            "denied" => String::new(),
            other => format!("{other} "),
        };
        let what = format!(
            "{verdict}{} {} ({})",
            text("operation"),
            text("object_display"),
            text("rule")
        );
        *denials.entry(what).or_default() += event["count"].as_u64().unwrap_or(1);
    }
    denials
}

/// Runs a script without a sandbox.
pub(crate) fn outside(script: &str) -> String {
    let output = Command::new("sh")
        .args(["-c", script])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn shooting(shots: &[Shot]) -> String {
    let shots: Vec<_> = shots
        .iter()
        .map(|shot| {
            let parts: Vec<_> = shot.parts.iter().map(|part| BASE64.encode(part)).collect();
            json!({
                "to": shot.to, "tunnel": shot.tunnel, "datagrams": shot.datagrams,
                "tls": shot.tls.is_some(),
                "verify": shot.tls.as_ref().is_some_and(|it| it.verify),
                "sni": shot.tls.as_ref().map(|it| &it.name).filter(|it| !it.is_empty()),
                "parts": parts, "pause": shot.pause, "half": shot.half,
            })
        })
        .collect();
    // As a file: an argument has no room for some of them.
    let path = world::root().join(format!("home/shots-{}.json", number()));
    fs::write(&path, Value::from(shots).to_string()).unwrap();
    let authority = world::root().join("tls/ca.pem");
    let paths = [path, authority].map(|it| it.display().to_string());
    attacker("shoot.py", &[&paths[0], &paths[1]])
}

pub(crate) fn results(printed: &str) -> Vec<Got> {
    let results: Vec<Value> =
        serde_json::from_str(printed).unwrap_or_else(|error| panic!("{error}: {printed}"));
    results
        .iter()
        .map(|it| Got {
            bytes: BASE64.decode(it["got"].as_str().unwrap()).unwrap(),
            end: it["end"].as_str().unwrap().to_owned(),
            issuer: it["issuer"].as_str().unwrap().to_owned(),
        })
        .collect()
}

/// Makes these connections in a sandbox that may reach `allow`.
fn shoot(world: &World, allow: &[&str], shots: &[Shot]) -> (Vec<Got>, Attack) {
    let network = format!("allow = {allow:?}");
    let attack = inside(world.daemon(), &network, &shooting(shots));
    assert!(!attack.printed.is_empty(), "{attack:?}");
    (results(&attack.printed), attack)
}

/// Makes them without a sandbox.
fn shoot_outside(shots: &[Shot]) -> Vec<Got> {
    results(&outside(&shooting(shots)))
}

/// What arrived at the server that keeps bytes, in connections that have this in
/// them.
pub(crate) fn arrived(world: &World, marker: &str) -> Vec<Vec<u8>> {
    let has = |bytes: &Vec<u8>| {
        bytes
            .windows(marker.len())
            .any(|it| it.eq_ignore_ascii_case(marker.as_bytes()))
    };
    world.raw_bytes().into_iter().filter(has).collect()
}

/// Whether a web server was asked for this path.
pub(crate) fn was_served(world: &World, path: &str) -> bool {
    let records = world.records();
    records
        .iter()
        .any(|record| record["kind"] == "http" && record["path"] == path)
}

/// Waits for what is about to come to be.
pub(crate) fn wait_for<T>(mut until: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(it) = until() {
            return it;
        }
        assert!(
            begun.elapsed() < Duration::from_mins(1),
            "it never came to be"
        );
        thread::sleep(Duration::from_millis(20));
    }
}

/// The process of a daemon's proxy.
pub(crate) fn proxy_of(daemon: &Daemon) -> Pid {
    wait_for(|| running_proxy(daemon))
}

/// The same, if it serves: who has the socket that sandboxes are led to, beside
/// this process.
pub(crate) fn running_proxy(daemon: &Daemon) -> Option<Pid> {
    let port = daemon.wall.entrances().tcp4.port;
    let listening = format!(" 0100007F:{port:04X} 00000000:0000 0A ");
    let sockets = fs::read_to_string("/proc/net/tcp").unwrap();
    let line = sockets.lines().find(|line| line.contains(&listening))?;
    let inode = line.split_ascii_whitespace().nth(9)?;
    let socket = PathBuf::from(format!("socket:[{inode}]"));
    let own = std::process::id();
    fs::read_dir("/proc").unwrap().find_map(|process| {
        let process = process.ok()?;
        let id: u32 = process.file_name().to_str()?.parse().ok()?;
        let mut open = fs::read_dir(process.path().join("fd")).ok()?;
        let holds =
            open.any(|fd| fd.is_ok_and(|fd| fs::read_link(fd.path()).is_ok_and(|it| it == socket)));
        (holds && id != own).then(|| Pid::from_raw(id.cast_signed()))
    })
}

pub(crate) fn number() -> u32 {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    COUNT.fetch_add(1, Ordering::Relaxed)
}

/// A word that nobody else uses.
pub(crate) fn marker() -> String {
    format!("marker-{}-of-this", number())
}
