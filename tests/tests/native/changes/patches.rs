//! Patches, as git takes them.

use std::process::Command;

use super::{Ground, Tree, carried, git, tree};

/// A copy of the real workspace.
fn copy(ground: &Ground) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    let status = Command::new("cp")
        .args(["-a", "--sparse=always", "."])
        .arg(copy.path())
        .current_dir(ground.dir.path())
        .status()
        .unwrap();
    assert!(status.success());
    copy
}

/// Applies a patch to a copy of the real workspace, as a plain directory and as a
/// repository; what git carries of the results must be what the sandbox sees.
pub(super) fn round_trip(ground: &Ground) {
    let (patch, _) = ground.patch(true);
    let wanted = carried(&ground.merged());
    for index in [false, true] {
        let copy = copy(ground);
        let given = |arguments: &[&str], stdin: &[u8]| git(copy.path(), arguments, stdin);
        if index {
            given(&["init", "-q"], b"").unwrap();
            given(&["add", "-A", "-f"], b"").unwrap();
            given(&["commit", "-q", "--allow-empty", "-m", "x"], b"").unwrap();
        }
        let before = tree(copy.path());
        if patch.is_empty() {
            assert_eq!(carried(&before), wanted);
            continue;
        }
        let apply: &[&str] = if index {
            &["apply", "--index"]
        } else {
            &["apply"]
        };
        if let Err(said) = given(apply, &patch) {
            panic!("{said}\n{}", String::from_utf8_lossy(&patch));
        }
        compare(&carried(&tree(copy.path())), &wanted, &patch);
        // And back.
        given(&["apply", "-R"], &patch).unwrap();
        let contents = |tree: &Tree| {
            // git itself makes a file of a link that it brings back.
            let tree = carried(tree).into_iter();
            tree.map(|(path, (_, _, contents))| (path, ('f', 0, contents)))
                .collect::<Tree>()
        };
        compare(&contents(&tree(copy.path())), &contents(&before), &patch);
    }
}

fn compare(one: &Tree, other: &Tree, patch: &[u8]) {
    if one != other {
        let paths = |tree: &Tree| tree.keys().cloned().collect::<Vec<_>>();
        let differ: Vec<_> = one
            .iter()
            .filter(|it| other.get(it.0) != Some(it.1))
            .collect();
        panic!(
            "{:?}\n{:?}\n{differ:?}\n{}",
            paths(one),
            paths(other),
            String::from_utf8_lossy(patch)
        );
    }
}

#[test]
fn a_patch_of_everything_is_taken_by_git() {
    let ground = Ground::new(
        "seq 100 > mod; echo b > del; echo 'long enough' > old; echo t > type; ln -s mod link; \
         mkdir -p d/e; echo x > d/e/f; printf 'no newline' > nn; head -c 100000 /dev/urandom > bin; \
         : > empty-gone; echo f > f2d; mkdir d2f; echo in > d2f/in; head -c 3000 /dev/zero > zeros",
    );
    ground.inside(
        "sed -i '50d;3s/.*/three/' mod; rm del; mv old 'new name'; rm type; ln -s mod type; \
         ln -sfn d link; chmod 755 d/e/f; printf 'no newline still' > nn; printf x >> bin; \
         rm empty-gone; : > empty-new; rm f2d; mkdir f2d; echo y > f2d/y; rm -r d2f; echo z > d2f; \
         rm zeros; head -c 5000 /dev/urandom > bin-new; chmod +x bin-new; \
         mkdir sub; echo 'sp ace' > 'sub/a b'; echo q > 'sub/q\"uote'; echo t > \"sub/t\tab\"; \
         echo n > \"$(printf 'sub/n\\nl')\"; echo c > \"$(printf 'sub/caf\\351')\"; ln -s \"$(printf 'x\\ny')\" sub/ln",
    );
    round_trip(&ground);
}

#[test]
fn a_patch_looks_as_git_makes_it() {
    let ground = Ground::new("seq 3 > numbers; echo run > run; echo same contents > from");
    ground.inside("echo 4 >> numbers; chmod +x run; mv from to");
    let (patch, left_out) = ground.patch(false);
    assert_eq!(
        String::from_utf8(patch).unwrap(),
        "diff --git a/numbers b/numbers\n\
         index 01e79c3..94ebaf9 100644\n\
         --- a/numbers\n\
         +++ b/numbers\n\
         @@ -1,3 +1,4 @@\n 1\n 2\n 3\n+4\n\
         diff --git a/run b/run\n\
         old mode 100644\n\
         new mode 100755\n\
         diff --git a/from b/to\n\
         similarity index 100%\n\
         rename from from\n\
         rename to to\n"
    );
    assert!(left_out.is_empty(), "{left_out:?}");
}

#[test]
fn what_a_patch_cannot_carry_is_told() {
    let ground = Ground::new("git init -q .; echo a > a; mkdir was-empty");
    ground.inside(
        "mkdir empty; rmdir was-empty; mkfifo pipe; chmod 600 a; echo s > s; chmod 640 s; \
         echo x > .git/x; echo y > .git/y; mkdir full; echo f > full/f",
    );
    let (patch, left_out) = ground.patch(true);
    let text = String::from_utf8(patch).unwrap();
    assert!(
        text.contains("a/s b/s") && text.contains("full/f"),
        "{text}"
    );
    assert!(!text.contains("a/a"), "{text}");
    assert_eq!(
        left_out,
        [
            ".git is a repository's own, which git takes from no patch",
            "a has the permissions 0600",
            "empty is an empty directory",
            "pipe is a device, a pipe or a socket",
            "s has the permissions 0640",
            "was-empty is an empty directory",
        ]
    );
    round_trip(&ground);
}

#[test]
fn without_binaries_they_are_named() {
    let ground = Ground::new("printf 'a\\0b' > bin");
    ground.inside("printf 'a\\0c' > bin");
    let (patch, _) = ground.patch(false);
    let text = String::from_utf8(patch).unwrap();
    assert!(
        text.ends_with("Binary files a/bin and b/bin differ\n"),
        "{text}"
    );
}

#[test]
fn two_gigabytes_fit_a_patch() {
    let ground = Ground::new("echo a > a");
    ground.inside("truncate -s 2G big; echo end >> big");
    let start = std::time::Instant::now();
    let (patch, _) = ground.patch(true);
    eprintln!(
        "2 GiB as a patch of {} bytes: {:?}",
        patch.len(),
        start.elapsed()
    );
    assert!(patch.len() < 32 << 20);
}

#[test]
fn a_large_file_goes_through_a_patch() {
    // git reads it into memory.
    let ground = Ground::new("truncate -s 100M was; echo end >> was");
    ground.inside("truncate -s 200M big; echo end >> big; echo more >> was");
    round_trip(&ground);
}
