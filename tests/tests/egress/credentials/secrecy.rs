//! A secret is searched for everywhere while its credential is in use: it is nowhere
//! inside, in nothing that is told, and in no memory once it has another value.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read as _, Seek as _, SeekFrom, Write},
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use memchr::memmem::Finder;
use nix::unistd::Pid;
use sandbox_tests::egress::Daemon;

use super::{Held, token};
use crate::{
    Test,
    attacks::{attacker, proxy_of, under, wait_for},
    tests,
    world::{self, World},
};

pub(super) fn tests() -> Vec<Test> {
    tests![
        a_secret_is_nowhere_inside_and_in_nothing_that_is_told,
        a_value_that_is_not_in_force_is_in_no_memory,
    ]
}

/// Where something is, and what is there.
type Places = BTreeMap<String, Vec<u8>>;

fn has(bytes: &[u8], what: &str) -> bool {
    Finder::new(what).find(bytes).is_some()
}

fn places_with<'p>(places: &'p Places, what: &str) -> Vec<&'p str> {
    let with = places.iter().filter(|(_, bytes)| has(bytes, what));
    with.map(|(place, _)| place.as_str()).collect()
}

fn a_secret_is_nowhere_inside_and_in_nothing_that_is_told(world: &World) {
    let logs = Logs::default();
    let of_the_daemon = logs.clone();
    // Of all threads: the daemon's are its own.
    let _ = tracing_subscriber::fmt()
        .with_env_filter("sandbox_daemon=trace,sandbox_proxy=trace")
        .with_writer(move || of_the_daemon.clone())
        .try_init();
    let (programs, of_the_proxy) = talkative(&world.home());
    let daemon = world::a_daemon_of(programs);
    let held = Held::by(world, &daemon);
    let planted = token();
    let hosts = ["tap.example", "api2.example"];
    let policy = held.policy(&daemon, &hosts, "");
    let text = fs::read_to_string(&policy).unwrap();
    let text = text.replace("\"${tmp}\"]", "\"${tmp}\", \"${cache}\"]");
    fs::write(&policy, text).unwrap();
    let (home, workspace) = (world.home(), world.home());
    let script = attacker("linger.py", &[&home.display().to_string()]);
    let mut places = Places::new();
    let output = thread::scope(|scope| {
        let run = scope.spawn(|| {
            let client = daemon.client(&["run", "--json", "2", "-e"]);
            Command::new(client.get_program())
                .args(client.get_args())
                .arg(format!("PLANTED={planted}"))
                .arg("--policy")
                .arg(&policy)
                .arg("-w")
                .arg(&workspace)
                .args(["--", "sh", "-c", &script])
                .envs(
                    client
                        .get_envs()
                        .filter_map(|(name, value)| Some((name, value?))),
                )
                .stdin(Stdio::null())
                .output()
                .unwrap()
        });
        wait_for(|| (home.join("there").exists() || run.is_finished()).then_some(()));
        if run.is_finished() {
            return run.join().unwrap();
        }
        of_a_run(&daemon, &workspace, &mut places);
        fs::write(home.join("go"), "").unwrap();
        run.join().unwrap()
    });
    assert!(output.status.success(), "{output:?}");
    places.insert("printed".into(), output.stdout);
    places.insert("said by the client".into(), output.stderr);
    places.insert("log of the daemon".into(), logs.taken());
    places.insert("log of the proxy".into(), fs::read(&of_the_proxy).unwrap());

    let left = String::from_utf8(places["tmp/left"].clone()).unwrap();
    let (dummy, also) = left.trim().split_once(' ').unwrap();
    assert_eq!((dummy.len(), also), (held.token.len(), planted.as_str()));
    assert_ne!(dummy, held.token);
    // The search finds what is there.
    let found = places_with(&places, &planted);
    assert!(places_with(&places, dummy).len() >= found.len());
    for place in [
        "environment of",
        "memory of",
        "tmp/left",
        "var/tmp/left",
        "dev/shm/left",
        "printed",
        "dump-of-child",
        "dump-of-own",
        "/environment",
        "/cache/",
    ] {
        assert!(
            found.iter().any(|it| it.contains(place)),
            "{place}: {found:?}"
        );
    }
    for (place, what) in [
        ("`sandbox events -o json`", "api2.example:443"),
        ("said by the client", "api2.example:443"),
        ("log of the daemon", "the proxy runs"),
        ("log of the proxy", "api2.example"),
    ] {
        assert!(has(&places[place], what), "{place}");
    }
    assert!(has(&places["`sandbox secret list`"], &held.name));
    assert!(
        world
            .records()
            .iter()
            .any(|it| it["known"] == held.token.as_str())
    );
    // And the secret is nowhere, in no form that anybody uses.
    for form in forms(&held.token) {
        assert_eq!(places_with(&places, &form), [""; 0], "{form}");
    }
}

