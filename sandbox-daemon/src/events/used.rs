//! Uses of credentials, which the proxy tells of: no refusals, numbered among
//! them all the same, and never folded into one.

use std::{
    fmt::Write as _,
    sync::{Arc, PoisonError},
    time::{Instant, SystemTime},
};

use sandbox_proxy::channel;

use super::{
    Events, LossReason, Owner, Scope,
    told::{Bucket, executable},
};
use crate::escape;

/// Longest texts that are kept: a journal of them must not fill the memory.
const MAX_METHOD: usize = 32;
const MAX_HOST: usize = 300;
const MAX_PATH: usize = 2048;
const MAX_REFS: usize = 4096;

/// References that a line for people names.
const SHOWN_REFS: usize = 8;

/// Identical uses of a credential, numbered.
#[derive(Clone, Debug)]
pub struct Used {
    /// Whose sandbox it is.
    pub owner: Arc<Owner>,
    /// Among those of denials.
    pub sequence: u64,
    /// When the last of them was told.
    pub time: SystemTime,
    /// How many this stands for.
    pub count: u64,
    /// What was done.
    pub request: Request,
}

/// A request that a credential was added to. Its texts are the sandbox's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Process.
    pub pid: u32,
    /// Its real user id.
    pub uid: u32,
    /// Path of its executable, or its comm where it has ended.
    pub exe: Vec<u8>,
    /// As the policy calls it.
    pub credential: String,
    /// What of the policy's entry covers the request.
    pub rule: String,
    /// `HOST:PORT`.
    pub host: String,
    /// `POST`, ...
    pub method: String,
    /// Without its query.
    pub path: String,
    /// Of git; empty: the request is none of git's.
    pub repository: String,
    /// That are pushed.
    pub refs: Vec<String>,
    /// How many more are.
    pub further_refs: u32,
    /// The policy that decided.
    pub policy_digest: Arc<str>,
}

impl Request {
    /// What was asked for, fit for a terminal.
    pub fn display(&self) -> String {
        let escaped = |text: &str| escape::display(text.as_bytes());
        let mut text = format!(
            "{} {} {}",
            escaped(&self.method),
            escaped(&self.host),
            escaped(&self.path)
        );
        if self.repository.is_empty() {
            return text;
        }
        // Writing to a string cannot fail.
        let _ = write!(text, " ({}", escaped(&self.repository));
        let shown = self.refs.len().min(SHOWN_REFS);
        for (number, name) in self.refs[..shown].iter().enumerate() {
            text += if number == 0 { ": " } else { ", " };
            text += &escaped(name);
        }
        let rest = self.refs.len() - shown + self.further_refs as usize;
        if rest > 0 {
            let _ = write!(text, " and {rest} more");
        }
        text.push(')');
        text
    }

    fn of(used: channel::Used, owner: &Owner, policy_digest: Arc<str>) -> Self {
        let mut left = MAX_REFS;
        let total = used.refs.len() + used.further_refs as usize;
        let fits = |name: &String| {
            let size = name.len() + size_of::<String>();
            let fits = size <= left;
            left = left.saturating_sub(size);
            fits
        };
        let refs: Vec<_> = used.refs.into_iter().take_while(fits).collect();
        Self {
            exe: executable(used.pid, owner, used.comm),
            pid: used.pid,
            uid: used.uid,
            credential: used.credential,
            rule: cut(used.rule, MAX_PATH),
            host: format!("{}:{}", cut(used.host, MAX_HOST), used.port),
            method: cut(used.method, MAX_METHOD),
            path: cut(used.path, MAX_PATH),
            repository: cut(used.repository, MAX_PATH),
            further_refs: u32::try_from(total - refs.len()).unwrap_or(u32::MAX),
            refs,
            policy_digest,
        }
    }
}

/// The uses of one exec.
#[derive(Debug, Default)]
pub(super) struct Uses {
    bucket: Bucket,
    /// Told of by nothing so far.
    untold: u64,
}

impl Scope {
    /// Uses that have no event, since the last time.
    fn take_untold(&self) -> u64 {
        let mut uses = self.uses.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut uses.untold)
    }
}

impl Events {
    /// Takes a use of a credential.
    pub fn used(&self, used: channel::Used) {
        let Some(scope) = self.scope(used.sandbox, used.exec) else {
            tracing::warn!(
                credential = escape::display(used.credential.as_bytes()),
                host = escape::display(used.host.as_bytes()),
                "a use of a credential by no known sandbox"
            );
            return;
        };
        let count = used.count;
        let admitted = {
            let mut known = scope.uses.lock().unwrap_or_else(PoisonError::into_inner);
            let admitted = known.bucket.admit(count, Instant::now());
            if !admitted {
                known.untold += count;
            }
            admitted
        };
        if admitted {
            self.tell_untold(&scope);
            let digest = scope.rules.digest(used.generation);
            let request = Request::of(used, &scope.owner, digest);
            self.journal
                .publish_use(scope.owner.clone(), request, count);
        }
    }

    /// Tells how many uses of an exec have no event.
    pub fn tell_untold(&self, scope: &Scope) {
        let untold = scope.take_untold();
        self.lost(&scope.owner, LossReason::Use, untold);
    }
}

