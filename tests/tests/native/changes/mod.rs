//! What an ephemeral sandbox made of its workspace: found, exported, applied; over
//! a real overlay, as a user without privileges.

mod applied;
mod attacks;
mod found;
mod patches;
mod random;

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs, io,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{FileTypeExt as _, MetadataExt as _},
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use sandbox_daemon::{
    escape,
    launch::{Account, Ephemeral, View, ViewSpec, as_user},
    policy::{Additions, Document, Expansion, Policy, Sets, Source},
    workspace::{
        Applied, Change, Kind, LeftOut, Piece, Refusal, Selection, Step, Terms, Watch, Workspace,
        WorkspaceError,
    },
};

use crate::support::{USER, account, work_dir};

/// A sandbox with an ephemeral workspace.
pub(super) struct Ground {
    account: Account,
    dir: tempfile::TempDir,
    view: View,
    policy: String,
    applied: Applied,
}

/// How changes are applied.
#[derive(Default, Clone, Copy)]
pub(super) struct How {
    force: bool,
    dry_run: bool,
    outside_links: bool,
}

/// What was applied, and what was not.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Report {
    applied: Vec<String>,
    left_out: Vec<String>,
}

const POLICY: &str = r#"version = 1
[files]
read = ["/", "@repository", "@workspace-config"]
write = ["${workspace}"]
deny = ["**/.env"]
"#;

impl Ground {
    /// `prepare` is a script that the user runs in the real workspace before.
    pub(super) fn new(prepare: &str) -> Self {
        Self::with(prepare, POLICY)
    }

    pub(super) fn with(prepare: &str, policy: &str) -> Self {
        Self::prepared(policy, |dir| host(dir, prepare))
    }

    pub(super) fn prepared(policy: &str, prepare: impl FnOnce(&Path)) -> Self {
        let dir = work_dir(USER);
        prepare(dir.path());
        // What was made before is not of the same moment as the overlay.
        std::thread::sleep(std::time::Duration::from_millis(30));
        let account = account(USER);
        let view = View::new(ViewSpec {
            account: account.clone(),
            keep: Vec::new(),
            private_places: false,
            ephemeral: Some(Ephemeral {
                workspace: dir.path().to_owned(),
                disk: None,
            }),
        })
        .unwrap();
        Self {
            account,
            dir,
            view,
            policy: policy.to_owned(),
            applied: Applied::default(),
        }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs a script as the user, in the sandbox's workspace.
    pub(super) fn inside(&self, script: &str) {
        let (dir, script) = (self.dir.path().to_owned(), script.to_owned());
        self.view.call(move || host(&dir, &script));
    }

    /// Runs a script as the user, in the real workspace.
    pub(super) fn outside(&self, script: &str) {
        host(self.dir.path(), script);
    }

    /// Does something as the user in the sandbox's view.
    pub(super) fn act<T: Send + 'static>(&self, f: impl FnOnce(&Path) -> T + Send + 'static) -> T {
        let (dir, account) = (self.dir.path().to_owned(), self.account.clone());
        self.view
            .call(move || as_user(&account, || f(&dir)).unwrap())
    }

    fn workspace(&self) -> Workspace<'_> {
        Workspace::new(self.view.layers().unwrap(), &self.account)
    }

    pub(super) fn changes(&self, paths: &[&str]) -> Vec<Change> {
        let selection = Selection::new(paths.iter().map(PathBuf::from)).unwrap();
        self.workspace()
            .changes(&selection, &mut Watch::new(&mut |_| true))
            .unwrap()
    }

    /// `A path`, directories with a slash.
    pub(super) fn letters(&self) -> Vec<String> {
        self.changes(&[]).iter().map(letter).collect()
    }

    pub(super) fn patch(&self, binary: bool) -> (Vec<u8>, Vec<String>) {
        let changes = self.changes(&[]);
        let (mut patch, mut left_out) = (Vec::new(), Vec::new());
        self.workspace()
            .patch(
                &changes,
                binary,
                &mut Watch::new(&mut |_| true),
                &mut |piece| {
                    match piece {
                        Piece::Patch(bytes) => patch.extend_from_slice(&bytes),
                        Piece::LeftOut(found) => left_out.push(told(&found)),
                    }
                    Ok(())
                },
            )
            .unwrap();
        (patch, left_out)
    }

    fn policy(&self) -> Policy {
        let sets = Sets::shipped().unwrap();
        let expansion = Expansion {
            home: "/nonexistent".into(),
            workspace: Some(self.dir.path().to_owned()),
            tmp: Vec::new(),
            cache: "/nonexistent/cache".into(),
        };
        let document = Document::parse(&Source::new("p.toml", &self.policy), &sets).unwrap();
        document.resolve(&expansion, &Additions::default()).unwrap()
    }

    pub(super) fn apply_how(&mut self, paths: &[&str], how: How) -> Result<Report, WorkspaceError> {
        let changes = self.changes(paths);
        self.apply_these(&changes, how)
    }

    pub(super) fn apply_these(
        &mut self,
        changes: &[Change],
        how: How,
    ) -> Result<Report, WorkspaceError> {
        let policy = self.policy();
        let workspace = Workspace::new(self.view.layers().unwrap(), &self.account);
        let rules = workspace.rules(&policy, self.dir.path(), how.outside_links)?;
        let terms = Terms {
            rules: &rules,
            force: how.force,
            dry_run: how.dry_run,
        };
        let mut report = Report::default();
        let mut tell = |_| true;
        let watch = &mut Watch::new(&mut tell);
        workspace.apply(changes, terms, &mut self.applied, watch, &mut |step| {
            match step {
                Step::Applied(change) => report.applied.push(letter(change)),
                Step::LeftOut(found) => report.left_out.push(told(&found)),
            }
            Ok(())
        })?;
        Ok(report)
    }

    /// Applies all, which must be possible.
    pub(super) fn apply(&mut self) -> Report {
        self.apply_how(&[], How::default()).unwrap()
    }

    /// What stands against applying all.
    pub(super) fn conflicts(&mut self) -> Vec<String> {
        match self.apply_how(&[], How::default()) {
            Err(WorkspaceError::Conflict(found)) => found.iter().map(refused).collect(),
            other => panic!("no conflict: {other:?}"),
        }
    }

    /// What the sandbox sees.
    pub(super) fn merged(&self) -> Tree {
        let dir = self.dir.path().to_owned();
        self.view.call(move || tree(&dir))
    }

    /// What is really there.
    pub(super) fn real(&self) -> Tree {
        tree(self.dir.path())
    }
}

