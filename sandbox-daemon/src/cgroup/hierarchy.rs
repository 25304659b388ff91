//! The host's cgroup2 hierarchy and the slice that holds every sandbox.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Component, Path, PathBuf},
    sync::atomic::{AtomicU8, Ordering},
};

use super::{Cgroup, CgroupError, Controllers, controllers};
use crate::sys::{Mount, parse_mountinfo};

/// The host's cgroup2 hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    mount: PathBuf,
    /// What of the hierarchy the mount shows, seen from the host's root.
    root: PathBuf,
}

/// The cgroup that holds every sandbox.
#[derive(Debug)]
pub struct Slice {
    hierarchy: Hierarchy,
    cgroup: Cgroup,
    /// Its path below the host's root, as `/proc/PID/cgroup` has it.
    host_path: PathBuf,
    /// What sandboxes are given.
    controllers: AtomicU8,
}

/// Where in the slice a process is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    /// Name of the sandbox's cgroup.
    pub sandbox: String,
    /// Name of the exec's cgroup, if it is in one.
    pub exec: Option<String>,
}

/// The inode number of the host's own cgroup namespace (`PROC_CGROUP_INIT_INO`).
const HOST_NAMESPACE: u64 = 0xEFFF_FFFB;

impl Hierarchy {
    /// Finds it through the mounts: hybrid hosts have it at
    /// `/sys/fs/cgroup/unified`, others elsewhere.
    pub fn find() -> Result<Self, CgroupError> {
        let namespace = Path::new("/proc/self/ns/cgroup");
        let inode = fs::metadata(namespace)
            .map_err(|source| CgroupError::Read {
                path: namespace.to_owned(),
                source,
            })?
            .ino();
        if inode != HOST_NAMESPACE {
            return Err(CgroupError::Namespace);
        }
        let text = fs::read("/proc/self/mountinfo").map_err(CgroupError::ReadMounts)?;
        Self::among(&parse_mountinfo(&text)?).ok_or(CgroupError::NotMounted)
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.mount
    }

    /// Opens the slice of this name at the top, made if it is missing. Where
    /// systemd runs, the slice unit of the same name has the same directory.
    pub fn slice(&self, name: &str) -> Result<Slice, CgroupError> {
        super::group::check_name(name)?;
        let path = self.mount.join(name);
        match fs::create_dir(&path) {
            Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
                return Err(CgroupError::Create { path, source });
            }
            _ => {}
        }
        let level = depth(&self.root) + 1;
        let controllers = self.enable(&path);
        Ok(Slice {
            controllers: AtomicU8::new(controllers.bits()),
            hierarchy: self.clone(),
            cgroup: Cgroup::open(path, level)?,
            host_path: self.root.join(name),
        })
    }

    /// Hands controllers down to the cgroups in a slice.
    fn enable(&self, slice: &Path) -> Controllers {
        controllers::enable(&self.mount);
        controllers::enable(slice)
    }

    /// Directory of the cgroup that a process is in.
    pub fn cgroup_of(&self, pid: u32) -> Result<PathBuf, CgroupError> {
        let file = PathBuf::from(format!("/proc/{pid}/cgroup"));
        let read = || -> io::Result<PathBuf> {
            let text = fs::read(&file)?;
            let text = String::from_utf8_lossy(&text);
            host_path(&text)
                .and_then(|path| path.strip_prefix(&self.root).ok())
                .map(|path| self.mount.join(path))
                .ok_or_else(|| io::Error::other("not in the hierarchy that is mounted"))
        };
        read().map_err(|source| CgroupError::Read { path: file, source })
    }

    fn among(mounts: &[Mount]) -> Option<Self> {
        mounts
            .iter()
            .filter(|mount| mount.fs_type == "cgroup2")
            // The one that shows the most.
            .min_by_key(|mount| depth(&mount.root))
            .map(|mount| Self {
                mount: mount.point.clone(),
                root: mount.root.clone(),
            })
    }
}

impl Slice {
    /// Its name unless the daemon's settings, or a test, have another.
    pub const NAME: &str = "sandboxd.slice";

    /// Its id, as the kernel has it.
    pub fn id(&self) -> u64 {
        self.cgroup.id()
    }

    /// Its level below the host's root, which has level 0, as
    /// `bpf_get_current_ancestor_cgroup_id` counts.
    pub fn level(&self) -> u32 {
        self.cgroup.level()
    }

    /// The level of every sandbox's cgroup.
    pub fn sandbox_level(&self) -> u32 {
        self.level() + 1
    }

    /// The hierarchy it is in.
    pub fn hierarchy(&self) -> &Hierarchy {
        &self.hierarchy
    }

    /// Its own cgroup, to attach programs to.
    pub fn cgroup(&self) -> &Cgroup {
        &self.cgroup
    }

    /// Makes the cgroup of a sandbox. Those in it have the controllers that there
    /// are.
    pub fn create(&self, name: &str) -> Result<Cgroup, CgroupError> {
        let cgroup = self.cgroup.child(name)?;
        if !cgroup.hand_down(self.controllers()) {
            // Somebody took one away while there was no sandbox that used it.
            let found = self.hierarchy.enable(self.cgroup.path());
            self.controllers.store(found.bits(), Ordering::Relaxed);
            cgroup.hand_down(found);
        }
        Ok(cgroup)
    }

