//! What would lead a policy's places elsewhere: names that come and go in
//! directories, watched once for all sandboxes. What cannot be watched stays
//! as it was decided first, which is hidden where it is denied.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    ffi::{OsStr, OsString},
    io,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use nix::{
    errno::Errno,
    fcntl::AtFlags,
    sys::{
        inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor},
        stat::fstatat,
    },
};
use tokio::{io::Interest, sync::mpsc};

use crate::{kernel::Watch, sys::Watched};

/// Directories that are watched at most; each keeps a kilobyte of the kernel's.
const MAX_DIRECTORIES: usize = 16_384;

/// Why a directory is not watched.
const TOO_MANY: &str = "the daemon watches no more than 16384";
const TOO_FEW: &str = "raise `fs.inotify.max_user_watches`";

/// All watches of a daemon.
pub(super) struct Watches {
    inotify: Option<Inotify>,
    state: Mutex<State>,
    turn: AtomicU64,
    /// Sandboxes of which places have changed already.
    changed: mpsc::UnboundedSender<String>,
    changes: Mutex<Option<mpsc::UnboundedReceiver<String>>>,
}

/// What a sandbox is to watch.
pub(super) struct ToWatch {
    pub(super) watches: Vec<Watch>,
    /// Beside what its group watches.
    pub(super) stays: bool,
}

/// Which of a sandbox's lists of watches is the later one: they are placed on
/// threads of their own, of which the earlier may take longer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn(u64);

#[derive(Default)]
struct State {
    directories: HashMap<WatchDescriptor, Directory>,
    sandboxes: HashMap<Arc<str>, Placed>,
    groups: HashMap<Arc<str>, Group>,
    /// How many threads are between watching a directory and writing that down.
    placing: usize,
    /// That something is not watched.
    said: bool,
}

/// What is watched for a sandbox.
#[derive(Default)]
struct Placed {
    turn: Turn,
    directories: HashSet<WatchDescriptor>,
    /// And what this one watches.
    group: Option<Arc<str>>,
}

/// What is watched for every sandbox whose policy comes to the same. In the
/// tables it is one more sandbox, with a name that no other has.
#[derive(Default)]
struct Group {
    /// All of it is watched.
    whole: bool,
    /// Something came or went.
    changed: bool,
    /// More sandboxes may join.
    open: bool,
    members: HashSet<Arc<str>>,
}

/// Who is interested in which of its names: most are in the same ones.
#[derive(Default)]
struct Directory {
    interests: HashMap<Arc<BTreeSet<OsString>>, HashSet<Arc<str>>>,
}

impl Directory {
    fn users(&self) -> impl Iterator<Item = &Arc<str>> {
        self.interests.values().flatten()
    }

    fn users_of<'a>(&'a self, name: &'a OsStr) -> impl Iterator<Item = &'a Arc<str>> {
        let interested = self.interests.iter();
        interested
            .filter(move |(names, _)| names.contains(name))
            .flat_map(|(_, users)| users)
    }

    fn forget(&mut self, sandbox: &str) {
        self.interests.retain(|_, users| {
            users.remove(sandbox);
            !users.is_empty()
        });
    }
}

/// Whose places may have changed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Changed {
    These(BTreeSet<String>),
    /// Too much happened at once.
    All,
}

impl Watches {
    pub(super) fn new() -> Self {
        let flags = InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK;
        let inotify = Inotify::init(flags).inspect_err(|errno| {
            tracing::error!(
                error = %errno,
                "cannot watch files: what appears at denied places stays hidden; raise `fs.inotify.max_user_instances`"
            );
        });
        let (changed, inbox) = mpsc::unbounded_channel();
        Self {
            inotify: inotify.ok(),
            state: Mutex::default(),
            turn: AtomicU64::default(),
            changed,
            changes: Mutex::new(Some(inbox)),
        }
    }

    /// The turn of what is to be watched from now on.
    pub(super) fn turn(&self) -> Turn {
        Turn(self.turn.fetch_add(1, Ordering::Relaxed))
    }

    /// Watches for a sandbox what it is to watch from `turn` on. May take as
    /// long as a user's file system likes.
    /// A sandbox that `stays` in its group watches what that one watches, too.
    pub(super) fn place(&self, sandbox: &str, turn: Turn, to_watch: ToWatch) {
        let ToWatch { watches, stays } = to_watch;
        let Some((sandbox, missed)) = self.try_place(sandbox, turn, watches, stays) else {
            return;
        };
        if missed.something_changed {
            // Who listens ends with the daemon.
            let _ = self.changed.send(sandbox.as_ref().to_owned());
        }
    }

