//! From a policy's paths to the entries of its rule map.

mod anchors;
mod devices;
mod doubtful;
mod held;
mod lower;
mod network;
mod overlays;
mod patterns;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ffi::OsStr,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    rc::Rc,
    sync::Arc,
};

use doubtful::Doubtful;
pub(super) use held::{BTRFS, STABLE};
pub use lower::Lower;
use sandbox_common::{
    Fold, Identity, Key, NAME_BYTES, Value, bits, builtin, folds, header, kind, name_hash,
};

use super::{
    Compiled, KernelError, Lookups, Watch,
    tree::{Chain, End, Found, Identify, Node, Tree},
};
use crate::{
    policy::{Access, Listen, Mode, NetworkMode, Place, Policy},
    sys::{Mount, OWN_MOUNT},
};

/// What a policy is compiled for.
#[derive(Clone, Copy)]
pub struct Circumstances<'a> {
    /// Names the policy in records.
    pub generation: u32,
    /// The key of names.
    pub seed: u64,
    /// The mounts of the calling thread's view of the file system.
    pub mounts: &'a [Mount],
    /// Of a policy that is in force: what [`Compiled::own`] was when it was put
    /// in force.
    pub own: Option<&'a BTreeSet<u32>>,
    /// Of an ephemeral workspace.
    pub lower: Option<&'a Lower>,
}

/// Resolves a policy in the calling thread's view of the file system.
///
/// # Errors
/// The kernel does not say which file is which.
pub fn compile(
    policy: &Policy,
    circumstances: Circumstances<'_>,
    identify: &dyn Identify,
) -> Result<Compiled, KernelError> {
    let Circumstances {
        generation,
        seed,
        mounts,
        own,
        lower,
    } = circumstances;
    let mut compiler = Compiler {
        tree: Tree::new(identify)?,
        seed,
        entries: BTreeMap::new(),
        ruled: BTreeMap::new(),
        directories: BTreeSet::new(),
        watched: BTreeMap::new(),
        below: None,
    };
    let mut found = compiler.find(policy)?;
    let to_own = to_own(&found, mounts);
    let own = match own {
        Some(own) => own.clone(),
        None => anchors::own(&found),
    };
    found.retain(|place| place.access != Access::Read || !own.contains(&place.id));
    let doubtful = Doubtful::new(policy, &found);
    compiler.paths(policy, &found, &doubtful)?;
    compiler.mounts(mounts)?;
    compiler.overlays(mounts, &found)?;
    if let Some(lower) = lower {
        compiler.lower(lower, mounts, &found)?;
    }
    compiler.anchors(&found);
    compiler.patterns(policy)?;
    let mut flags = 0;
    if policy.mode == Mode::Observe {
        flags |= header::OBSERVE;
    }
    if policy.network.mode == NetworkMode::Unrestricted {
        flags |= header::NETWORK_UNRESTRICTED;
    }
    if policy.network.mode == NetworkMode::Proxy {
        flags |= header::PROXY;
    }
    match policy.network.listen {
        Listen::None => flags |= header::LISTEN_NONE,
        Listen::Loopback => {}
        Listen::Any => flags |= header::LISTEN_ANY,
    }
    if policy.scope.user_namespaces {
        flags |= header::USER_NAMESPACES;
    }
    compiler.devices(policy, mounts, &doubtful)?;
    for direct in &policy.network.direct {
        compiler.direct(direct.address, direct.port.unwrap_or(0));
    }
    let header = Value {
        bits: flags,
        rule: generation,
        aux: 0,
    };
    compiler.entries.insert(
        Key {
            kind: kind::HEADER,
            ..Key::default()
        },
        header,
    );
    let watches: Vec<_> = compiler
        .held()
        .chain(compiler.watched.values().cloned())
        .collect();
    Ok(Compiled {
        lookups: Lookups::new(
            &compiler.tree,
            compiler.below.as_ref(),
            &watches,
            mounts,
            to_own,
        ),
        watches,
        entries: compiler.entries.into_iter().collect(),
        shared: Arc::default(),
        own,
    })
}

/// The paths that lead to the sandbox's own mounts.
fn to_own(places: &[Ruled<'_>], mounts: &[Mount]) -> BTreeSet<PathBuf> {
    let own: Vec<u32> = mounts
        .iter()
        .filter(|mount| mount.source == OWN_MOUNT)
        .map(|mount| mount.dev)
        .collect();
    let is_own = |node: &Rc<Node>| own.contains(&node.identity.dev);
    let leads = |place: &&Ruled<'_>| {
        let (End::Existing(chain) | End::Missing { parents: chain, .. }) = &place.found.end;
        let links = place.found.links.iter().flat_map(|link| &link.chain);
        chain.iter().chain(links).any(is_own)
    };
    let leading = places.iter().filter(leads);
    leading.map(|place| place.path.to_owned()).collect()
}

