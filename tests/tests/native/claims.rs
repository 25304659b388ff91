//! The threat model names the test that closes each road: there is one of that
//! name, and no road goes without.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

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
