//! What a rule of git's allows.

use super::{
    receive::{Command, Head},
    report::{Refusal, Refusals},
};
use crate::credential::GitRule;

impl GitRule {
    /// The entry of `repositories` that names this one: a path without the first
    /// slash and without `.git`.
    #[must_use]
    pub fn repository(&self, repository: &str) -> Option<&str> {
        let entries = self.repositories.iter().map(String::as_str);
        entries.into_iter().find(|it| is_path(it, repository))
    }

    /// The entry of `push` that names this reference.
    #[must_use]
    pub fn reference(&self, reference: &str) -> Option<&str> {
        let entries = self.push.iter().map(String::as_str);
        entries.into_iter().find(|it| is_reference(it, reference))
    }

    /// The entry of `push` for each command, in their order.
    ///
    /// Where [`GitRule::asks_for_pack`], that is not the whole answer.
    ///
    /// # Errors
    /// Some may not be pushed.
    pub fn decide(&self, head: &Head) -> Result<Vec<&str>, Refusals> {
        let mut allowed = Vec::with_capacity(head.commands.len());
        let mut refused = Vec::new();
        for command in &head.commands {
            match self.allows(command, head.capabilities.push_options) {
                Ok(entry) => allowed.push(entry),
                Err(reason) => refused.push(Refusal {
                    reference: command.reference.clone(),
                    reason: reason.into(),
                }),
            }
        }
        if refused.is_empty() {
            Ok(allowed)
        } else {
            Err(Refusals(refused))
        }
    }

    /// Whether [`PackCheck`](super::pack::PackCheck) has to say that this push
    /// forces nothing.
    #[must_use]
    pub fn asks_for_pack(&self, head: &Head) -> bool {
        !self.force && head.commands.iter().any(Command::is_update)
    }

    fn allows(&self, command: &Command, options: bool) -> Result<&str, &'static str> {
        // GitLab, for one, merges and creates branches if an option says so.
        if options {
            return Err("push options are not allowed");
        }
        let entry = self
            .reference(&command.reference)
            .ok_or("not a reference that may be pushed")?;
        if command.is_deletion() && !self.delete {
            return Err("deleting references is not allowed");
        }
        Ok(entry)
    }
}

fn is_path(pattern: &str, path: &str) -> bool {
    let mut segments = path.split('/');
    let met = pattern.split('/').all(|expected| {
        let segment = segments.next();
        segment.is_some_and(|it| expected == it || expected == "*" && !it.is_empty())
    });
    met && segments.next().is_none()
}

