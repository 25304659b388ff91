//! Controllers: what the kernel bounds, and counts, for a cgroup.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    path::Path,
};

use super::{Cgroup, CgroupError};

/// A controller that is used: its name in cgroup2, and in `/proc/cgroups`.
type Controller = (&'static str, &'static str);

const MEMORY: Controller = ("memory", "memory");
const CPU: Controller = ("cpu", "cpu");
const PIDS: Controller = ("pids", "pids");
const IO: Controller = ("io", "blkio");
const ALL: [Controller; 4] = [MEMORY, CPU, PIDS, IO];

/// The kernel's own, in microseconds.
const CPU_PERIOD: u32 = 100_000;

/// What the processes of a cgroup may take together; none: no bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bounds {
    /// Bytes, without swap.
    pub memory: Option<u64>,
    /// Thousandths of a processor.
    pub cpu_millis: Option<u32>,
    /// Processes and threads.
    pub pids: Option<u32>,
}

/// Which controllers there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Controllers(u8);

impl Controllers {
    pub(super) fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    pub(super) fn bits(self) -> u8 {
        self.0
    }

    /// Those that cgroups in this directory may have.
    pub fn available(directory: &Path) -> Self {
        Self::read(&directory.join("cgroup.controllers"))
    }

    /// Those that are used, and are not there.
    pub fn missing(self) -> impl Iterator<Item = &'static str> {
        self.names(false)
    }

    /// Those that are used, and are there.
    pub fn present(self) -> impl Iterator<Item = &'static str> {
        self.names(true)
    }

    fn names(self, present: bool) -> impl Iterator<Item = &'static str> {
        let all = ALL.iter().enumerate();
        all.filter(move |(bit, _)| (self.0 & 1 << bit != 0) == present)
            .map(|(_, controller)| controller.0)
    }

    fn read(list: &Path) -> Self {
        let list = fs::read_to_string(list).unwrap_or_default();
        let has = |name: &&str| list.split_whitespace().any(|it| it == *name);
        let bits = ALL.iter().enumerate();
        Self(bits.fold(0, |bits, (bit, (name, _))| {
            bits | u8::from(has(name)) << bit
        }))
    }
}

/// Gives the cgroups below a directory all controllers that there are; which they
/// have now. Where systemd runs, it takes none away that a cgroup below uses.
pub(super) fn enable(directory: &Path) -> Controllers {
    let control = directory.join("cgroup.subtree_control");
    let missing: Vec<_> = Controllers::read(&control).missing().collect();
    for name in missing {
        // One that cannot be had must not keep the others from being had. What
        // needs it says so.
        let _ = write(&control, &format!("+{name}"));
    }
    Controllers::read(&control)
}

/// Why a controller is missing, and what to do about it.
pub fn missing(name: &str) -> (&'static str, String) {
    let list = fs::read_to_string("/proc/cgroups").unwrap_or_default();
    explain(&list, name)
}

fn explain(list: &str, name: &str) -> (&'static str, String) {
    let old_name = ALL.iter().find(|it| it.0 == name).map_or(name, |it| it.1);
    let line = list.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        match fields[..] {
            [it, hierarchy, _, enabled] if it == old_name => Some((hierarchy != "0", enabled)),
            _ => None,
        }
    });
    match line {
        Some((_, "0")) => (
            "the kernel was booted without it",
            format!("boot without `cgroup_disable={name}` on the kernel's command line"),
        ),
        Some((true, _)) => (
            "cgroup v1 has it",
            format!(
                "boot with `systemd.unified_cgroup_hierarchy=1`, or with \
                 `cgroup_no_v1={old_name}`, on the kernel's command line"
            ),
        ),
        Some((false, _)) => (
            "the cgroups above do not hand it down",
            format!("add `+{name}` to `cgroup.subtree_control` at the top of cgroup2"),
        ),
        None => (
            "this kernel is built without it",
            "boot a kernel that has it".to_owned(),
        ),
    }
}

