//! What the documents say that can be held against the sources: the test of
//! each road of the threat model, commands, statuses, sets.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use clap::CommandFactory as _;
use sandbox_daemon::cli::{self, Exit, args::Cli};

/// Where tests are.
const SOURCES: [&str; 4] = [
    "tests/tests",
    "tests/src",
    "sandbox-daemon",
    "sandbox-common",
];

#[test]
fn every_road_of_the_threat_model_is_closed_by_a_test_that_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let text = fs::read_to_string(root.join("docs/threat-model.md")).unwrap();
    let tests = tests(root);
    let mut roads = 0;
    let mut wrong = Vec::new();
    for row in rows(&text) {
        roads += 1;
        let names: Vec<&str> = row[2].split('`').skip(1).step_by(2).collect();
        if names.is_empty() {
            wrong.push(format!("`{}` has no test", row[0]));
        }
        for name in names {
            if !tests.contains(name) {
                wrong.push(format!("`{}`: there is no test `{name}`", row[0]));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(roads > 100, "only {roads} roads: the tables were not read");
}

#[test]
fn every_command_of_the_documents_and_the_help_is_one() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut lines = Vec::new();
    for name in [
        "README.md",
        "docs/events.md",
        "docs/policy.md",
        "docs/operations.md",
    ] {
        let text = fs::read_to_string(root.join(name)).unwrap();
        let typed = text.lines().filter_map(|line| line.strip_prefix("$ "));
        lines.extend(typed.map(str::to_owned));
    }
    let mut left = vec![Cli::command()];
    while let Some(command) = left.pop() {
        let help = command.get_after_help().map(ToString::to_string);
        lines.extend(help.unwrap_or_default().lines().map(str::to_owned));
        left.extend(command.get_subcommands().cloned());
    }
    let mut commands = 0;
    for line in lines {
        for words in words(&line) {
            commands += 1;
            let parsed = cli::parse(words.iter().map(OsString::from));
            assert!(parsed.is_ok(), "{line}: {words:?}");
        }
    }
    assert!(commands > 20, "only {commands} commands were found");
}

/// The calls of `sandbox` in a line as it would be typed, with its comment.
fn words(line: &str) -> Vec<Vec<&str>> {
    let line = line.trim_start().trim_start_matches("sudo ");
    // Comments stand behind more than one space.
    let line = line.split("  ").next().unwrap_or_default();
    line.split(['|', ';'])
        .map(str::trim)
        .filter(|command| command.starts_with("sandbox "))
        .map(|command| {
            // What the shell would put there is a process's number.
            let command = command.split("$(").next().unwrap_or_default();
            let mut words: Vec<_> = command
                .split_whitespace()
                .filter(|word| !word.contains('>'))
                .collect();
            if words.contains(&"enroll") && words.last() == Some(&"--stay") {
                words.push("1");
            }
            words
        })
        .collect()
}

#[test]
fn the_statuses_of_the_readme_are_the_clients() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let text = fs::read_to_string(root.join("README.md")).unwrap();
    for (exit, says) in [
        (Exit::Sandbox, "| 125 | the sandbox failed"),
        (Exit::NotExecutable, "| 126 | the command is not executable"),
        (Exit::CommandNotFound, "| 127 | the command was not found"),
        (Exit::Success, "0 done"),
        (Exit::Failure, "1 failed"),
        (Exit::Usage, "2 wrong options"),
        (Exit::NotFound, "3 there is no such"),
        (Exit::Permission, "4 not permitted"),
    ] {
        assert!(text.contains(says), "{says}");
        let number = says.trim_start_matches("| ").split(' ').next().unwrap();
        assert_eq!(exit.code().to_string(), number);
    }
    assert_eq!(Exit::signal(9).code(), 128 + 9);
}

#[test]
fn the_reference_lists_every_set() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let text = fs::read_to_string(root.join("docs/policy.md")).unwrap();
    let listed: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("| `@")?.split_once("` | `"))
        .map(|(name, _)| name)
        .collect();
    let sets = fs::read_to_string(root.join("policies/sets.toml")).unwrap();
    let sets: toml::Table = sets.parse().unwrap();
    let sets: BTreeSet<&str> = sets
        .keys()
        .map(String::as_str)
        // What never comes in is no set to use.
        .filter(|name| !["version", "injection"].contains(name))
        .collect();
    assert_eq!(listed, sets);
}

/// The rows of the tables whose last of three columns is `test`.
fn rows(text: &str) -> Vec<[&str; 3]> {
    let mut found = Vec::new();
    let mut within = false;
    for line in text.lines() {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        match cells.as_slice() {
            [_, _, "test"] => within = true,
            [first, ..] if first.starts_with("---") => {}
            [road, by, tests] if within && line.starts_with('|') => {
                found.push([*road, *by, *tests]);
            }
            _ => within = false,
        }
    }
    found
}

/// The names of all functions, and of what macros make functions of.
fn tests(root: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut left: Vec<PathBuf> = SOURCES.iter().map(|source| root.join(source)).collect();
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|it| it.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            for line in fs::read_to_string(&path).unwrap().lines() {
                let line = line.trim_start().trim_start_matches("async ");
                let line = line.strip_prefix("fn ").unwrap_or(line);
                found.extend(line.split_once('(').map(|(name, _)| name.to_owned()));
            }
        }
    }
    found
}