    /// None: a later turn has begun, or the sandbox is gone.
    fn try_place(
        &self,
        sandbox: &str,
        turn: Turn,
        watches: Vec<Watch>,
        stays: bool,
    ) -> Option<(Arc<str>, Missed)> {
        let inotify = self.inotify.as_ref()?;
        let sandbox: Arc<str> = sandbox.into();
        if !self.lock().begin(&sandbox, turn) {
            return None;
        }
        // A directory may be seen at several places.
        let mut placed: HashMap<_, BTreeSet<OsString>> = HashMap::new();
        let mut missed = Missed::default();
        for watch in watches {
            self.lock().placing += 1;
            let added = add(inotify, &watch.file);
            let mut state = self.lock();
            state.placing -= 1;
            if !state.is_at(&sandbox, turn) {
                if let Ok(at) = added {
                    state.directories.entry(at).or_default();
                }
                state.release(inotify, &sandbox, HashSet::new());
                return None;
            }
            missed.something_unwatched |= added.is_err();
            match added {
                Ok(at) if state.has_room(at) => {
                    let names = placed.entry(at).or_default();
                    names.extend(watch.names.iter().map(|(name, _)| name.clone()));
                    state.note(at, &sandbox, names.clone());
                }
                Ok(at) => {
                    // Nobody uses it.
                    let _ = inotify.rm_watch(at);
                    missed.something_unwatched = true;
                    state.say_unwatched(&watch, TOO_MANY);
                }
                Err(Errno::ENOSPC) => state.say_unwatched(&watch, TOO_FEW),
                Err(errno) => state.say_unwatched(&watch, errno.desc()),
            }
            drop(state);
            missed.something_changed |= has_changed(&watch);
        }
        let mut state = self.lock();
        if !state.is_at(&sandbox, turn) {
            return None;
        }
        let directories = placed.into_keys().collect();
        let group = if stays {
            state.group_of(&sandbox)
        } else {
            state.leave(inotify, &sandbox);
            None
        };
        // Since it joined; before there was nothing of it that could be told.
        let joined = group.as_ref().and_then(|group| state.groups.get(group));
        missed.something_changed |= joined.is_some_and(|group| group.changed);
        let placed = Placed {
            turn,
            directories,
            group,
        };
        let before = state.sandboxes.insert(sandbox.clone(), placed);
        let before = before.unwrap_or_default().directories;
        state.release(inotify, &sandbox, before);
        Some((sandbox, missed))
    }

    /// Watches what every sandbox whose policy comes to the same has to watch.
    /// None: not all of it can be.
    pub(super) fn open_group(&self, watches: Vec<Watch>) -> Option<Arc<str>> {
        let turn = self.turn();
        let group: Arc<str> = format!("#{}", turn.0).into();
        let open = Group {
            open: true,
            ..Group::default()
        };
        self.lock().groups.insert(group.clone(), open);
        let placed = self.try_place(&group, turn, watches, false);
        match placed {
            Some((_, missed)) if !missed.something_unwatched => {
                let mut state = self.lock();
                state.groups.get_mut(&group)?.whole = true;
                Some(group.clone())
            }
            _ => {
                self.close_group(&group);
                None
            }
        }
    }

    /// Whether nothing of what a group watches has come or gone.
    pub(super) fn is_steady(&self, group: &str) -> bool {
        self.drain();
        let state = self.lock();
        let group = state.groups.get(group);
        group.is_some_and(|group| group.whole && group.open && !group.changed)
    }

    /// Has a sandbox watch what a group watches; not if something of that has
    /// come or gone.
    pub(super) fn join(&self, group: &str, sandbox: &str) -> bool {
        self.drain();
        let mut state = self.lock();
        let Some((name, _)) = state.groups.get_key_value(group) else {
            return false;
        };
        let (name, sandbox): (Arc<str>, Arc<str>) = (name.clone(), sandbox.into());
        let Some(group) = state.groups.get_mut(&name) else {
            return false;
        };
        if !group.whole || !group.open || group.changed {
            return false;
        }
        group.members.insert(sandbox.clone());
        state.sandboxes.entry(sandbox).or_default().group = Some(name);
        true
    }

    /// Lets nobody join any more. It ends with its last member.
    pub(super) fn close_group(&self, group: &str) {
        let Some(inotify) = &self.inotify else { return };
        let mut state = self.lock();
        if let Some(closed) = state.groups.get_mut(group) {
            closed.open = false;
        }
        state.end_group(inotify, group);
    }

