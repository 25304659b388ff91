//! Refusals as people read them: one line each, the same ones folded.

use std::{collections::HashMap, fmt::Write as _};

use crate::{
    escape::printable,
    proto::{CredentialUse, Denial, Lost, Right, Verdict, denial::Object, lost},
};

/// How many lines the end of a run has at most.
pub(super) const SHOWN: usize = 10;

/// What a run was refused, folded as it arrives. Holds no more than it shows.
#[derive(Debug, Default)]
pub(super) struct Summary {
    lines: Vec<(Denial, u64)>,
    known: HashMap<Key, usize>,
    rest: u64,
    lost: u64,
}

/// What makes two refusals the same line.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Key {
    exe: String,
    action: String,
    object: String,
    rule: String,
    verdict: i32,
}

impl Summary {
    /// Counts one more.
    pub(super) fn add(&mut self, denial: Denial) {
        let count = denial.count.max(1);
        let key = Key {
            exe: denial.exe_display.clone(),
            action: action(&denial),
            object: object(&denial),
            rule: denial.rule.clone(),
            verdict: denial.verdict,
        };
        if let Some(index) = self.known.get(&key) {
            self.lines[*index].1 += count;
        } else if self.lines.len() < SHOWN {
            self.known.insert(key, self.lines.len());
            self.lines.push((denial, count));
        } else {
            self.rest += count;
        }
    }

    /// Counts refusals that left no record.
    pub(super) fn lose(&mut self, lost: &Lost) {
        if lost.reason() != lost::Reason::Use {
            self.lost += lost.count;
        }
    }

    /// Takes over the totals that the end of an exec carries, which also know
    /// of what did not arrive here.
    pub(super) fn settle(&mut self, lost: u64) {
        self.lost = self.lost.max(lost);
    }

    /// The lines for the end of a run in this sandbox.
    pub(super) fn render(&self, sandbox: &str) -> String {
        let mut text = String::new();
        for (denial, count) in &self.lines {
            let _ = writeln!(text, "sandbox: {}", line(denial, *count));
        }
        if self.rest > 0 {
            let _ = writeln!(
                text,
                "sandbox: {} more; see `sandbox events --sandbox {sandbox}`",
                self.rest
            );
        }
        if self.lost > 0 {
            let _ = writeln!(
                text,
                "sandbox: {} refused without a record: they came faster than they could be told",
                self.lost
            );
        }
        text
    }
}

/// `denied read /home/dev/.netrc (rule credentials) by curl[4211]`.
pub(super) fn line(denial: &Denial, count: u64) -> String {
    let mut text = format!(
        "{} {} {}",
        verdict(denial.verdict),
        action(denial),
        object(denial)
    );
    if !denial.rule.is_empty() {
        // The proxy gives its reasons in words.
        let word = match denial.object {
            Some(Object::Host(_)) => "",
            _ => "rule ",
        };
        let _ = write!(text, " ({word}{})", printable(&denial.rule));
    }
    by(&mut text, &denial.exe_display, denial.pid, count);
    text
}

/// `used github: POST api.github.com:443 /repos/o/r/pulls by gh[4211]`.
pub(super) fn use_line(used: &CredentialUse) -> String {
    let mut text = format!(
        "used {}: {}",
        printable(&used.credential),
        printable(&used.request_display)
    );
    by(&mut text, &used.exe_display, used.pid, used.count);
    text
}

fn by(text: &mut String, exe: &str, pid: u32, count: u64) {
    let name = exe.rsplit_once('/').map_or(exe, |(_, name)| name);
    // Writing to a string cannot fail.
    let _ = write!(text, " by {}[{pid}]", printable(name));
    if count > 1 {
        let _ = write!(text, " ({count} times)");
    }
}

/// `3 refused without a record (rate)`.
pub(super) fn lost_line(lost: &Lost) -> String {
    let why = match lost.reason() {
        lost::Reason::Rate => "the sandbox was over its rate",
        lost::Reason::RingBuffer => "the kernel's buffer was full",
        lost::Reason::Reader => "this reader was too slow",
        lost::Reason::Unspecified => "no reason given",
        lost::Reason::Use => {
            return format!(
                "{} uses of credentials without a record: there were too many",
                lost.count
            );
        }
    };
    format!("{} refused without a record: {why}", lost.count)
}

fn verdict(verdict: i32) -> &'static str {
    match Verdict::try_from(verdict) {
        Ok(Verdict::Observed) => "observed",
        _ => "denied",
    }
}

/// The right where it says enough, otherwise the operation.
fn action(denial: &Denial) -> String {
    match denial.right() {
        Right::Read => "read".to_owned(),
        Right::Write => "write".to_owned(),
        Right::Connect if denial.operation == "resolve" => "resolve".to_owned(),
        Right::Connect => "connect".to_owned(),
        Right::Scope | Right::Unspecified => printable(&denial.operation),
    }
}