/// What became of the path of a rule.
struct Ruled<'p> {
    path: &'p Path,
    access: Access,
    id: u32,
    found: Found,
}

struct Compiler<'a> {
    tree: Tree<'a>,
    seed: u64,
    entries: BTreeMap<Key, Value>,
    /// Rights and rule of every place with a rule, by path.
    ruled: BTreeMap<PathBuf, (u32, u32)>,
    /// Directories with a rule, mounts' roots included: patterns of a directory
    /// above have to be repeated there, because a walk ends there.
    directories: BTreeSet<(PathBuf, Identity)>,
    /// What would make the rules others, by directory.
    watched: BTreeMap<PathBuf, Watch>,
    /// What was met below the overlay of an ephemeral workspace.
    below: Option<Tree<'a>>,
}

impl Compiler<'_> {
    /// Follows the paths of the rules that have one.
    fn find<'p>(&mut self, policy: &'p Policy) -> Result<Vec<Ruled<'p>>, KernelError> {
        let mut found = Vec::new();
        for (rule, id) in policy.files.iter().zip(1..) {
            if let Place::Path(path) = &rule.place {
                found.push(Ruled {
                    path,
                    access: rule.access,
                    id,
                    found: self.tree.find(path)?,
                });
            }
        }
        Ok(found)
    }

    /// The rules. Those that lead through a symbolic link which the sandbox, or
    /// who filled the workspace, may have made come last: they take rights away
    /// from what the link leads to and never give any.
    fn paths(
        &mut self,
        policy: &Policy,
        places: &[Ruled<'_>],
        doubtful: &Doubtful,
    ) -> Result<(), KernelError> {
        for path in &policy.network.unix {
            self.unix(path, doubtful)?;
        }
        let (taken, given): (Vec<_>, Vec<_>) = places
            .iter()
            .partition(|place| doubtful.lead_to(&place.found));
        for place in &given {
            let rights = rights(place.access);
            self.ruled
                .entry(place.path.to_owned())
                .or_insert((rights, place.id));
            self.give(&place.found, place.access, place.id);
        }
        for path in &policy.network.unix {
            self.keep_unix(path)?;
        }
        // A file where a rule has a directory: `.git` of a linked working tree.
        for place in places {
            if let End::Missing { parents, .. } = &place.found.end
                && parents.last().is_some_and(|node| !node.is_directory())
            {
                self.take(policy, parents, place.access, place.id)?;
            }
        }
        for Ruled {
            access, id, found, ..
        } in taken
        {
            for link in found.links.iter().filter(|link| link.last) {
                self.take(policy, &link.chain, *access, *id)?;
            }
            match &found.end {
                End::Existing(file) => self.take(policy, file, *access, *id)?,
                End::Missing {
                    parents,
                    name,
                    last,
                } => {
                    if *last || *access == Access::Deny {
                        self.take_name(parents, name, *access, *id);
                    }
                }
            }
        }
        Ok(())
    }

    fn give(&mut self, found: &Found, access: Access, id: u32) {
        let rights = rights(access);
        match &found.end {
            End::Existing(file) => self.file(file, rights, id),
            End::Missing {
                parents,
                name,
                last,
            } => {
                // A missing directory hides what would be below it; what is
                // granted or made read-only below it has no place yet.
                if let Some(parent) = parents.last()
                    && parent.is_directory()
                    && (*last || access == Access::Deny)
                {
                    self.shield(parents, id);
                    self.guard(parent, name, rights, id);
                }
            }
        }
        for link in found.links.iter().filter(|link| link.last) {
            self.file(&link.chain, rights, id);
        }
    }

    /// A rule for a file that leaves of its rights what both allow.
    fn take(
        &mut self,
        policy: &Policy,
        chain: &Chain,
        access: Access,
        id: u32,
    ) -> Result<(), KernelError> {
        let Some(file) = chain.last() else {
            return Ok(());
        };
        let (allowed, _) = self.allowed(chain);
        let mut kept = allowed & rights(access);
        // A rule for the file itself would go before a pattern.
        for rule in &policy.files {
            if let Place::Name { scope, pattern } = &rule.place
                && !file.is_directory()
                && file
                    .path
                    .file_name()
                    .is_some_and(|name| pattern.matches(name.as_bytes()))
                && self.within(scope.as_deref(), &file.path)?
            {
                kept &= rights(rule.access);
            }
        }
        if kept != allowed {
            self.file(chain, kept, id);
        }
        Ok(())
    }

    fn take_name(&mut self, parents: &[Rc<Node>], name: &OsStr, access: Access, id: u32) {
        let Some(parent) = parents.last().filter(|node| node.is_directory()) else {
            return;
        };
        let ruled = self.entries.get(&self.name(parent, name)).copied();
        let allowed = ruled.map_or_else(|| self.allowed(parents).0, |value| value.bits & RIGHTS);
        let kept = allowed & rights(access);
        if kept != allowed {
            self.shield(parents, id);
            self.guard(parent, name, kept, id);
        }
    }

    /// What the nearest rule so far allows, and which one that is.
    fn allowed(&self, chain: &[Rc<Node>]) -> (u32, u32) {
        for (at, node) in chain.iter().enumerate().rev() {
            let by_name = at
                .checked_sub(1)
                .and_then(|above| Some(self.name(&chain[above], node.path.file_name()?)));
            let ruled = [Some(inode(node.identity)), by_name]
                .into_iter()
                .flatten()
                .filter_map(|key| self.entries.get(&key))
                .find(|value| value.bits & bits::RULED != 0);
            if let Some(value) = ruled {
                return (value.bits & RIGHTS, value.rule);
            }
        }
        (0, builtin::NONE)
    }

    /// Whether a path lies in the directory of a pattern.
    fn within(&mut self, scope: Option<&Path>, path: &Path) -> Result<bool, KernelError> {
        let Some(scope) = scope else { return Ok(true) };
        let End::Existing(scope) = self.tree.find(scope)?.end else {
            return Ok(false);
        };
        Ok(scope
            .last()
            .is_some_and(|scope| path.starts_with(&scope.path)))
    }

    /// A rule for a file that exists, and for its name, should it be replaced.
    fn file(&mut self, chain: &Chain, rights: u32, id: u32) {
        let Some((file, parents)) = chain.split_last() else {
            return;
        };
        self.ruled.entry(file.path.clone()).or_insert((rights, id));
        self.rule(file.identity, rights, id);
        self.shield(parents, id);
        if file.is_directory() {
            self.directories.insert((file.path.clone(), file.identity));
            // What may be worked in may not be moved away. Nothing else may be
            // either, and what is denied is not to be seen for that.
            if rights & bits::WRITE != 0 {
                self.mark(file.identity, bits::ANCESTOR, id);
            }
        }
        // Nobody but the administrator replaces a directory of the root's.
        let fixed = file.is_directory() && parents.len() == 1;
        if let (Some(parent), Some(name), false) = (parents.last(), file.path.file_name(), fixed) {
            let (parent, name) = (parent.clone(), name.to_owned());
            self.guard(&parent, &name, rights, id);
        }
    }

    /// States rights for a file. Of two places of one file the narrower holds.
    fn rule(&mut self, identity: Identity, rights: u32, id: u32) {
        narrow(self.value(identity), rights, id);
    }

    /// The value of a file. Where files of two subvolumes have one key, it is
    /// about every subvolume, and the narrower of their rules holds.
    fn value(&mut self, identity: Identity) -> &mut Value {
        use std::collections::btree_map::Entry;
        let subvolume = identity.subvolume << 32;
        match self.entries.entry(inode(identity)) {
            Entry::Vacant(entry) => entry.insert(Value {
                aux: subvolume,
                ..Value::default()
            }),
            Entry::Occupied(entry) => {
                let value = entry.into_mut();
                if value.aux >> 32 << 32 != subvolume {
                    value.aux &= u64::from(u32::MAX);
                }
                value
            }
        }
    }

    fn guard(&mut self, parent: &Node, name: &OsStr, rights: u32, id: u32) {
        self.mark(parent.identity, bits::NAMES, 0);
        self.directories
            .insert((parent.path.clone(), parent.identity));
        let key = self.name(parent, name);
        narrow(self.entries.entry(key).or_default(), rights, id);
    }

    fn name(&self, parent: &Node, name: &OsStr) -> Key {
        Key {
            kind: kind::NAME,
            dev: parent.identity.dev,
            ino: parent.identity.ino,
            extra: self.hash(name.as_bytes(), name_hash, parent.identity.magic),
        }
    }

    /// The hash of a name as a file system of that kind compares it. One that
    /// may stand for others is refused there anyway.
    fn hash(&self, name: &[u8], hash: Hash, magic: u64) -> u64 {
        let mut words = words(name);
        if folds(magic) {
            let mut fold = Fold::default();
            words = words.map(|word| fold.word(word));
        }
        hash(Fold::seed(self.seed, folds(magic)), words)
    }

    /// Directories above a place may be seen, and not moved.
    fn shield(&mut self, parents: &[Rc<Node>], id: u32) {
        for parent in parents {
            self.mark(parent.identity, bits::ANCESTOR, id);
        }
    }

    fn mark(&mut self, identity: Identity, flag: u32, id: u32) {
        let value = self.value(identity);
        value.bits |= flag;
        if flag == bits::ANCESTOR && value.aux & u64::from(u32::MAX) == 0 {
            value.aux |= u64::from(id);
        }
    }

    /// A mount's root has the rule of the place that it is mounted at: a walk
    /// ends there. Rules that name the same file come first.
    fn mounts(&mut self, mounts: &[Mount]) -> Result<(), KernelError> {
        let mut derived: BTreeMap<Identity, Value> = BTreeMap::new();
        let seen = Seen::new(mounts);
        for mount in mounts {
            let End::Existing(file) = self.tree.find(&mount.point)?.end else {
                continue;
            };
            let Some(root) = file.last() else {
                continue;
            };
            let key = inode(root.identity);
            if self
                .entries
                .get(&key)
                .is_none_or(|value| value.bits & bits::RULED == 0)
            {
                // What is mounted may be seen elsewhere too, below another rule.
                let mut value = Value::default();
                for place in std::iter::once(mount.point.clone()).chain(seen.elsewhere(mount)) {
                    let (rights, id) = self.nearest(&place);
                    narrow(&mut value, rights, id);
                }
                if let Some((rights, id)) = self.layers(mount)? {
                    narrow(&mut value, rights, id);
                }
                narrow(
                    derived.entry(root.identity).or_default(),
                    value.bits,
                    value.rule,
                );
            }
            self.directories
                .insert((mount.point.clone(), root.identity));
        }
        for (identity, value) in derived {
            self.rule(identity, value.bits, value.rule);
        }
        Ok(())
    }

    /// The rule of the nearest place that has one, by path.
    fn nearest(&self, path: &Path) -> (u32, u32) {
        path.ancestors()
            .find_map(|path| self.ruled.get(path).copied())
            .unwrap_or((0, builtin::NONE))
    }
}

