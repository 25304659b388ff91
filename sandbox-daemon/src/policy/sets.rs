//! Named sets: reviewed lists of places or of variables, each line with its
//! reason, that policies use as `@NAME`.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use super::diagnostic::{Diagnostics, Fault, Report, Source, Span, nearest};
use super::environment::VariablePattern;
use super::pattern::Pattern;
use super::table::{self, Table};

/// The set of variables that are never let in.
pub(super) const INJECTION: &str = "injection";
/// The sets of places that run later, outside.
pub(super) const RUN_LATER: [&str; 3] = ["startup", "programs", "git-config"];

const SHIPPED: &str = include_str!("../../../policies/sets.toml");

/// The sets that a policy can use.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sets {
    sets: BTreeMap<String, Set>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Set {
    Places(Vec<Arc<Pattern>>),
    Variables(Vec<VariablePattern>),
}

impl Sets {
    /// The sets that come with sandboxd. They are part of the binary: what
    /// `@credentials` means cannot get lost.
    pub fn shipped() -> Result<Self, Diagnostics> {
        static PARSED: LazyLock<Result<Sets, Diagnostics>> =
            LazyLock::new(|| Sets::parse(&Source::new("policies/sets.toml", SHIPPED)));
        PARSED.clone()
    }

    /// Reads a file of sets.
    pub fn parse(source: &Source) -> Result<Self, Diagnostics> {
        let mut sets = Self::default();
        sets.merge(source)?;
        Ok(sets)
    }

    /// Adds an operator's sets. A set that is there already grows: a line of
    /// the shipped ones cannot be taken away.
    pub fn merge(&mut self, source: &Source) -> Result<(), Diagnostics> {
        let mut report = Report::new(source);
        let mut added = Vec::new();
        if let Some(document) = table::parse(&mut report) {
            let document = Table::new("", &document);
            version(document, &mut report);
            for (name, span) in document.keys().filter(|(name, _)| *name != "version") {
                if !is_set_name(name) {
                    let hint = "lower-case letters, digits and hyphens, beginning with a letter";
                    report.error(
                        span,
                        &format!("`{name}` is not a name for a set"),
                        Some(hint),
                    );
                } else if let Some(table) = document.table(name, &mut report)
                    && let Some(set) = read_set(table, &span, &mut report)
                {
                    added.push((name.to_owned(), span, set));
                }
            }
        }
        for (name, span, set) in &added {
            if self.sets.get(name).is_some_and(|old| !old.is_like(set)) {
                let message = format!("`{name}` is already a set of another kind");
                report.error(
                    span.clone(),
                    &message,
                    Some("give the new one another name"),
                );
            }
        }
        if report.has_errors() {
            return Err(report.finish());
        }
        for (name, _, set) in added {
            match self.sets.entry(name) {
                std::collections::btree_map::Entry::Vacant(entry) => {
                    entry.insert(set);
                }
                std::collections::btree_map::Entry::Occupied(mut entry) => {
                    entry.get_mut().grow(set);
                }
            }
        }
        Ok(())
    }

    /// The names of all sets, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.sets.keys().map(String::as_str)
    }

    /// The places of a set.
    pub(super) fn places(&self, name: &str) -> Result<&[Arc<Pattern>], Fault> {
        match self.sets.get(name) {
            Some(Set::Places(places)) => Ok(places),
            Some(Set::Variables(_)) => {
                let message = format!("`@{name}` is a set of variables, not of places");
                Err(Fault::new(message, "it can stand in `[env] pass`"))
            }
            None => Err(self.unknown(name, |set| matches!(set, Set::Places(_)))),
        }
    }

    /// The variables of a set.
    pub(super) fn variables(&self, name: &str) -> Result<&[VariablePattern], Fault> {
        match self.sets.get(name) {
            Some(Set::Variables(variables)) => Ok(variables),
            Some(Set::Places(_)) => {
                let message = format!("`@{name}` is a set of places, not of variables");
                Err(Fault::new(message, "it can stand in `[files]`"))
            }
            None => Err(self.unknown(name, |set| matches!(set, Set::Variables(_)))),
        }
    }

    fn unknown(&self, name: &str, usable: impl Fn(&Set) -> bool) -> Fault {
        let names: Vec<&str> = self
            .sets
            .iter()
            .filter(|(name, set)| usable(set) && *name != INJECTION)
            .map(|(name, _)| name.as_str())
            .collect();
        let hint = match nearest(name, names.iter().copied()) {
            Some(known) => format!("did you mean `@{known}`?"),
            None if names.is_empty() => "there are none".to_owned(),
            None => format!("known are {}", table::listed(&names)),
        };
        Fault::new(format!("unknown set `@{name}`"), hint)
    }
}

