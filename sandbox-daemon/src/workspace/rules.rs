//! What is never applied, whatever the sandbox made of it.

use std::{
    collections::VecDeque,
    ffi::{OsStr, OsString},
    fs,
    path::{Component, Path, PathBuf},
};

use super::{Change, FileType, Kind, Workspace, tree::Tree};
use crate::policy::{Access, FileRule, Place, Policy};

/// What of a change is applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// All of it.
    Whole,
    /// It, without a part; which, and why.
    Partly(String),
    /// Nothing; why.
    Nothing(String),
}

/// What stands against applying changes to a workspace.
pub struct Rules<'a> {
    workspace: Workspace<'a>,
    place: PathBuf,
    /// With the file rules alone that can be about the workspace.
    policy: Policy,
    /// Rules that lead into the workspace through a link, with where to.
    led_to: Vec<(PathBuf, FileRule)>,
    outside_links: bool,
}

/// What git executes or follows in a repository's own directory; those of the
/// repository of the workspace itself are the policy's set `repository`.
const REPOSITORY: [&str; 6] = [
    "hooks",
    "config",
    "config.worktree",
    "info/attributes",
    "commondir",
    "modules",
];

/// Whose presence makes a repository of a directory, whatever they are: git follows
/// links there.
const MARKS: [&str; 3] = ["HEAD", "objects", "refs"];

/// As the kernel has it.
const MAX_LINKS: usize = 40;

impl<'a> Rules<'a> {
    /// Looks the policy's places up, as the user.
    pub(super) fn new(
        workspace: Workspace<'a>,
        policy: &Policy,
        place: &Path,
        outside_links: bool,
    ) -> Self {
        let mut led_to = Vec::new();
        for rule in &policy.files {
            if let Place::Path(path) = &rule.place
                && rule.access != Access::Write
                && let Some(real) = follow(path)
                && real != *path
                && real.starts_with(place)
            {
                led_to.push((real, rule.clone()));
            }
        }
        let mut policy = policy.clone();
        policy.files.retain(|rule| match &rule.place {
            Place::Path(path) => path.starts_with(place) || place.starts_with(path),
            Place::Name { .. } => true,
        });
        Self {
            workspace,
            place: place.to_owned(),
            policy,
            led_to,
            outside_links,
        }
    }

    /// What of a change is applied. Runs as the user.
    pub(super) fn verdict(&self, change: &Change) -> Verdict {
        if let Some(why) = change.unknown {
            return Verdict::Nothing(why.to_owned());
        }
        let regular = change.involves(FileType::Regular);
        if let Some(why) = self.forbidden(&change.path, regular, change.new_type()) {
            return Verdict::Nothing(why);
        }
        match (change.new, change.new_type()) {
            (Some(_), Some(FileType::Special)) => {
                Verdict::Nothing("is a device, a pipe or a socket".to_owned())
            }
            (Some(_), Some(FileType::Link)) => match self.workspace.merged().link(&change.path) {
                Ok(target) => self.link(&change.path, &target),
                Err(_) => Verdict::Nothing("cannot be read".to_owned()),
            },
            (Some(new), Some(_)) => {
                let before = change.old.map_or(0, |old| old.permissions());
                let kept = match change.new_type() {
                    // Inherited, and no privilege.
                    Some(FileType::Directory) => 0o2777 | before,
                    _ if change.contents || change.kind != Kind::Modified => 0o777,
                    _ => 0o777 | before,
                };
                match new.permissions() & !kept {
                    0 => Verdict::Whole,
                    bits => Verdict::Partly(format!("is applied without {}", special(bits))),
                }
            }
            _ => Verdict::Whole,
        }
    }

    /// Whether a path may be removed; why not.
    pub(super) fn removal(&self, path: &Path, regular: bool) -> Option<String> {
        self.forbidden(path, regular, None)
    }

    /// Whether a link may be applied.
    pub(super) fn link(&self, path: &Path, target: &OsStr) -> Verdict {
        if self.outside_links || stays_inside(path, Path::new(target)) {
            Verdict::Whole
        } else {
            Verdict::Nothing("is a symbolic link that leads out of the workspace".to_owned())
        }
    }

