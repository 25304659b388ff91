//! What the proxy can no longer do, each thing with and without confinement.

#![expect(clippy::unwrap_used, reason = "tests panic")]

use std::{
    fs::{self, File},
    io,
    net::{TcpListener, TcpStream, UdpSocket},
    os::unix::{
        fs::PermissionsExt as _,
        process::{CommandExt as _, ExitStatusExt as _},
    },
    path::PathBuf,
    process::{Command, ExitStatus, exit},
    sync::LazyLock,
    thread,
};

use libtest_mimic::{Arguments, Trial};
use sandbox_proxy::confine;
use tempfile::TempDir;

const NOBODY: u32 = 65_534;
const FAILED: i32 = 3;

/// The tests, or what they run in a process of its own.
fn main() {
    if let Ok(action) = std::env::var("ACTION") {
        act(&action);
    }
    let trial = |name: &str, test: fn()| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    let trials = vec![
        trial("what_serving_takes_goes_on", what_serving_takes_goes_on),
        trial("no_file_is_opened_or_made", no_file_is_opened_or_made),
        trial("other_calls_are_its_end", other_calls_are_its_end),
        trial("no_port_is_taken", no_port_is_taken),
        trial(
            "root_is_not_confined_but_refused",
            root_is_not_confined_but_refused,
        ),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// The other side of the tests.
fn act(action: &str) -> ! {
    if std::env::var("CONFINED").is_ok_and(|it| it == "1") {
        confine::begin().unwrap();
        confine::finish().unwrap();
    }
    let done = match action {
        "nothing" => Ok(()),
        "thread" => thread::spawn(|| ())
            .join()
            .map_err(|_| io::ErrorKind::Other.into()),
        "udp" => UdpSocket::bind("127.0.0.1:0").map(drop),
        "connect" => TcpStream::connect("127.0.0.1:1").map(drop),
        "open" => File::open("/etc/passwd").map(drop),
        "create" => File::create("/tmp/sandbox-proxy-was-here").map(drop),
        "exec" => Err(Command::new("/bin/true").exec()),
        "fork" => Command::new("/bin/true").status().map(drop),
        "listen" => TcpListener::bind("127.0.0.1:0").map(drop),
        "unix" => std::os::unix::net::UnixDatagram::unbound().map(drop),
        "kill" => nix::sys::signal::kill(nix::unistd::getpid(), None).map_err(Into::into),
        "stat" => fs::metadata("/").map(drop),
        "lookup" => bpf(1),
        "update" => bpf(2),
        "load" => bpf(5),
        // PTRACE_ATTACH, to nobody.
        "ptrace" => call(libc::SYS_ptrace, 16, i64::from(i32::MAX)),
        other => panic!("{other}"),
    };
    match done {
        Ok(()) => exit(0),
        Err(error) => {
            eprintln!("{error}");
            exit(FAILED)
        }
    }
}

/// Without a map that it could be about.
fn bpf(command: i64) -> io::Result<()> {
    call(libc::SYS_bpf, command, 0)
}

fn call(number: i64, first: i64, second: i64) -> io::Result<()> {
    // SAFETY: bpf(2) with attributes of no bytes, and ptrace(2) of nobody, write to
    // no memory.
    match unsafe { libc::syscall(number, first, second, 0, 0) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

fn run(action: &str, confined: bool, user: Option<u32>) -> ExitStatus {
    // One for all: while another is written, a process that begins meanwhile
    // would hold it open.
    static PROGRAM: LazyLock<(TempDir, PathBuf)> = LazyLock::new(|| {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let program = directory.path().join("test");
        fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        (directory, program)
    });
    let program = &PROGRAM.1;
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("ACTION", action)
        .env("CONFINED", if confined { "1" } else { "0" })
        .current_dir("/");
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    command.output().unwrap().status
}

/// Root tests as nobody; everybody else as themselves.
fn user() -> Option<u32> {
    nix::unistd::geteuid().is_root().then_some(NOBODY)
}

fn ends(action: &str, confined: bool) -> (Option<i32>, Option<i32>) {
    let status = run(action, confined, user());
    (status.code(), status.signal())
}

const DONE: (Option<i32>, Option<i32>) = (Some(0), None);
const REFUSED: (Option<i32>, Option<i32>) = (Some(FAILED), None);
const KILLED: (Option<i32>, Option<i32>) = (None, Some(libc::SIGSYS));

fn what_serving_takes_goes_on() {
    for action in ["nothing", "thread", "udp"] {
        assert_eq!(ends(action, false), DONE, "{action}");
        assert_eq!(ends(action, true), DONE, "{action}");
    }
    for action in ["connect", "lookup"] {
        // There is nobody there, and no such map.
        assert_eq!(ends(action, false), REFUSED, "{action}");
        assert_eq!(ends(action, true), REFUSED, "{action}");
    }
}

fn no_file_is_opened_or_made() {
    for action in ["open", "create"] {
        assert_eq!(ends(action, false), DONE, "{action}");
        assert_eq!(ends(action, true), REFUSED, "{action}");
    }
    let _ = fs::remove_file("/tmp/sandbox-proxy-was-here");
}

fn other_calls_are_its_end() {
    for action in ["exec", "fork", "unix", "kill", "stat"] {
        assert_eq!(ends(action, false), DONE, "{action}");
        assert_eq!(ends(action, true), KILLED, "{action}");
    }
    for action in ["update", "load", "ptrace"] {
        assert_eq!(ends(action, false), REFUSED, "{action}");
        assert_eq!(ends(action, true), KILLED, "{action}");
    }
}

fn no_port_is_taken() {
    assert_eq!(ends("listen", false), DONE);
    // Refused by Landlock; before Linux 6.7 it gets as far as listen(2).
    let ended = ends("listen", true);
    assert!(ended == REFUSED || ended == KILLED, "{ended:?}");
}

fn root_is_not_confined_but_refused() {
    if nix::unistd::geteuid().is_root() {
        let status = run("nothing", true, None);
        // It panics.
        assert_eq!(status.code(), Some(101));
    }
}