/// What there is while a sandbox runs: inside, and told of it.
fn of_a_run(daemon: &Daemon, workspace: &Path, places: &mut Places) {
    let inside = processes(daemon.slice());
    for process in &inside {
        of_process(*process, places);
    }
    if let Some(process) = inside.first() {
        for place in ["tmp/left", "var/tmp/left", "dev/shm/left"] {
            let path = PathBuf::from(format!("/proc/{process}/root/{place}"));
            places.insert(place.into(), fs::read(path).unwrap());
        }
    }
    of_files(workspace, places);
    of_files(&daemon.home().join("cache"), places);
    of_files(&daemon.home().join("run"), places);
    let ps = told(daemon, &["ps", "-o", "json"]);
    let id = String::from_utf8_lossy(&ps).into_owned();
    let sandboxes: serde_json::Value = serde_json::from_str(&id).unwrap();
    let id = id_of(&sandboxes).unwrap_or_else(|| panic!("{id}"));
    for words in [
        &["ps"][..],
        &["network", &id],
        &["network", &id, "-o", "json"],
        &["events"],
        &["events", "-o", "json"],
        &["secret", "list"],
        &["secret", "list", "-o", "json"],
    ] {
        places.insert(
            format!("`sandbox {}`", words.join(" ")),
            told(daemon, words),
        );
    }
    places.insert("`sandbox ps -o json`".into(), ps);
}

/// As it is, from behind, in hexadecimal digits, and in base64 wherever it begins.
fn forms(token: &str) -> Vec<String> {
    use base64::{Engine as _, prelude::BASE64_STANDARD_NO_PAD as BASE64};
    use std::fmt::Write as _;
    let mut hexadecimal = String::new();
    for byte in token.bytes() {
        write!(hexadecimal, "{byte:02x}").unwrap();
    }
    let mut forms = vec![token.to_owned(), token.chars().rev().collect(), hexadecimal];
    for before in 0..3 {
        let encoded = BASE64.encode(format!("{}{token}", &"xxx"[..before]));
        // Without the ends, which are of what stands beside it too.
        forms.push(encoded[4..encoded.len() - 4].to_owned());
    }
    forms
}

/// The first sandbox's id, wherever it is.
fn id_of(value: &serde_json::Value) -> Option<String> {
    match value {
        serde_json::Value::Array(all) => all.iter().find_map(id_of),
        serde_json::Value::Object(all) => ["sandbox_id", "id"]
            .iter()
            .find_map(|name| Some(all.get(*name)?.as_str()?.to_owned()))
            .or_else(|| all.values().find_map(id_of)),
        _ => None,
    }
}

fn told(daemon: &Daemon, words: &[&str]) -> Vec<u8> {
    let output = daemon.client(words).output().unwrap();
    assert!(output.status.success(), "{words:?}: {output:?}");
    [output.stdout, output.stderr].concat()
}

/// A directory of programs of which the proxy says all that it can, and the file that
/// it says it in.
fn talkative(home: &Path) -> (PathBuf, PathBuf) {
    let (programs, log) = (home.join("programs"), home.join("log"));
    let real = world::tool("programs");
    fs::create_dir(&programs).unwrap();
    symlink(real.join("sandbox"), programs.join("sandbox")).unwrap();
    fs::write(&log, "").unwrap();
    fs::set_permissions(&log, fs::Permissions::from_mode(0o666)).unwrap();
    let script = format!(
        "#!/bin/sh\nexport RUST_LOG=trace\nexec {}/sandbox-proxy 2>>{}\n",
        real.display(),
        log.display()
    );
    let proxy = programs.join("sandbox-proxy");
    fs::write(&proxy, script).unwrap();
    fs::set_permissions(&proxy, fs::Permissions::from_mode(0o755)).unwrap();
    (programs, log)
}

/// The processes of a cgroup and of those below it.
fn processes(cgroup: &Path) -> Vec<i32> {
    let text = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    let mut all: Vec<i32> = text.lines().map(|it| it.parse().unwrap()).collect();
    for entry in fs::read_dir(cgroup).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            all.extend(processes(&entry.path()));
        }
    }
    all
}

