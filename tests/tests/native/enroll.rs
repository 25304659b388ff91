//! Enrolling: all of a tree or nothing of it, and never a stranger's.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::process::CommandExt as _,
    process::{Child, Command, Stdio},
};

use sandbox_daemon::{
    cgroup::Cgroup,
    launch::{EnrollError, Enrolled, Enrollment, enroll},
    sys,
};

use crate::support::{OTHER, Scratch, USER, account, host_view, wait_until};

/// A running tree of processes, killed with the test.
struct Tree {
    child: Child,
    pids: Vec<u32>,
}

impl Tree {
    /// Starts a shell script as a user; it prints the pids of its tree, one a
    /// line, then an empty line.
    fn start(uid: u32, script: &str) -> Self {
        let mut child = Command::new("bash")
            .args(["-c", script])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .process_group(0)
            .uid(uid)
            .gid(uid)
            .spawn()
            .unwrap();
        let pids = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map_while(|line| line.unwrap().parse().ok())
            .collect();
        Self { child, pids }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        for pid in &self.pids {
            if let Ok(pidfd) = sys::pidfd_open(*pid) {
                drop(sys::pidfd_send_signal(pidfd, libc::SIGKILL));
            }
        }
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

const FAMILY: &str = "bash -c 'sleep 1000 & echo $!; echo $$; exec 1>&-; wait' & \
     sleep 1000 >&- & echo $!; echo $$; sleep 0.2; echo; exec 1>&-; wait";

fn request(pid: u32) -> Enrollment {
    Enrollment {
        pid,
        uid: USER,
        start_time: None,
        allow_inherited: false,
    }
}

fn try_enroll(
    scratch: &Scratch,
    target: &Cgroup,
    request: Enrollment,
) -> Result<Enrolled, EnrollError> {
    enroll(&request, &scratch.slice, target)
}

fn cgroup(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/cgroup"))
        .unwrap()
        .lines()
        .find_map(|line| line.strip_prefix("0::"))
        .unwrap()
        .to_owned()
}

#[test]
fn a_process_comes_with_its_descendants() {
    let scratch = Scratch::new();
    let tree = Tree::start(USER, FAMILY);
    assert_eq!(tree.pids.len(), 4, "{:?}", tree.pids);
    let target = scratch.exec();
    let started = Enrollment {
        start_time: Some(sys::start_time(tree.pid()).unwrap()),
        ..request(tree.pid())
    };
    let enrolled = try_enroll(&scratch, &target, started).unwrap();
    assert_eq!(enrolled.pids[0], tree.pid());
    let mut moved = target.pids().unwrap();
    moved.sort_unstable();
    for pid in &tree.pids {
        assert!(moved.contains(pid), "{pid} in {moved:?}");
        let membership = scratch.slice.membership(*pid).unwrap().unwrap();
        assert_eq!(membership.sandbox, "box");
        assert_eq!(membership.exec.as_deref(), Some("exec-0"));
    }
    let mut reported = enrolled.pids.clone();
    reported.sort_unstable();
    assert_eq!(reported, moved);
    target.kill().unwrap();
    assert!(wait_until(|| !target.populated().unwrap()));
}

#[test]
fn with_a_descendant_of_another_user_nothing_moves() {
    let scratch = Scratch::new();
    let script = format!(
        "echo $$; setpriv --reuid {OTHER} --regid {OTHER} --clear-groups sleep 1000 >&- & \
         echo $!; sleep 0.3; echo; exec 1>&-; wait"
    );
    let tree = Tree::start(0, &script);
    let before: Vec<_> = tree.pids.iter().map(|pid| cgroup(*pid)).collect();
    let target = scratch.exec();
    let as_root = Enrollment {
        uid: 0,
        ..request(tree.pid())
    };
    let error = try_enroll(&scratch, &target, as_root).unwrap_err();
    assert!(
        matches!(error, EnrollError::NotOwned { uid: 0, .. }),
        "{error:?}"
    );
    assert!(!target.populated().unwrap());
    let after: Vec<_> = tree.pids.iter().map(|pid| cgroup(*pid)).collect();
    assert_eq!(before, after);
}

#[test]
fn a_stranger_is_refused() {
    let scratch = Scratch::new();
    let tree = Tree::start(OTHER, FAMILY);
    let target = scratch.exec();
    let error = try_enroll(&scratch, &target, request(tree.pid())).unwrap_err();
    assert!(matches!(error, EnrollError::NotOwned { .. }), "{error:?}");
    let error = try_enroll(&scratch, &target, request(1)).unwrap_err();
    assert!(matches!(error, EnrollError::Refused { .. }), "{error:?}");
    let myself = try_enroll(&scratch, &target, request(std::process::id())).unwrap_err();
    assert!(matches!(myself, EnrollError::Refused { .. }), "{myself:?}");
    assert!(!target.populated().unwrap());
}

#[test]
fn another_start_time_is_another_process() {
    let scratch = Scratch::new();
    let tree = Tree::start(USER, FAMILY);
    let target = scratch.exec();
    let other = Enrollment {
        start_time: Some(sys::start_time(tree.pid()).unwrap() + 1),
        ..request(tree.pid())
    };
    let error = try_enroll(&scratch, &target, other).unwrap_err();
    assert!(matches!(error, EnrollError::StartTime { .. }), "{error:?}");
    assert!(!target.populated().unwrap());
}

#[test]
fn what_is_open_is_named_unless_it_is_accepted() {
    let scratch = Scratch::new();
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    std::os::unix::fs::chown(path, Some(USER), None).unwrap();
    let script = format!(
        "exec 7>>{path} 8</ 9</dev/null; echo $$; sleep 1000 >&- & echo $!; echo; exec 1>&-; wait"
    );
    let tree = Tree::start(USER, &script);
    let target = scratch.exec();
    let error = try_enroll(&scratch, &target, request(tree.pid())).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains(&format!("writable file `{path}` (descriptor 7 of")),
        "{text}"
    );
    assert!(text.contains("directory `/` (descriptor 8 of"), "{text}");
    assert!(!text.contains("descriptor 9"), "{text}");
    assert!(!target.populated().unwrap());
    let accepted = Enrollment {
        allow_inherited: true,
        ..request(tree.pid())
    };
    try_enroll(&scratch, &target, accepted).unwrap();
    assert_eq!(target.pids().unwrap().len(), 2);
}

#[tokio::test]
async fn nothing_moves_from_one_sandbox_to_another() {
    let scratch = Scratch::new();
    let account = account(USER);
    let child = host_view(&account)
        .spawn(scratch.command(&account, &["sleep", "1000"]))
        .unwrap();
    let target = scratch.exec();
    let error = try_enroll(&scratch, &target, request(child.pid)).unwrap_err();
    assert!(
        matches!(&error, EnrollError::InSandbox { sandbox, .. } if sandbox == "box"),
        "{error:?}"
    );
}

#[test]
fn a_tree_that_keeps_forking_comes_along() {
    let scratch = Scratch::new();
    let script = "echo $$; echo; exec 1>&-; while :; do sleep 0.005 & sleep 0.001; done";
    let tree = Tree::start(USER, script);
    let target = scratch.exec();
    try_enroll(&scratch, &target, request(tree.pid())).unwrap();
    for _ in 0..20 {
        for pid in target.pids().unwrap() {
            assert!(
                scratch
                    .slice
                    .membership(pid)
                    .map_or(true, |found| found.is_some())
            );
        }
    }
    target.kill().unwrap();
    assert!(wait_until(|| !target.populated().unwrap()));
}
