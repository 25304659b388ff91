//! Callers: who they are, what is taken from them, what they may not ask for.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    os::unix::{net::UnixStream, process::CommandExt as _},
    process::{Child, Command, Stdio},
};

use sandbox_daemon::{
    launch::{Account, Confinement, Limits, Peer, PeerError},
    sys,
};

use crate::support::{OTHER, Scratch, USER, account, host_view};

/// A caller that does nothing, killed with the test.
struct Caller(Child);

impl Caller {
    fn start(uid: u32, argv: &[&str]) -> Self {
        let child = Command::new(argv[0])
            .args(&argv[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .uid(uid)
            .gid(uid)
            .spawn()
            .unwrap();
        Self(child)
    }

    /// Waits until it runs `cat`, which each caller does in the end.
    fn ready(mut self) -> Self {
        self.0.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        let mut byte = [0];
        self.0
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut byte)
            .unwrap();
        self
    }

    fn peer(&self, uid: u32) -> Peer {
        Peer::of_process(self.0.id(), uid, uid).unwrap()
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_socket_names_its_peer() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let peer = Peer::of_socket(&ours).unwrap();
    assert_eq!(peer.pid(), std::process::id());
    assert_eq!((peer.uid(), peer.gid()), (0, 0));
    assert_eq!(peer.start_time(), sys::start_time(peer.pid()).unwrap());
    let root = Account::of_peer(&peer).unwrap();
    assert_eq!(root.name, "root");
    drop(theirs);
}

#[test]
fn a_callers_own_descriptors_are_taken() {
    let mut caller = Caller::start(USER, &["cat"]).ready();
    let peer = caller.peer(USER);
    let [_, stdout, _] = peer.take_stdio(peer.start_time()).unwrap();
    File::from(stdout).write_all(b"straight").unwrap();
    let mut text = [0; 8];
    caller
        .0
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut text)
        .unwrap();
    assert_eq!(&text, b"straight");
}

#[test]
fn a_closed_descriptor_is_null() {
    let caller = Caller::start(USER, &["sh", "-c", "exec 2>&-; exec cat"]).ready();
    let peer = caller.peer(USER);
    let [_, _, stderr] = peer.take_stdio(peer.start_time()).unwrap();
    let mut stderr = File::from(stderr);
    stderr.write_all(b"nowhere").unwrap();
    let mut text = String::new();
    stderr.read_to_string(&mut text).unwrap();
    assert_eq!(text, "");
}

#[test]
fn nothing_is_taken_from_another_process() {
    let caller = Caller::start(USER, &["cat"]).ready();
    let stranger = caller.peer(OTHER);
    let error = stranger.take_stdio(stranger.start_time()).unwrap_err();
    assert!(
        matches!(
            error,
            PeerError::Changed {
                what: "user id",
                ..
            }
        ),
        "{error:?}"
    );
    let peer = caller.peer(USER);
    let error = peer.take_stdio(peer.start_time() + 1).unwrap_err();
    assert!(
        matches!(
            error,
            PeerError::Changed {
                what: "start time",
                ..
            }
        ),
        "{error:?}"
    );
    drop(caller);
    let error = peer.take_stdio(peer.start_time()).unwrap_err();
    assert!(matches!(error, PeerError::Gone { .. }), "{error:?}");
}

#[test]
fn an_ordinary_caller_is_not_confined() {
    let scratch = Scratch::new();
    let caller = Caller::start(USER, &["cat"]).ready();
    let found = caller.peer(USER).confinement(&scratch.slice).unwrap();
    assert_eq!(found, []);
    let root = Peer::of_process(std::process::id(), 0, 0).unwrap();
    assert_eq!(root.confinement(&scratch.slice).unwrap(), []);
}

#[test]
fn a_confined_caller_is_told_how() {
    let scratch = Scratch::new();
    for (argv, expected) in [
        (&["unshare", "-m", "cat"][..], Confinement::MountNamespace),
        (&["unshare", "-n", "cat"], Confinement::NetworkNamespace),
        (&["unshare", "-U", "cat"], Confinement::UserNamespace),
        (
            &["setpriv", "--no-new-privs", "cat"],
            Confinement::NoNewPrivileges,
        ),
        (
            &[
                "setpriv",
                "--bounding-set",
                "-all",
                "--inh-caps",
                "-all",
                "cat",
            ],
            Confinement::Capabilities,
        ),
        (&["chroot", "/usr", "/bin/cat"], Confinement::Root),
    ] {
        let caller = Caller::start(0, argv).ready();
        let found = caller.peer(0).confinement(&scratch.slice).unwrap();
        assert!(found.contains(&expected), "{argv:?}: {found:?}");
    }
}

#[tokio::test]
async fn a_caller_in_a_sandbox_is_told_which() {
    let scratch = Scratch::new();
    let account = account(USER);
    let child = host_view(&account)
        .spawn(scratch.command(&account, &["sleep", "1000"]))
        .unwrap();
    let peer = Peer::of_process(child.pid, USER, USER).unwrap();
    assert_eq!(
        peer.sandbox(&scratch.slice).unwrap().as_deref(),
        Some("box")
    );
    let found = peer.confinement(&scratch.slice).unwrap();
    assert!(
        found.contains(&Confinement::Sandbox("box".to_owned())),
        "{found:?}"
    );
}

#[test]
fn a_callers_limits_can_be_read() {
    let caller = Caller::start(USER, &["sh", "-c", "ulimit -n 77; exec cat"]).ready();
    let limits = Limits::of_process(caller.0.id()).unwrap();
    assert!(format!("{limits:?}").contains("77"), "{limits:?}");
}
