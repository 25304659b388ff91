//! Folds identical refusals of one exec. The first is passed on at once; what
//! repeats it within a window is passed on as one more with a count. So a
//! reader sees every kind of refusal when it happens, and the counts add up to
//! exactly the refusals there were. Files of `/proc/PID` are alike whatever the
//! process: ps(1) looks at all that there are.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use super::{Object, Refusal, Right, Verdict};

/// How long repetitions are collected.
pub const WINDOW: Duration = Duration::from_secs(1);

/// Kinds of refusals that are remembered at a time.
const CAPACITY: usize = 1024;

/// Refusals that are alike.
#[derive(Clone, Debug)]
pub struct Folded {
    /// The first of them.
    pub refusal: Arc<Refusal>,
    /// How many.
    pub count: u64,
    /// When the first happened.
    pub first: SystemTime,
    /// When the last happened.
    pub last: SystemTime,
}

/// The refusals of one exec that may still repeat.
#[derive(Default)]
pub struct Fold {
    kinds: HashMap<Kind, Pending>,
}

/// What makes two refusals of an exec identical.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Kind {
    exe: Vec<u8>,
    right: Right,
    operation: &'static str,
    object: Object,
    rule: Arc<str>,
    policy_digest: Arc<str>,
    verdict: Verdict,
}

impl Kind {
    fn of(refusal: &Refusal) -> Self {
        Self {
            exe: refusal.exe.clone(),
            right: refusal.right,
            operation: refusal.operation,
            object: of_any_process(&refusal.object),
            rule: refusal.rule.clone(),
            policy_digest: refusal.policy_digest.clone(),
            verdict: refusal.verdict,
        }
    }
}

/// `/proc/[pid]/stat` for `/proc/1/stat`, as proc(5) has it; anything else as it
/// is.
fn of_any_process(object: &Object) -> Object {
    let Object::Path(path) = object else {
        return object.clone();
    };
    let rest = path.strip_prefix(b"/proc/").unwrap_or_default();
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if digits == 0 {
        return object.clone();
    }
    Object::Path([b"/proc/[pid]", &rest[digits..]].concat())
}

struct Pending {
    refusal: Arc<Refusal>,
    opened: Instant,
    repeated: Option<Folded>,
}

impl Fold {
    /// Takes one refusal; what it returns is to be passed on now.
    pub fn add(&mut self, refusal: Refusal, time: SystemTime, now: Instant) -> Vec<Folded> {
        self.add_many(refusal, 1, time, now)
    }

    /// Takes refusals that are identical.
    pub fn add_many(
        &mut self,
        refusal: Refusal,
        count: u64,
        time: SystemTime,
        now: Instant,
    ) -> Vec<Folded> {
        let kind = Kind::of(&refusal);
        if let Some(pending) = self.kinds.get_mut(&kind) {
            let repeated = pending.repeated.get_or_insert_with(|| Folded {
                refusal: pending.refusal.clone(),
                count: 0,
                first: time,
                last: time,
            });
            repeated.count += count;
            repeated.last = time;
            if refusal.object != repeated.refusal.object {
                Arc::make_mut(&mut repeated.refusal).object = kind.object;
            }
            return Vec::new();
        }
        let mut ready = Vec::new();
        if self.kinds.len() >= CAPACITY {
            ready = self.flush();
        }
        let refusal = Arc::new(refusal);
        ready.push(Folded {
            refusal: refusal.clone(),
            count,
            first: time,
            last: time,
        });
        self.kinds.insert(
            kind,
            Pending {
                refusal,
                opened: now,
                repeated: None,
            },
        );
        ready
    }

    /// What repeated in the windows that have closed. A kind that did not
    /// repeat is forgotten.
    pub fn due(&mut self, now: Instant) -> Vec<Folded> {
        let mut ready = Vec::new();
        self.kinds.retain(|_, pending| {
            if now.duration_since(pending.opened) < WINDOW {
                return true;
            }
            pending.opened = now;
            let repeated = pending.repeated.take();
            let keep = repeated.is_some();
            ready.extend(repeated);
            keep
        });
        ready
    }

