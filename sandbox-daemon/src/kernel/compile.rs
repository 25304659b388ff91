//! From a policy's paths to the entries of its rule map.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    net::IpAddr,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use sandbox_common::{
    Identity, Key, NAME_BYTES, UNREADABLE, Value, bits, builtin, header, kind, name_hash,
    suffix_hash,
};

use super::{
    Compiled, KernelError,
    tree::{Chain, Found, Identify, Node, Tree},
};
use crate::{
    policy::{Access, Mode, NamePattern, NetworkMode, Place, Policy},
    sys::Mount,
};

/// Resolves a policy in the calling thread's view of the file system, of which
/// `mounts` are the mounts.
///
/// # Errors
/// The kernel does not say which file is which.
pub fn compile(
    policy: &Policy,
    generation: u32,
    seed: u64,
    mounts: &[Mount],
    identify: &dyn Identify,
) -> Result<Compiled, KernelError> {
    let mut compiler = Compiler {
        tree: Tree::new(identify)?,
        seed,
        entries: BTreeMap::new(),
        ruled: BTreeMap::new(),
        directories: Vec::new(),
    };
    for (rule, id) in policy.files.iter().zip(1..) {
        if let Place::Path(path) = &rule.place {
            compiler.path(path, rule.access, id)?;
        }
    }
    compiler.mounts(mounts)?;
    let mut flags = 0;
    for (rule, id) in policy.files.iter().zip(1..) {
        if let Place::Name { scope, pattern } = &rule.place {
            flags |= header::PATTERNS;
            compiler.pattern(scope.as_deref(), pattern, rule.access, id)?;
        }
    }
    if policy.mode == Mode::Observe {
        flags |= header::OBSERVE;
    }
    if policy.network.mode == NetworkMode::Unrestricted {
        flags |= header::NETWORK_UNRESTRICTED;
    }
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
    Ok(Compiled {
        entries: compiler.entries.into_iter().collect(),
    })
}

struct Compiler<'a> {
    tree: Tree<'a>,
    seed: u64,
    entries: BTreeMap<Key, Value>,
    /// Rights and rule of every place with a rule, by path.
    ruled: BTreeMap<PathBuf, (u32, u32)>,
    /// Directories with a rule, mounts' roots included: patterns of a directory
    /// above have to be repeated there, because a walk ends there.
    directories: Vec<(PathBuf, Identity)>,
}

