//! The daemon ends, by force and otherwise, and another one starts. These come
//! last: what they leave is a daemon, but another one.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{BufRead as _, BufReader, Write as _},
    os::unix::{
        fs::FileTypeExt as _,
        net::{UnixDatagram, UnixStream},
    },
    path::Path,
    process::{Child, Command, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use sandbox_daemon::proto::{EnrollRequest, ListSandboxesRequest, enroll_request};

use crate::{
    client::{self, SOCKET, attacker},
    ground::{self, GROUND, POLICY, WORK},
    host::{self, DEV, ROOT, alive, text, wait_until},
    network,
};

crate::trials![
    a_second_daemon_is_refused,
    wrong_settings_are_refused_with_their_place,
    what_was_denied_stays_denied_whatever_becomes_of_the_daemon,
    what_was_enrolled_finds_its_names_again_after_a_restart,
    a_daemon_that_is_told_to_end_ends_what_it_runs,
    a_host_without_bpffs_is_refused,
];

const PINS: &str = "/sys/fs/bpf/sandboxd";

fn daemon() -> Pid {
    Pid::from_raw(host::daemon().cast_signed())
}

/// Where daemons report that they are ready.
const READY: &str = "/run/ready-of-the-test";

fn start(log: &str) -> Child {
    let log = File::create(log).unwrap();
    Command::new("sandboxd")
        .arg("--foreground")
        .env("NOTIFY_SOCKET", READY)
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap()
}

/// Whether a daemon accepts.
fn accepts() -> bool {
    UnixStream::connect(SOCKET).is_ok()
}

/// How many programs there are.
fn loaded() -> usize {
    aya::programs::loaded_programs().count()
}

/// Loads whose programs are attached.
pub(crate) fn attached() -> BTreeSet<String> {
    let Ok(loads) = fs::read_dir(PINS) else {
        return BTreeSet::new();
    };
    let names = loads.map(|load| load.unwrap().file_name().into_string().unwrap());
    names.collect()
}

/// Ends the daemon that is there.
pub(crate) async fn end_the_daemon(by: Signal) {
    let old = daemon();
    kill(old, by).unwrap();
    // Threads that are still ending have its socket open.
    wait_until("the daemon is gone", || {
        !alive(old.as_raw().cast_unsigned()) && !accepts()
    })
    .await;
}

/// Starts another one, for those that come after.
pub(crate) async fn start_another(log: &str) {
    let mut next = start(log);
    wait_until("the next daemon accepts", || {
        let log = fs::read_to_string(log).unwrap();
        assert!(next.try_wait().unwrap().is_none(), "{log}");
        accepts()
    })
    .await;
}

async fn a_second_daemon_is_refused() {
    let first = daemon();
    let output = Command::new("sandboxd")
        .arg("--foreground")
        .output()
        .unwrap();
    assert!(!output.status.success(), "{output:?}");
    let error = text(&output.stderr);
    assert!(error.contains("another sandboxd is running"), "{error}");
    assert_eq!(daemon(), first);
    let ran = host::run(DEV, &["sandbox", "run", "-w", "/home/dev", "--", "true"]);
    assert!(ran.status.success(), "{ran:?}");
}

async fn wrong_settings_are_refused_with_their_place() {
    let path = "/tmp/wrong-config.toml";
    fs::write(path, "[quotas]\nsandboxs = 3\n").unwrap();
    let output = Command::new("sandboxd")
        .args(["--config", path])
        .output()
        .unwrap();
    assert!(!output.status.success(), "{output:?}");
    let error = text(&output.stderr);
    for part in [path, "sandboxs", "line 2"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let output = host::run(DEV, &["sandboxd"]);
    assert!(!output.status.success(), "{output:?}");
    assert!(text(&output.stderr).contains("root"), "{output:?}");
    fs::remove_file(path).unwrap();
}

/// An attacker with pipes that outlive the daemon.
struct Attacker {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Attacker {
    fn start(mut command: Command) -> Self {
        let mut child = command
            .current_dir(GROUND)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    fn go_on(&mut self) {
        let mut stdin = self.child.stdin.as_ref().unwrap();
        stdin.write_all(b"x").unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn fetch(&mut self) {
        let mut stdin = self.child.stdin.as_ref().unwrap();
        stdin.write_all(b"once\n").unwrap();
    }

    /// Lets it attack once more.
    fn attack(&mut self) -> Vec<String> {
        self.go_on();
        (0..5).map(|_| self.line()).collect()
    }
}

const ROUND: [&[&str]; 5] = [
    &["wait"],
    &["read", "/srv/ground/secret/key"],
    &["append", "/srv/ground/plain/file"],
    &["udp", "203.0.113.1:53", "attack"],
    &["tcp", "203.0.113.1:7200", "attack"],
];
const REFUSED: [&str; 5] = ["ok", "ENOENT", "EACCES", "EPERM", "EPERM"];

async fn what_was_denied_stays_denied_whatever_becomes_of_the_daemon() {
    ground::make(DEV);
    fs::write(format!("{GROUND}/ground.toml"), POLICY).unwrap();
    let mut client = client::root().await;
    let id = client::create(&mut client, ground::spec(DEV)).await.id;

    // One that was started, with descriptors that are not the daemon's; one
    // that was enrolled to stay; and one that never stops trying.
    let mut steps = vec![["pid"].as_slice()];
    steps.extend([ROUND.as_slice(), &ROUND, &ROUND].concat());
    let mut argv = vec![
        "sandbox",
        "run",
        "--policy",
        "/srv/ground/ground.toml",
        "-w",
        WORK,
    ];
    argv.push("--");
    argv.extend(attacker(&steps));
    let mut started = Attacker::start(host::command(DEV, &argv));
    let line = started.line();
    let pid: u32 = line.strip_prefix("ok ").unwrap().parse().unwrap();
    let mut enrolled = Attacker::start(host::attacker(DEV, &steps));
    enrolled.line();
    let hammer: [&[&str]; 3] = [&["wait"], &["hammer", "/srv/ground/secret/key"], &["stay"]];
    let mut hammering = Attacker::start(host::attacker(DEV, &hammer));
    for pid in [enrolled.child.id(), hammering.child.id()] {
        let request = EnrollRequest {
            sandbox: Some(enroll_request::Sandbox::SandboxId(id.clone())),
            pid,
            stay: true,
            ..EnrollRequest::default()
        };
        let mut stream = client.enroll(request).await.unwrap().into_inner();
        assert!(stream.message().await.unwrap().is_some());
    }
    hammering.go_on();
    assert_eq!(hammering.line(), "ok");
    assert_eq!(started.attack(), REFUSED);
    assert_eq!(enrolled.attack(), REFUSED);

    let old = daemon();
    let programs = loaded();
    let before = attached();
    assert_eq!(before.len(), 1, "{before:?}");
    kill(old, Signal::SIGKILL).unwrap();
    wait_until("the daemon is dead", || !accepts()).await;
    // Without a daemon: denied, and nothing new starts.
    assert_eq!(enrolled.attack(), REFUSED);
    if alive(pid) {
        assert_eq!(started.attack(), REFUSED);
    }
    let output = host::run(DEV, &["sandbox", "run", "--", "true"]);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert_eq!(attached(), before);

    // At no time is there no set; in between there are two.
    let mut next = start("/tmp/sandboxd-2.log");
    let mut seen = BTreeSet::new();
    wait_until("the next daemon accepts", || {
        let now = attached();
        assert!(!now.is_empty(), "no programs are attached");
        seen.insert(now);
        let log = fs::read_to_string("/tmp/sandboxd-2.log").unwrap();
        assert!(next.try_wait().unwrap().is_none(), "{log}");
        accepts()
    })
    .await;
    let after = attached();
    assert_eq!(after.len(), 1, "{after:?}");
    assert!(after.is_disjoint(&before), "{after:?}");
    // Nothing is left that would refuse what is new.
    assert_eq!(loaded(), programs);
    assert!(seen.iter().any(|now| now.len() == 2), "{seen:?}");
    // What the first daemon ran has ended; what was enrolled goes on.
    wait_until("what it ran is dead", || !alive(pid)).await;
    let mut client = client::root().await;
    let listed = client
        .list_sandboxes(ListSandboxesRequest {})
        .await
        .unwrap();
    let listed = listed.into_inner().sandboxes;
    let ids: Vec<_> = listed.iter().map(|sandbox| sandbox.id.as_str()).collect();
    assert_eq!(ids, [id.as_str()], "{listed:#?}");
    assert_eq!(listed[0].execs.len(), 2, "{listed:#?}");
    assert_eq!(enrolled.attack(), REFUSED);
    hammering.go_on();
    assert_eq!(hammering.line(), "ENOENT", "it got through once");
    let output = host::run(DEV, &["sandbox", "run", "-w", "/home/dev", "--", "true"]);
    assert!(output.status.success(), "{output:?}");
    client::delete(&mut client, &id).await;
    assert_eq!(host::sandboxes(), Vec::<std::path::PathBuf>::new());
    for attacker in [&mut started, &mut enrolled, &mut hammering] {
        attacker.child.wait().unwrap();
    }
    // The control: outside, all of it works.
    let _tcp = crate::outside::Connections::at("203.0.113.1:7200");
    for step in &ROUND[1..] {
        let answer = host::attack(DEV, "/", step);
        assert!(answer.starts_with("ok"), "{step:?}: {answer}");
    }
}

/// Says `200` for each line that it reads, or `000` if the file is not had.
const FETCH: &str = "while read line; do curl -sS -o /dev/null -w '%{http_code}\\n' \
    --connect-timeout 5 http://files.example/hello; done";

async fn what_was_enrolled_finds_its_names_again_after_a_restart() {
    network::proxy::serve_names().await;
    let mut client = client::root().await;
    let policy = "version = 1\n[files]\nread = [\"/\"]\nwrite = [\"@devices\"]\n\
                  [network]\nmode = \"proxy\"\nallow = [\"files.example\"]\n";
    let spec = client::spec(DEV, client::policy(policy), WORK);
    let id = client::create(&mut client, spec).await.id;
    // The daemon's variables are not in its environment.
    let mut command = host::command(DEV, &["sh", "-c", FETCH]);
    command.stderr(Stdio::null());
    let mut fetching = Attacker::start(command);
    let request = EnrollRequest {
        sandbox: Some(enroll_request::Sandbox::SandboxId(id)),
        pid: fetching.child.id(),
        stay: true,
        ..EnrollRequest::default()
    };
    let mut stream = client.enroll(request).await.unwrap().into_inner();
    assert!(stream.message().await.unwrap().is_some());
    fetching.fetch();
    assert_eq!(fetching.line(), "200");

    end_the_daemon(Signal::SIGKILL).await;
    // The proxy is gone with it; nobody else has its port.
    fetching.fetch();
    assert_eq!(fetching.line(), "000");
    start_another("/tmp/sandboxd-names.log").await;
    let mut answers = Vec::new();
    while answers.last().is_none_or(|it| it != "200") {
        fetching.fetch();
        answers.push(fetching.line());
        assert!(answers.len() < 100, "{answers:?}");
    }
    drop(fetching.child.stdin.take());
    fetching.child.wait().unwrap();
}

async fn a_daemon_that_is_told_to_end_ends_what_it_runs() {
    ground::make(DEV);
    let mut client = client::root().await;
    let start_ = ground::attacker(DEV, &[&["pid"], &["stay"]]);
    let mut run = client::Run::start(&mut client, start_).await.unwrap();
    let line = run.line().await;
    let pid: u32 = line.strip_prefix("ok ").unwrap().parse().unwrap();
    // What was enrolled to stay does.
    let spec = ground::spec(DEV);
    let id = client::create(&mut client, spec).await.id;
    let steps = [ROUND.as_slice(), &ROUND].concat();
    let mut enrolled = Attacker::start(host::attacker(DEV, &steps));
    let request = EnrollRequest {
        sandbox: Some(enroll_request::Sandbox::SandboxId(id.clone())),
        pid: enrolled.child.id(),
        stay: true,
        ..EnrollRequest::default()
    };
    let mut stream = client.enroll(request).await.unwrap().into_inner();
    assert!(stream.message().await.unwrap().is_some());
    let kept = host::sandboxes();
    let old = daemon();
    kill(old, Signal::SIGTERM).unwrap();
    let ran = run.end().await;
    let reason = sandbox_daemon::proto::exited::Reason::Daemon;
    assert_eq!(ran.exited.reason(), reason, "{ran:?}");
    assert!(!alive(pid));
    drop((client, stream));
    // Threads that are still ending have its socket open.
    wait_until("the daemon is gone", || {
        !alive(old.as_raw().cast_unsigned()) && !accepts()
    })
    .await;
    let left = host::sandboxes();
    assert!(left.len() == 1 && kept.contains(&left[0]), "{left:?}");
    assert_eq!(enrolled.attack(), REFUSED);
    verbs_without_a_daemon();

    let _ = fs::remove_file(READY);
    let ready = UnixDatagram::bind(READY).unwrap();
    start_another("/tmp/sandboxd-3.log").await;
    let mut said = [0; 64];
    let length = ready.recv(&mut said).unwrap();
    assert_eq!(text(&said[..length]).trim_end(), "READY=1");
    fs::remove_file(READY).unwrap();
    assert!(fs::metadata(SOCKET).unwrap().file_type().is_socket());
    assert_eq!(enrolled.attack(), REFUSED);
    client::delete(&mut client::root().await, &id).await;
    enrolled.child.wait().unwrap();
}

/// What needs no daemon works; the rest says that there is none.
fn verbs_without_a_daemon() {
    let pid = std::process::id().to_string();
    for (arguments, status, says) in [
        (["run", "--", "true"].as_slice(), 125, "cannot reach"),
        (&["enroll", &pid], 1, "cannot reach"),
        (&["ps"], 1, "cannot reach"),
        (&["events"], 1, "cannot reach"),
        (&["kill", "x"], 1, "cannot reach"),
        (&["version"], 1, "cannot reach"),
        (&["doctor"], 1, ""),
        (&["doctor", "--no-daemon"], 0, ""),
        (&["policy", "list"], 0, ""),
        (&["policy", "show", "default"], 0, ""),
        (
            &["policy", "check", "/usr/lib/sandboxd/policies/default.toml"],
            0,
            "",
        ),
    ] {
        let output = host::run(ROOT, &[&["sandbox"], arguments].concat());
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        let error = text(&output.stderr);
        assert!(error.contains(says), "{arguments:?}: {error}");
        let hint = "hint: start it with `systemctl start sandboxd`";
        let told = format!("{error}{}", text(&output.stdout));
        assert_eq!(told.contains(hint), status != 0, "{arguments:?}: {told}");
    }
}

async fn a_host_without_bpffs_is_refused() {
    end_the_daemon(Signal::SIGINT).await;
    let mount = |argv: &[&str]| {
        let status = Command::new(argv[0]).args(&argv[1..]).status();
        assert!(status.unwrap().success(), "{argv:?}");
    };
    mount(&["umount", "/sys/fs/bpf"]);
    let output = Command::new("sandboxd").output().unwrap();
    let error = text(&output.stderr);
    assert!(!output.status.success(), "{error}");
    assert!(
        error.contains("/sys/fs/bpf") && error.contains("mount"),
        "{error}"
    );
    let doctor = host::run(ROOT, &["sandbox", "doctor"]);
    assert_ne!(doctor.status.code(), Some(0), "{doctor:?}");
    assert!(text(&doctor.stdout).contains("/sys/fs/bpf"), "{doctor:?}");
    mount(&["mount", "-t", "bpf", "bpf", "/sys/fs/bpf"]);
    start_another("/tmp/sandboxd-4.log").await;
    assert!(Path::new(PINS).exists());
}