    /// Why nothing is written to a path, or removed from it (`new` is none).
    fn forbidden(&self, path: &Path, regular: bool, new: Option<FileType>) -> Option<String> {
        let place = self.place.join(path);
        match self.policy.decides(&place, regular) {
            Some(rule) if rule.access == Access::Write => {}
            Some(rule) => return Some(refusal(rule.access, &rule.label)),
            None => return Some("is nothing that the policy lets write".to_owned()),
        }
        for (real, rule) in &self.led_to {
            if place.starts_with(real) && !self.opened(real, &place) {
                return Some(refusal(rule.access, &rule.label));
            }
        }
        if new.is_some_and(|it| it != FileType::Directory)
            && let Some(label) = self.below(&place)
        {
            return Some(format!(
                "takes the place of a directory for which the policy has the rule `{label}`"
            ));
        }
        self.repository(path, &place, new)
    }

    /// A rule that takes rights from something below a place.
    fn below(&self, place: &Path) -> Option<&str> {
        let written = self
            .policy
            .files
            .iter()
            .filter_map(|rule| match &rule.place {
                Place::Path(path) if rule.access != Access::Write => Some((path, rule)),
                _ => None,
            });
        let led_to = self.led_to.iter().map(|(path, rule)| (path, rule));
        written
            .chain(led_to)
            .find(|(path, _)| *path != place && path.starts_with(place))
            .map(|(_, rule)| rule.label.as_str())
    }

    /// What git would run: of repositories that the policy's set does not name
    /// too, such as one that was made inside.
    fn repository(&self, path: &Path, place: &Path, new: Option<FileType>) -> Option<String> {
        let names: Vec<&OsStr> = path.iter().collect();
        let leads = new.is_some_and(|it| it != FileType::Directory);
        for depth in 0..names.len() {
            let (directory, rest) = names.split_at(depth);
            let directory: PathBuf = directory.iter().collect();
            let rest: PathBuf = rest.iter().collect();
            if self.opened(&self.place.join(&directory), place) {
                continue;
            }
            if leads && is_git(rest.as_os_str()) {
                return Some("leads git to another repository".to_owned());
            }
            let run = REPOSITORY.iter().any(|it| rest.starts_with(it))
                || of_worktree(&rest)
                || leads && holds_run(&rest);
            if run && self.is_repository(&directory) {
                return Some("is what git runs or follows in a repository".to_owned());
            }
            if new.is_some() && self.completes(&directory, &rest) {
                return Some("makes a repository of what is there, with what git runs".to_owned());
            }
        }
        None
    }

    fn is_repository(&self, directory: &Path) -> bool {
        let [_, objects, refs] = MARKS;
        directory.file_name().is_some_and(is_git)
            || [objects, refs].iter().all(|name| {
                let path = directory.join(name);
                there(self.workspace.merged(), &path) || there(self.workspace.lower(), &path)
            })
    }

    /// Whether what git runs, applied when the directory was no repository, would
    /// come to be in one.
    fn completes(&self, directory: &Path, rest: &Path) -> bool {
        let (merged, lower) = (self.workspace.merged(), self.workspace.lower());
        let has = |tree: Tree<'_>, name: &str| there(tree, &directory.join(name));
        MARKS
            .iter()
            .any(|mark| rest.starts_with(mark) && !has(lower, mark))
            && MARKS
                .iter()
                .all(|mark| has(merged, mark) || has(lower, mark))
            && REPOSITORY.iter().any(|name| has(lower, name))
    }

    /// Whether the policy has a line of its own that lets a place be written,
    /// nearer than `above`.
    fn opened(&self, above: &Path, place: &Path) -> bool {
        self.policy.files.iter().any(|rule| {
            rule.access == Access::Write
                && matches!(&rule.place, Place::Path(path)
                    if path != above && path.starts_with(above) && place.starts_with(path))
        })
    }
}

fn is_git(name: &OsStr) -> bool {
    name.eq_ignore_ascii_case(".git")
}

fn there(tree: Tree<'_>, path: &Path) -> bool {
    tree.stat(path).is_ok_and(|meta| meta.is_some())
}

/// `worktrees/NAME/config.worktree`, and what says where the others are.
fn of_worktree(rest: &Path) -> bool {
    let names: Vec<&OsStr> = rest.iter().collect();
    matches!(names[..], [worktrees, _, name]
        if worktrees == "worktrees" && (name == "config.worktree" || name == "commondir"))
}

