//! A compiled policy for the next sandbox. Only a sandbox's own mounts are new
//! each time; everything else is as it was unless a name has come or gone where
//! places were looked for, or something else was mounted.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    ffi::OsString,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
};

use nix::fcntl::readlinkat;
use sandbox_common::{Identity, Key, kind};

use super::{
    Compiled, Identify, KernelError, Shared, Watch,
    compile::{BTRFS, Circumstances, STABLE},
    tree::{self, Lookup, Tree},
};
use crate::sys::{Mount, OWN_MOUNT};

/// More that have to be looked for every time cost more than they save.
const MAX_AGAIN: usize = 128;

/// Where the places of a policy were looked for.
#[derive(Debug, Default)]
pub struct Lookups {
    /// Directories and the names that were looked for in them: while none of
    /// these comes, goes or becomes another file, the rules are the same.
    pub watches: Vec<Watch>,
    /// Of the directories, and below them.
    files: Vec<(PathBuf, Option<Identity>)>,
    /// In file systems that do not tell of changes, and in the sandbox's own.
    again: Vec<Again>,
    mounts: Vec<Mount>,
    /// Paths of rules that lead to its own mounts.
    to_own: BTreeSet<PathBuf>,
    /// Of [`Compiled::watches`], those of its own mounts.
    own: BTreeSet<usize>,
}

#[derive(Debug)]
struct Again {
    path: PathBuf,
    /// None: it does not exist.
    found: Option<Identity>,
    /// Where a link leads: another one may have its number.
    target: Option<OsString>,
    own: bool,
}

impl Lookups {
    /// None: it cannot be said when the rules would be others.
    pub(super) fn new(
        tree: &Tree<'_>,
        below: Option<&Tree<'_>>,
        compiled: &[Watch],
        mounts: &[Mount],
        to_own: BTreeSet<PathBuf>,
    ) -> Option<Arc<Self>> {
        let own_devices: Vec<u32> = mounts
            .iter()
            .filter(|mount| is_own(mount))
            .map(|mount| mount.dev)
            .collect();
        let is_own = |identity: Identity| own_devices.contains(&identity.dev);
        let mut watches: HashMap<&Path, Watch> = HashMap::new();
        let (mut again, mut files) = (Vec::new(), Vec::new());
        let mut own_files = HashSet::new();
        let below = below.into_iter().flat_map(Tree::lookups);
        for Lookup { path, parent, node } in tree.lookups().chain(below) {
            let found = node.map(|node| node.identity);
            let own_node = node.filter(|node| is_own(node.identity));
            own_files.extend(own_node.map(|node| Arc::as_ptr(&node.file).addr()));
            let own = is_own(parent.identity) || found.is_some_and(is_own);
            if own || !tells(parent.identity) {
                again.push(Again {
                    path: path.to_owned(),
                    found,
                    target: node.and_then(|node| target(&node.file)),
                    own: found.is_some_and(is_own),
                });
            }
            if is_own(parent.identity) {
                continue;
            }
            files.push((path.to_owned(), found.filter(|found| !is_own(*found))));
            let watch = watches.entry(&parent.path).or_insert_with(|| Watch {
                file: parent.file.clone(),
                path: parent.path.clone(),
                names: Vec::new(),
            });
            if let Some(name) = path.file_name() {
                watch.names.push((name.to_owned(), found.is_some()));
            }
        }
        if again.len() > MAX_AGAIN {
            return None;
        }
        // Directories before what is in them.
        again.sort_by(|one, other| one.path.cmp(&other.path));
        files.sort();
        Some(Arc::new(Self {
            watches: watches.into_values().collect(),
            files,
            again,
            mounts: mounts.to_vec(),
            to_own,
            own: (0..compiled.len())
                .filter(|at| own_files.contains(&Arc::as_ptr(&compiled[*at].file).addr()))
                .collect(),
        }))
    }

    /// Whether the same was looked for and found.
    #[must_use]
    pub fn are_those_of(&self, other: &Self) -> bool {
        self.files == other.files && same_mounts(&self.mounts, &other.mounts)
    }

    /// Whether a path of the policy's is in one of the sandbox's own mounts.
    #[must_use]
    pub fn leads_to_own(&self, path: &Path) -> bool {
        let mut own = self.mounts.iter().filter(|mount| is_own(mount));
        own.any(|mount| path.starts_with(&mount.point)) || self.to_own.contains(path)
    }
}