impl Set {
    fn is_like(&self, other: &Self) -> bool {
        matches!(self, Self::Places(_)) == matches!(other, Self::Places(_))
    }

    fn grow(&mut self, more: Self) {
        match (self, more) {
            (Self::Places(places), Self::Places(more)) => add_new(places, more),
            (Self::Variables(variables), Self::Variables(more)) => add_new(variables, more),
            // `merge` refuses the two other cases.
            _ => {}
        }
    }
}

fn add_new<T: PartialEq>(lines: &mut Vec<T>, more: Vec<T>) {
    for line in more {
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
}

/// Checks the `version` of a document; false if it is not one that can be
/// read.
pub(super) fn version(document: Table<'_>, report: &mut Report<'_>) -> bool {
    let Some(key) = document.key_span("version") else {
        report.file_error("`version` is missing", Some("begin with `version = 1`"));
        return false;
    };
    match document.integer("version", report) {
        Some((1, _)) => true,
        Some((other, _)) => {
            let message = format!("version {other} is not known to this sandboxd");
            report.error(key, &message, Some("it reads `version = 1`"));
            false
        }
        None => false,
    }
}

fn is_set_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_lowercase())
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

fn read_set(table: Table<'_>, span: &Span, report: &mut Report<'_>) -> Option<Set> {
    table.expect_keys(&["description", "places", "variables"], |_| None, report);
    if table.string("description", report).is_none() && table.key_span("description").is_none() {
        let message = format!("set `{}` has no `description`", table.name);
        report.error(
            span.clone(),
            &message,
            Some("say in one line what it is for"),
        );
    }
    match (table.key_span("places"), table.key_span("variables")) {
        (Some(_), None) => Some(Set::Places(read_lines(
            table,
            "places",
            "path",
            |path| Pattern::parse(path).map(Arc::new),
            report,
        ))),
        (None, Some(_)) => {
            let parse =
                |name: &str| VariablePattern::parse(name).ok_or_else(|| variable_fault(name));
            Some(Set::Variables(read_lines(
                table,
                "variables",
                "name",
                parse,
                report,
            )))
        }
        _ => {
            let message = format!(
                "set `{}` has not one of `places` and `variables`",
                table.name
            );
            report.error(span.clone(), &message, Some("a set holds either"));
            None
        }
    }
}

/// The lines of a set: `{ KEY = "...", reason = "..." }`.
fn read_lines<T>(
    table: Table<'_>,
    list: &str,
    key: &str,
    parse: impl Fn(&str) -> Result<T, Fault>,
    report: &mut Report<'_>,
) -> Vec<T> {
    let mut parsed = Vec::new();
    for (line, span) in table.tables(list, report) {
        line.expect_keys(&[key, "reason"], |_| None, report);
        let reason = line.string("reason", report);
        if reason.is_none_or(|reason| reason.text.trim().is_empty()) {
            let message = "a line of a set has no `reason`";
            report.error(span.clone(), message, Some("say why it is in the set"));
        }
        let Some(item) = line.string(key, report) else {
            if line.key_span(key).is_none() {
                report.error(span, &format!("a line of a set has no `{key}`"), None);
            }
            continue;
        };
        match parse(&item.text) {
            Ok(line) => parsed.push(line),
            Err(fault) => report.fault(&item.span, &item.text, &fault),
        }
    }
    parsed
}

