//! Real work: in a sandbox under `default.toml` it comes to what it comes to
//! outside, and nothing is refused that it did not deserve. Each script works
//! in an empty workspace, once outside and once inside, at the same path.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{MetadataExt as _, chown},
    path::Path,
    time::Instant,
};

use sandbox_daemon::proto::{PolicySource, Start};

use crate::{
    client,
    host::{self, DEV},
};

const WORK: &str = "/srv/job/work";
pub(crate) const SCRIPT: &str = "/srv/job/script";

/// A piece of work.
pub(crate) struct Job {
    pub(crate) name: &'static str,
    pub(crate) script: &'static str,
    /// Files whose contents differ from run to run, by parts of their paths.
    pub(crate) volatile: &'static [&'static str],
    /// Refusals that are inherent: operation and object.
    pub(crate) refused: &'static [(&'static str, &'static str)],
}

impl Job {
    pub(crate) const fn new(name: &'static str, script: &'static str) -> Self {
        Self {
            name,
            script,
            volatile: &[],
            refused: &[],
        }
    }
}

macro_rules! jobs {
    ($(
        $(#[doc = $doc:literal])*
        $name:ident($script:literal $(, volatile: $volatile:expr)? $(, refused: $refused:expr)?)
    )*) => {
        crate::trials![$($name),*];
        $(
            $(#[doc = $doc])*
            async fn $name() {
                let job = Job {
                    $(volatile: $volatile,)?
                    $(refused: $refused,)?
                    ..Job::new(stringify!($name), include_str!($script))
                };
                compare(&job, client::named("default")).await;
            }
        )*
    };
}

jobs! {
    git_works_as_outside("git.sh", volatile: &["/.git/index", "/worktrees/c/index"])
    make_builds_and_runs_what_it_built("make.sh")
    files_are_edited_as_outside("edit.sh")
    archives_are_packed_and_unpacked_as_outside("archive.sh", volatile: &[".tar"])
    rsync_works_as_outside("rsync.sh")
    locks_notifications_and_shared_memory_work("locks.sh")
    sqlite_works_with_a_write_ahead_log("sqlite.sh", volatile: &[".db"])
    pytest_works_with_processes_and_tasks("pytest.sh", volatile: &["__pycache__"])
    /// pip looks at every file of `/etc`, to find out which distribution this is.
    pip_installs_into_a_virtual_environment(
        "pip.sh",
        volatile: &["/v/", "/package/"],
        refused: &[
            ("stat", "/etc/gshadow"),
            ("stat", "/etc/gshadow-"),
            ("stat", "/etc/shadow"),
            ("stat", "/etc/shadow-"),
        ]
    )
    node_works_with_threads("node.sh")
    npm_installs_and_runs_scripts("npm.sh", volatile: &[".package-lock.json", "package-lock.json"])
    pseudo_terminals_work("pty.sh", volatile: &["typescript"])
    tmux_works_within_the_sandbox("tmux.sh")
    ssh_keys_are_made_in_the_workspace("ssh-keygen.sh", volatile: &["/key"])
    a_crash_leaves_a_core("core.sh", volatile: &["/core"])
    servers_and_clients_meet_on_loopback("http.sh")
    /// ps looks at all processes, to find the one that it is asked about.
    processes_adjust_themselves(
        "self.sh",
        refused: &[("open", "/proc/1/stat"), ("open", "/proc/[pid]/stat")]
    )
}

/// What a run left.
#[derive(Debug, PartialEq)]
struct Left {
    code: Option<i32>,
    stdout: String,
    stderr: String,
    tree: BTreeMap<String, String>,
}

pub(crate) async fn compare(job: &Job, policy: PolicySource) {
    empty();
    fs::write(SCRIPT, job.script).unwrap();
    let start = Instant::now();
    let output = host::run_with(DEV, WORK, &["bash", "-eu", SCRIPT], "");
    let outside = Left {
        code: output.status.code(),
        stdout: host::text(&output.stdout),
        stderr: host::text(&output.stderr),
        tree: tree(job.volatile),
    };
    assert_eq!(outside.code, Some(0), "outside: {outside:?}");
    let middle = Instant::now();

    empty();
    let spec = client::spec(DEV, policy, WORK);
    let request = Start {
        cwd: WORK.into(),
        ..client::start(spec, &["bash", "-eu", SCRIPT])
    };
    let ran = client::run(&mut client::root().await, request).await;
    eprintln!(
        "{}: {} s outside, {} s inside",
        job.name,
        middle.duration_since(start).as_secs(),
        middle.elapsed().as_secs()
    );
    let inside = Left {
        code: ran.code().and_then(|code| i32::try_from(code).ok()),
        stdout: host::text(&ran.stdout),
        stderr: host::text(&ran.stderr),
        tree: tree(job.volatile),
    };
    let mut found: Vec<(&str, &str)> = ran
        .denials
        .iter()
        .map(|denial| (denial.operation.as_str(), denial.object_display.as_str()))
        .collect();
    found.sort_unstable();
    assert_eq!(found, job.refused, "{ran:?}");
    assert_eq!(inside, outside, "{ran:?}");
    assert_eq!(ran.lost, [], "{ran:?}");
}

/// The workspace, empty.
fn empty() {
    let work = Path::new(WORK);
    if work.exists() {
        fs::remove_dir_all(work).unwrap();
    }
    fs::create_dir_all(work).unwrap();
    chown(work, Some(DEV), Some(DEV)).unwrap();
}

/// Names, modes, link counts and targets, and contents.
fn tree(volatile: &[&str]) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut left = vec![Path::new(WORK).to_owned()];
    while let Some(path) = left.pop() {
        let stat = fs::symlink_metadata(&path).unwrap();
        let name = path.display().to_string();
        let what = if stat.is_symlink() {
            format!("-> {}", fs::read_link(&path).unwrap().display())
        } else if !stat.is_file() {
            String::new()
        } else if volatile.iter().any(|part| name.contains(part)) {
            "volatile".to_owned()
        } else {
            let content = fs::read(&path).unwrap();
            format!("{} {}", stat.nlink(), String::from_utf8_lossy(&content))
        };
        if stat.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|it| it.unwrap().path()));
        }
        found.insert(
            name,
            format!("{:o} {}:{} {what}", stat.mode(), stat.uid(), stat.gid()),
        );
    }
    found
}
