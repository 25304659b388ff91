//! How a policy names places: absolute paths, `~` and `${...}` at the
//! beginning, and `**/NAME`.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use super::diagnostic::{Fault, Span, nearest};
use super::model::{NamePattern, Place};
use super::{MAX_NAME_BYTES, MAX_PATH_BYTES};

/// What the beginnings of a policy's paths stand for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expansion {
    /// `~`: the user's home, from the password database.
    pub home: PathBuf,
    /// `${workspace}`.
    pub workspace: Option<PathBuf>,
    /// `${tmp}`: the sandbox's private temporary directories, the one for
    /// `TMPDIR` first. A rule about `${tmp}` is one about each of them.
    pub tmp: Vec<PathBuf>,
    /// `${cache}`: the daemon's directory for this user and workspace.
    pub cache: PathBuf,
}

/// Where a path begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Base {
    Root,
    Home,
    Workspace,
    Tmp,
    Cache,
}

/// An entry of `[files]`, before expansion.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Pattern {
    pub(super) base: Base,
    pub(super) components: Vec<String>,
    /// With `**/`: the files below that are meant.
    pub(super) name: Option<Name>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Name {
    Exact(String),
    Suffix(String),
}

const PLACEHOLDERS: [(&str, Base); 3] = [
    ("workspace", Base::Workspace),
    ("tmp", Base::Tmp),
    ("cache", Base::Cache),
];

impl Base {
    /// As a policy writes it.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Root => "/",
            Self::Home => "~",
            Self::Workspace => "${workspace}",
            Self::Tmp => "${tmp}",
            Self::Cache => "${cache}",
        }
    }

    /// The base of a placeholder's name, or what is wrong with it.
    pub(super) fn named(name: &str) -> Result<Self, Fault> {
        if let Some((_, base)) = PLACEHOLDERS.iter().find(|(known, _)| *known == name) {
            return Ok(*base);
        }
        let hint = match nearest(name, PLACEHOLDERS.iter().map(|(known, _)| *known)) {
            _ if name.eq_ignore_ascii_case("home") => "the home directory is `~`".to_owned(),
            Some(known) => format!("did you mean `${{{known}}}`?"),
            None => "known are `${workspace}`, `${tmp}` and `${cache}`".to_owned(),
        };
        Err(Fault::new(
            format!("unknown placeholder `${{{name}}}`"),
            hint,
        ))
    }

    /// The directories it stands for; none where there is no workspace.
    pub(super) fn expand(self, expansion: &Expansion) -> Vec<&Path> {
        match self {
            Self::Root => vec![Path::new("/")],
            Self::Home => vec![&expansion.home],
            Self::Workspace => expansion.workspace.iter().map(PathBuf::as_path).collect(),
            Self::Tmp => expansion.tmp.iter().map(PathBuf::as_path).collect(),
            Self::Cache => vec![&expansion.cache],
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let base = self.base.as_str().trim_end_matches('/');
        f.write_str(base)?;
        for component in &self.components {
            write!(f, "/{component}")?;
        }
        match &self.name {
            Some(Name::Exact(name)) => write!(f, "/**/{name}"),
            Some(Name::Suffix(suffix)) => write!(f, "/**/*{suffix}"),
            None if base.is_empty() && self.components.is_empty() => f.write_str("/"),
            None => Ok(()),
        }
    }
}

impl Pattern {
    /// Reads an entry.
    pub(super) fn parse(entry: &str) -> Result<Self, Fault> {
        if entry.is_empty() {
            return Err(Fault::new(
                "an entry is empty",
                "name a place, such as `~/.ssh`",
            ));
        }
        if let Some(at) = entry.find('\0') {
            return Err(Fault::new("a path cannot hold a NUL byte", "remove it").at(at..at + 1));
        }
        if entry.len() > MAX_PATH_BYTES {
            let message = format!("a path of {} bytes is too long", entry.len());
            return Err(Fault::new(
                message,
                format!("at most {MAX_PATH_BYTES} bytes"),
            ));
        }
        let (base, offset) = Self::base(entry)?;
        let mut pattern = Self {
            base,
            components: Vec::new(),
            name: None,
        };
        let mut parts = parts(entry, offset).peekable();
        while let Some((component, span)) = parts.next() {
            if component != "**" {
                pattern.push(component, span)?;
                continue;
            }
            let rest = parts.next();
            let Some((name, span)) = rest else {
                let hint = "a directory covers all that is below it: leave `**` out";
                return Err(Fault::new("`**` at the end names nothing", hint).at(span));
            };
            pattern.name = Some(Name::parse(name, &span)?);
            if let Some((_, more)) = parts.peek() {
                let message = "`**/` names files, not paths";
                let hint = "one name may follow it, as in `**/.env` or `**/*.pem`";
                return Err(Fault::new(message, hint).at(span.start..more.end));
            }
        }
        Ok(pattern)
    }