impl Compiler<'_> {
    fn path(&mut self, path: &Path, access: Access, id: u32) -> Result<(), KernelError> {
        let rights = rights(access);
        self.ruled.entry(path.to_owned()).or_insert((rights, id));
        let links = match self.tree.find(path)? {
            Found::Existing { links, file } => {
                self.file(&file, rights, id);
                links
            }
            Found::Missing {
                links,
                parents,
                name,
                last,
            } => {
                // A missing directory hides what would be below it; what is
                // granted or made read-only below it has no place yet.
                if last || access == Access::Deny {
                    self.shield(&parents, id);
                    if let Some(parent) = parents.last() {
                        self.guard(parent, &name, rights, id);
                    }
                }
                links
            }
        };
        for link in links {
            self.file(&link, rights, id);
        }
        Ok(())
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
            self.directories.push((file.path.clone(), file.identity));
            // What may be worked in may not be moved away.
            self.mark(file.identity, bits::ANCESTOR, id);
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
        let value = self.entries.entry(inode(identity)).or_default();
        narrow(value, rights, id);
    }

    fn guard(&mut self, parent: &Node, name: &OsStr, rights: u32, id: u32) {
        self.mark(parent.identity, bits::NAMES, 0);
        let key = Key {
            kind: kind::NAME,
            dev: parent.identity.dev,
            ino: parent.identity.ino,
            extra: name_hash(self.seed, &words(name.as_bytes())),
        };
        narrow(self.entries.entry(key).or_default(), rights, id);
    }

    /// Directories above a place may be seen, and not moved.
    fn shield(&mut self, parents: &[std::rc::Rc<Node>], id: u32) {
        for parent in parents {
            self.mark(parent.identity, bits::ANCESTOR, id);
        }
    }

    fn mark(&mut self, identity: Identity, flag: u32, id: u32) {
        let value = self.entries.entry(inode(identity)).or_default();
        value.bits |= flag;
        if flag == bits::ANCESTOR && value.aux == 0 {
            value.aux = u64::from(id);
        }
    }

    /// A mount's root has the rule of the place that it is mounted at: a walk
    /// ends there. Rules that name the same file come first.
    fn mounts(&mut self, mounts: &[Mount]) -> Result<(), KernelError> {
        let mut derived: BTreeMap<Key, Value> = BTreeMap::new();
        for mount in mounts {
            let Found::Existing { file, .. } = self.tree.find(&mount.point)? else {
                continue;
            };
            let Some(root) = file.last() else {
                continue;
            };
            let (rights, id) = mount
                .point
                .ancestors()
                .find_map(|path| self.ruled.get(path).copied())
                .unwrap_or((0, builtin::NONE));
            let key = inode(root.identity);
            if self
                .entries
                .get(&key)
                .is_none_or(|value| value.bits & bits::RULED == 0)
            {
                narrow(derived.entry(key).or_default(), rights, id);
            }
            self.directories.push((mount.point.clone(), root.identity));
        }
        for (key, value) in derived {
            let entry = self.entries.entry(key).or_default();
            entry.bits |= value.bits;
            entry.rule = value.rule;
        }
        Ok(())
    }

    fn pattern(
        &mut self,
        scope: Option<&Path>,
        pattern: &NamePattern,
        access: Access,
        id: u32,
    ) -> Result<(), KernelError> {
        let unreadable = Key {
            kind: kind::PATTERN,
            extra: UNREADABLE,
            ..Key::default()
        };
        self.entries.insert(
            unreadable,
            Value {
                rule: builtin::DISCONNECTED,
                ..Value::default()
            },
        );
        let (kind, extra) = match pattern {
            NamePattern::Exact(name) => (kind::PATTERN, name_hash(self.seed, &words(name))),
            NamePattern::Suffix(suffix) => (kind::SUFFIX, suffix_hash(self.seed, &words(suffix))),
        };
        let Some(scope) = scope else {
            self.restrict(
                Key {
                    kind,
                    extra,
                    ..Key::default()
                },
                access,
                id,
            );
            return Ok(());
        };
        // A scope that does not exist holds nothing yet.
        let Found::Existing { file, .. } = self.tree.find(scope)? else {
            return Ok(());
        };
        let Some(scope) = file.last().filter(|node| node.is_directory()) else {
            return Ok(());
        };
        let mut below = vec![scope.identity];
        below.extend(
            self.directories
                .iter()
                .filter(|(path, _)| path.starts_with(&scope.path))
                .map(|(_, identity)| *identity),
        );
        for identity in below {
            self.mark(identity, bits::SCOPE, 0);
            let key = Key {
                kind,
                dev: identity.dev,
                ino: identity.ino,
                extra,
            };
            self.restrict(key, access, id);
        }
        Ok(())
    }

    fn restrict(&mut self, key: Key, access: Access, id: u32) {
        narrow(self.entries.entry(key).or_default(), rights(access), id);
    }

    fn direct(&mut self, address: IpAddr, port: u16) {
        let key = match address {
            IpAddr::V4(address) => Key {
                kind: kind::NET4,
                dev: u32::from_ne_bytes(address.octets()),
                ino: u64::from(port),
                extra: 0,
            },
            IpAddr::V6(address) => {
                let [ino, extra] = [0, 8].map(|at| {
                    let half: [u8; 8] = std::array::from_fn(|index| address.octets()[at + index]);
                    u64::from_ne_bytes(half)
                });
                Key {
                    kind: kind::NET6,
                    dev: u32::from(port),
                    ino,
                    extra,
                }
            }
        };
        self.entries.insert(
            key,
            Value {
                bits: bits::RULED,
                ..Value::default()
            },
        );
    }
}