/// Mounts, by what their roots are.
struct Seen<'a>(HashMap<(u32, &'a Path), Vec<&'a Mount>>);

impl<'a> Seen<'a> {
    fn new(mounts: &'a [Mount]) -> Self {
        let mut seen: HashMap<_, Vec<_>> = HashMap::new();
        for mount in mounts {
            let root = (mount.dev, mount.root.as_path());
            seen.entry(root).or_default().push(mount);
        }
        Self(seen)
    }

    /// Where else a mount's root is seen: below the root of another mount.
    fn elsewhere(&self, mount: &Mount) -> Vec<PathBuf> {
        let above = mount.root.ancestors().skip(1);
        let elsewhere = above.flat_map(|root| {
            let others = self.0.get(&(mount.dev, root)).into_iter().flatten();
            others.filter_map(move |other| {
                let below = mount.root.strip_prefix(root).ok()?;
                Some(other.point.join(below))
            })
        });
        elsewhere.collect()
    }
}

/// `name_hash` or `suffix_hash`.
type Hash = fn(u64, [u64; NAME_BYTES / 8]) -> u64;

/// The magic number of a file system that folds names: FAT.
const FOLDING: u64 = 0x4d44;

/// The bits of a value that are rights.
const RIGHTS: u32 = bits::READ | bits::WRITE;