    /// The controllers that sandboxes have.
    pub fn controllers(&self) -> Controllers {
        Controllers::from_bits(self.controllers.load(Ordering::Relaxed))
    }

    /// Opens the cgroup of a sandbox that is there already.
    pub fn open(&self, name: &str) -> Result<Cgroup, CgroupError> {
        self.cgroup.open_child(name)
    }

    /// The same of one that goes on: those in it have the controllers from now on.
    pub fn adopt(&self, name: &str) -> Result<Cgroup, CgroupError> {
        let cgroup = self.open(name)?;
        cgroup.hand_down(self.controllers());
        Ok(cgroup)
    }

    /// Names of the sandboxes' cgroups that are there, such as a daemon before
    /// this one may have left.
    pub fn leftovers(&self) -> Result<Vec<String>, CgroupError> {
        self.cgroup.children()
    }

    /// Which sandbox a process is in, if any.
    pub fn membership(&self, pid: u32) -> Result<Option<Membership>, CgroupError> {
        let path = PathBuf::from(format!("/proc/{pid}/cgroup"));
        let text = fs::read(&path).map_err(|source| CgroupError::Read { path, source })?;
        let text = String::from_utf8_lossy(&text);
        Ok(Membership::parse(&text, &self.host_path))
    }

    /// Whether a process of this membership is in this very cgroup.
    pub fn is_at(&self, membership: &Membership, cgroup: &Cgroup) -> bool {
        let sandbox = self.cgroup.path().join(&membership.sandbox);
        let place = membership
            .exec
            .as_ref()
            .map_or_else(|| sandbox.clone(), |exec| sandbox.join(exec));
        place == cgroup.path()
    }
}

impl Membership {
    /// Reads it from a `/proc/PID/cgroup`, where `slice` is the slice's path
    /// below the host's root.
    pub fn parse(text: &str, slice: &Path) -> Option<Self> {
        let mut names = host_path(text)?
            .strip_prefix(slice)
            .ok()?
            .components()
            .map(|name| name.as_os_str().to_string_lossy().into_owned());
        Some(Self {
            // A process in the slice itself is in no sandbox that has a name.
            sandbox: names.next().unwrap_or_default(),
            exec: names.next(),
        })
    }
}

/// The cgroup2 path in `/proc/PID/cgroup`.
fn host_path(text: &str) -> Option<&Path> {
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some(Path::new(path.strip_suffix(" (deleted)").unwrap_or(path)))
}

fn depth(path: &Path) -> u32 {
    let names = path
        .components()
        .filter(|component| matches!(component, Component::Normal(_)))
        .count();
    u32::try_from(names).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hierarchy(mountinfo: &str) -> Option<Hierarchy> {
        Hierarchy::among(&parse_mountinfo(mountinfo.as_bytes()).unwrap())
    }

    #[test]
    fn a_hybrid_host_has_it_below_unified() {
        let found = hierarchy(
            "40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n\
             41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
        )
        .unwrap();
        assert_eq!(found.path(), Path::new("/sys/fs/cgroup/unified"));
        assert_eq!(depth(&found.root), 0);
    }

    #[test]
    fn a_bound_part_of_it_keeps_the_levels_above() {
        let found = hierarchy("41 31 0:38 /a/b /mnt rw - cgroup2 cgroup2 rw\n").unwrap();
        assert_eq!(depth(&found.root), 2);
    }

    #[test]
    fn the_mount_that_shows_all_is_preferred() {
        let found = hierarchy(
            "41 31 0:38 /a /mnt rw - cgroup2 cgroup2 rw\n\
             42 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        )
        .unwrap();
        assert_eq!(found.path(), Path::new("/sys/fs/cgroup"));
    }

    #[test]
    fn a_process_is_in_the_sandbox_that_its_cgroup_lies_below() {
        let inside = |text: &str| Membership::parse(text, Path::new("/sandboxd.slice"));
        let membership = |sandbox: &str, exec: Option<&str>| {
            Some(Membership {
                sandbox: sandbox.into(),
                exec: exec.map(str::to_owned),
            })
        };
        let text = "1:name=x:/\n0::/sandboxd.slice/0sbx/exec1/deeper (deleted)\n";
        assert_eq!(inside(text), membership("0sbx", Some("exec1")));
        assert_eq!(inside("0::/sandboxd.slice\n"), membership("", None));
        assert_eq!(inside("0::/user.slice/session-1.scope\n"), None);
        assert_eq!(inside("0::/user.slice/sandboxd.slice/x\n"), None);
        assert_eq!(inside("4:cpu:/sandboxd.slice/x\n"), None);
    }

    #[test]
    fn without_cgroup2_there_is_none() {
        assert_eq!(hierarchy("1 0 0:1 / / rw - tmpfs none rw\n"), None);
    }
}