    /// The places that the entry names.
    pub(super) fn expand(&self, expansion: &Expansion) -> Vec<Place> {
        let below = |base: &Path| {
            let mut path = base.to_path_buf();
            path.extend(&self.components);
            path
        };
        let directories = self.base.expand(expansion).into_iter().map(below);
        let Some(name) = &self.name else {
            return directories.map(Place::Path).collect();
        };
        let pattern = match name {
            Name::Exact(name) => NamePattern::Exact(name.clone().into_bytes()),
            Name::Suffix(name) => NamePattern::Suffix(name.clone().into_bytes()),
        };
        directories
            .map(|directory| Place::Name {
                scope: (directory != Path::new("/")).then_some(directory),
                pattern: pattern.clone(),
            })
            .collect()
    }

    /// Where in an entry something stands that other tools take for a pattern
    /// and this one does not.
    pub(super) fn literal_brackets(entry: &str) -> Option<Span> {
        let rest = if entry.starts_with("${") {
            entry.find('}').map_or(0, |end| end + 1)
        } else {
            0
        };
        let at = entry[rest..].find(['[', '{'])? + rest;
        Some(at..at + 1)
    }

    fn base(entry: &str) -> Result<(Base, usize), Fault> {
        if let Some(rest) = entry.strip_prefix("${") {
            let Some(end) = rest.find('}') else {
                return Err(Fault::new("`${` is not closed", "close it with `}`").at(0..2));
            };
            let offset = end + 3;
            let base = Base::named(&rest[..end]).map_err(|fault| fault.at(0..offset))?;
            if !matches!(entry.as_bytes().get(offset), None | Some(b'/')) {
                let hint = format!("a `/` follows it, as in `{}/target`", base.as_str());
                return Err(
                    Fault::new(format!("`{}` is a whole directory", base.as_str()), hint)
                        .at(offset..entry.len()),
                );
            }
            return Ok((base, offset));
        }
        if let Some(rest) = entry.strip_prefix('~') {
            if !rest.is_empty() && !rest.starts_with('/') {
                let end = entry.find('/').unwrap_or(entry.len());
                let message = format!("`{}`: other users' homes are not expanded", &entry[..end]);
                return Err(Fault::new(message, "write the path in full").at(0..end));
            }
            return Ok((Base::Home, 1));
        }
        if entry == "**" || entry.starts_with("**/") || entry.starts_with('/') {
            return Ok((Base::Root, 0));
        }
        let hint = if entry.starts_with('$') {
            "environment variables are not expanded; begin with `/`, `~`, `${workspace}`, `${tmp}` \
             or `${cache}`"
                .to_owned()
        } else if entry.starts_with("*.") {
            format!("to name files everywhere, write `**/{entry}`")
        } else {
            format!(
                "did you mean `${{workspace}}/{}`?",
                entry.trim_start_matches("./")
            )
        };
        Err(Fault::new(format!("`{entry}` is a relative path"), hint))
    }

    fn push(&mut self, component: &str, span: Span) -> Result<(), Fault> {
        match component {
            "." => return Ok(()),
            ".." => {
                let hint = "write the path without it";
                return Err(Fault::new("`..` is not followed", hint).at(span));
            }
            _ => {}
        }
        if let Some(at) = component.find(['*', '?']) {
            let hint = "a directory covers all that is below it; files are named everywhere with \
                        `**/NAME` or `**/*.SUFFIX`";
            let message = format!("`{component}` is a pattern, and paths take none");
            return Err(Fault::new(message, hint).at(span.start + at..span.start + at + 1));
        }
        plain(component, &span)?;
        self.components.push(component.to_owned());
        Ok(())
    }
}

