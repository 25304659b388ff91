//! Who calls the proxy is never taken for somebody else: not for a sandbox that
//! had the same port before, nor for anybody in one.

use std::{
    fs,
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    thread,
    time::Duration,
};

use crate::{Test, tests, world::World};

pub(crate) fn tests() -> Vec<Test> {
    tests![
        nobody_outside_is_taken_for_a_sandbox_that_had_the_port,
        no_sandbox_is_taken_for_another_one_that_had_the_port,
    ]
}

/// `Python` that has a connection to the proxy, ends it, keeps the socket, and
/// does what it is told then.
const CALL: &str = r#"
import ctypes, os, socket, sys, time
def wait(name):
    while not os.path.exists(name): time.sleep(0.01)
def tell(name, what):
    with open(name + ".new", "w") as f: f.write(what)
    os.rename(name + ".new", name)
def bound(s, port):
    # Who lets go of a port that it chose keeps it for those that do not mind.
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("127.0.0.1", port))
def end(s):
    assert ctypes.CDLL(None).connect(s.fileno(), bytes(16), 16) == 0
def ask(s, proxy):
    s.connect(proxy)
    s.sendall(b"GET http://echo.example/ HTTP/1.1\r\nhost: echo.example\r\nconnection: close\r\n\r\n")
    print(s.makefile("rb").read().decode(errors="replace"))
what, port = sys.argv[1], int(sys.argv[2])
if what == "outside":
    s = socket.socket()
    bound(s, port)
    ask(s, ("127.0.0.1", int(sys.argv[3])))
else:
    s = socket.socket()
    if port: bound(s, port)
    s.connect(("198.18.0.1", 3128))
    port = s.getsockname()[1]
    end(s)
    tell("port", str(port))
    wait("go on")
    if what == "again":
        bound(s, port)
        ask(s, ("198.18.0.1", 3128))
"#;

/// The same in a sandbox.
struct Caller {
    process: Child,
    place: PathBuf,
}

impl Caller {
    fn start(world: &World, allow: &str, what: &str, port: u16) -> Self {
        let daemon = world.daemon();
        let place = world.home();
        let process = daemon
            .client(&["run", "--denials", "always", "--policy"])
            .arg(daemon.policy(&format!("allow = {allow}")))
            .arg("-w")
            .arg(&place)
            .args(["--", "/usr/bin/python3", "-c", CALL, what])
            .arg(port.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self { process, place }
    }

    /// The port that it had.
    fn port(&mut self) -> u16 {
        loop {
            if let Ok(port) = fs::read_to_string(self.place.join("port")) {
                return port.parse().unwrap();
            }
            let ended = self.process.try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn go_on(self) -> Output {
        fs::write(self.place.join("go on"), "").unwrap();
        self.process.wait_with_output().unwrap()
    }
}

fn nobody_outside_is_taken_for_a_sandbox_that_had_the_port(world: &World) {
    let mut inside = Caller::start(world, r#"["echo.example"]"#, "once", 0);
    let port = inside.port();
    let outside = Command::new("/usr/bin/python3")
        .args(["-c", CALL, "outside", &port.to_string()])
        .arg(world.daemon().wall.entrances().tcp4.port.to_string())
        .output()
        .unwrap();
    assert!(
        printed(&outside).contains("not in a sandbox"),
        "{outside:?}"
    );
    let inside = inside.go_on();
    assert!(inside.status.success(), "{inside:?}");
}

fn no_sandbox_is_taken_for_another_one_that_had_the_port(world: &World) {
    let mut walled = Caller::start(world, r#"["nothing.example"]"#, "again", 0);
    let port = walled.port();
    let mut other = Caller::start(world, r#"["echo.example"]"#, "once", port);
    assert_eq!(other.port(), port);
    let walled = walled.go_on();
    assert!(walled.status.success(), "{walled:?}");
    assert!(printed(&walled).contains("403"), "{walled:?}");
    let told = String::from_utf8_lossy(&walled.stderr).into_owned();
    assert!(
        told.contains("echo.example:80 (not in the allow list)"),
        "{told}"
    );
    let other = other.go_on();
    assert!(other.status.success(), "{other:?}");
    let control = Caller::start(world, r#"["echo.example"]"#, "again", 0).go_on();
    assert!(printed(&control).contains(" 200 "), "{control:?}");
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}
