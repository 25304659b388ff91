//! The host's policies and sets, and policies that callers send.

use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use super::{
    PolicyFrom, PolicySource, SandboxError,
    lately::{Looked, Stamp},
};
use crate::{
    config::Config,
    policy::{Document, MAX_POLICY_BYTES, Sets, Source},
};

/// Where the host's policies and sets are.
#[derive(Clone, Debug)]
pub(super) struct Policies {
    directories: Vec<PathBuf>,
    set_files: Vec<PathBuf>,
}

/// A parsed policy.
pub(super) struct Loaded {
    /// What it says.
    pub document: Document,
    /// The file that says so.
    pub file: Option<PathBuf>,
    /// The host's files that were looked at.
    pub looked: Vec<Looked>,
}

impl Policies {
    /// As configured.
    #[must_use]
    pub(super) fn new(config: &Config) -> Self {
        Self {
            directories: config.policy_directories.clone(),
            set_files: config.set_files.clone(),
        }
    }

    /// Reads and parses a policy. Files are read anew every time, so that an
    /// edited one is used by the next sandbox.
    pub(super) fn load(&self, source: &PolicySource) -> Result<Loaded, SandboxError> {
        let mut looked = Vec::new();
        let sets = self.sets(&mut looked)?;
        let (source, file) = match &source.from {
            PolicyFrom::Name(name) => {
                let (path, text) = self.named(name, &mut looked)?;
                (Source::new(path.display().to_string(), text), Some(path))
            }
            PolicyFrom::Text {
                display_name,
                toml,
                origin,
            } => {
                if origin.as_ref().is_some_and(|path| !path.is_absolute()) {
                    return Err(SandboxError::invalid(
                        "policy.text.origin",
                        "must be an absolute path",
                    ));
                }
                (Source::new(display_name, toml), origin.clone())
            }
        };
        let document = Document::parse(&source, &sets).map_err(SandboxError::Policy)?;
        Ok(Loaded {
            document,
            file,
            looked,
        })
    }

    fn named(
        &self,
        name: &str,
        looked: &mut Vec<Looked>,
    ) -> Result<(PathBuf, String), SandboxError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.chars().all(plain) {
            let problem = "must be letters, digits, `-`, `_` and `.`, and not begin with a `.`";
            return Err(SandboxError::invalid("policy.name", problem));
        }
        for directory in &self.directories {
            let path = directory.join(format!("{name}.toml"));
            if let Some(text) = read(&path, looked)? {
                return Ok((path, text));
            }
        }
        let quoted: Vec<_> = self
            .directories
            .iter()
            .map(|directory| format!("`{}`", directory.display()))
            .collect();
        Err(SandboxError::NoPolicy {
            name: name.into(),
            searched: quoted.join(" or "),
        })
    }

    fn sets(&self, looked: &mut Vec<Looked>) -> Result<Sets, SandboxError> {
        let mut sets = Sets::shipped().map_err(SandboxError::Policy)?;
        for path in &self.set_files {
            if let Some(text) = read(path, looked)? {
                let source = Source::new(path.display().to_string(), text);
                sets.merge(&source).map_err(SandboxError::Policy)?;
            }
        }
        Ok(sets)
    }
}

/// The text of a file; `None` if there is none.
fn read(path: &Path, looked: &mut Vec<Looked>) -> Result<Option<String>, SandboxError> {
    let limited = || -> io::Result<(String, Stamp)> {
        let mut text = String::new();
        let limit = MAX_POLICY_BYTES as u64 + 1;
        let file = File::open(path)?;
        // Before it is read: one that changes meanwhile has another one then.
        let stamp = Stamp::of(&file.metadata()?);
        file.take(limit).read_to_string(&mut text)?;
        Ok((text, stamp))
    };
    match limited() {
        Ok((text, stamp)) => {
            looked.push(Looked {
                path: path.to_owned(),
                stamp: Some(stamp),
            });
            Ok(Some(text))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            looked.push(Looked::missing(path));
            Ok(None)
        }
        Err(source) => Err(SandboxError::ReadPolicy {
            path: path.into(),
            source,
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn load(policies: &Policies, name: &str) -> Result<Loaded, SandboxError> {
        policies.load(&PolicySource {
            from: PolicyFrom::Name(name.into()),
            ..PolicySource::default()
        })
    }

    #[test]
    fn a_policy_is_found_in_the_first_directory_that_has_it() {
        let home = tempfile::tempdir().unwrap();
        let (first, second) = (home.path().join("first"), home.path().join("second"));
        for (directory, name) in [(&first, "a"), (&second, "a"), (&second, "b")] {
            fs::create_dir_all(directory).unwrap();
            fs::write(directory.join(format!("{name}.toml")), "version = 1\n").unwrap();
        }
        let policies = Policies {
            directories: vec![first.clone(), second.clone()],
            set_files: vec![],
        };
        assert_eq!(
            load(&policies, "a").unwrap().file,
            Some(first.join("a.toml"))
        );
        assert_eq!(
            load(&policies, "b").unwrap().file,
            Some(second.join("b.toml"))
        );
        let message = load(&policies, "c").err().unwrap().to_string();
        assert!(
            message.contains("no policy `c`") && message.contains("second"),
            "{message}"
        );
    }

    #[test]
    fn a_name_is_no_path() {
        let policies = Policies {
            directories: vec!["/etc".into()],
            set_files: vec![],
        };
        for name in ["", "../passwd", "/etc/passwd", ".hidden", "a b", "a\0"] {
            let error = load(&policies, name).err().unwrap();
            assert!(matches!(error, SandboxError::Invalid { .. }), "{name}");
        }
    }
}