impl Name {
    fn parse(name: &str, span: &Span) -> Result<Self, Fault> {
        plain(name, span)?;
        if matches!(name, "." | "..") {
            return Err(Fault::new(format!("`{name}` names no file"), "name one").at(span.clone()));
        }
        if !name.contains(['*', '?']) {
            return Ok(Self::Exact(name.to_owned()));
        }
        match name.strip_prefix('*') {
            // The kernel side knows what follows the last dot of a name.
            Some(suffix)
                if suffix.len() > 1
                    && suffix.rfind('.') == Some(0)
                    && !suffix.contains(['*', '?']) =>
            {
                Ok(Self::Suffix(suffix.to_owned()))
            }
            _ => {
                let message = format!("`{name}` is not a pattern that names can be matched with");
                let hint = "after `**/` comes a name, as in `**/.env`, or `*.` and what follows a name's last \
                            dot, as in `**/*.pem`";
                Err(Fault::new(message, hint).at(span.clone()))
            }
        }
    }
}

/// A path from elsewhere (an option, the workspace) in the form of
/// [`Place::Path`].
pub(super) fn normal(path: &Path) -> Result<PathBuf, Fault> {
    let shown = path.display();
    let bytes = path.as_os_str().as_bytes();
    if !path.is_absolute() {
        return Err(Fault::new(
            format!("`{shown}` is a relative path"),
            "write it in full",
        ));
    }
    if bytes.contains(&0) || bytes.len() > MAX_PATH_BYTES {
        let hint = format!("at most {MAX_PATH_BYTES} bytes, none of them NUL");
        return Err(Fault::new(format!("`{shown}` is not a path"), hint));
    }
    let mut normal = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
            Component::ParentDir => {
                return Err(Fault::new(
                    format!("`{shown}`: `..` is not followed"),
                    "write it out",
                ));
            }
            Component::Normal(name) => {
                fits(name).map_err(|message| Fault::new(message, "name a place above it"))?;
                normal.push(name);
            }
        }
    }
    Ok(normal)
}

/// A component that holds no placeholder and that the kernel side can read.
fn plain(component: &str, span: &Span) -> Result<(), Fault> {
    if let Some(at) = component.find("${") {
        let hint = "placeholders stand at the beginning of a path";
        let at = span.start + at;
        return Err(Fault::new("a placeholder in the middle of a path", hint).at(at..at + 2));
    }
    fits(OsStr::new(component))
        .map_err(|message| Fault::new(message, "name a place above it").at(span.clone()))
}

fn fits(name: &OsStr) -> Result<(), String> {
    if name.len() > MAX_NAME_BYTES {
        return Err(format!(
            "a name of {} bytes, and at most {MAX_NAME_BYTES} can be",
            name.len()
        ));
    }
    Ok(())
}