    /// Takes in what has happened so far, and tells of it.
    fn drain(&self) {
        let ids: BTreeSet<String> = match self.read() {
            Changed::These(ids) => ids,
            Changed::All => {
                let state = self.lock();
                let sandboxes = state.sandboxes.keys();
                sandboxes.map(|id| id.as_ref().to_owned()).collect()
            }
        };
        for id in ids {
            // Who listens ends with the daemon.
            let _ = self.changed.send(id);
        }
    }

    /// Watches nothing for a sandbox that is gone.
    pub(super) fn forget(&self, sandbox: &str) {
        let Some(inotify) = &self.inotify else { return };
        let mut state = self.lock();
        state.leave(inotify, sandbox);
        if let Some(placed) = state.sandboxes.remove(sandbox) {
            state.release(inotify, sandbox, placed.directories);
        }
    }

    /// The sandboxes whose places had changed before they were watched; once.
    pub(super) fn changes(&self) -> Option<mpsc::UnboundedReceiver<String>> {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        changes.take()
    }

    /// To wait for changes with.
    pub(super) fn watched(&self) -> io::Result<Option<Watched>> {
        let Some(inotify) = &self.inotify else {
            return Ok(None);
        };
        let fd = inotify.as_fd().try_clone_to_owned()?;
        Watched::new(fd, Interest::READABLE).map(Some)
    }

    /// What has changed since the last call.
    pub(super) fn read(&self) -> Changed {
        let mut changed = BTreeSet::new();
        // Locked for all of it: who has read has also written it down.
        let mut state = self.lock();
        while let Some(Ok(events)) = self.inotify.as_ref().map(Inotify::read_events) {
            for event in events {
                if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
                    for group in state.groups.values_mut() {
                        group.changed = true;
                    }
                    return Changed::All;
                }
                let Some(directory) = state.directories.get(&event.wd) else {
                    continue;
                };
                let mut users: Vec<Arc<str>> = Vec::new();
                match &event.name {
                    Some(name) => users.extend(directory.users_of(name).cloned()),
                    // The directory itself went.
                    None => users.extend(directory.users().cloned()),
                }
                if event.mask.contains(AddWatchFlags::IN_IGNORED) {
                    state.directories.remove(&event.wd);
                }
                for id in users {
                    match state.groups.get_mut(&id) {
                        Some(group) => {
                            group.changed = true;
                            changed.extend(group.members.iter().map(|id| id.as_ref().to_owned()));
                        }
                        None => drop(changed.insert(id.as_ref().to_owned())),
                    }
                }
            }
        }
        Changed::These(changed)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn has_room(&self, at: WatchDescriptor) -> bool {
        self.directories.len() < MAX_DIRECTORIES || self.directories.contains_key(&at)
    }

    /// Whether it is not too late to place watches.
    fn begin(&mut self, sandbox: &Arc<str>, turn: Turn) -> bool {
        let placed = self.sandboxes.entry(sandbox.clone()).or_default();
        placed.turn = placed.turn.max(turn);
        placed.turn == turn
    }

    /// Whether neither a later turn has begun nor the sandbox is gone.
    fn is_at(&self, sandbox: &str, turn: Turn) -> bool {
        let placed = self.sandboxes.get(sandbox);
        placed.is_some_and(|placed| placed.turn == turn)
    }

    fn group_of(&self, sandbox: &str) -> Option<Arc<str>> {
        self.sandboxes.get(sandbox)?.group.clone()
    }

    /// Takes a sandbox out of its group.
    fn leave(&mut self, inotify: &Inotify, sandbox: &str) {
        let placed = self.sandboxes.get_mut(sandbox);
        let Some(name) = placed.and_then(|placed| placed.group.take()) else {
            return;
        };
        if let Some(group) = self.groups.get_mut(&name) {
            group.members.remove(sandbox);
        }
        self.end_group(inotify, &name);
    }

    /// Ends a group that nobody uses.
    fn end_group(&mut self, inotify: &Inotify, name: &str) {
        let used = |group: &Group| group.open || !group.members.is_empty();
        if self.groups.get(name).is_none_or(used) {
            return;
        }
        self.groups.remove(name);
        if let Some(placed) = self.sandboxes.remove(name) {
            self.release(inotify, name, placed.directories);
        }
    }

    fn note(&mut self, at: WatchDescriptor, sandbox: &Arc<str>, names: BTreeSet<OsString>) {
        // At once, for whoever comes later to release.
        if let Some(placed) = self.sandboxes.get_mut(sandbox) {
            placed.directories.insert(at);
        }
        let directory = self.directories.entry(at).or_default();
        directory.forget(sandbox);
        let names = Arc::new(names);
        let users = directory.interests.entry(names).or_default();
        users.insert(sandbox.clone());
    }