fn is_reference(pattern: &str, reference: &str) -> bool {
    let Some((before, after)) = pattern.split_once('*') else {
        return pattern == reference;
    };
    reference
        .strip_prefix(before)
        .and_then(|rest| rest.strip_suffix(after))
        .is_some_and(|anything| !anything.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::git::{
        pkt::{self, Packet},
        receive::HeadReader,
    };

    fn rule(repositories: &[&str], push: &[&str]) -> GitRule {
        GitRule {
            repositories: repositories.iter().map(|&it| it.into()).collect(),
            push: push.iter().map(|&it| it.into()).collect(),
            ..GitRule::default()
        }
    }

    const OLD: &str = "1111111111111111111111111111111111111111";
    const NEW: &str = "2222222222222222222222222222222222222222";
    const NONE: &str = "0000000000000000000000000000000000000000";

    fn head(commands: &[(&str, &str, &str)], capabilities: &str) -> Head {
        let mut bytes = Vec::new();
        for (index, (old, new, reference)) in commands.iter().enumerate() {
            let more = if index == 0 { capabilities } else { "" };
            let line = format!("{old} {new} {reference}{more}");
            pkt::write(Packet::Data(line.as_bytes()), &mut bytes);
        }
        bytes.extend(b"0000");
        HeadReader::default().feed(&bytes).unwrap().unwrap()
    }

    #[test]
    fn a_star_in_a_repository_is_one_segment() {
        let rule = rule(&["o/*", "*/docs", "a/b/c"], &[]);
        for (repository, entry) in [
            ("o/r", Some("o/*")),
            ("x/docs", Some("*/docs")),
            ("a/b/c", Some("a/b/c")),
            ("o", None),
            ("o/", None),
            ("o/r/s", None),
            ("O/r", None),
            ("x/doc", None),
            ("x/docs.git", None),
            ("/docs", None),
            ("a/b", None),
            ("a/b/c/d", None),
            ("a/*/c", None),
            ("", None),
        ] {
            assert_eq!(rule.repository(repository), entry, "{repository}");
        }
    }

    #[test]
    fn a_star_in_a_reference_is_anything_but_nothing() {
        let rule = rule(
            &[],
            &["refs/heads/agent/*", "refs/heads/*-bot", "refs/tags/v1"],
        );
        for (reference, entry) in [
            ("refs/heads/agent/a", Some("refs/heads/agent/*")),
            ("refs/heads/agent/a/b", Some("refs/heads/agent/*")),
            ("refs/heads/a/b-bot", Some("refs/heads/*-bot")),
            ("refs/tags/v1", Some("refs/tags/v1")),
            ("refs/heads/agent/", None),
            ("refs/heads/agent", None),
            ("refs/heads/-bot", None),
            ("refs/heads/main", None),
            ("refs/heads/Agent/a", None),
            ("refs/tags/v11", None),
            ("x/refs/tags/v1", None),
        ] {
            assert_eq!(rule.reference(reference), entry, "{reference}");
        }
        // What is before the star and after it may not be the same bytes.
        let rule = self::rule(&[], &["refs/heads/aba*aba"]);
        assert_eq!(rule.reference("refs/heads/aba"), None);
        assert_eq!(rule.reference("refs/heads/ababa"), None);
        assert!(rule.reference("refs/heads/abaxaba").is_some());
    }

    /// Against the definition: whether there are words for the stars.
    #[test]
    fn patterns_mean_what_they_are_defined_to_mean() {
        let words = |letters: &[&str], longest: u32| -> Vec<String> {
            let mut words = vec![String::new()];
            let mut last = words.clone();
            for _ in 0..longest {
                let longer = |word: &String| {
                    letters
                        .iter()
                        .map(|it| format!("{word}{it}"))
                        .collect::<Vec<_>>()
                };
                last = last.iter().flat_map(longer).collect();
                words.extend(last.clone());
            }
            words
        };
        let texts = words(&["a", "b", "/"], 5);
        for pattern in words(&["a", "/", "*"], 4) {
            let stars = pattern.matches('*').count();
            for text in &texts {
                if stars <= 1 {
                    let expected = texts
                        .iter()
                        .any(|it| !it.is_empty() && pattern.replace('*', it) == *text)
                        || stars == 0 && pattern == *text;
                    assert_eq!(is_reference(&pattern, text), expected, "{pattern} {text}");
                }
                let lone = pattern
                    .split('/')
                    .filter(|it| it.contains('*'))
                    .all(|it| it == "*");
                if lone && stars == 1 {
                    let expected = texts.iter().any(|it| {
                        !it.is_empty() && !it.contains('/') && pattern.replace('*', it) == *text
                    });
                    assert_eq!(is_path(&pattern, text), expected, "{pattern} {text}");
                }
            }
        }
    }

    #[test]
    fn every_reference_has_to_be_allowed_and_those_that_are_not_have_a_reason() {
        let rule = rule(&[], &["refs/heads/agent/*", "refs/tags/*"]);
        let fine = head(
            &[
                (NONE, NEW, "refs/tags/v1"),
                (OLD, NEW, "refs/heads/agent/x"),
            ],
            "",
        );
        assert_eq!(
            rule.decide(&fine),
            Ok(vec!["refs/tags/*", "refs/heads/agent/*"])
        );
        let bad = head(
            &[
                (NONE, NEW, "refs/heads/main"),
                (OLD, NEW, "refs/heads/agent/x"),
                (OLD, NONE, "refs/heads/agent/y"),
            ],
            "",
        );
        let Refusals(refused) = rule.decide(&bad).unwrap_err();
        let refused: Vec<_> = refused
            .iter()
            .map(|it| (it.reference.as_str(), it.reason.as_str()))
            .collect();
        assert_eq!(
            refused,
            [
                ("refs/heads/main", "not a reference that may be pushed"),
                ("refs/heads/agent/y", "deleting references is not allowed"),
            ]
        );
        assert!(GitRule::default().decide(&fine).is_err());
        let deletes = GitRule {
            delete: true,
            ..rule
        };
        let deletion = head(&[(OLD, NONE, "refs/heads/agent/y")], "");
        assert!(deletes.decide(&deletion).is_ok());
        let options = head(&[(NONE, NEW, "refs/tags/v1")], "\0push-options");
        assert!(deletes.decide(&options).is_err());
    }

    #[test]
    fn only_what_could_be_forced_has_to_be_shown() {
        let rule = rule(&[], &["*"]);
        let update = (OLD, NEW, "refs/heads/a");
        assert!(rule.asks_for_pack(&head(&[update], "")));
        assert!(
            !GitRule {
                force: true,
                ..rule.clone()
            }
            .asks_for_pack(&head(&[update], ""))
        );
        for other in [
            (NONE, NEW, "refs/heads/a"),
            (OLD, NONE, "refs/heads/a"),
            (OLD, OLD, "refs/heads/a"),
        ] {
            assert!(!rule.asks_for_pack(&head(&[other], "")), "{other:?}");
        }
    }
}
