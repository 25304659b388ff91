//! Which of the caller's variables reach a command, and what is set for it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;

/// A variable's name, or with a trailing `*` the names that begin so.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct VariablePattern {
    stem: String,
    prefix: bool,
}

/// The environment that a policy asks for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Environment {
    /// What is let in.
    pub pass: Vec<VariablePattern>,
    /// What is never let in, whatever `pass` says: variables that make
    /// programs run other code.
    pub refuse: Vec<VariablePattern>,
    /// What is set, over anything that was let in.
    pub set: BTreeMap<String, OsString>,
}

/// What became of a caller's environment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selected {
    /// The command's environment: name and value, each name once.
    pub passed: Vec<(Vec<u8>, Vec<u8>)>,
    /// Names of the caller's variables that did not come in, sorted, for
    /// people: bytes that are not UTF-8 are replaced.
    pub withheld: Vec<String>,
}

impl VariablePattern {
    /// Reads `NAME`, `PREFIX*` or `*`; `None` if it is none of these.
    pub fn parse(text: &str) -> Option<Self> {
        let (stem, prefix) = match text.strip_suffix('*') {
            Some(stem) => (stem, true),
            None => (text, false),
        };
        let plausible = |byte: u8| byte.is_ascii_graphic() && byte != b'=' && byte != b'*';
        ((prefix || !stem.is_empty()) && stem.bytes().all(plausible)).then(|| Self {
            stem: stem.to_owned(),
            prefix,
        })
    }

    /// Whether a variable of this name is meant.
    pub fn matches(&self, name: &[u8]) -> bool {
        if self.prefix {
            name.starts_with(self.stem.as_bytes())
        } else {
            name == self.stem.as_bytes()
        }
    }

    /// Whether every name that `other` means is meant.
    pub(super) fn covers(&self, other: &Self) -> bool {
        if other.prefix && !self.prefix {
            false
        } else {
            self.matches(other.stem.as_bytes())
        }
    }

    /// Whether it is `*`.
    pub(super) fn covers_all(&self) -> bool {
        self.prefix && self.stem.is_empty()
    }

    /// The name, if it is a single one.
    pub fn exact(&self) -> Option<&str> {
        (!self.prefix).then_some(self.stem.as_str())
    }
}

impl fmt::Display for VariablePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.stem, if self.prefix { "*" } else { "" })
    }
}

impl Environment {
    /// Whether a variable of this name comes in.
    pub fn passes(&self, name: &[u8]) -> bool {
        let any = |patterns: &[VariablePattern]| patterns.iter().any(|it| it.matches(name));
        !name.is_empty() && !name.contains(&b'=') && any(&self.pass) && !any(&self.refuse)
    }

    /// Picks from the caller's variables and adds those that are set. Of a
    /// name that comes twice the first counts, as `getenv` has it.
    pub fn select(&self, caller: &[(Vec<u8>, Vec<u8>)]) -> Selected {
        let mut chosen = BTreeMap::new();
        let mut withheld = Vec::new();
        for (name, value) in caller {
            if self.set.keys().any(|set| set.as_bytes() == name) {
                continue;
            }
            // A NUL would end the string early and so hide what follows.
            let intact = !name.contains(&0) && !value.contains(&0);
            if intact && self.passes(name) {
                chosen.entry(name.clone()).or_insert_with(|| value.clone());
            } else {
                withheld.push(String::from_utf8_lossy(name).into_owned());
            }
        }
        for (name, value) in &self.set {
            chosen.insert(name.as_bytes().to_vec(), value.as_bytes().to_vec());
        }
        withheld.sort();
        withheld.dedup();
        Selected {
            passed: chosen.into_iter().collect(),
            withheld,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(list: &[&str]) -> Vec<VariablePattern> {
        list.iter()
            .map(|text| VariablePattern::parse(text).unwrap())
            .collect()
    }

    fn caller(list: &[(&str, &str)]) -> Vec<(Vec<u8>, Vec<u8>)> {
        list.iter()
            .map(|(name, value)| (name.as_bytes().into(), value.as_bytes().into()))
            .collect()
    }

    #[test]
    fn only_what_is_listed_comes_in_and_the_rest_is_named() {
        let env = Environment {
            pass: patterns(&["PATH", "LC_*"]),
            refuse: vec![],
            set: BTreeMap::from([("CI".to_owned(), OsString::from("1"))]),
        };
        let selected = env.select(&caller(&[
            ("PATH", "/bin"),
            ("LC_ALL", "C"),
            ("CI", "0"),
            ("GITHUB_TOKEN", "secret"),
            ("AWS_PROFILE", "prod"),
        ]));
        assert_eq!(
            selected.passed,
            caller(&[("CI", "1"), ("LC_ALL", "C"), ("PATH", "/bin")])
        );
        assert_eq!(selected.withheld, ["AWS_PROFILE", "GITHUB_TOKEN"]);
    }

    #[test]
    fn what_is_refused_does_not_come_in_even_with_a_star() {
        let env = Environment {
            pass: patterns(&["*"]),
            refuse: patterns(&["LD_*", "BASH_ENV"]),
            set: BTreeMap::new(),
        };
        let selected = env.select(&caller(&[
            ("LD_PRELOAD", "/x"),
            ("BASH_ENV", "/x"),
            ("BASH_ENVIRONMENT", "ok"),
        ]));
        assert_eq!(selected.passed, caller(&[("BASH_ENVIRONMENT", "ok")]));
        assert_eq!(selected.withheld, ["BASH_ENV", "LD_PRELOAD"]);
    }

    #[test]
    fn malformed_variables_stay_out() {
        let env = Environment {
            pass: patterns(&["*"]),
            refuse: vec![],
            set: BTreeMap::new(),
        };
        let selected = env.select(&caller(&[
            ("", "x"),
            ("A=B", "x"),
            ("N\0", "x"),
            ("V", "a\0b"),
        ]));
        assert!(selected.passed.is_empty());
        assert_eq!(selected.withheld.len(), 4);
    }

    #[test]
    fn of_a_name_that_comes_twice_the_first_counts() {
        let env = Environment {
            pass: patterns(&["A"]),
            refuse: vec![],
            set: BTreeMap::new(),
        };
        assert_eq!(
            env.select(&caller(&[("A", "1"), ("A", "2")])).passed,
            caller(&[("A", "1")])
        );
    }

    #[test]
    fn a_pattern_is_a_name_or_a_prefix() {
        for good in ["PATH", "LC_*", "*", "BASH_FUNC_*", "npm_config_cache"] {
            assert!(VariablePattern::parse(good).is_some(), "{good}");
        }
        for bad in ["", "A=B", "*_TOKEN", "A*B", "A B", "A\n"] {
            assert!(VariablePattern::parse(bad).is_none(), "{bad}");
        }
    }
}