fn cut(mut text: String, bytes: usize) -> String {
    if text.len() > bytes {
        text.truncate(text.floor_char_boundary(bytes));
        text.push_str("...");
    }
    text
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Mutex;

    use super::{
        super::{Filter, Item, Journal, Mounts, Rules, Since, Told, told::BURST},
        *,
    };
    use crate::events::{Object, Verdict};

    const SANDBOX: u64 = 1;
    const EXEC: u64 = 2;

    pub(crate) fn used(path: &str) -> channel::Used {
        channel::Used {
            sandbox: SANDBOX,
            exec: EXEC,
            generation: 3,
            pid: u32::MAX,
            uid: 1000,
            comm: *b"git\0\0\0\0\0\0\0\0\0\0\0\0\0",
            credential: "github".into(),
            rule: "o/*".into(),
            host: "github.com".into(),
            port: 443,
            method: "POST".into(),
            path: path.into(),
            repository: String::new(),
            refs: Vec::new(),
            further_refs: 0,
            count: 2,
        }
    }

    fn events() -> (Events, Arc<Scope>) {
        let events = Events::new(Journal::new("e".into(), 100_000));
        let rules = Rules::default();
        rules.put(3, "digest", "network proxy", Vec::new().into());
        let owner = Owner {
            uid: 1000,
            sandbox: "s".into(),
            exec: "x".into(),
        };
        let mounts = Mounts::parse(b"21 1 8:1 / / rw - ext4 /dev/sda1 rw\n").unwrap();
        let scope = Scope::new(owner, rules.into(), Arc::new(Mutex::new(mounts)));
        let scope = events.expect(EXEC, scope);
        (events, scope)
    }

    fn items(events: &Events) -> Vec<Item> {
        let journal = events.journal();
        let mut all = journal
            .subscribe(Filter::default(), &Since::Oldest)
            .unwrap();
        std::iter::from_fn(|| all.try_next()).collect()
    }

    fn refused() -> Told {
        Told {
            sandbox: SANDBOX,
            exec: EXEC,
            generation: 3,
            pid: u32::MAX,
            uid: 1000,
            comm: [0; 16],
            operation: "request",
            object: Object::Host("github.com:443".into()),
            rule: "another credential than `github`".into(),
            verdict: Verdict::Denied,
            count: 1,
        }
    }

    #[test]
    fn a_use_is_numbered_among_refusals_and_is_none() {
        let (events, scope) = events();
        events.told(refused());
        events.used(used("/o/r"));
        // Not folded, neither into the one before nor into a refusal.
        events.used(used("/o/r"));
        let items = items(&events);
        let kinds: Vec<_> = items
            .iter()
            .map(|item| match item {
                Item::Denial(denial) => (denial.sequence, "denial", denial.count),
                Item::Used(used) => (used.sequence, "use", used.count),
                Item::Lost(loss) => (loss.sequence, "lost", loss.count),
            })
            .collect();
        assert_eq!(kinds, [(1, "denial", 1), (2, "use", 2), (3, "use", 2)]);
        let Item::Used(used) = &items[1] else {
            unreachable!()
        };
        assert_eq!(&*used.request.policy_digest, "digest");
        assert_eq!(used.request.exe, b"git");
        assert_eq!(used.request.host, "github.com:443");
        assert_eq!(used.owner.exec, "x");
        assert_eq!(scope.told().denied, 1);
    }

    #[test]
    fn uses_that_are_too_many_are_counted_and_keep_no_refusal_from_being_told() {
        let (events, scope) = events();
        let sent = u64::from(BURST) + 50;
        for number in 0..sent {
            events.used(used(&format!("/{number}")));
        }
        events.told(refused());
        events.tell_untold(&scope);
        events.finish(EXEC);
        let (mut told, mut lost, mut denied) = (0, 0, 0);
        for item in items(&events) {
            match item {
                Item::Used(used) => told += used.count,
                Item::Lost(it) => {
                    assert_eq!(it.reason, LossReason::Use);
                    lost += it.count;
                }
                Item::Denial(denial) => denied += denial.count,
            }
        }
        assert_eq!((told + lost, denied), (2 * sent, 1));
        assert!(lost > 0);
        assert_eq!((scope.told().denied, scope.told().limited), (1, 0));
    }

    #[test]
    fn the_end_of_an_exec_tells_of_what_is_untold() {
        let (events, scope) = events();
        scope.uses.lock().unwrap().untold = 7;
        drop(scope);
        events.finish(EXEC);
        let last = items(&events).pop().unwrap();
        assert!(
            matches!(last, Item::Lost(loss) if (loss.reason, loss.count) == (LossReason::Use, 7))
        );
    }

    #[test]
    fn the_sandboxs_bytes_are_escaped_and_bounded() {
        let owner = Owner {
            uid: 0,
            sandbox: String::new(),
            exec: String::new(),
        };
        let hostile = channel::Used {
            method: "P\x1b[2J".into(),
            repository: "o/r\u{202e}".into(),
            refs: vec!["refs/heads/\n".into()],
            ..used("/\x07")
        };
        let request = Request::of(hostile, &owner, "".into());
        assert_eq!(
            request.display(),
            "P\\x1b[2J github.com:443 /\\x07 (o/r\\u{202e}: refs/heads/\\x0a)"
        );
        let large = channel::Used {
            method: "M".repeat(1 << 16),
            host: "h".repeat(1 << 16),
            repository: "r".repeat(1 << 16),
            refs: vec!["refs/heads/x".into(); 100_000],
            further_refs: 1,
            ..used(&"p".repeat(1 << 16))
        };
        let request = Request::of(large, &owner, "".into());
        assert_eq!(request.refs.len() + request.further_refs as usize, 100_001);
        assert!(request.refs.len() > SHOWN_REFS);
        assert!(request.display().len() < 3 * MAX_PATH);
        assert!(request.display().ends_with("more)"));
    }
}
