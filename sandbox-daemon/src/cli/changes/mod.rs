//! What an ephemeral sandbox changed: `sandbox diff`, `export` and `apply`.

mod apply;
mod diff;
mod export;
mod paint;
mod stat;

use std::{
    env,
    fmt::Write as _,
    io::{self, IsTerminal as _, Write as _},
    os::unix::ffi::OsStrExt as _,
    path::{Component, Path, PathBuf},
};

use bytes::Bytes;
use tonic::transport::Channel;

pub use self::{apply::apply, diff::diff, export::export};
use super::{args::ChangesArgs, error::CliError, target, tell};
use crate::{
    escape::printable,
    proto::{Change, LeftOut, Sandbox, change::Kind, sandboxes_client::SandboxesClient},
};

type Client = SandboxesClient<Channel>;

/// The sandbox that is meant, and the paths as the daemon knows them.
async fn meant(client: &mut Client, args: &ChangesArgs) -> Result<(String, Vec<Bytes>), CliError> {
    let sandbox = target::find(client, &args.sandbox).await?.sandbox()?;
    let paths = paths(args, &sandbox)?;
    Ok((sandbox.id, paths))
}

fn paths(args: &ChangesArgs, sandbox: &Sandbox) -> Result<Vec<Bytes>, CliError> {
    if args.paths.is_empty() {
        return Ok(Vec::new());
    }
    let cwd = env::current_dir().map_err(|source| CliError::Io {
        operation: "read the current directory",
        source,
    })?;
    let workspace = sandbox.spec.as_ref().map_or("", |spec| &spec.workspace);
    let found = args.paths.iter().map(|path| {
        let path = Path::new(path);
        let within = within(path, &cwd, Path::new(workspace));
        within.ok_or_else(|| CliError::OutsideWorkspace {
            path: path.to_owned(),
            workspace: workspace.into(),
        })
    });
    found
        .map(|path| Ok(Bytes::copy_from_slice(path?.as_os_str().as_bytes())))
        .collect()
}

/// A path from the workspace on. Links are not followed: it may be there only in the
/// sandbox.
fn within(path: &Path, cwd: &Path, workspace: &Path) -> Option<PathBuf> {
    let base = if cwd.starts_with(workspace) {
        cwd
    } else {
        workspace
    };
    let mut real = PathBuf::new();
    for component in base.join(path).components() {
        match component {
            Component::ParentDir => _ = real.pop(),
            Component::CurDir => {}
            other => real.push(other),
        }
    }
    let below = real.strip_prefix(workspace).ok()?;
    Some(if below.as_os_str().is_empty() {
        PathBuf::from(".")
    } else {
        below.to_owned()
    })
}

/// How far it is, in a line that goes away.
struct Progress {
    on: bool,
    shown: bool,
}

impl Progress {
    /// On a terminal, unless the terminal has better things to show.
    fn new(with_output: bool) -> Self {
        Self {
            on: io::stderr().is_terminal() && !(with_output && io::stdout().is_terminal()),
            shown: false,
        }
    }

    fn show(&mut self, word: &str, files: u64) {
        if self.on {
            self.shown = true;
            let _ = write!(io::stderr(), "\r\x1b[Ksandbox: {word} {files} files");
        }
    }

    fn clear(&mut self) {
        if self.shown {
            self.shown = false;
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

/// What is not carried out, for the end.
#[derive(Default)]
struct Remarks(Vec<LeftOut>);

/// So many are listed.
const REMARKS: usize = 50;

impl Remarks {
    fn tell(&self, what: &str) {
        let mut text = String::new();
        for left_out in self.0.iter().take(REMARKS) {
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "sandbox: {what}: {} {}",
                printable(&left_out.path_display),
                printable(&left_out.reason)
            );
        }
        if let more @ 1.. = self.0.len().saturating_sub(REMARKS) {
            let _ = writeln!(text, "sandbox: {what}: {more} more");
        }
        tell(&text);
    }
}

fn letter(change: &Change) -> char {
    match change.kind() {
        Kind::Added => 'A',
        Kind::Modified => 'M',
        Kind::Deleted => 'D',
        Kind::Renamed => 'R',
        Kind::TypeChanged => 'T',
        Kind::Unspecified => '?',
    }
}

/// A path as it is shown: a directory with its slash.
fn shown(change: &Change) -> String {
    let slash = if is_directory(change) { "/" } else { "" };
    format!("{}{slash}", printable(&change.path_display))
}

/// `R old > new`.
fn name_status(change: &Change) -> String {
    let (letter, path) = (letter(change), shown(change));
    if change.old_path.is_empty() {
        format!("{letter}\t{path}\n")
    } else {
        format!(
            "{letter}\t{}\t{path}\n",
            printable(&change.old_path_display)
        )
    }
}

fn is_directory(change: &Change) -> bool {
    const TYPE: u32 = 0o170_000;
    const DIRECTORY: u32 = 0o040_000;
    let mode = if change.mode == 0 {
        change.old_mode
    } else {
        change.mode
    };
    mode & TYPE == DIRECTORY
}

/// Whether it is a part of a repository's own directory.
fn in_repository(change: &Change) -> bool {
    change
        .path
        .split(|byte| *byte == b'/')
        .any(|name| name.eq_ignore_ascii_case(b".git"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_from_here_if_here_is_in_the_workspace() {
        let within = |path: &str, cwd: &str| {
            within(Path::new(path), Path::new(cwd), Path::new("/w"))
                .map(|path| path.to_str().unwrap().to_owned())
        };
        assert_eq!(within("a", "/w/src").as_deref(), Some("src/a"));
        assert_eq!(within("../a", "/w/src").as_deref(), Some("a"));
        assert_eq!(within("a/b", "/elsewhere").as_deref(), Some("a/b"));
        assert_eq!(within("/w/x", "/elsewhere").as_deref(), Some("x"));
        assert_eq!(within(".", "/w").as_deref(), Some("."));
        assert_eq!(within("../../etc", "/w/src"), None);
        assert_eq!(within("/etc/passwd", "/w"), None);
    }
}
