//! Names of references.

/// Longest name: what file systems take.
const MAX_BYTES: usize = 1024;

/// Whether it is a whole name as git-check-ref-format(1) has it, below `refs/`.
pub(super) fn is_valid(name: &str) -> bool {
    let forbidden = |byte| {
        matches!(
            byte,
            0..=0x20 | 0x7f | b'~' | b'^' | b':' | b'?' | b'*' | b'[' | b'\\'
        )
    };
    name.starts_with("refs/")
        && name.len() <= MAX_BYTES
        && !name.bytes().any(forbidden)
        && !name.contains("..")
        && !name.contains("@{")
        && !name.ends_with('.')
        && name.split('/').all(is_component)
}

fn is_component(component: &str) -> bool {
    // Git compares it as it is; on some file systems it is the same in capitals.
    let lock = component
        .len()
        .checked_sub(5)
        .and_then(|at| component.get(at..))
        .is_some_and(|end| end.eq_ignore_ascii_case(".lock"));
    !component.is_empty() && !component.starts_with('.') && !lock
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::git::testing::git;

    const NAMES: &[&str] = &[
        "refs/heads/main",
        "refs/heads/a/b-c_d.e",
        "refs/heads/@",
        "refs/heads/b\u{fc}cher",
        "refs/heads/a@b",
        "refs/heads/",
        "refs/heads//a",
        "refs/heads/.a",
        "refs/heads/a/.b",
        "refs/heads/a.",
        "refs/heads/a./b",
        "refs/heads/a..b",
        "refs/heads/../heads/main",
        "refs/heads/a.lock",
        "refs/heads/a.lock/b",
        "refs/heads/a.locks",
        "refs/heads/a b",
        "refs/heads/a~",
        "refs/heads/a^",
        "refs/heads/a:b",
        "refs/heads/a?",
        "refs/heads/a*",
        "refs/heads/[a",
        "refs/heads/a\\b",
        "refs/heads/a@{b",
        "refs/heads/a\tb",
        "refs/heads/a\u{7f}",
        "/refs/heads/a",
        "refs/heads/a/",
    ];

    #[test]
    fn a_name_is_valid_where_git_says_so() {
        for name in NAMES {
            let said = git(".", &["check-ref-format", name]).0;
            assert_eq!(is_valid(name), said, "{name}");
        }
    }

    #[test]
    fn names_that_are_not_below_refs_or_that_no_file_system_takes_are_not_valid() {
        assert!(is_valid("refs/stash"));
        assert!(is_valid(&format!("refs/heads/{}", "a".repeat(1000))));
        for name in ["HEAD", "heads/main", "Refs/heads/main", "refs", ""] {
            assert!(!is_valid(name), "{name}");
        }
        assert!(!is_valid("refs/heads/a.LOCK"));
        assert!(!is_valid(&format!("refs/heads/{}", "a".repeat(1024))));
    }
}
