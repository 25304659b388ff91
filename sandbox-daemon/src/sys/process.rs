//! What `/proc/PID/stat` and `/proc/PID/status` say of a process.

use std::{
    fs::File,
    io::{self, Read as _},
    string::FromUtf8Error,
};

/// Fields of `/proc/PID/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessStat {
    /// One letter; `Z` has ended and waits for its parent.
    pub state: char,
    /// Its parent.
    pub parent: u32,
    /// Its process group.
    pub group: i32,
    /// How many threads it has, one that has ended but leads others included.
    pub threads: u32,
    /// Kernel threads carry `PF_KTHREAD` here.
    pub flags: u32,
    /// When it started, in clock ticks since boot (field 22).
    pub start_time: u64,
}

/// The four ids of one kind that a process has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ids {
    /// Who started it.
    pub real: u32,
    /// Whose rights it has.
    pub effective: u32,
    /// What it may return to.
    pub saved: u32,
    /// Whose rights it has on files.
    pub fs: u32,
}

/// Fields of `/proc/PID/status`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// User ids.
    pub uid: Ids,
    /// Group ids.
    pub gid: Ids,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Effective capabilities, a bit each.
    pub effective: u64,
    /// Capabilities that an exec may still give.
    pub bounding: u64,
    /// Whether `no_new_privs` is set.
    pub no_new_privileges: bool,
    /// 0 without, 1 strict, 2 filter.
    pub seccomp: u32,
}

/// More than most such files have.
const USUAL: usize = 4096;

const PF_KTHREAD: u32 = 0x0020_0000;

impl ProcessStat {
    /// Whether this is a thread of the kernel's own.
    pub fn is_kernel_thread(&self) -> bool {
        self.flags & PF_KTHREAD != 0
    }

    /// Whether it has ended and only its entry is left.
    pub fn is_dead(&self) -> bool {
        self.is_headless() && self.threads <= 1
    }

    /// Whether its first thread has ended, which others may outlive.
    pub fn is_headless(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }

    fn parse(text: &str) -> Option<Self> {
        // The name in parentheses may itself hold spaces and parentheses.
        let (_, rest) = text.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        Some(Self {
            state: fields.first()?.chars().next()?,
            parent: fields.get(1)?.parse().ok()?,
            group: fields.get(2)?.parse().ok()?,
            flags: fields.get(6)?.parse().ok()?,
            threads: fields.get(17)?.parse().ok()?,
            start_time: fields.get(19)?.parse().ok()?,
        })
    }
}

impl Ids {
    /// Whether all four are this one.
    pub fn all(&self, id: u32) -> bool {
        [self.real, self.effective, self.saved, self.fs] == [id; 4]
    }

    fn parse(text: &str) -> Option<Self> {
        let ids: Vec<u32> = numbers(text)?;
        match ids[..] {
            [real, effective, saved, fs] => Some(Self {
                real,
                effective,
                saved,
                fs,
            }),
            _ => None,
        }
    }
}

impl Status {
    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.lines().filter_map(|line| line.split_once(':'));
        // In the kernel's order.
        let mut field = |name: &str| {
            let found = fields.find(|(found, _)| *found == name);
            found.map(|(_, value)| value.trim())
        };
        Some(Self {
            uid: Ids::parse(field("Uid")?)?,
            gid: Ids::parse(field("Gid")?)?,
            groups: numbers(field("Groups")?)?,
            effective: u64::from_str_radix(field("CapEff")?, 16).ok()?,
            bounding: u64::from_str_radix(field("CapBnd")?, 16).ok()?,
            no_new_privileges: field("NoNewPrivs")? != "0",
            // Absent in a kernel without seccomp.
            seccomp: field("Seccomp").unwrap_or("0").parse().ok()?,
        })
    }
}

/// Reads `/proc/PID/stat`.
pub fn process_stat(pid: u32) -> io::Result<ProcessStat> {
    ProcessStat::parse(&read(&format!("/proc/{pid}/stat"))?).ok_or_else(malformed)
}

/// Reads `/proc/PID/status`.
pub fn process_status(pid: u32) -> io::Result<Status> {
    Status::parse(&read(&format!("/proc/{pid}/status"))?).ok_or_else(malformed)
}

/// Reads a file that has no size. Names in it may be anything.
fn read(path: &str) -> io::Result<String> {
    let mut text = Vec::with_capacity(USUAL);
    File::open(path)?.take(u64::MAX).read_to_end(&mut text)?;
    let lossy = |error: FromUtf8Error| String::from_utf8_lossy(error.as_bytes()).into_owned();
    Ok(String::from_utf8(text).unwrap_or_else(lossy))
}

/// When a process started, in clock ticks since boot: with the pid it names
/// one process until the next boot.
pub fn start_time(pid: u32) -> io::Result<u64> {
    process_stat(pid).map(|stat| stat.start_time)
}

/// Whether two threads have the same table of descriptors. Where the kernel
/// does not say (before 5.12 it is an option), they have not.
pub fn share_descriptors(one: u32, other: u32) -> bool {
    const KCMP_FILES: i32 = 2;
    // SAFETY: plain integers; the kernel touches no memory of ours.
    one == other || unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_FILES, 0, 0) } == 0
}

fn numbers(text: &str) -> Option<Vec<u32>> {
    text.split_ascii_whitespace()
        .map(|id| id.parse().ok())
        .collect()
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "not as proc(5) describes it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let text = "42 (a) S 1 (b) R 7 8 9 34 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 5544 0 0";
        let stat = ProcessStat::parse(text).unwrap();
        assert_eq!((stat.state, stat.parent, stat.group), ('R', 7, 8));
        assert_eq!((stat.threads, stat.start_time), (1, 5544));
        assert!(!stat.is_kernel_thread());
    }

    #[test]
    fn this_process_has_a_parent_and_ids() {
        let pid = std::process::id();
        assert_eq!(
            process_stat(pid).unwrap().parent,
            nix::unistd::getppid().as_raw().cast_unsigned()
        );
        let status = process_status(pid).unwrap();
        assert_eq!(status.uid.effective, nix::unistd::geteuid().as_raw());
        assert!(start_time(pid).unwrap() > 0);
    }

    #[test]
    fn a_kernel_thread_is_told_apart() {
        let text = "2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 12 0 0";
        assert!(ProcessStat::parse(text).unwrap().is_kernel_thread());
    }
}
