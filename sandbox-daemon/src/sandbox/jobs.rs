//! Commands that outlive the call that started them: their output is kept for
//! whoever asks for it, their input comes from whoever attaches.

use std::{
    collections::{HashMap, VecDeque},
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

use tokio::sync::{mpsc, watch};
use tokio_stream::{Stream, wrappers::ReceiverStream};

use super::{
    Caller, Cause, Ending, Exec, Exited, Input, Output, OutputStream, Record, Registry, Sandbox,
    SandboxError, Started,
    log::{Cursor, Log},
};
use crate::{launch::ExitStatus, policy::Limits};

/// Ended ones of a sandbox that are remembered.
const ENDED: usize = 100;

/// Ended ones of a user whose output is kept, as far as the quota allows.
const ENDED_LOGS: usize = 256;

/// What is remembered of the arguments of one that has ended.
const ARGUMENTS: usize = 4096;

/// Messages between a command and its keeper, and from those that are attached.
const MESSAGES: usize = 8;

/// A command that was detached.
pub struct Job {
    /// Its exec.
    pub exec: String,
    /// What runs, for people.
    pub argv: Vec<String>,
    /// Since when.
    pub since: SystemTime,
    /// Whether it has a pseudo-terminal.
    pub terminal: bool,
    /// What was said when it was started.
    pub started: Started,
    uid: u32,
    input: mpsc::Sender<Input>,
    kept: Mutex<Kept>,
    /// What its log takes of the user's quota.
    room: Room,
    news: watch::Sender<()>,
    exited: watch::Sender<Option<Exited>>,
}

/// What a command is detached with.
#[derive(Clone, Copy)]
pub(super) struct Detached {
    pub(super) terminal: bool,
    pub(super) no_stdin: bool,
}

/// What there is of a command's output.
enum Kept {
    Log(Log),
    /// So many bytes were written and had to go.
    Nothing {
        written: u64,
    },
}

/// All detached commands of one daemon.
pub(super) struct Jobs {
    /// Bytes of logs that a user may have.
    limit: u64,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    jobs: HashMap<String, Arc<Job>>,
    users: HashMap<u32, User>,
}

#[derive(Default)]
struct User {
    bytes: Arc<AtomicU64>,
    /// Those with a log, the oldest first.
    ended: VecDeque<Arc<Job>>,
}

/// What a log takes of a user's quota; given back when dropped.
struct Room {
    user: Arc<AtomicU64>,
    taken: AtomicU64,
}

impl Jobs {
    /// None yet.
    pub(super) fn new(limit: u64) -> Self {
        Self {
            limit,
            inner: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn room(&self, uid: u32) -> Room {
        Room {
            user: self.lock().users.entry(uid).or_default().bytes.clone(),
            taken: AtomicU64::new(0),
        }
    }

    /// Lets a log grow, for which those of ended commands may have to go.
    fn grow(&self, job: &Job, bytes: u64) -> bool {
        loop {
            if job.room.take(bytes, self.limit) {
                return true;
            }
            let oldest = {
                let mut inner = self.lock();
                let user = inner.users.get_mut(&job.uid);
                user.and_then(|user| user.ended.pop_front())
            };
            match oldest {
                Some(oldest) => oldest.forget_log(),
                // Every running one may have a little.
                None if job.room.is_empty() => {
                    job.room.force(bytes);
                    return true;
                }
                None => return false,
            }
        }
    }

    /// One has ended: its log is among those that go first.
    fn ended(&self, job: &Arc<Job>) {
        let mut surplus = Vec::new();
        let mut inner = self.lock();
        if !inner.jobs.contains_key(&job.exec) {
            return;
        }
        if let Some(user) = inner.users.get_mut(&job.uid) {
            user.ended.push_back(job.clone());
            while user.ended.len() > ENDED_LOGS
                || user.bytes.load(Ordering::Relaxed) > self.limit && !user.ended.is_empty()
            {
                surplus.extend(user.ended.pop_front());
            }
        }
        drop(inner);
        for job in surplus {
            job.forget_log();
        }
    }

    /// These are not to be found any more.
    fn forget<'a>(&self, jobs: impl IntoIterator<Item = &'a Arc<Job>>) {
        let mut inner = self.lock();
        for job in jobs {
            inner.jobs.remove(&job.exec);
            let Some(user) = inner.users.get_mut(&job.uid) else {
                continue;
            };
            user.ended.retain(|ended| !Arc::ptr_eq(ended, job));
        }
        // Those of which nothing is left.
        inner
            .users
            .retain(|_, user| !user.ended.is_empty() || Arc::strong_count(&user.bytes) > 1);
    }
}

impl Room {
    fn take(&self, bytes: u64, limit: u64) -> bool {
        let add = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= limit);
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        let taken = self.user.fetch_update(set, fetch, add).is_ok();
        if taken {
            self.taken.fetch_add(bytes, Ordering::Relaxed);
        }
        taken
    }

    fn force(&self, bytes: u64) {
        self.user.fetch_add(bytes, Ordering::AcqRel);
        self.taken.fetch_add(bytes, Ordering::Relaxed);
    }

    fn is_empty(&self) -> bool {
        self.taken.load(Ordering::Relaxed) == 0
    }

    fn give_back(&self) {
        let taken = self.taken.swap(0, Ordering::AcqRel);
        self.user.fetch_sub(taken, Ordering::AcqRel);
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl Registry {
    /// A detached command that the caller may see, also one that has ended.
    pub fn job(&self, caller: &Caller, exec: &str) -> Result<Arc<Job>, SandboxError> {
        let job = self.jobs().lock().jobs.get(exec).cloned();
        if let Some(job) = job.filter(|job| caller.sees(job.uid)) {
            return Ok(job);
        }
        match self.get_exec(caller, exec) {
            Ok(_) => Err(SandboxError::NotDetached(exec.into())),
            Err(_) => Err(SandboxError::NoJob(exec.into())),
        }
    }

    /// One that the caller may write to: whoever does that runs commands.
    pub fn job_to_attach(&self, caller: &Caller, exec: &str) -> Result<Arc<Job>, SandboxError> {
        let job = self.job(caller, exec)?;
        self.may_run(caller)?;
        Ok(job)
    }

    /// A log for a command that is to be detached. Blocks.
    pub(super) fn make_log(&self) -> Result<Log, SandboxError> {
        let directory = self.secrets().make_state()?;
        Log::new(directory).map_err(|source| SandboxError::Step {
            what: "keep the output of a command",
            source,
        })
    }

    /// Detaches a command that has just been started: it gets its input from whoever
    /// attaches, and its output is kept. `told` is told that it has started.
    pub(super) fn detach(
        self: &Arc<Self>,
        exec: &Exec,
        started: &Started,
        log: Log,
        how: Detached,
        told: mpsc::Sender<Output>,
    ) -> (
        Pin<Box<dyn Stream<Item = Input> + Send>>,
        mpsc::Sender<Output>,
    ) {
        let (input, inputs) = mpsc::channel(MESSAGES);
        let Detached { terminal, no_stdin } = how;
        if no_stdin {
            // There is room for it.
            let _ = input.try_send(Input::CloseStdin);
        }
        let uid = exec.sandbox.account.uid;
        let job = Arc::new(Job {
            exec: exec.id.clone(),
            argv: shortened(&exec.argv),
            since: exec.started,
            terminal,
            started: started.clone(),
            uid,
            input,
            kept: Mutex::new(Kept::Log(log)),
            room: self.jobs().room(uid),
            news: watch::Sender::new(()),
            exited: watch::Sender::new(None),
        });
        self.jobs()
            .lock()
            .jobs
            .insert(job.exec.clone(), job.clone());
        exec.sandbox.lock().jobs.push_back(job.clone());
        let (output, outputs) = mpsc::channel(MESSAGES);
        let (registry, sandbox) = (self.clone(), exec.sandbox.clone());
        tokio::spawn(async move {
            registry.keep(&job, outputs, told).await;
            registry.settle(&sandbox);
        });
        (Box::pin(ReceiverStream::new(inputs)), output)
    }

    /// Keeps what a command writes, to its end.
    async fn keep(
        self: &Arc<Self>,
        job: &Arc<Job>,
        mut outputs: mpsc::Receiver<Output>,
        told: mpsc::Sender<Output>,
    ) {
        let mut told = Some(told);
        let mut ended = None;
        while let Some(output) = outputs.recv().await {
            match output {
                started @ Output::Started(_) => {
                    if let Some(told) = told.take() {
                        // That nobody waits for it any more changes nothing.
                        let _ = told.send(started).await;
                    }
                }
                Output::Bytes(stream, bytes) => {
                    let (jobs, job) = (self.clone(), job.clone());
                    let time = SystemTime::now();
                    let kept = tokio::task::spawn_blocking(move || {
                        job.append(jobs.jobs(), stream, time, &bytes);
                    });
                    // That it panicked is in the log.
                    let _ = kept.await;
                }
                // They are among the events, and in the daemon's log.
                Output::Item(_) | Output::Unkillable(_) => {}
                Output::Exited(exited) => ended = Some(exited),
            }
        }
        job.exited.send_replace(Some(ended.unwrap_or_else(lost)));
        self.jobs().ended(job);
    }

    /// Forgets the oldest of a sandbox's ended ones.
    fn settle(&self, sandbox: &Sandbox) {
        let mut state = sandbox.lock();
        let mut surplus = Vec::new();
        let ended = state.jobs.iter().filter(|job| job.has_ended()).count();
        for _ in ENDED..ended {
            let oldest = state.jobs.iter().position(|job| job.has_ended());
            surplus.extend(oldest.and_then(|index| state.jobs.remove(index)));
        }
        drop(state);
        self.jobs().forget(&surplus);
    }

    /// With its sandbox, what is known of its commands goes.
    pub(super) fn forget_jobs(&self, sandbox: &Sandbox) {
        let jobs = std::mem::take(&mut sandbox.lock().jobs);
        self.jobs().forget(&jobs);
    }
}

/// Of one whose life ended without a word.
fn lost() -> Exited {
    Exited {
        status: ExitStatus::Signal(9),
        cause: Some(Cause::Daemon),
        ending: Ending::default(),
        limits: Limits::default(),
    }
}

impl Job {
    /// What came of it, if it has ended.
    pub fn exited(&self) -> Option<Exited> {
        *self.exited.borrow()
    }

    fn has_ended(&self) -> bool {
        self.exited.borrow().is_some()
    }

    /// Returns when it has ended.
    pub async fn wait(&self) -> Exited {
        let mut exited = self.exited.subscribe();
        // The sender lives as long as `self`.
        match exited.wait_for(Option::is_some).await {
            Ok(exited) => exited.unwrap_or_else(lost),
            Err(_) => lost(),
        }
    }

    /// Hands it input; waits while it takes none. One that has ended takes
    /// everything.
    pub async fn feed(&self, input: Input) {
        let _ = self.input.send(input).await;
    }

    /// Before all that is kept, or behind it.
    pub(super) fn cursor(&self, history: bool) -> Cursor {
        match &*self.lock() {
            Kept::Log(log) if !history => log.newest(),
            Kept::Nothing { written } if !history => Cursor::behind(*written),
            Kept::Log(_) | Kept::Nothing { .. } => Cursor::default(),
        }
    }

    /// The next of what is kept, and how many bytes before it are not. Blocks.
    pub(super) fn kept(&self, cursor: &mut Cursor) -> io::Result<(u64, Vec<Record>)> {
        match &*self.lock() {
            Kept::Log(log) => log.read(cursor),
            Kept::Nothing { written } => Ok((cursor.skip(*written), Vec::new())),
        }
    }

    /// Changes when there is more of its output, and when it has ended.
    pub(super) fn subscribe(&self) -> (watch::Receiver<()>, watch::Receiver<Option<Exited>>) {
        (self.news.subscribe(), self.exited.subscribe())
    }

    fn append(&self, jobs: &Jobs, stream: OutputStream, time: SystemTime, bytes: &[u8]) {
        let mut kept = self.lock();
        if let Kept::Log(log) = &mut *kept
            && let Err(error) = log.append(stream, time, bytes, |more| jobs.grow(self, more))
        {
            tracing::error!(exec = self.exec, %error, "cannot keep what a command writes");
        }
        drop(kept);
        self.news.send_replace(());
    }

    fn forget_log(&self) {
        let mut kept = self.lock();
        if let Kept::Log(log) = &*kept {
            let written = log.written();
            *kept = Kept::Nothing { written };
        }
        drop(kept);
        self.room.give_back();
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Arguments of a command, not more of them than is worth remembering.
fn shortened(argv: &[String]) -> Vec<String> {
    let mut left = ARGUMENTS;
    let mut kept = Vec::new();
    for argument in argv {
        if argument.len() > left {
            let end = argument.floor_char_boundary(left);
            kept.push(format!("{}...", &argument[..end]));
            break;
        }
        left -= argument.len();
        kept.push(argument.clone());
    }
    kept
}