fn object(denial: &Denial) -> String {
    if !denial.object_display.is_empty() {
        return printable(&denial.object_display);
    }
    match &denial.object {
        Some(Object::Path(path) | Object::UnixSocket(path)) => {
            printable(&String::from_utf8_lossy(path))
        }
        Some(
            Object::Address(text)
            | Object::Host(text)
            | Object::Capability(text)
            | Object::Facility(text),
        ) => printable(text),
        Some(Object::TargetPid(pid)) => format!("process {pid}"),
        None => "an object without a name".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denial(path: &str) -> Denial {
        Denial {
            pid: 4211,
            exe_display: "/usr/bin/python3".into(),
            right: Right::Read.into(),
            operation: "open".into(),
            object: Some(Object::Path(path.to_owned().into())),
            object_display: path.to_owned(),
            rule: "credentials".into(),
            verdict: Verdict::Denied.into(),
            count: 1,
            ..Denial::default()
        }
    }

    #[test]
    fn a_host_is_told_with_the_proxys_reason() {
        let denial = Denial {
            right: Right::Connect.into(),
            operation: "request".into(),
            object: Some(Object::Host("registry.example:443".into())),
            object_display: "registry.example:443".into(),
            rule: "not in the allow list".into(),
            ..denial("")
        };
        assert_eq!(
            line(&denial, 1),
            "denied connect registry.example:443 (not in the allow list) by python3[4211]"
        );
    }

    #[test]
    fn a_line_says_what_by_which_rule_and_who() {
        let key = denial("/home/dev/.ssh/id_ed25519");
        assert_eq!(
            line(&key, 1),
            "denied read /home/dev/.ssh/id_ed25519 (rule credentials) by python3[4211]"
        );
        let observed = Denial {
            right: Right::Scope.into(),
            operation: "ptrace".into(),
            object: Some(Object::TargetPid(1)),
            object_display: String::new(),
            rule: String::new(),
            verdict: Verdict::Observed.into(),
            ..key
        };
        assert_eq!(
            line(&observed, 3),
            "observed ptrace process 1 by python3[4211] (3 times)"
        );
    }

    #[test]
    fn identical_refusals_are_one_line_with_a_count() {
        let mut summary = Summary::default();
        summary.add(denial("/a"));
        summary.add(Denial {
            count: 2,
            pid: 5,
            ..denial("/a")
        });
        summary.add(denial("/b"));
        assert_eq!(
            summary.render("SBX"),
            "sandbox: denied read /a (rule credentials) by python3[4211] (3 times)\n\
             sandbox: denied read /b (rule credentials) by python3[4211]\n"
        );
    }

    #[test]
    fn ten_lines_are_shown_and_the_rest_is_counted() {
        let mut summary = Summary::default();
        for number in 0..14 {
            summary.add(denial(&format!("/file{number}")));
        }
        summary.add(denial("/file13"));
        summary.add(denial("/file0"));
        summary.lose(&Lost {
            count: 2,
            ..Lost::default()
        });
        summary.settle(3);
        let text = summary.render("SBX");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), SHOWN + 2, "{text}");
        assert!(lines[0].ends_with("(2 times)"), "{text}");
        assert_eq!(
            lines[10],
            "sandbox: 5 more; see `sandbox events --sandbox SBX`"
        );
        assert!(lines[11].starts_with("sandbox: 3 refused without a record"));
    }

    #[test]
    fn a_use_is_a_line_and_nothing_in_it_moves_the_cursor() {
        let mut used = CredentialUse {
            pid: 7,
            exe_display: "/usr/lib/git-core/git-remote-https".into(),
            credential: "github".into(),
            request_display: "POST github.com:443 /o/r/git-receive-pack (o/r: refs/heads/a)".into(),
            count: 2,
            ..CredentialUse::default()
        };
        assert_eq!(
            use_line(&used),
            "used github: POST github.com:443 /o/r/git-receive-pack (o/r: refs/heads/a) \
             by git-remote-https[7] (2 times)"
        );
        used.request_display = "GET \u{1b}[2J\n".into();
        used.credential = "\u{202e}".into();
        let line = use_line(&used);
        assert!(!line.contains(['\u{1b}', '\n', '\u{202e}']), "{line}");
    }

    #[test]
    fn nothing_refused_is_nothing_said() {
        let mut summary = Summary::default();
        let mut uses = Lost {
            count: 2,
            ..Lost::default()
        };
        uses.set_reason(lost::Reason::Use);
        summary.lose(&uses);
        assert_eq!(summary.render("SBX"), "");
        assert!(lost_line(&uses).starts_with("2 uses of credentials"));
    }

    #[test]
    fn no_name_can_move_the_cursor_or_turn_the_line() {
        let hostile = Denial {
            object_display: "/tmp/\u{1b}[2Ja\u{202e}b\n".into(),
            rule: "\r".into(),
            exe_display: "/tmp/\u{7}".into(),
            ..denial("/x")
        };
        assert_eq!(
            line(&hostile, 1),
            "denied read /tmp/\\u{1b}[2Ja\\u{202e}b\\n (rule \\r) by \\u{7}[4211]"
        );
    }
}