    /// All that is left.
    pub fn flush(&mut self) -> Vec<Folded> {
        self.kinds
            .drain()
            .filter_map(|(_, pending)| pending.repeated)
            .collect()
    }

    /// Whether [`Fold::due`] will have to be called.
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn refusal(path: &str) -> Refusal {
        Refusal {
            pid: 4211,
            uid: 1000,
            exe: b"/usr/bin/python3".to_vec(),
            right: Right::Read,
            operation: "open",
            object: Object::Path(path.into()),
            rule: "credentials".into(),
            policy_digest: "d".into(),
            errno: 2,
            verdict: Verdict::Denied,
        }
    }

    fn counts(folded: &[Folded]) -> Vec<u64> {
        folded.iter().map(|folded| folded.count).collect()
    }

    #[test]
    fn the_first_is_passed_on_at_once_and_repetitions_when_the_window_closes() {
        let (start, time) = (Instant::now(), SystemTime::now());
        let mut fold = Fold::default();
        assert_eq!(counts(&fold.add(refusal("/a"), time, start)), [1]);
        for _ in 0..5 {
            assert!(fold.add(refusal("/a"), time, start).is_empty());
        }
        assert!(fold.due(start).is_empty());
        assert_eq!(counts(&fold.due(start + WINDOW)), [5]);
        assert!(fold.due(start + 2 * WINDOW).is_empty());
        assert!(fold.is_empty());
        assert_eq!(counts(&fold.add(refusal("/a"), time, start)), [1]);
    }

    #[test]
    fn what_differs_in_object_right_operation_rule_or_verdict_is_not_folded() {
        let (now, time) = (Instant::now(), SystemTime::now());
        let mut fold = Fold::default();
        fold.add(refusal("/a"), time, now);
        let mut others = vec![refusal("/b")];
        others.extend(vec![refusal("/a"); 4]);
        others[1].right = Right::Write;
        others[2].rule = "other".into();
        others[3].verdict = Verdict::Observed;
        others[4].operation = "stat";
        for other in others {
            assert_eq!(counts(&fold.add(other, time, now)), [1]);
        }
        let mut another_process = refusal("/a");
        another_process.pid = 1;
        assert!(fold.add(another_process, time, now).is_empty());
    }

    #[test]
    fn files_of_several_processes_fold_under_a_name_of_any() {
        let (now, time) = (Instant::now(), SystemTime::now());
        let mut fold = Fold::default();
        let first = fold.add(refusal("/proc/1/stat"), time, now);
        assert_eq!(first[0].refusal.object, refusal("/proc/1/stat").object);
        for path in ["/proc/1/stat", "/proc/22/stat", "/proc/1/stat"] {
            assert!(fold.add(refusal(path), time, now).is_empty());
        }
        for other in [
            "/proc/1/environ",
            "/proc/self/stat",
            "/proc/stat",
            "/1/stat",
        ] {
            assert_eq!(counts(&fold.add(refusal(other), time, now)), [1]);
        }
        let rest = fold.flush();
        assert_eq!(counts(&rest), [3]);
        assert_eq!(rest[0].refusal.object, refusal("/proc/[pid]/stat").object);
    }

    #[test]
    fn the_counts_add_up_whatever_the_number_of_kinds() {
        let (now, time) = (Instant::now(), SystemTime::now());
        let mut fold = Fold::default();
        let mut total = 0;
        for round in 0..3 {
            for i in 0..CAPACITY * 2 {
                let ready = fold.add(refusal(&format!("/{}", i % (CAPACITY + round))), time, now);
                total += counts(&ready).iter().sum::<u64>();
            }
        }
        total += counts(&fold.flush()).iter().sum::<u64>();
        assert_eq!(total, 3 * 2 * CAPACITY as u64);
        assert!(fold.kinds.len() <= CAPACITY);
    }
}