/// The components of an entry from `offset` on, with where they stand.
fn parts(entry: &str, offset: usize) -> impl Iterator<Item = (&str, Span)> {
    let mut at = offset;
    entry[offset..].split('/').filter_map(move |component| {
        let span = at..at + component.len();
        at = span.end + 1;
        (!component.is_empty()).then_some((component, span))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expansion() -> Expansion {
        Expansion {
            home: "/home/dev".into(),
            workspace: Some("/src/app".into()),
            tmp: vec!["/tmp".into(), "/var/tmp".into()],
            cache: "/var/cache/x".into(),
        }
    }

    fn paths(entry: &str) -> Vec<String> {
        let places = Pattern::parse(entry).unwrap().expand(&expansion());
        let shown = |place: Place| match place {
            Place::Path(path) => path.display().to_string(),
            Place::Name { scope, pattern } => format!("{scope:?} {pattern:?}"),
        };
        places.into_iter().map(shown).collect()
    }

    fn fault(entry: &str) -> (String, String, Option<Span>) {
        let fault = Pattern::parse(entry).unwrap_err();
        (fault.message, fault.hint.unwrap(), fault.part)
    }

    #[test]
    fn beginnings_are_expanded() {
        assert_eq!(paths("/"), ["/"]);
        assert_eq!(paths("/etc//passwd/"), ["/etc/passwd"]);
        assert_eq!(paths("/etc/./passwd"), ["/etc/passwd"]);
        assert_eq!(paths("~"), ["/home/dev"]);
        assert_eq!(paths("~/.ssh"), ["/home/dev/.ssh"]);
        assert_eq!(paths("${workspace}"), ["/src/app"]);
        assert_eq!(paths("${workspace}/.git/hooks"), ["/src/app/.git/hooks"]);
        assert_eq!(paths("${tmp}/x"), ["/tmp/x", "/var/tmp/x"]);
        assert_eq!(paths("${cache}"), ["/var/cache/x"]);
    }

    #[test]
    fn names_are_matched_everywhere_or_below_a_directory() {
        let place = |entry: &str| {
            Pattern::parse(entry)
                .unwrap()
                .expand(&expansion())
                .remove(0)
        };
        let exact = NamePattern::Exact(b".env".to_vec());
        assert_eq!(
            place("**/.env"),
            Place::Name {
                scope: None,
                pattern: exact.clone()
            }
        );
        assert_eq!(
            place("/**/.env"),
            Place::Name {
                scope: None,
                pattern: exact.clone()
            }
        );
        assert_eq!(
            place("${workspace}/**/.env"),
            Place::Name {
                scope: Some("/src/app".into()),
                pattern: exact
            }
        );
        assert_eq!(
            place("/srv/**/*.pem"),
            Place::Name {
                scope: Some("/srv".into()),
                pattern: NamePattern::Suffix(b".pem".to_vec())
            }
        );
    }

    #[test]
    fn a_relative_path_is_refused_with_what_was_probably_meant() {
        assert_eq!(
            fault("./src"),
            (
                "`./src` is a relative path".into(),
                "did you mean `${workspace}/src`?".into(),
                None
            )
        );
        assert_eq!(
            fault("*.pem").1,
            "to name files everywhere, write `**/*.pem`"
        );
        assert!(
            fault("$HOME/.ssh")
                .1
                .starts_with("environment variables are not expanded")
        );
    }

    #[test]
    fn placeholders_are_checked() {
        assert_eq!(
            fault("${workspce}/x"),
            (
                "unknown placeholder `${workspce}`".into(),
                "did you mean `${workspace}`?".into(),
                Some(0..11)
            )
        );
        assert_eq!(fault("${HOME}/x").1, "the home directory is `~`");
        assert_eq!(fault("${tmp").0, "`${` is not closed");
        assert_eq!(fault("${tmp}x").0, "`${tmp}` is a whole directory");
        assert_eq!(
            fault("/a/${tmp}").0,
            "a placeholder in the middle of a path"
        );
        assert_eq!(
            fault("~root/x").0,
            "`~root`: other users' homes are not expanded"
        );
    }

    #[test]
    fn dots_and_patterns_are_refused_where_they_stand() {
        assert_eq!(fault("/a/../b").2, Some(3..5));
        assert_eq!(fault("/dev/tty*"), (
            "`tty*` is a pattern, and paths take none".into(),
            "a directory covers all that is below it; files are named everywhere with `**/NAME` or \
             `**/*.SUFFIX`".into(),
            Some(8..9),
        ));
        assert_eq!(fault("/a/?").2, Some(3..4));
        assert_eq!(fault("/a/**").0, "`**` at the end names nothing");
        assert_eq!(fault("**").0, "`**` at the end names nothing");
        assert_eq!(fault("**/.git/hooks").0, "`**/` names files, not paths");
        assert_eq!(
            fault("**/**").0,
            "`**` is not a pattern that names can be matched with"
        );
        for bad in [
            "**/*.tar.gz",
            "**/*",
            "**/*key",
            "**/id_*",
            "**/*.p?m",
            "**/*.",
        ] {
            assert!(Pattern::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn lengths_and_nul_are_bounded() {
        assert_eq!(fault("/a\0b").2, Some(2..3));
        assert!(Pattern::parse(&format!("/{}", "n".repeat(255))).is_ok());
        assert_eq!(
            fault(&format!("/{}", "n".repeat(256))).0,
            "a name of 256 bytes, and at most 255 can be"
        );
        assert!(fault(&"/a".repeat(2049)).0.contains("too long"));
        assert_eq!(fault("").0, "an entry is empty");
    }

    #[test]
    fn brackets_are_literal_and_found_for_a_warning() {
        assert_eq!(paths("${workspace}/app/[id]"), ["/src/app/app/[id]"]);
        assert_eq!(
            Pattern::literal_brackets("${workspace}/app/[id]"),
            Some(17..18)
        );
        assert_eq!(Pattern::literal_brackets("${workspace}/app"), None);
    }

    #[test]
    fn paths_from_elsewhere_are_made_normal() {
        assert_eq!(
            normal(Path::new("/a//b/./c/")).unwrap(),
            Path::new("/a/b/c")
        );
        assert!(normal(Path::new("a")).is_err());
        assert!(normal(Path::new("/a/../b")).is_err());
    }
}
