//! What an ephemeral sandbox changed, behind the walls: shown, exported and applied
//! with the client, on the overlay that a sandbox really has.

use std::{fs, path::Path, process::Output};

use crate::host::{self, DEV, ROOT};

crate::trials![
    changes_go_through_a_patch_and_are_applied,
    attributes_are_kept_whether_the_overlay_has_them_or_not,
    only_an_ephemeral_sandbox_and_its_owner_have_changes,
];

const GROUND: &str = "/srv/changes";
const WORK: &str = "/srv/changes/work";
const OTHER: u32 = 65_534;
const COPY: &str = "/srv/changes/copy";

const PREPARE: &str = "git init -q . && mkdir -p dir/deep opaque gone && seq 20 > mod \
    && echo whole > dir/deep/file && echo one > opaque/one && echo two > opaque/two \
    && echo x > gone/x && echo long enough > old && ln -s mod link && printf 'a\\0b' > bin \
    && git add -A && git -c user.name=t -c user.email=t@t commit -qm made";

const CHANGE: &str = "echo more >> mod && mv dir moved && rm -r opaque && mkdir opaque \
    && echo two > opaque/two && echo three > opaque/three && rm -r gone && mv old new \
    && ln -sfn moved link && printf 'a\\0c' > bin && chmod +x moved/deep/file && mkdir empty \
    && printf '#!/bin/sh\\n' > .git/hooks/post-checkout && git config core.fsmonitor evil \
    && git -c core.fsmonitor= add -A \
    && git -c core.fsmonitor= -c user.name=t -c user.email=t@t commit -qm inside";

fn sandbox(uid: u32, arguments: &[&str]) -> Output {
    let argv = [&["sandbox"], arguments].concat();
    host::run_with(uid, WORK, &argv, "")
}