    /// Forgets those directories that a sandbox does not watch any more.
    fn release(&mut self, inotify: &Inotify, sandbox: &str, directories: HashSet<WatchDescriptor>) {
        for at in directories {
            let kept = self.sandboxes.get(sandbox);
            if kept.is_some_and(|kept| kept.directories.contains(&at)) {
                continue;
            }
            if let Some(directory) = self.directories.get_mut(&at) {
                directory.forget(sandbox);
            }
        }
        // One that somebody is about to use looks as if it were used by nobody.
        if self.placing > 0 {
            return;
        }
        self.directories.retain(|at, directory| {
            let used = !directory.interests.is_empty();
            if !used {
                // It may be gone with its directory.
                let _ = inotify.rm_watch(*at);
            }
            used
        });
    }

    /// Says once that not everything is watched.
    fn say_unwatched(&mut self, watch: &Watch, why: &str) {
        if !self.said {
            self.said = true;
            tracing::error!(
                path = %watch.path.display(),
                why,
                "cannot watch a directory: what appears at denied places in it stays hidden"
            );
        }
    }
}

/// What went wrong, or by, while watches were placed.
#[derive(Clone, Copy, Debug, Default)]
struct Missed {
    something_changed: bool,
    something_unwatched: bool,
}

/// Watches a directory, wherever it is mounted.
fn add(inotify: &Inotify, directory: &OwnedFd) -> Result<WatchDescriptor, Errno> {
    let path = format!("/proc/self/fd/{}", directory.as_raw_fd());
    let events = AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_DELETE
        | AddWatchFlags::IN_MOVED_FROM
        | AddWatchFlags::IN_MOVED_TO
        | AddWatchFlags::IN_DELETE_SELF;
    inotify.add_watch(path.as_str(), events)
}