fn narrow(value: &mut Value, rights: u32, id: u32) {
    if value.bits & bits::RULED == 0 {
        value.bits |= bits::RULED | rights;
        value.rule = id;
        return;
    }
    let kept = value.bits & rights;
    let lost = value.bits & !rights & RIGHTS;
    if lost != 0 {
        value.bits = value.bits & !RIGHTS | kept & RIGHTS;
        value.rule = id;
    }
}

const fn rights(access: Access) -> u32 {
    match access {
        Access::Deny => 0,
        Access::Read => bits::READ,
        Access::Write => bits::READ | bits::WRITE,
    }
}

fn inode(identity: Identity) -> Key {
    Key {
        kind: kind::INODE,
        dev: identity.dev,
        ino: identity.ino,
        extra: u64::from(identity.generation),
    }
}

/// A name as the kernel programs see it: padded with zeros to `NAME_BYTES`.
fn words(name: &[u8]) -> [u64; NAME_BYTES / 8] {
    let mut words = [0; NAME_BYTES / 8];
    for (word, chunk) in words.iter_mut().zip(name.chunks(8)) {
        let mut bytes = [0; 8];
        bytes[..chunk.len()].copy_from_slice(chunk);
        *word = u64::from_le_bytes(bytes);
    }
    words
}

#[cfg(test)]
mod tests;