impl Cgroup {
    /// Gives the cgroups below it these controllers; false: it has not all of them.
    pub(super) fn hand_down(&self, controllers: Controllers) -> bool {
        let words: Vec<String> = controllers
            .present()
            .map(|name| format!("+{name}"))
            .collect();
        words.is_empty()
            || write(
                &self.path().join("cgroup.subtree_control"),
                &words.join(" "),
            )
            .is_ok()
    }

    /// Changes what its processes may take together. What exceeds a smaller bound
    /// already is not taken away, but for memory: that is reclaimed, and where that
    /// is not enough the kernel kills.
    pub fn bound(&self, from: &Bounds, to: &Bounds) -> Result<(), CgroupError> {
        if from.memory != to.memory {
            let swap = to.memory.map(|_| 0);
            self.set(MEMORY, "memory.swap.max", &or_max(swap))?;
            self.set(MEMORY, "memory.max", &or_max(to.memory))?;
        }
        if from.cpu_millis != to.cpu_millis {
            let quota = to.cpu_millis.map(|millis| millis * (CPU_PERIOD / 1000));
            let quota = format!("{} {CPU_PERIOD}", or_max(quota));
            self.set(CPU, "cpu.max", &quota)?;
        }
        if from.pids != to.pids {
            self.set(PIDS, "pids.max", &or_max(to.pids))?;
        }
        Ok(())
    }

    /// When the kernel is out of memory, it dies as a whole; without the controller
    /// that is the kernel's choice.
    pub fn die_together(&self) {
        let _ = write(&self.path().join("memory.oom.group"), "1");
    }

    /// What one of its files says; none: it has no such file.
    pub fn value(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.path().join(file)).ok()
    }

    fn set(&self, controller: Controller, file: &str, value: &str) -> Result<(), CgroupError> {
        let path = self.path().join(file);
        match write(&path, value) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.path().exists() => {
                let (why, remedy) =
                    if self.path().join("memory.max").exists() && file == "memory.swap.max" {
                        let remedy = "boot with `swapaccount=1` on the kernel's command line";
                        ("swap is not counted", remedy.to_owned())
                    } else {
                        missing(controller.0)
                    };
                Err(CgroupError::NoController {
                    name: controller.0,
                    why,
                    remedy,
                })
            }
            written => written.map_err(|source| CgroupError::Bound { path, source }),
        }
    }
}

fn or_max<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "max".to_owned(), |value| value.to_string())
}

/// The file has to be there: cgroupfs has no others.
fn write(path: &Path, value: &str) -> io::Result<()> {
    OpenOptions::new()
        .write(true)
        .open(path)?
        .write_all(value.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_are_those_that_a_list_names() {
        let directory = tempfile::tempdir().unwrap();
        let list = directory.path().join("cgroup.controllers");
        fs::write(&list, "cpuset cpu hugetlb pids\n").unwrap();
        let found = Controllers::available(directory.path());
        assert_eq!(found.present().collect::<Vec<_>>(), ["cpu", "pids"]);
        assert_eq!(found.missing().collect::<Vec<_>>(), ["memory", "io"]);
        assert_eq!(Controllers::from_bits(found.bits()), found);
        let none = Controllers::available(Path::new("/nonexistent"));
        assert_eq!(none, Controllers::default());
    }

    #[test]
    fn why_a_controller_is_missing_decides_what_to_do() {
        let list = "#subsys_name\thierarchy\tnum_cgroups\tenabled\n\
                    cpu\t0\t10\t1\nblkio\t7\t1\t1\nmemory\t0\t1\t0\n";
        for (name, says) in [
            ("cpu", "subtree_control"),
            ("io", "cgroup_no_v1=blkio"),
            ("memory", "cgroup_disable=memory"),
            ("pids", "a kernel that has it"),
        ] {
            let (_, remedy) = explain(list, name);
            assert!(remedy.contains(says), "{remedy}");
        }
    }
}