/// Whether something came or went before it was watched.
fn has_changed(watch: &Watch) -> bool {
    watch.names.iter().any(|(name, there)| {
        let found = fstatat(&*watch.file, name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW);
        !there && found.is_ok()
    })
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    fn watch(directory: &Path, names: &[(&str, bool)]) -> Watch {
        Watch {
            file: Arc::new(fs::File::open(directory).unwrap().into()),
            path: directory.into(),
            names: names
                .iter()
                .map(|(name, there)| ((*name).into(), *there))
                .collect(),
        }
    }

    fn alone(watches: Vec<Watch>) -> ToWatch {
        ToWatch {
            watches,
            stays: false,
        }
    }

    fn these(ids: &[&str]) -> Changed {
        Changed::These(ids.iter().map(|id| (*id).to_owned()).collect())
    }

    #[test]
    fn who_asked_for_a_name_is_told_when_it_comes_and_goes() {
        let home = tempfile::tempdir().unwrap();
        let watches = Watches::new();
        watches.place(
            "one",
            watches.turn(),
            alone(vec![watch(home.path(), &[("a", false)])]),
        );
        watches.place(
            "other",
            watches.turn(),
            alone(vec![watch(home.path(), &[("b", false)])]),
        );
        fs::write(home.path().join("c"), "").unwrap();
        assert_eq!(watches.read(), these(&[]));
        fs::write(home.path().join("a"), "").unwrap();
        assert_eq!(watches.read(), these(&["one"]));
        fs::rename(home.path().join("a"), home.path().join("b")).unwrap();
        assert_eq!(watches.read(), these(&["one", "other"]));
        watches.forget("one");
        fs::write(home.path().join("a"), "").unwrap();
        assert_eq!(watches.read(), these(&[]));
        fs::remove_dir_all(home.path()).unwrap();
        assert_eq!(watches.read(), these(&["other"]));
    }

    #[test]
    fn what_came_before_it_was_watched_is_told() {
        let home = tempfile::tempdir().unwrap();
        let watches = Watches::new();
        let mut changes = watches.changes().unwrap();
        fs::write(home.path().join("a"), "").unwrap();
        watches.place(
            "one",
            watches.turn(),
            alone(vec![watch(home.path(), &[("a", true)])]),
        );
        assert!(changes.try_recv().is_err());
        watches.place(
            "one",
            watches.turn(),
            alone(vec![watch(home.path(), &[("a", false)])]),
        );
        assert_eq!(changes.try_recv().unwrap(), "one");
    }

    #[test]
    fn an_earlier_list_does_not_take_the_place_of_a_later_one() {
        let home = tempfile::tempdir().unwrap();
        let watches = Watches::new();
        let (earlier, later) = (watches.turn(), watches.turn());
        watches.place(
            "one",
            later,
            alone(vec![watch(home.path(), &[("a", false)])]),
        );
        watches.place("one", earlier, alone(Vec::new()));
        fs::write(home.path().join("a"), "").unwrap();
        assert_eq!(watches.read(), these(&["one"]));
    }

    #[test]
    fn what_an_earlier_list_was_placing_goes_with_the_later_one() {
        let home = tempfile::tempdir().unwrap();
        let watches = Watches::new();
        let inotify = watches.inotify.as_ref().unwrap();
        let (earlier, later) = (watches.turn(), watches.turn());
        let one: Arc<str> = "one".into();
        assert!(watches.lock().begin(&one, earlier));
        let at = add(inotify, &watch(home.path(), &[]).file).unwrap();
        watches.lock().note(at, &one, BTreeSet::new());
        watches.place("one", later, alone(Vec::new()));
        assert!(!watches.lock().is_at("one", earlier));
        assert_eq!(watches.lock().directories.len(), 0);
    }

    #[test]
    fn a_directory_that_nobody_asks_for_is_not_watched() {
        let home = tempfile::tempdir().unwrap();
        let watches = Watches::new();
        for sandbox in ["one", "other"] {
            watches.place(
                sandbox,
                watches.turn(),
                alone(vec![watch(home.path(), &[("a", false)])]),
            );
        }
        assert_eq!(watches.lock().directories.len(), 1);
        watches.place("one", watches.turn(), alone(Vec::new()));
        assert_eq!(watches.lock().directories.len(), 1);
        watches.forget("other");
        assert_eq!(watches.lock().directories.len(), 0);
    }

    #[test]
    fn a_group_is_told_of_as_its_members_and_takes_none_after_a_change() {
        let home = tempfile::tempdir().unwrap();
        let watches = Watches::new();
        let group = watches
            .open_group(vec![watch(home.path(), &[("a", false)])])
            .unwrap();
        assert!(watches.join(&group, "one"));
        fs::write(home.path().join("b"), "").unwrap();
        assert!(watches.is_steady(&group));
        assert_eq!(watches.read(), these(&[]));
        fs::write(home.path().join("a"), "").unwrap();
        assert_eq!(watches.read(), these(&["one"]));
        assert!(!watches.join(&group, "other"));
        // What changed between its joining and its first list is told then.
        let mut changes = watches.changes().unwrap();
        watches.place(
            "one",
            watches.turn(),
            ToWatch {
                watches: Vec::new(),
                stays: true,
            },
        );
        assert_eq!(changes.try_recv().unwrap(), "one");

        watches.close_group(&group);
        assert_eq!(watches.lock().directories.len(), 1);
        watches.place("one", watches.turn(), alone(Vec::new()));
        assert_eq!(watches.lock().directories.len(), 0);
        assert_eq!(watches.lock().groups.len(), 0);
    }

    #[test]
    fn a_member_is_told_of_what_happens_while_nobody_listens() {
        let home = tempfile::tempdir().unwrap();
        let watches = Watches::new();
        let mut changes = watches.changes().unwrap();
        let group = watches
            .open_group(vec![watch(home.path(), &[("a", false)])])
            .unwrap();
        assert!(watches.join(&group, "one"));
        fs::write(home.path().join("a"), "").unwrap();
        assert!(!watches.is_steady(&group));
        assert_eq!(changes.try_recv().unwrap(), "one");
        watches.forget("one");
        watches.close_group(&group);
        assert_eq!(watches.lock().directories.len(), 0);
    }

    #[test]
    fn nobody_joins_a_group_once_more_happened_than_the_queue_holds() {
        let home = tempfile::tempdir().unwrap();
        let watches = Watches::new();
        let names = [("a", false)];
        let group = watches
            .open_group(vec![watch(home.path(), &names)])
            .unwrap();
        assert!(watches.join(&group, "one"));
        let most = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
        for _ in 0..most.trim().parse::<usize>().unwrap() {
            // Two events.
            fs::write(home.path().join("b"), "").unwrap();
            fs::remove_file(home.path().join("b")).unwrap();
        }
        // Which is not told.
        fs::write(home.path().join("a"), "").unwrap();
        assert!(!watches.join(&group, "other"));
        assert!(!watches.is_steady(&group));
        watches.forget("one");
        // The control: the name that nobody asks for alone changes nothing.
        let group = watches
            .open_group(vec![watch(home.path(), &names)])
            .unwrap();
        fs::remove_file(home.path().join("a")).unwrap();
        fs::write(home.path().join("b"), "").unwrap();
        let quiet = watches.open_group(vec![watch(home.path(), &[("c", false)])]);
        assert!(!watches.is_steady(&group));
        assert!(watches.join(&quiet.unwrap(), "other"));
    }
}