/// Makes of a compiled policy that of another sandbox, in the calling thread's
/// view of the file system; none: it has to be compiled. That nothing has changed
/// at [`Lookups::watches`] is the caller's to know.
///
/// # Errors
/// The kernel does not say which file is which.
pub fn renew(
    compiled: &Compiled,
    circumstances: Circumstances<'_>,
    identify: &dyn Identify,
) -> Result<Option<Compiled>, KernelError> {
    let Some(lookups) = &compiled.lookups else {
        return Ok(None);
    };
    if !same_mounts(&lookups.mounts, circumstances.mounts) {
        return Ok(None);
    }
    let mut renewed: HashMap<(u32, u64), Identity> = HashMap::new();
    let mut opened: HashMap<&Path, Arc<OwnedFd>> = HashMap::new();
    for again in &lookups.again {
        let parent = again.path.parent().and_then(|parent| opened.get(parent));
        let found = tree::look(identify, parent.map(|file| &**file), &again.path)?;
        let (file, present) = match (found, again.found) {
            (None, None) => continue,
            (Some(found), Some(_)) => found,
            _ => return Ok(None),
        };
        if target(&file) != again.target {
            return Ok(None);
        }
        match again.found {
            Some(before) if again.own => {
                renewed.insert((before.dev, before.ino), present);
            }
            before if before == Some(present) => {}
            _ => return Ok(None),
        }
        opened.insert(&again.path, file);
    }
    let mut entries = compiled.entries.clone();
    for (key, value) in &mut entries {
        let before = (key.dev, key.ino);
        if key.kind == kind::HEADER {
            value.rule = circumstances.generation;
            continue;
        }
        if key.kind == kind::TERMINALS {
            let found = renewed.iter().find(|((dev, _), _)| *dev == key.dev);
            let Some((_, present)) = found else {
                return Ok(None);
            };
            key.dev = present.dev;
            continue;
        }
        let Some(present) = renewed.get(&before) else {
            return Ok(None);
        };
        (key.dev, key.ino) = (present.dev, present.ino);
        if key.kind == kind::INODE {
            key.extra = u64::from(present.generation);
        }
    }
    // Of what is watched only the sandbox's own is not watched yet.
    let own = lookups.own.iter().map(|at| &compiled.watches[*at]);
    let watches = own.filter_map(|watch| {
        Some(Watch {
            file: opened.get(watch.path.as_path())?.clone(),
            ..watch.clone()
        })
    });
    Ok(Some(Compiled {
        watches: watches.collect(),
        entries,
        shared: compiled.shared.clone(),
        own: compiled.own.clone(),
        lookups: Some(lookups.clone()),
    }))
}

impl Compiled {
    /// What is to be watched outside of its own mounts.
    pub fn shared_watches(&self) -> impl Iterator<Item = &Watch> {
        let own = self.lookups.as_ref().map(|lookups| &lookups.own);
        let watches = self.watches.iter().enumerate();
        let shared = watches.filter(move |(at, _)| own.is_none_or(|own| !own.contains(at)));
        shared.map(|(_, watch)| watch)
    }

    /// Sets the entries apart that the next sandbox has as well: those that are
    /// not about its own mounts.
    #[must_use]
    pub fn share(mut self) -> Self {
        let Some(lookups) = &self.lookups else {
            return self;
        };
        let own = lookups.mounts.iter().filter(|mount| is_own(mount));
        let own: Vec<u32> = own.map(|mount| mount.dev).collect();
        let is_own = |key: &Key| match key.kind {
            kind::HEADER => true,
            kind::INODE
            | kind::NAME
            | kind::PATTERN
            | kind::SUFFIX
            | kind::UNIX
            | kind::TERMINALS => own.contains(&key.dev),
            _ => false,
        };
        let (own, shared): (Vec<_>, Vec<_>) =
            self.entries.into_iter().partition(|(key, _)| is_own(key));
        let (keys, values) = shared.into_iter().unzip();
        self.entries = own;
        self.shared = Arc::new(Shared { keys, values });
        self
    }
}

/// Where a symbolic link leads; none: it is none.
fn target(file: &OwnedFd) -> Option<OsString> {
    readlinkat(file, "").ok()
}

/// Whether a file system tells of every name that comes or goes in it.
fn tells(identity: Identity) -> bool {
    STABLE.contains(&identity.magic) || identity.magic == BTRFS
}

fn is_own(mount: &Mount) -> bool {
    mount.source == OWN_MOUNT
}

/// Whether the mounts of two views differ only in those that are their own.
fn same_mounts(one: &[Mount], other: &[Mount]) -> bool {
    let same = |one: &Mount, other: &Mount| {
        let own = is_own(one) && is_own(other);
        one.point == other.point
            && one.fs_type == other.fs_type
            && one.source == other.source
            && one.root == other.root
            // Those of its own are what the daemon makes them.
            && (own || (one.dev == other.dev && one.options == other.options))
    };
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
}