fn refused(refusal: &Refusal) -> String {
    format!("{} {}", refusal.path.display(), refusal.reason)
}

fn letter(change: &Change) -> String {
    let letter = match change.kind {
        Kind::Added => 'A',
        Kind::Modified => 'M',
        Kind::Deleted => 'D',
        Kind::Renamed => 'R',
        Kind::TypeChanged => 'T',
    };
    let shown = |path: &Path| escape::display(path.as_os_str().as_bytes());
    let mode = change.new.or(change.old).map_or(0, |meta| meta.mode);
    let slash = if mode & libc::S_IFMT == libc::S_IFDIR {
        "/"
    } else {
        ""
    };
    let from = change.old_path.as_deref();
    let from = from.map_or_else(String::new, |path| format!("{} > ", shown(path)));
    format!("{letter} {from}{}{slash}", shown(&change.path))
}

fn told(left_out: &LeftOut) -> String {
    let path = escape::display(left_out.path.as_os_str().as_bytes());
    format!("{path} {}", left_out.reason)
}

/// Type, permissions and contents of every file, by path.
pub(super) type Tree = BTreeMap<PathBuf, (char, u32, Vec<u8>)>;

pub(super) fn tree(root: &Path) -> Tree {
    let mut seen = Tree::new();
    let mut rest = vec![root.to_owned()];
    while let Some(path) = rest.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        let kind = meta.file_type();
        let mut mode = meta.mode() & 0o7777;
        let (letter, contents) = if kind.is_dir() {
            rest.extend(fs::read_dir(&path).unwrap().map(|it| it.unwrap().path()));
            ('d', Vec::new())
        } else if kind.is_symlink() {
            mode = 0;
            let target = fs::read_link(&path).unwrap();
            ('l', target.as_os_str().as_bytes().to_vec())
        } else if kind.is_file() {
            ('f', fs::read(&path).unwrap())
        } else if kind.is_fifo() {
            ('p', Vec::new())
        } else {
            ('?', Vec::new())
        };
        let name = path.strip_prefix(root).unwrap().to_owned();
        seen.insert(name, (letter, mode, contents));
    }
    seen
}

/// Runs a script as the user, in the view of the calling thread.
fn host(dir: &Path, script: &str) {
    use std::os::unix::process::CommandExt as _;
    let script = format!("cd \"$1\"; umask 022; {script}");
    let mut command = Command::new("sh");
    command
        .args(["-ec", &script, "sh"])
        .arg(dir)
        .stdin(Stdio::null())
        .uid(USER)
        .gid(USER);
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{script}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Runs git; whether it succeeded, and what it said.
pub(super) fn git(dir: &Path, arguments: &[&str], stdin: &[u8]) -> Result<(), String> {
    use io::Write as _;
    let mut child = Command::new("git")
        .args(["-c", "user.name=t", "-c", "user.email=t@t"])
        .args(["-c", "safe.directory=*", "-c", "core.fileMode=true"])
        .args(["-c", "core.autocrlf=false", "-c", "apply.whitespace=nowarn"])
        .args(arguments)
        .current_dir(dir)
        .env("GIT_CEILING_DIRECTORIES", dir.parent().unwrap_or(dir))
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("HOME", "/nonexistent")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = child.stdin.take().unwrap();
    let bytes = stdin.to_vec();
    let writing = std::thread::spawn(move || drop(pipe.write_all(&bytes)));
    let output = child.wait_with_output().unwrap();
    writing.join().unwrap();
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// What of a tree git would carry: files with their executable bit, and links.
pub(super) fn carried(tree: &Tree) -> Tree {
    tree.iter()
        .filter(|(path, (kind, ..))| {
            matches!(kind, 'f' | 'l') && !path.iter().any(|it| it == OsStr::new(".git"))
        })
        .map(|(path, (kind, mode, contents))| {
            (path.clone(), (*kind, mode & 0o100, contents.clone()))
        })
        .collect()
}