/// What is wrong with a name that is none.
pub(super) fn variable_fault(name: &str) -> Fault {
    Fault::new(
        format!("`{name}` is not the name of a variable"),
        "a name, such as `CI`, or the beginning of names, such as `LC_*`",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sets(text: &str) -> Result<Sets, Diagnostics> {
        Sets::parse(&Source::new("sets.toml", text))
    }

    fn messages(text: &str) -> Vec<String> {
        sets(text)
            .unwrap_err()
            .into_iter()
            .map(|it| it.message)
            .collect()
    }

    #[test]
    fn the_shipped_sets_parse() {
        let sets = Sets::shipped().unwrap_or_else(|found| panic!("{found}"));
        let others = [
            "credentials",
            "devices",
            "repository",
            "system",
            "workspace-config",
        ];
        for name in RUN_LATER.into_iter().chain(others) {
            assert!(!sets.places(name).unwrap().is_empty(), "{name}");
        }
        for name in [INJECTION, "basics", "toolchain"] {
            assert!(!sets.variables(name).unwrap().is_empty(), "{name}");
        }
    }

    #[test]
    fn every_line_needs_its_reason() {
        let text = "version = 1\n[a]\ndescription = \"x\"\nplaces = [{ path = \"/a\" }]\n";
        let found = sets(text).unwrap_err();
        assert_eq!(found.0[0].message, "a line of a set has no `reason`");
        assert_eq!((found.0[0].line, found.0[0].column), (4, 11));
    }

    #[test]
    fn all_mistakes_are_reported() {
        let text = r#"
version = 1
Bad = 1
[a]
places = [{ path = "etc", reason = "r" }, { pth = "/a", reason = "r" }]
[b]
description = "both"
places = []
variables = []
"#;
        assert_eq!(
            messages(text),
            [
                "`Bad` is not a name for a set",
                "set `a` has no `description`",
                "`etc` is a relative path",
                "a line of a set has no `path`",
                "unknown key `pth` in `[places]`",
                "set `b` has not one of `places` and `variables`",
            ]
        );
    }

    #[test]
    fn merging_grows_a_set_and_adds_others() {
        let mut all = sets(
            "version = 1\n[a]\ndescription = \"x\"\nplaces = [{ path = \"/a\", reason = \"r\" }]\n",
        )
        .unwrap();
        let own = Source::new(
            "own.toml",
            "version = 1\n[a]\ndescription = \"x\"\nplaces = [{ path = \"/b\", reason = \"r\" }]\n\
             [v]\ndescription = \"x\"\nvariables = [{ name = \"V_*\", reason = \"r\" }]\n",
        );
        all.merge(&own).unwrap();
        all.merge(&own).unwrap();
        assert_eq!(all.places("a").unwrap().len(), 2);
        assert!(all.variables("v").unwrap()[0].matches(b"V_1"));
        let other = Source::new(
            "other.toml",
            "version = 1\n[a]\ndescription = \"x\"\nvariables = []\n",
        );
        let found = all.merge(&other).unwrap_err();
        assert_eq!(found.0[0].message, "`a` is already a set of another kind");
        assert_eq!(all.places("a").unwrap().len(), 2);
    }

    #[test]
    fn an_unknown_set_is_answered_with_a_likely_one() {
        let sets = Sets::shipped().unwrap();
        let fault = sets.places("credential").unwrap_err();
        assert_eq!(fault.message, "unknown set `@credential`");
        assert_eq!(fault.hint.unwrap(), "did you mean `@credentials`?");
        let fault = sets.places("toolchain").unwrap_err();
        assert_eq!(
            fault.message,
            "`@toolchain` is a set of variables, not of places"
        );
    }
}
