//! What tests of git share: git itself, in directories of their own.

use std::{
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
    thread,
};

/// Git, without anybody's settings.
pub(super) fn command(directory: impl AsRef<Path>, arguments: &[&str]) -> Command {
    let mut command = Command::new("git");
    command.current_dir(directory).args(arguments);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("GIT_") {
            command.env_remove(name);
        }
    }
    for name in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
        command.env_remove(name);
    }
    command
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("LC_ALL", "C")
        .env("GIT_AUTHOR_NAME", "A")
        .env("GIT_AUTHOR_EMAIL", "a@example")
        .env("GIT_COMMITTER_NAME", "A")
        .env("GIT_COMMITTER_EMAIL", "a@example");
    command
}

/// Runs git; whether it succeeded, and what it printed on either output.
pub(super) fn git(directory: impl AsRef<Path>, arguments: &[&str]) -> (bool, String) {
    let output = command(directory, arguments).output().unwrap();
    let printed = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(printed).unwrap())
}

/// Runs git, which succeeds; what it printed, without the last line's end.
pub(super) fn done(directory: impl AsRef<Path>, arguments: &[&str]) -> String {
    let (success, printed) = git(directory, arguments);
    assert!(success, "git {arguments:?}: {printed}");
    printed.trim_end().to_owned()
}

/// Runs git with something to read; what it wrote.
pub(super) fn piped(directory: impl AsRef<Path>, arguments: &[&str], input: &[u8]) -> Vec<u8> {
    let mut child = command(directory, arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // It may end without having read all.
    let writing = thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    writing.join().unwrap();
    output.stdout
}

/// Commits this file with this content; the commit.
pub(super) fn commit(directory: impl AsRef<Path>, file: &str, content: &[u8]) -> String {
    let directory = directory.as_ref();
    std::fs::write(directory.join(file), content).unwrap();
    done(directory, &["add", "."]);
    done(directory, &["commit", "-q", "-m", file]);
    done(directory, &["rev-parse", "HEAD"])
}
