//! `git = { repositories, push, force, delete }`: what git may do with a
//! credential.

use sandbox_proxy::credential::GitRule;

use super::super::diagnostic::{Fault, Report, Span};
use super::super::entries::read_each;
use super::super::table::Table;

const KEYS: [&str; 4] = ["repositories", "push", "force", "delete"];
const BRANCHES: &str = "refs/heads/";

/// `span` is where the table stands.
pub(super) fn read(table: Table<'_>, span: &Span, report: &mut Report<'_>) -> GitRule {
    table.expect_keys(&KEYS, |_| None, report);
    let hint = "name those that may be fetched: `repositories = [\"org/repo\"]`";
    match table.key_span("repositories") {
        None => report.error(span.clone(), "`git` has no `repositories`", Some(hint)),
        Some(key) if table.is_empty("repositories") => {
            report.error(key, "`repositories` is empty", Some(hint));
        }
        Some(_) => {}
    }
    let repositories = read_each(table, "repositories", repository, report);
    let push = read_each(table, "push", reference, report);
    let force = table.boolean("force", report);
    let delete = table.boolean("delete", report);
    for (key, flag) in [("force", &force), ("delete", &delete)] {
        if let Some((true, span)) = flag
            && (table.key_span("push").is_none() || table.is_empty("push"))
        {
            let message = format!("`{key}` has no use without `push`");
            let hint = "say what may be pushed: `push = [\"refs/heads/agent/*\"]`";
            report.error(span.clone(), &message, Some(hint));
        }
    }
    if let Some((true, span)) = &force
        && let Some((pattern, _)) = push.iter().find(|(it, _)| is_every_branch(it))
    {
        let message = format!("with `{pattern}` in `push`, every branch may be overwritten");
        let hint = "name the branches of the sandbox: `refs/heads/agent/*`";
        report.warning(span.clone(), &message, Some(hint));
    }
    let flag = |it: Option<(bool, Span)>| it.is_some_and(|(flag, _)| flag);
    GitRule {
        repositories: repositories.into_iter().map(|(it, _)| it).collect(),
        push: push.into_iter().map(|(it, _)| it).collect(),
        force: flag(force),
        delete: flag(delete),
    }
}

fn is_every_branch(pattern: &str) -> bool {
    pattern
        .strip_suffix('*')
        .is_some_and(|stem| BRANCHES.starts_with(stem))
}

/// `org/repo`, `org/*`.
fn repository(text: &str) -> Result<String, Fault> {
    if let Some(at) = text.find("://") {
        let path = text[at + 3..].split_once('/').map_or("org/repo", |it| it.1);
        let hint = format!("write `{}`", path.strip_suffix(".git").unwrap_or(path));
        return Err(Fault::new(format!("`{text}` is a URL"), hint).at(0..at + 3));
    }
    if let Some(path) = text.strip_prefix('/') {
        let hint = format!("write `{path}`");
        return Err(Fault::new(format!("`{text}` begins with a slash"), hint).at(0..1));
    }
    if let Some(path) = text.strip_suffix(".git") {
        let hint = format!("leave it out: `{path}` is for both");
        let fault = Fault::new(format!("`{text}` ends with `.git`"), hint);
        return Err(fault.at(path.len()..text.len()));
    }
    let plausible = |b: u8| b.is_ascii_alphanumeric() || b"-_.~+".contains(&b);
    let is_segment = |it: &str| {
        let stands = !matches!(it, "" | "." | "..") && it.bytes().all(plausible);
        stands || it == "*"
    };
    if !text.split('/').all(is_segment) {
        let hint = "its path on the host: `org/repo`; a segment may be `*`";
        let message = format!("`{text}` is not a repository");
        return Err(Fault::new(message, hint));
    }
    if let Some(at) = second_star(text) {
        let hint = "one segment may be `*`";
        return Err(Fault::new(format!("`{text}` has two stars"), hint).at(at..at + 1));
    }
    Ok(text.to_owned())
}

/// `refs/heads/main`, `refs/heads/agent/*`.
fn reference(text: &str) -> Result<String, Fault> {
    if !text.starts_with("refs/") {
        let message = format!("`{text}` does not begin with `refs/`");
        let hint = match text {
            "" | "*" => format!("write `{BRANCHES}*` for every branch"),
            _ => format!("write `{BRANCHES}{text}` for a branch"),
        };
        return Err(Fault::new(message, hint));
    }
    if let Some(at) = second_star(text) {
        let hint = "one `*` stands for anything, slashes too";
        return Err(Fault::new(format!("`{text}` has two stars"), hint).at(at..at + 1));
    }
    // Whatever the star stands for, the rest is part of a name.
    if !is_reference(&text.replacen('*', "x", 1)) {
        let hint = "as `git check-ref-format` has it: `refs/heads/agent/*`";
        let message = format!("`{text}` is not the name of a reference");
        return Err(Fault::new(message, hint));
    }
    Ok(text.to_owned())
}

fn second_star(text: &str) -> Option<usize> {
    text.match_indices('*').nth(1).map(|(at, _)| at)
}

/// The rules of `git check-ref-format`.
fn is_reference(name: &str) -> bool {
    let refused = |c: char| c.is_ascii_control() || " ~^:?*[\\".contains(c);
    let is_component = |it: &str| {
        let lock = it
            .get(it.len().saturating_sub(5)..)
            .is_some_and(|end| end == ".lock");
        !it.is_empty() && !it.starts_with('.') && !lock
    };
    name.split('/').all(is_component)
        && !name.ends_with('.')
        && !name.contains("..")
        && !name.contains("@{")
        && !name.contains(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_those_that_git_knows() {
        for good in [
            "refs/heads/main",
            "refs/heads/*",
            "refs/heads/agent-*",
            "refs/heads/a/*/b",
            "refs/tags/v1.0",
            "refs/heads/\u{e4}@",
        ] {
            assert_eq!(reference(good).as_deref(), Ok(good));
        }
        for bad in [
            "",
            "main",
            "*",
            "refs/",
            "refs//a",
            "refs/heads/",
            "refs/heads/a..b",
            "refs/heads/.a",
            "refs/heads/a.lock",
            "refs/heads/a.lock/b",
            "refs/heads/a.",
            "refs/heads/a b",
            "refs/heads/a@{b",
            "refs/heads/a\\b",
            "refs/heads/a\nb",
            "refs/heads/[ab]",
            "refs/*/*",
        ] {
            assert!(reference(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn repositories_are_paths_with_at_most_one_star() {
        for good in ["org/repo", "org/*", "*/repo", "~user/repo", "a/b/c.js"] {
            assert_eq!(repository(good).as_deref(), Ok(good));
        }
        for bad in [
            "",
            "/org/repo",
            "org/repo.git",
            "org//repo",
            "org/repo/",
            "org/../repo",
            "*/*",
            "org/re*",
            "org/a%2fb",
            "git@example.com:org/repo",
            "https://example.com/org/repo",
        ] {
            assert!(repository(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_pattern_is_about_every_branch_wherever_its_star_is() {
        for every in ["refs/heads/*", "refs/*", "refs/he*"] {
            assert!(is_every_branch(every), "{every}");
        }
        for some in ["refs/heads/a*", "refs/heads/*/a", "refs/tags/*"] {
            assert!(!is_every_branch(some), "{some}");
        }
    }
}
