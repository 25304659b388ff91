//! What an attack must come to: the error, the one event, nothing changed, and
//! outside of a sandbox success.

use std::collections::BTreeMap;

use nix::errno::Errno;
use sandbox_daemon::proto::{Denial, Right, Verdict};

use crate::{
    client::{self, Ran},
    ground::{self, GROUND},
    host::{self, DEV, ROOT},
};

/// An attack, and what becomes of it inside.
#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) step: Vec<&'static str>,
    pub(crate) answer: String,
    pub(crate) refusal: Option<Refusal>,
    /// What it answers outside.
    control: Control,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Control {
    Succeeds,
    /// The kernel refuses it to everybody, or to this user.
    Is(&'static str),
    /// There is nothing to be learnt from it.
    None,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) operation: &'static str,
    pub(crate) right: Right,
    pub(crate) object: String,
    pub(crate) rule: String,
    pub(crate) errno: Errno,
}

/// An attack.
pub(crate) fn attack(step: &[&'static str]) -> Case {
    Case {
        step: step.to_vec(),
        answer: "ok".into(),
        refusal: None,
        control: Control::Succeeds,
    }
}

impl Case {
    /// It is let through.
    pub(crate) fn passes(self) -> Self {
        self
    }

    /// It is let through and finds something.
    pub(crate) fn finds(self, what: &str) -> Self {
        Self {
            answer: format!("ok {what}"),
            ..self
        }
    }

    /// It fails by itself, and is no denial.
    pub(crate) fn fails(self, errno: Errno) -> Self {
        Self {
            answer: format!("{errno:?}"),
            control: Control::None,
            ..self
        }
    }

    /// "No such file or directory".
    pub(crate) fn hidden(self, operation: &'static str, object: &str, rule: &str) -> Self {
        self.refused(Errno::ENOENT, Right::Read, operation, object, rule)
    }

    /// "Permission denied".
    pub(crate) fn kept(self, operation: &'static str, object: &str, rule: &str) -> Self {
        self.refused(Errno::EACCES, Right::Write, operation, object, rule)
    }

    /// "Invalid cross-device link": rights would rise.
    pub(crate) fn risen(self, operation: &'static str, object: &str, rule: &str) -> Self {
        self.refused(Errno::EXDEV, Right::Write, operation, object, rule)
    }

    /// Fails, with an event. The object is below the ground unless absolute.
    pub(crate) fn refused(
        self,
        errno: Errno,
        right: Right,
        operation: &'static str,
        object: &str,
        rule: &str,
    ) -> Self {
        let object = if object.starts_with('/') || matches!(right, Right::Connect | Right::Scope) {
            object.to_owned()
        } else {
            format!("{GROUND}/{object}")
        };
        Self {
            answer: format!("{errno:?}"),
            refusal: Some(Refusal {
                operation,
                right,
                object,
                rule: rule.into(),
                errno,
            }),
            ..self
        }
    }

    /// It answers something else than the event has.
    pub(crate) fn answers(self, answer: &str) -> Self {
        Self {
            answer: answer.into(),
            ..self
        }
    }

    /// Outside it fails as well, of itself.
    pub(crate) fn outside(self, answer: &'static str) -> Self {
        Self {
            control: Control::Is(answer),
            ..self
        }
    }

    /// Without a control.
    pub(crate) fn uncontrolled(self) -> Self {
        Self {
            control: Control::None,
            ..self
        }
    }
}

/// Performs attacks in one sandbox on the ground, as the developer and as root,
/// and each of them outside.
pub(crate) async fn check(cases: &[Case]) {
    for uid in [DEV, ROOT] {
        check_as(uid, cases).await;
    }
}

/// The same as one user.
pub(crate) async fn check_as(uid: u32, cases: &[Case]) {
    ground::make(uid);
    let before = host::snapshot(GROUND);
    let steps: Vec<&[&str]> = cases.iter().map(|case| case.step.as_slice()).collect();
    let mut client = client::root().await;
    let ran = client::run(&mut client, ground::attacker(uid, &steps)).await;
    compare(uid, cases, &ran);
    if cases.iter().all(|case| case.refusal.is_some()) {
        let after = host::snapshot(GROUND);
        assert_eq!(before, after, "refused attacks changed something");
    }
    for case in cases {
        control(uid, case);
    }
}

/// Performs an attack outside.
pub(crate) fn control(uid: u32, case: &Case) {
    if case.control == Control::None {
        return;
    }
    ground::make(uid);
    let answer = host::attack(uid, GROUND, &case.step);
    let succeeds = answer == "ok" || answer.starts_with("ok ");
    match case.control {
        Control::Is(expected) => {
            assert_eq!(answer, expected, "outside, as uid {uid}: {:?}", case.step);
        }
        _ => assert!(succeeds, "outside, as uid {uid}: {:?}: {answer}", case.step),
    }
}

/// Compares answers and events with what they must be.
pub(crate) fn compare(uid: u32, cases: &[Case], ran: &Ran) {
    let lines = ran.lines();
    for (number, case) in cases.iter().enumerate() {
        assert_eq!(
            lines.get(number).map_or("nothing", String::as_str),
            case.answer,
            "inside, as uid {uid}: {:?}; {ran:?}",
            case.step
        );
    }
    let refusals = cases.iter().filter_map(|case| case.refusal.as_ref());
    events(refusals, ran);
    assert_eq!(ran.code(), Some(0), "{ran:?}");
}

/// Exactly these events came, identical ones counted, and none was lost.
pub(crate) fn events<'a>(refusals: impl Iterator<Item = &'a Refusal>, ran: &Ran) {
    let mut expected: BTreeMap<String, (u64, &Refusal)> = BTreeMap::new();
    let mut total = 0;
    for refusal in refusals {
        let key = key(refusal.right, &refusal.object, &refusal.rule);
        expected.entry(key).or_insert((0, refusal)).0 += 1;
        total += 1;
    }
    let mut found: BTreeMap<String, (u64, &Denial)> = BTreeMap::new();
    for denial in &ran.denials {
        let key = key(denial.right(), &denial.object_display, &denial.rule);
        found.entry(key).or_insert((0, denial)).0 += denial.count;
    }
    assert_eq!(counts(&found), counts(&expected), "{ran:?}");
    for (key, (_, refusal)) in expected {
        let denial = found[&key].1;
        assert_eq!(denial.operation, refusal.operation, "{denial:?}");
        assert_eq!(denial.errno, refusal.errno as u32, "{denial:?}");
        assert_eq!(denial.verdict(), Verdict::Denied, "{denial:?}");
        if refusal.operation != "packet" {
            assert_eq!(denial.exe_display, host::this_program(), "{denial:?}");
        }
        assert!(!denial.policy_digest.is_empty(), "{denial:?}");
        assert!(denial.sequence > 0, "{denial:?}");
    }
    assert_eq!(ran.lost, [], "{ran:?}");
    assert_eq!((ran.exited.denied, ran.exited.lost), (total, 0), "{ran:?}");
}

fn counts<T>(events: &BTreeMap<String, (u64, T)>) -> BTreeMap<&str, u64> {
    let counts = events
        .iter()
        .map(|(key, (count, _))| (key.as_str(), *count));
    counts.collect()
}

fn key(right: Right, object: &str, rule: &str) -> String {
    format!("{right:?} {object} ({rule})")
}