/// Directories with such files in them: a link there would lead to others.
fn holds_run(rest: &Path) -> bool {
    let names: Vec<&OsStr> = rest.iter().collect();
    match names[..] {
        [name] => name == "info" || name == "worktrees",
        [worktrees, _] => worktrees == "worktrees",
        _ => false,
    }
}

fn refusal(access: Access, label: &str) -> String {
    match access {
        Access::Deny => format!("is denied by the policy's rule `{label}`"),
        Access::Read | Access::Write => format!("is read-only by the policy's rule `{label}`"),
    }
}

fn special(bits: u32) -> String {
    let names = [
        (0o4000, "set-user-ID"),
        (0o2000, "set-group-ID"),
        (0o1000, "sticky"),
    ];
    let names: Vec<&str> = names
        .iter()
        .filter(|(bit, _)| bits & bit != 0)
        .map(|(_, name)| *name)
        .collect();
    match names[..] {
        [name] => format!("its {name} bit"),
        _ => format!("its {} bits", names.join(" and ")),
    }
}

/// Whether a link at `path` can only lead into the workspace: up no further than it
/// is deep, and that before all else, since what `..` means behind a name is known
/// only where the name is no link.
fn stays_inside(path: &Path, target: &Path) -> bool {
    let mut up = 0;
    let mut down = false;
    for component in target.components() {
        match component {
            Component::ParentDir if down => return false,
            Component::ParentDir => up += 1,
            Component::Normal(_) => down = true,
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return false,
        }
    }
    up < path.components().count()
}

/// Where a path leads: links on the way followed, what does not exist left as it
/// is. None: nowhere.
fn follow(path: &Path) -> Option<PathBuf> {
    let mut rest: VecDeque<OsString> = path.iter().map(OsStr::to_owned).collect();
    let mut real = PathBuf::new();
    let mut links = 0;
    while let Some(name) = rest.pop_front() {
        if name == "/" {
            real = PathBuf::from("/");
        } else if name == ".." {
            real.pop();
        } else if name != "." {
            real.push(name);
            // Otherwise it is no link, or not there.
            if let Ok(target) = fs::read_link(&real) {
                links += 1;
                if links > MAX_LINKS {
                    return None;
                }
                real.pop();
                for name in target.iter().rev() {
                    rest.push_front(name.to_owned());
                }
            }
        }
    }
    Some(real)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_may_lead_as_far_up_as_they_are_deep() {
        for (path, target) in [
            ("a", "b"),
            ("a", "./b/c"),
            ("d/a", "../b"),
            ("d/e/a", "../.."),
            ("a", "..b"),
        ] {
            assert!(stays_inside(Path::new(path), Path::new(target)), "{target}");
        }
        for (path, target) in [
            ("a", "/etc/passwd"),
            ("a", ".."),
            ("d/a", "../../b"),
            // Where `l` leads up, this leads out.
            ("a", "d/l/../.."),
            ("d/a", "x/../y"),
        ] {
            assert!(
                !stays_inside(Path::new(path), Path::new(target)),
                "{target}"
            );
        }
    }

    #[test]
    fn what_git_runs_is_what_the_set_names() {
        let sets = include_str!("../../../policies/sets.toml");
        let (_, set) = sets.split_once("\n[repository]\n").unwrap();
        let (set, _) = set.split_once("\n]\n").unwrap();
        let named: Vec<&str> = set
            .lines()
            .filter_map(|line| line.split_once("\"${workspace}/.git/"))
            .map(|(_, rest)| rest.split_once('"').unwrap().0)
            .collect();
        assert_eq!(named, REPOSITORY);
    }

    #[test]
    fn a_rule_leads_where_its_link_does_also_if_nothing_is_there() {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().canonicalize().unwrap();
        fs::create_dir(base.join("dotfiles")).unwrap();
        std::os::unix::fs::symlink("dotfiles/bashrc", base.join(".bashrc")).unwrap();
        std::os::unix::fs::symlink("loop", base.join("loop")).unwrap();
        assert_eq!(
            follow(&base.join(".bashrc")),
            Some(base.join("dotfiles/bashrc"))
        );
        assert_eq!(follow(&base.join("none/x")), Some(base.join("none/x")));
        assert_eq!(follow(&base.join("loop")), None);
    }
}
