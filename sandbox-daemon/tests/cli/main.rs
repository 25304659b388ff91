//! The client as a user meets it: its binary, against no daemon or a fake one.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod changes;
mod fake;
mod lasting;
mod offline;
mod policy;
mod run;
mod terminal;
mod verbs;

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

use tempfile::TempDir;

/// A directory to run the client in.
struct TestContext {
    directory: TempDir,
    host: String,
}

impl TestContext {
    /// Without a daemon.
    fn offline() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let host = format!("unix://{}/none.sock", directory.path().display());
        Self { directory, host }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().canonicalize().unwrap()
    }

    /// The client, with these arguments and without the caller's terminal.
    fn client(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sandbox"));
        command
            .args(arguments)
            .env("SANDBOX_HOST", &self.host)
            .current_dir(self.directory.path());
        command
    }

    fn output(&self, arguments: &[&str]) -> Output {
        self.client(arguments).output().unwrap()
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("the client was not killed")
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

fn utf8(path: &Path) -> &str {
    path.to_str().unwrap()
}
