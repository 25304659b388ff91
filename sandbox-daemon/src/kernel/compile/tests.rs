//! Tests of how places become rules, on real files and without a kernel.

use std::{fs, os::fd::OwnedFd, os::unix::fs::symlink};

use super::*;
use crate::policy::{Device, Environment, FileRule, NamePattern, Network};
use crate::sys::OWN_MOUNT;

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
            // ext4
            magic: 0xef53,
            ..Identity::default()
        })
    }
}

/// The same on a file system that does not tell of changes, and gives a number
/// again: FUSE, say.
struct Silent;

impl Identify for Silent {
    fn identify(&self, file: &OwnedFd) -> Result<Identity, KernelError> {
        let identity = Stat.identify(file)?;
        let kind = crate::sys::stat(file).map_err(KernelError::Events)?;
        let link = kind == nix::sys::stat::SFlag::S_IFLNK;
        Ok(Identity {
            ino: if link { 1 } else { identity.ino },
            magic: 0x6573_5546,
            ..identity
        })
    }
}

struct Case {
    workspace: Option<PathBuf>,
    home: tempfile::TempDir,
    rules: Vec<FileRule>,
    mounts: Vec<Mount>,
    devices: Vec<Device>,
}

impl Case {
    fn new() -> Self {
        Self {
            workspace: None,
            home: tempfile::tempdir().unwrap(),
            rules: Vec::new(),
            mounts: Vec::new(),
            devices: Vec::new(),
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
        self.compile(None).entries.into_iter().collect()
    }

    fn compile(&self, own: Option<&BTreeSet<u32>>) -> Compiled {
        self.compile_with(Network::default(), own)
    }

    fn compile_with(&self, network: Network, own: Option<&BTreeSet<u32>>) -> Compiled {
        let mut policy = Policy::new(
            "case".into(),
            Mode::Enforce,
            self.rules.clone(),
            network,
            Environment::default(),
        )
        .with_devices(self.devices.clone());
        policy.workspace.clone_from(&self.workspace);
        let circumstances = Circumstances {
            generation: 3,
            seed: SEED,
            mounts: &self.mounts,
            own,
            lower: None,
        };
        compile(&policy, circumstances, &Stat).unwrap()
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
        let extra = name_hash(SEED, words(name.as_bytes()));
        Key {
            kind: kind::NAME,
            extra,
            ..self.key(directory)
        }
    }
}

#[test]
fn a_unix_socket_is_its_name_in_its_directory_and_not_where_a_doubtful_link_leads() {
    let mut case = Case::new();
    for directory in ["run", "work"] {
        fs::create_dir(case.at(directory)).unwrap();
    }
    symlink(case.at("run"), case.at("var")).unwrap();
    symlink(case.at("run/b"), case.at("work/b")).unwrap();
    case.workspace = Some(case.at("work"));
    let paths = ["var/a", "work/b", "run/missing/c", "work/d"];
    let network = Network {
        unix: paths.iter().map(|path| case.at(path)).collect(),
        ..Network::default()
    };
    let compiled = case.compile_with(network, None);
    let keys = compiled.entries.iter().map(|(key, _)| *key);
    let found: Vec<_> = keys.filter(|key| key.kind == kind::UNIX).collect();
    let socket = |directory: &str, name: &str| Key {
        kind: kind::UNIX,
        ..case.name(directory, name)
    };
    let mut expected = [socket("run", "a"), socket("work", "d")];
    expected.sort();
    assert_eq!(found, expected);
    // A directory that is not there, and those that may be made anew.
    let watched = |directory: &str, name: &str, there: bool| {
        let watches = compiled.watches.iter();
        watches
            .filter(|watch| watch.path == case.at(directory))
            .any(|watch| watch.names.contains(&(name.into(), there)))
    };
    assert!(watched("run", "missing", false));
    assert!(watched("", "run", true));
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
fn a_link_in_the_workspace_takes_rights_and_gives_none() {
    let mut case = Case::new();
    for directory in ["keys", "notes", "work/tools"] {
        fs::create_dir_all(case.at(directory)).unwrap();
    }
    for file in ["keys/id", "work/tools/.env"] {
        fs::write(case.at(file), "").unwrap();
    }
    for (target, link) in [
        ("../keys/id", "work/config"),
        ("../notes", "work/settings"),
        ("tools", "work/hooks"),
        ("tools/.env", "work/env"),
        ("../notes", "work/out"),
    ] {
        symlink(target, case.at(link)).unwrap();
    }
    case.workspace = Some(case.at("work"));
    case.rules.push(FileRule {
        place: Place::Name {
            scope: None,
            pattern: NamePattern::Exact(b".env".into()),
        },
        access: Access::Deny,
        label: "**/.env".into(),
    });
    let case = case
        .with("work", Access::Write)
        .with("keys", Access::Deny)
        .with("work/config", Access::Read)
        .with("work/settings", Access::Read)
        .with("work/hooks", Access::Read)
        .with("work/env", Access::Read)
        .with("work/out", Access::Write);
    let entries = case.compiled();
    for untouched in ["keys/id", "notes"] {
        assert!(!entries.contains_key(&case.key(untouched)), "{untouched}");
    }
    // The links themselves stay, and so does what a link within protects.
    let rights = |path: &str| entries[&case.key(path)].bits & WRITE;
    assert_eq!(rights("work/config"), READ);
    assert_eq!(rights("work/tools"), READ);
    assert_eq!(rights("work/tools/.env"), bits::RULED);
}

#[test]
fn a_file_in_the_place_of_a_directory_is_what_the_rule_says() {
    let case = Case::new();
    fs::create_dir(case.at("work")).unwrap();
    fs::write(case.at("work/.git"), "gitdir: /elsewhere").unwrap();
    let case = case
        .with("work", Access::Write)
        .with("work/.git/info/attributes", Access::Read);
    let entries = case.compiled();
    assert_eq!(entries[&case.key("work/.git")].bits & WRITE, READ);
    assert_eq!(entries[&case.name("work", ".git")].bits & WRITE, READ);
}

#[test]
fn what_is_mounted_twice_has_the_narrower_rule() {
    let mut case = Case::new();
    fs::create_dir_all(case.at("keys/host")).unwrap();
    fs::create_dir(case.at("seen")).unwrap();
    for (root, point) in [("/", ""), ("/keys/host", "seen")] {
        case.mounts.push(Mount {
            id: 0,
            parent: 0,
            dev: 1,
            root: root.into(),
            point: case.at(point),
            fs_type: "ext4".into(),
            source: "none".into(),
            options: Vec::new(),
        });
    }
    let case = case.with("", Access::Read).with("keys", Access::Deny);
    let entries = case.compiled();
    assert_eq!(entries[&case.key("seen")].bits, bits::RULED);
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
            options: Vec::new(),
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
    assert_eq!((header.bits, header.rule), (0, 3));
}

#[test]
fn what_leads_to_a_denied_place_is_ruled_itself_and_its_name_denied() {
    let case = Case::new();
    fs::create_dir_all(case.at("a/b")).unwrap();
    fs::write(case.at("a/b/key"), "").unwrap();
    let case = case.with("", Access::Write).with("a/b/key", Access::Deny);
    let entries = case.compiled();
    for (path, parent, name) in [("a", "", "a"), ("a/b", "a", "b")] {
        assert_eq!(entries[&case.key(path)].bits & WRITE, WRITE, "{path}");
        let guard = entries[&case.name(parent, name)];
        assert_eq!((guard.bits & WRITE, guard.rule), (bits::RULED, 2), "{path}");
    }
}

#[test]
fn a_link_to_a_denied_place_is_held_in_its_place() {
    let case = Case::new();
    fs::create_dir_all(case.at("real/gh")).unwrap();
    fs::write(case.at("real/gh/key"), "").unwrap();
    symlink("real", case.at("link")).unwrap();
    let case = case
        .with("", Access::Write)
        .with("link/gh/key", Access::Deny);
    let entries = case.compiled();
    assert_eq!(entries[&case.name("", "link")].bits & WRITE, bits::RULED);
    let link = entries[&case.key("link")].bits;
    assert_eq!(link & bits::ANCESTOR, bits::ANCESTOR);
}

#[test]
fn what_the_sandbox_made_stays_its_own_when_places_are_looked_up_again() {
    let case = Case::new()
        .with("work", Access::Write)
        .with("work/.git/hooks", Access::Read)
        .with("work/missing/secret", Access::Deny);
    fs::create_dir(case.at("work")).unwrap();
    let first = case.compile(None);
    assert_eq!(first.own, BTreeSet::from([2]));
    fs::create_dir_all(case.at("work/.git/hooks")).unwrap();
    fs::create_dir_all(case.at("work/missing")).unwrap();
    fs::write(case.at("work/missing/secret"), "").unwrap();
    let again = case.compile(Some(&first.own));
    assert_eq!(again.own, first.own);
    let entries: BTreeMap<Key, Value> = again.entries.into_iter().collect();
    assert!(!entries.contains_key(&case.key("work/.git/hooks")));
    assert_eq!(entries[&case.key("work/missing/secret")].bits, bits::RULED);
}

#[test]
fn names_that_would_change_a_rule_are_watched() {
    let case = Case::new();
    fs::create_dir(case.at("a")).unwrap();
    let case = case
        .with("a/missing/deep", Access::Deny)
        .with("a/later", Access::Write);
    let watches = case.compile(None).watches;
    let watch = watches.iter().find(|watch| watch.path == case.at("a"));
    let mut names = watch.unwrap().names.clone();
    names.sort();
    assert_eq!(names, [("later".into(), false), ("missing".into(), false)]);
}

#[test]
fn devices_are_opened_by_number_and_terminals_by_file_system() {
    let mut case = Case::new();
    case.devices = ["/dev/zero", "/dev/not-there", "/etc"]
        .map(|path| Device {
            path: path.into(),
            label: path.into(),
        })
        .into();
    let terminals = |dev, source: &str| Mount {
        id: 1,
        parent: 0,
        dev,
        root: "/".into(),
        point: "/dev/pts".into(),
        fs_type: "devpts".into(),
        source: source.into(),
        options: Vec::new(),
    };
    case.mounts = vec![terminals(20, "devpts"), terminals(21, OWN_MOUNT)];
    let found: Vec<(u32, u32)> = case
        .compiled()
        .keys()
        .filter(|key| matches!(key.kind, kind::DEVICE | kind::TERMINALS))
        .map(|key| (key.kind, key.dev))
        .collect();
    assert_eq!(found, [(kind::DEVICE, 1 << 20 | 5), (kind::TERMINALS, 21)]);
}

#[test]
fn a_link_in_the_workspace_opens_no_device() {
    let mut case = Case::new();
    fs::create_dir(case.at("work")).unwrap();
    for link in ["work/device", "device"] {
        symlink("/dev/zero", case.at(link)).unwrap();
    }
    case.workspace = Some(case.at("work"));
    let opened = |case: &Case| case.compiled().keys().any(|key| key.kind == kind::DEVICE);
    for (link, expected) in [("work/device", false), ("device", true)] {
        case.devices = vec![Device {
            path: case.at(link),
            label: link.into(),
        }];
        assert_eq!(opened(&case), expected, "{link}");
    }
}

#[test]
fn a_link_that_leads_elsewhere_is_looked_up_anew_whatever_its_number() {
    let case = Case::new().with("link", Access::Deny);
    fs::create_dir(case.at("one")).unwrap();
    fs::create_dir(case.at("other")).unwrap();
    symlink("one", case.at("link")).unwrap();
    let policy = Policy::new(
        "case".into(),
        Mode::Enforce,
        case.rules.clone(),
        Network::default(),
        Environment::default(),
    );
    let circumstances = Circumstances {
        generation: 3,
        seed: SEED,
        mounts: &[],
        own: None,
        lower: None,
    };
    let compiled = compile(&policy, circumstances, &Silent).unwrap().share();
    let renew = || crate::kernel::renew(&compiled, circumstances, &Silent).unwrap();
    assert!(renew().is_some());
    fs::remove_file(case.at("link")).unwrap();
    symlink("other", case.at("link")).unwrap();
    assert!(renew().is_none());
}
