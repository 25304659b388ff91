//! What policies came to lately: most sandboxes have the policy, the user and
//! the workspace of one before, and putting a policy together costs more than
//! all else that a sandbox takes.

use std::{
    collections::VecDeque,
    fs::Metadata,
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Duration, SystemTime},
};

use super::PolicySource;
use crate::policy::{Diagnostics, Policy};

/// So many are kept.
const KEPT: usize = 16;

/// A file that was changed so shortly before it was read may be changed again
/// with the same times: the kernel's clock for these has ticks.
const SETTLED: Duration = Duration::from_secs(1);

/// What a policy comes to for one user and workspace.
pub(super) struct Resolved {
    /// What it says.
    pub(super) policy: Arc<Policy>,
    /// The same for an ephemeral workspace, once one was made.
    pub(super) ephemeral: OnceLock<Arc<Policy>>,
    /// What it warns of.
    pub(super) warnings: Diagnostics,
    /// What events call its rules.
    pub(super) labels: Arc<[Arc<str>]>,
    /// See [`crate::launch::ViewSpec::keep`].
    pub(super) granted: Vec<PathBuf>,
}

impl Resolved {
    /// What is enforced.
    pub(super) fn effective(&self, ephemeral: bool) -> Arc<Policy> {
        if !ephemeral {
            return self.policy.clone();
        }
        let make = || Arc::new(self.policy.as_ref().clone().ephemeral());
        self.ephemeral.get_or_init(make).clone()
    }
}

/// All that it depends on, but for files.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Question {
    pub(super) source: PolicySource,
    pub(super) uid: u32,
    pub(super) home: PathBuf,
    pub(super) workspace: Option<PathBuf>,
    pub(super) trust: Option<PathBuf>,
}

/// A file that was looked at; none: it was not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Looked {
    pub(super) path: PathBuf,
    pub(super) stamp: Option<Stamp>,
}

/// What tells one state of a file from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    file: (u64, u64),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// The last answers, the most recent first.
#[derive(Default)]
pub(super) struct Lately(Mutex<VecDeque<Kept>>);

struct Kept {
    question: Question,
    looked: Vec<Looked>,
    answer: Arc<Resolved>,
}

impl Lately {
    /// What the answer was, if all that it came from is as it was.
    pub(super) fn find(&self, question: &Question) -> Option<Arc<Resolved>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|kept| kept.question == *question)?;
        let found = kept.remove(at)?;
        if !found.looked.iter().all(Looked::is_so) {
            return None;
        }
        let answer = found.answer.clone();
        kept.push_front(found);
        Some(answer)
    }

    /// Keeps an answer, unless the files that it came from are too new.
    pub(super) fn keep(&self, question: Question, looked: Vec<Looked>, answer: &Arc<Resolved>) {
        let now = SystemTime::now();
        let settled = |looked: &Looked| looked.stamp.as_ref().is_none_or(|it| it.is_settled(now));
        if !looked.iter().all(settled) {
            return;
        }
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|kept| kept.question != question);
        kept.truncate(KEPT - 1);
        kept.push_front(Kept {
            question,
            looked,
            answer: answer.clone(),
        });
    }
}

impl Looked {
    fn is_so(&self) -> bool {
        match std::fs::metadata(&self.path) {
            Ok(metadata) => self.stamp.as_ref() == Some(&Stamp::of(&metadata)),
            Err(error) => error.kind() == io::ErrorKind::NotFound && self.stamp.is_none(),
        }
    }

    pub(super) fn missing(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            stamp: None,
        }
    }
}

impl Stamp {
    /// Of a file that is open, before it is read.
    pub(super) fn of(metadata: &Metadata) -> Self {
        Self {
            file: (metadata.dev(), metadata.ino()),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    fn is_settled(&self, now: SystemTime) -> bool {
        let Ok(now) = now.duration_since(SystemTime::UNIX_EPOCH) else {
            return false;
        };
        let latest = self.changed.0.max(self.modified.0);
        u64::try_from(latest).is_ok_and(|latest| latest + SETTLED.as_secs() < now.as_secs())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::policy::{Environment, Mode, Network};

    fn question() -> Question {
        Question {
            source: PolicySource::default(),
            uid: 1000,
            home: "/home/dev".into(),
            workspace: None,
            trust: None,
        }
    }

    fn answer() -> Arc<Resolved> {
        let name = "default".to_owned();
        let (network, env) = (Network::default(), Environment::default());
        Arc::new(Resolved {
            policy: Arc::new(Policy::new(name, Mode::Enforce, Vec::new(), network, env)),
            ephemeral: OnceLock::new(),
            warnings: Diagnostics::default(),
            labels: Arc::new([]),
            granted: Vec::new(),
        })
    }

    fn looked(path: &Path) -> Looked {
        Looked {
            path: path.to_owned(),
            stamp: Some(Stamp::of(&fs::metadata(path).unwrap())),
        }
    }

    fn age(path: &Path) {
        let file = fs::File::options().write(true).open(path).unwrap();
        let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
        file.set_modified(long_ago).unwrap();
    }

    #[test]
    fn an_answer_is_kept_until_a_file_that_it_came_from_is_another() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("policy.toml");
        fs::write(&path, "one").unwrap();
        age(&path);
        let mut read = looked(&path);
        // It was changed just now, as far as its inode goes.
        let lately = Lately::default();
        lately.keep(question(), vec![read.clone()], &answer());
        assert!(lately.find(&question()).is_none());
        if let Some(stamp) = &mut read.stamp {
            stamp.changed = (1, 0);
        }
        lately.keep(question(), vec![read], &answer());
        assert!(lately.find(&question()).is_none(), "its times are others");

        let absent = Looked::missing(&directory.path().join("sets.toml"));
        lately.keep(question(), vec![absent.clone()], &answer());
        assert!(lately.find(&question()).is_some());
        fs::write(&absent.path, "").unwrap();
        assert!(lately.find(&question()).is_none());
    }

    #[test]
    fn another_question_has_another_answer() {
        let lately = Lately::default();
        lately.keep(question(), Vec::new(), &answer());
        let other = Question {
            uid: 0,
            ..question()
        };
        assert!(lately.find(&other).is_none());
        assert!(lately.find(&question()).is_some());
    }
}