fn said(uid: u32, arguments: &[&str]) -> String {
    let output = sandbox(uid, arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    host::text(&output.stdout)
}

fn script(uid: u32, directory: &str, script: &str) -> String {
    let output = host::run_with(uid, directory, &["sh", "-ec", script], "");
    assert!(output.status.success(), "{script}: {output:?}");
    host::text(&output.stdout)
}

fn fill(uid: u32) {
    if Path::new(GROUND).exists() {
        fs::remove_dir_all(GROUND).unwrap();
    }
    fs::create_dir_all(WORK).unwrap();
    let owner = format!("{uid}:{uid}");
    host::output(ROOT, &["chown", "-R", &owner, GROUND]);
    script(uid, WORK, PREPARE);
}

/// Contents, links and whether files are programs, as git knows them.
const LIST: &str = "find . -path ./.git -prune -o -type f -printf '%p ' \\
    -exec sha256sum '{}' ';' -o -type l -printf '%p %l\\n' | sort; \
    find . -path ./.git -prune -o -type f -perm -100 -print | sort";

async fn changes_go_through_a_patch_and_are_applied() {
    for uid in [DEV, ROOT] {
        fill(uid);
        let before = host::snapshot(WORK);
        let id = said(uid, &["create", "--ephemeral"]);
        let id = id.trim();
        said(uid, &["exec", id, "--", "sh", "-ec", CHANGE]);
        assert_eq!(host::snapshot(WORK), before, "{uid}");
        assert_eq!(
            said(uid, &["diff", id, "--name-status"]),
            "M\tbin\nD\tdir/deep/file\nA\tempty/\nD\tgone/x\nM\tlink\nM\tmod\n\
             A\tmoved/deep/file\nR\told\tnew\nD\topaque/one\nA\topaque/three\n",
            "{uid}"
        );
        let inside = said(uid, &["exec", id, "--", "sh", "-ec", LIST]);
        // git leads a copy there.
        script(uid, GROUND, "cp -a work copy");
        said(uid, &["export", id, "--patch", "/srv/changes/p.patch"]);
        script(uid, COPY, "git status -s; git apply --index ../p.patch");
        assert_eq!(script(uid, COPY, LIST), inside, "{uid}");
        // Applied, the real workspace is there too, and what git runs is as it was.
        let config = fs::read(format!("{WORK}/.git/config")).unwrap();
        let output = sandbox(uid, &["apply", id]);
        assert!(output.status.success(), "{uid}: {output:?}");
        let left_out = host::text(&output.stderr);
        for path in [".git/config", ".git/hooks/post-checkout"] {
            let line = format!("left out: {path} is read-only by the policy's rule `repository`");
            assert!(left_out.contains(&line), "{uid}: {left_out}");
        }
        assert_eq!(script(uid, WORK, LIST), inside, "{uid}");
        assert_eq!(fs::read(format!("{WORK}/.git/config")).unwrap(), config);
        assert!(!Path::new(WORK).join(".git/hooks/post-checkout").exists());
        assert!(Path::new(WORK).join("empty").is_dir());
        assert_eq!(script(uid, WORK, "git log --format=%s"), "inside\nmade\n");
        assert_eq!(script(uid, WORK, "git status --porcelain"), "", "{uid}");
        // Inside nothing is lost, and there is nothing more to apply.
        let again = said(uid, &["exec", id, "--", "sh", "-ec", LIST]);
        assert_eq!(again, inside, "{uid}");
        assert_eq!(said(uid, &["diff", id]), "", "{uid}");
        // git has written the index outside.
        assert_eq!(said(uid, &["apply", id]), "", "{uid}");
        // What changed outside meanwhile is a conflict.
        said(uid, &["exec", id, "--", "sh", "-c", "echo inside > mod"]);
        script(uid, WORK, "echo outside > mod");
        let output = sandbox(uid, &["apply", id]);
        assert_eq!(output.status.code(), Some(1), "{uid}: {output:?}");
        assert!(host::text(&output.stderr).contains("sandbox: mod was made or changed"));
        assert_eq!(script(uid, WORK, "cat mod"), "outside\n");
        said(uid, &["apply", id, "mod", "--force"]);
        assert_eq!(script(uid, WORK, "cat mod"), "inside\n");
        said(uid, &["rm", id]);
    }
}

async fn attributes_are_kept_whether_the_overlay_has_them_or_not() {
    fill(DEV);
    let set = "import os; os.setxattr('mod', 'user.kept', b'1')";
    host::run_with(DEV, WORK, &["python3", "-c", set], "");
    let id = said(DEV, &["create", "--ephemeral"]);
    let id = id.trim();
    said(
        DEV,
        &[
            "exec",
            id,
            "--",
            "sh",
            "-c",
            "echo more >> mod; chmod 755 old",
        ],
    );
    assert_eq!(said(DEV, &["apply", id]), "M\tmod\nM\told\n");
    let get = "import os; print(os.getxattr('mod', 'user.kept'))";
    let kept = host::run_with(DEV, WORK, &["python3", "-c", get], "");
    assert_eq!(host::text(&kept.stdout), "b'1'\n");
    said(DEV, &["rm", id]);
}

async fn only_an_ephemeral_sandbox_and_its_owner_have_changes() {
    fill(DEV);
    let direct = said(DEV, &["create"]);
    let output = sandbox(DEV, &["diff", direct.trim()]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(host::text(&output.stderr).contains("sandbox create --ephemeral"));
    said(DEV, &["rm", direct.trim()]);

    let id = said(DEV, &["create", "--ephemeral"]);
    let id = id.trim();
    said(DEV, &["exec", id, "--", "sh", "-c", "echo x > new"]);
    for verb in [
        &["diff", id][..],
        &["apply", id],
        &["export", id, "--patch", "-"],
    ] {
        let argv = [&["sandbox"], verb].concat();
        let output = host::run_with(OTHER, "/", &argv, "");
        assert_eq!(output.status.code(), Some(3), "{verb:?}: {output:?}");
    }
    assert!(!Path::new(WORK).join("new").exists());
    // Root may, and what it applies is the user's.
    said(ROOT, &["apply", id]);
    let owner = std::os::unix::fs::MetadataExt::uid(&fs::metadata(format!("{WORK}/new")).unwrap());
    assert_eq!(owner, DEV);
    said(DEV, &["rm", id]);
}