fn of_process(process: i32, places: &mut Places) {
    let at = PathBuf::from(format!("/proc/{process}"));
    let name = fs::read_to_string(at.join("comm")).unwrap_or_default();
    let of = |what: &str| format!("{what} of {process} {}", name.trim());
    for (what, file) in [("environment", "environ"), ("arguments", "cmdline")] {
        places.insert(of(what), fs::read(at.join(file)).unwrap_or_default());
    }
    places.insert(of("memory"), memory(Pid::from_raw(process)));
    let mut links = Vec::new();
    for fd in fs::read_dir(at.join("fd")).into_iter().flatten().flatten() {
        let target = fs::read_link(fd.path()).unwrap_or_default();
        links.extend(target.as_os_str().as_encoded_bytes());
        if fs::metadata(fd.path()).is_ok_and(|it| it.is_file()) {
            links.extend(fs::read(fd.path()).unwrap_or_default());
        }
    }
    places.insert(of("descriptors"), links);
}

/// All that a process has in memory.
fn memory(process: Pid) -> Vec<u8> {
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
    let mut memory = fs::File::open(format!("/proc/{process}/mem")).unwrap();
    let mut all = Vec::new();
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(area), Some(rights)) = (words.next(), words.next()) else {
            continue;
        };
        // What is mapped from programs and libraries for reading is not its own.
        let own = rights.starts_with("rw") || line.contains("[heap]") || line.contains("[stack]");
        if !own {
            continue;
        }
        let (begin, end) = area.split_once('-').unwrap();
        let [begin, end] = [begin, end].map(|it| u64::from_str_radix(it, 16).unwrap());
        let mut at = begin;
        let mut page = vec![0; 1 << 16];
        while at < end {
            let length = usize::try_from((end - at).min(1 << 16)).unwrap();
            if memory.seek(SeekFrom::Start(at)).is_err()
                || memory.read_exact(&mut page[..length]).is_err()
            {
                break;
            }
            // Pages that were never touched are of no interest.
            if page[..length].iter().any(|it| *it != 0) {
                all.extend(&page[..length]);
            }
            at += u64::try_from(length).unwrap();
        }
    }
    all
}

fn of_files(directory: &Path, places: &mut Places) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            of_files(&path, places);
        } else if kind.is_file() {
            places.insert(path.display().to_string(), fs::read(&path).unwrap());
        }
    }
}

/// What a log has.
#[derive(Clone, Default)]
struct Logs(Arc<Mutex<Vec<u8>>>);

impl Logs {
    fn taken(&self) -> Vec<u8> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Write for Logs {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn a_value_that_is_not_in_force_is_in_no_memory(world: &World) {
    let daemon = world::another_daemon();
    let held = Held::by(world, &daemon);
    let policy = held.policy(&daemon, &["tap.example", "api2.example"], "");
    let later = token();
    world.know(&later);
    let home = world.home();
    let requests = "for how in --http1.1 --http2; do for host in tap.example api2.example; do \
        curl -sS $how -o /dev/null -H \"Authorization: Bearer $TOKEN\" https://$host/; \
        curl -sS $how -o /dev/null -u a:$TOKEN https://$host/; done; done";
    let wait = |what: &str| {
        let home = home.display();
        format!("touch {home}/{what}-asked; while ! [ -e {home}/{what} ]; do sleep 0.05; done")
    };
    let script = format!(
        "{requests}; {}; {requests}; {}",
        wait("first"),
        wait("second")
    );
    thread::scope(|scope| {
        let run = scope.spawn(|| under(&daemon, &policy, &script));
        let step = |what: &str| {
            let file = home.join(format!("{what}-asked"));
            wait_for(|| (file.exists() || run.is_finished()).then_some(()));
        };
        let proxy = proxy_of(&daemon);
        step("first");
        assert!(
            has(&memory(proxy), &held.token),
            "it is not even there while it is in force"
        );
        held.set(&daemon, &later);
        assert_gone(proxy, &held.token);
        fs::write(home.join("first"), "").unwrap();
        step("second");
        assert!(has(&memory(proxy), &later));
        assert_gone(proxy, &held.token);
        held.remove(&daemon);
        assert_gone(proxy, &later);
        fs::write(home.join("second"), "").unwrap();
        run.join().unwrap();
        assert_gone(proxy, &held.token);
        assert_gone(proxy, &later);
    });
}

/// Connections end a moment after their clients.
fn assert_gone(process: Pid, what: &str) {
    let forms = forms(what);
    for _ in 0..50 {
        let memory = memory(process);
        if !forms.iter().any(|form| has(&memory, form)) {
            return;
        }
        thread::sleep(std::time::Duration::from_millis(100));
    }
    let memory = memory(process);
    let left = forms
        .iter()
        .find_map(|form| Finder::new(form).find(&memory));
    let at = left.unwrap_or_default();
    let around = &memory[at.saturating_sub(64)..memory.len().min(at + 96)];
    panic!("it is still there: {}", String::from_utf8_lossy(around));
}
