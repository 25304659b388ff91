//! The verbs about what an ephemeral sandbox changed.

use std::fs;

use serde_json::Value;

use super::{code, fake::Fake, stderr, stdout};

#[test]
fn diff_is_the_patch_and_what_it_leaves_out() {
    let fake = Fake::start();
    let output = fake.context.output(&["diff", "SBX"]);
    // Not for a terminal: as it is.
    assert_eq!(
        stdout(&output),
        "diff --git a/a b/a\n@@ -1 +1 @@\n-a\n+\x1b\ndiffer\n"
    );
    assert_eq!(
        stderr(&output),
        "sandbox: not shown: x\\x1b is an empty directory\n"
    );
    assert_eq!(code(&output), 0);
}

#[test]
fn names_leave_out_repositories_and_directories_that_are_not_empty() {
    let fake = Fake::start();
    let output = fake.context.output(&["diff", "SBX", "--name-status"]);
    assert_eq!(
        stdout(&output),
        "A\tempty/\nA\tfull/a\\xff\nR\tfrom\tto\nM\tx\\x1b\n"
    );
    assert_eq!(
        stderr(&output),
        "sandbox: not shown: 1 in `.git`; see `-o json`\n"
    );
    fake.context.output(&["create", "--name", "web"]);
    let output = fake.context.output(&["diff", "web", "--name-only", "full"]);
    assert_eq!(stdout(&output), "full/a\\xff\n");
}

#[test]
fn stat_counts_lines() {
    let fake = Fake::start();
    let output = fake.context.output(&["diff", "SBX", "--stat"]);
    assert_eq!(
        stdout(&output),
        " empty/     | 0\n full/a\\xff | 2 ++\n from => to | 0\n x\\x1b      | 4 +---\n \
         4 files changed, 3 insertions(+), 3 deletions(-)\n"
    );
}

#[test]
fn json_is_a_line_per_change_with_all_of_it() {
    let fake = Fake::start();
    let output = fake.context.output(&["diff", "SBX", "-o", "json"]);
    let lines: Vec<Value> = stdout(&output)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 6);
    assert_eq!(lines[0]["path"], ".git/index");
    assert_eq!(lines[3]["path"], Value::Null);
    assert_eq!(lines[3]["path_base64"], "ZnVsbC9h/w==");
    assert_eq!(lines[4]["old_path"], "from");
    assert_eq!(lines[5]["mode"], "100644");
    assert!(lines[5]["left_out"].as_str().unwrap().contains("read-only"));
}

#[test]
fn export_writes_a_whole_file_and_overwrites_none() {
    let fake = Fake::start();
    let export = ["export", "SBX", "--patch", "p.patch"];
    let output = fake.context.output(&export);
    assert_eq!((code(&output), stdout(&output)), (0, ""));
    assert_eq!(
        stderr(&output),
        "sandbox: not in the patch: x\\x1b is an empty directory\n"
    );
    let patch = fake.context.path().join("p.patch");
    assert!(fs::read_to_string(&patch).unwrap().ends_with("literal\n"));
    fs::write(&patch, "mine").unwrap();
    let output = fake.context.output(&export);
    assert_eq!(code(&output), 1);
    assert_eq!(
        stderr(&output),
        "sandbox: `p.patch` is there already\nhint: `--force` overwrites it\n"
    );
    assert_eq!(fs::read_to_string(&patch).unwrap(), "mine");
    let output = fake.context.output(&[&export[..], &["--force"]].concat());
    assert_eq!(code(&output), 0);
    assert_ne!(fs::read_to_string(&patch).unwrap(), "mine");
    // Nothing else is left beside it, whatever became of it.
    let output = fake
        .context
        .output(&["export", "none", "--patch", "q.patch"]);
    assert_eq!(code(&output), 3);
    let mut names: Vec<_> = fs::read_dir(fake.context.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["p.patch", "sandboxd.sock"]);
    let output = fake.context.output(&["export", "SBX", "--patch", "-"]);
    assert!(stdout(&output).starts_with("diff --git"));
}

#[test]
fn apply_says_what_it_did_and_a_conflict_names_its_paths() {
    let fake = Fake::start();
    let output = fake.context.output(&["apply", "SBX", "--force"]);
    assert_eq!((code(&output), stdout(&output)), (0, "M\ta\n"));
    assert_eq!(
        stderr(&output),
        "sandbox: left out: x\\x1b is an empty directory\n"
    );
    let output = fake.context.output(&["apply", "SBX"]);
    assert_eq!((code(&output), stdout(&output)), (1, ""));
    assert_eq!(
        stderr(&output),
        "sandbox: x\\x1b was changed\n\
         sandbox: a file of the real workspace changed; nothing was applied\n\
         hint: apply with `--force`\n"
    );
}

#[test]
fn paths_outside_of_the_workspace_are_refused() {
    let fake = Fake::start();
    fake.context.output(&["create", "--name", "web"]);
    let output = fake.context.output(&["diff", "web", "--name-only", "../x"]);
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("`../x` is not in the workspace"));
}