fn narrow(value: &mut Value, rights: u32, id: u32) {
    if value.bits & bits::RULED == 0 {
        value.bits |= bits::RULED | rights;
        value.rule = id;
        return;
    }
    let kept = value.bits & rights;
    let lost = value.bits & !rights & (bits::READ | bits::WRITE);
    if lost != 0 {
        value.bits = value.bits & !(bits::READ | bits::WRITE) | kept & (bits::READ | bits::WRITE);
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
mod tests {
    use std::{fs, os::fd::OwnedFd, os::unix::fs::symlink};

    use super::*;
    use crate::policy::{Environment, FileRule, Network};

    const SEED: u64 = 7;
    const READ: u32 = bits::RULED | bits::READ;
    const WRITE: u32 = bits::RULED | bits::READ | bits::WRITE;

    /// Takes stat(2)'s word for it.
    struct Stat;

    impl Identify for Stat {
        fn identify(&self, file: &OwnedFd) -> Result<Identity, KernelError> {
            let stat = nix::sys::stat::fstat(file).map_err(std::io::Error::from);
            let stat = stat.map_err(KernelError::Events)?;
            Ok(Identity {
                dev: 1,
                ino: stat.st_ino,
                ..Identity::default()
            })
        }
    }

    struct Case {
        home: tempfile::TempDir,
        rules: Vec<FileRule>,
        mounts: Vec<Mount>,
    }

    impl Case {
        fn new() -> Self {
            Self {
                home: tempfile::tempdir().unwrap(),
                rules: Vec::new(),
                mounts: Vec::new(),
            }
        }

        fn at(&self, path: &str) -> PathBuf {
            self.home.path().join(path)
        }

        fn with(mut self, path: &str, access: Access) -> Self {
            let place = Place::Path(self.at(path));
            self.rules.push(FileRule {
                place,
                access,
                label: path.into(),
            });
            self
        }

        fn compiled(&self) -> BTreeMap<Key, Value> {
            let policy = Policy::new(
                "case".into(),
                Mode::Enforce,
                self.rules.clone(),
                Network::default(),
                Environment::default(),
            );
            compile(&policy, 3, SEED, &self.mounts, &Stat)
                .unwrap()
                .entries
                .into_iter()
                .collect()
        }

        fn key(&self, path: &str) -> Key {
            use std::os::unix::fs::MetadataExt as _;
            let ino = fs::symlink_metadata(self.at(path)).unwrap().ino();
            Key {
                kind: kind::INODE,
                dev: 1,
                ino,
                extra: 0,
            }
        }

        fn name(&self, directory: &str, name: &str) -> Key {
            let extra = name_hash(SEED, &words(name.as_bytes()));
            Key {
                kind: kind::NAME,
                extra,
                ..self.key(directory)
            }
        }
    }

    #[test]
    fn a_file_is_ruled_by_itself_and_by_its_name_and_shields_its_parents() {
        let case = Case::new();
        fs::create_dir(case.at(".ssh")).unwrap();
        fs::write(case.at(".ssh/id"), "").unwrap();
        let case = case.with(".ssh/id", Access::Deny);
        let entries = case.compiled();
        assert_eq!(entries[&case.key(".ssh/id")].bits, bits::RULED);
        assert_eq!(entries[&case.name(".ssh", "id")].bits, bits::RULED);
        assert_eq!(
            entries[&case.key(".ssh")].bits,
            bits::ANCESTOR | bits::NAMES
        );
        assert_eq!(entries[&case.key(".ssh")].aux, 1);
        assert_eq!(entries[&case.key("")].bits, bits::ANCESTOR);
    }

    #[test]
    fn a_denied_file_without_parents_hides_the_first_missing_name() {
        let case = Case::new().with(".config/gh/hosts.yml", Access::Deny);
        let entries = case.compiled();
        assert_eq!(entries[&case.name("", ".config")].bits, bits::RULED);
        assert_eq!(entries[&case.key("")].bits, bits::ANCESTOR | bits::NAMES);
    }

    #[test]
    fn a_granted_file_without_parents_grants_nothing_yet() {
        let case = Case::new()
            .with("a/b", Access::Write)
            .with("c/d", Access::Read);
        let entries = case.compiled();
        assert!(!entries.contains_key(&case.name("", "a")));
        assert!(!entries.contains_key(&case.name("", "c")));
    }

    #[test]
    fn a_granted_name_that_does_not_exist_may_be_made() {
        let case = Case::new().with("lock", Access::Write);
        let entries = case.compiled();
        assert_eq!(entries[&case.name("", "lock")].bits, WRITE);
    }

    #[test]
    fn a_link_and_what_it_leads_to_are_both_ruled() {
        let case = Case::new();
        fs::create_dir(case.at("keys")).unwrap();
        fs::write(case.at("keys/id"), "").unwrap();
        symlink("keys/../keys/id", case.at("link")).unwrap();
        let case = case.with("link", Access::Deny);
        let entries = case.compiled();
        for key in [
            case.key("link"),
            case.key("keys/id"),
            case.name("keys", "id"),
        ] {
            assert_eq!(entries[&key].bits, bits::RULED);
        }
    }

    #[test]
    fn of_two_places_of_one_file_the_narrower_holds() {
        let case = Case::new();
        fs::write(case.at("a"), "").unwrap();
        fs::hard_link(case.at("a"), case.at("b")).unwrap();
        let case = case.with("a", Access::Write).with("b", Access::Read);
        let entries = case.compiled();
        let value = entries[&case.key("a")];
        assert_eq!((value.bits, value.rule), (READ, 2));
    }

    #[test]
    fn a_mounts_root_has_the_rule_of_its_place_unless_a_rule_names_it() {
        let mut case = Case::new();
        fs::create_dir_all(case.at("work/inner")).unwrap();
        fs::create_dir(case.at("bare")).unwrap();
        for point in ["work/inner", "bare"] {
            case.mounts.push(Mount {
                id: 0,
                parent: 0,
                dev: 1,
                root: "/".into(),
                point: case.at(point),
                fs_type: "tmpfs".into(),
                source: "none".into(),
            });
        }
        let case = case.with("work", Access::Write);
        let entries = case.compiled();
        assert_eq!(entries[&case.key("work/inner")].bits, WRITE);
        assert_eq!(entries[&case.key("bare")].bits, bits::RULED);
    }

    #[test]
    fn a_pattern_is_repeated_at_the_directories_at_which_walks_end() {
        let mut case = Case::new();
        fs::create_dir_all(case.at("work/sub")).unwrap();
        case.rules.push(FileRule {
            place: Place::Name {
                scope: Some(case.home.path().into()),
                pattern: NamePattern::Exact(b".env".into()),
            },
            access: Access::Deny,
            label: "**/.env".into(),
        });
        let case = case.with("work", Access::Write);
        let entries = case.compiled();
        for directory in ["", "work"] {
            let pattern = Key {
                kind: kind::PATTERN,
                ..case.name(directory, ".env")
            };
            assert_eq!(entries[&pattern].bits, bits::RULED);
            assert_ne!(entries[&case.key(directory)].bits & bits::SCOPE, 0);
        }
        let header = entries[&Key::default()];
        assert_eq!((header.bits, header.rule), (header::PATTERNS, 3));
    }
}
