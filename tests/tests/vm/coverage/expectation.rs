//! What is expected of a kernel: its hooks, and those that each action reaches.
//! One file a kernel, made by the observer and read by people as a diff.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Write as _},
};

const HEADER: &str = "\
# The hooks of the LSM in this kernel (those in parentheses take no program that
# decides), and which of them, and of the programs on a cgroup, each action of a
# process of root's reaches. Made anew by
# `SANDBOX_UPDATE_COVERAGE=1 cargo xtask test --filter coverage`.
";

/// A file of expectations.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Expectation {
    /// As the file has them, parentheses included.
    pub(super) hooks: BTreeSet<String>,
    pub(super) actions: BTreeMap<String, Reached>,
}

/// What an action comes to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Reached {
    /// `ok`, or an error's or signal's name.
    pub(super) answer: String,
    pub(super) hooks: BTreeSet<String>,
}

impl Expectation {
    pub(super) fn parse(text: &str) -> Self {
        let mut expectation = Self::default();
        for line in text.lines() {
            if line.is_empty() || line.starts_with('#') {
            } else if let Some((name, rest)) = line.split_once(": ") {
                let (answer, hooks) = rest.split_once(';').unwrap_or((rest, ""));
                let reached = Reached {
                    answer: answer.to_owned(),
                    hooks: hooks.split_whitespace().map(str::to_owned).collect(),
                };
                expectation.actions.insert(name.to_owned(), reached);
            } else {
                expectation.hooks.insert(line.to_owned());
            }
        }
        expectation
    }

    /// What is new, gone and different in another, one a line.
    pub(super) fn differences(&self, other: &Self) -> String {
        let mut text = String::new();
        for hook in other.hooks.difference(&self.hooks) {
            line(&mut text, format_args!("this kernel has the hook `{hook}`"));
        }
        for hook in self.hooks.difference(&other.hooks) {
            line(&mut text, format_args!("this kernel has no hook `{hook}`"));
        }
        let names: BTreeSet<_> = self.actions.keys().chain(other.actions.keys()).collect();
        for name in names {
            match (self.actions.get(name), other.actions.get(name)) {
                (Some(old), Some(new)) => {
                    if old.answer != new.answer {
                        line(
                            &mut text,
                            format_args!("{name}: {}, no longer {}", new.answer, old.answer),
                        );
                    }
                    for hook in new.hooks.difference(&old.hooks) {
                        line(&mut text, format_args!("{name}: reaches `{hook}`"));
                    }
                    for hook in old.hooks.difference(&new.hooks) {
                        line(
                            &mut text,
                            format_args!("{name}: reaches `{hook}` no longer"),
                        );
                    }
                }
                (None, _) => line(&mut text, format_args!("{name}: is new")),
                (_, None) => line(&mut text, format_args!("{name}: is no longer tried")),
            }
        }
        text
    }
}

impl fmt::Display for Expectation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HEADER)?;
        writeln!(f)?;
        for hook in &self.hooks {
            writeln!(f, "{hook}")?;
        }
        writeln!(f)?;
        for (name, reached) in &self.actions {
            write!(f, "{name}: {};", reached.answer)?;
            for hook in &reached.hooks {
                write!(f, " {hook}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

fn line(text: &mut String, content: fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{content}");
}
