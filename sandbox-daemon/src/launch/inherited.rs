//! What a process holds open that the walls cannot take back: they stand at
//! opening and connecting, and these are open and connected.

use std::{
    fs, io,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use super::EnrollError;
use crate::{escape::display, sys};

/// A descriptor that reaches past the walls, because it is open already; or a
/// mapping, which outlives its descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inherited {
    /// Who holds it.
    pub pid: u32,
    /// Its number; without one it is a mapping.
    pub fd: Option<u32>,
    /// What it is.
    pub kind: &'static str,
    /// What `/proc` calls it, escaped.
    pub target: String,
}

/// How many descriptors a refusal names.
const NAMED: usize = 20;

/// Anonymous inodes that lead nowhere else.
const HARMLESS: [&str; 6] = [
    "eventfd",
    "eventpoll",
    "inotify",
    "pidfd",
    "signalfd",
    "timerfd",
];

/// Refuses processes that hold such descriptors beyond 0 to 2.
pub(super) fn refuse_inherited(pids: impl Iterator<Item = u32>) -> Result<(), EnrollError> {
    let mut found = Vec::new();
    for pid in pids {
        found.extend(of_process(pid)?);
    }
    if found.is_empty() {
        Ok(())
    } else {
        Err(EnrollError::Inherited(found))
    }
}

/// The descriptors in words.
pub(super) fn list(found: &[Inherited]) -> String {
    let text = found
        .iter()
        .take(NAMED)
        .map(|held| {
            let Inherited {
                pid,
                fd,
                kind,
                target,
            } = held;
            match fd {
                Some(fd) => format!("{kind} `{target}` (descriptor {fd} of process {pid})"),
                None => format!("{kind} `{target}` (mapped by process {pid})"),
            }
        })
        .collect::<Vec<_>>()
        .join(", ");
    match found.len().saturating_sub(NAMED) {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}

fn of_process(pid: u32) -> Result<Vec<Inherited>, EnrollError> {
    let mut found = of_table(pid, pid)?;
    for thread in read(format!("/proc/{pid}/task").into(), numbers)? {
        // unshare(2) and clone(2) give a thread descriptors of its own.
        if !sys::share_descriptors(pid, thread) {
            found.extend(of_table(pid, thread)?);
        }
    }
    let mappings = read(format!("/proc/{pid}/smaps").into(), |path| fs::read(path))?;
    found.extend(
        mapped(&String::from_utf8_lossy(&mappings)).map(|target| Inherited {
            pid,
            fd: None,
            kind: "writable file",
            target: display(target.as_bytes()),
        }),
    );
    Ok(found)
}

/// What a process that has ended has is nothing.
fn read<T: Default>(
    path: PathBuf,
    read: impl FnOnce(&Path) -> io::Result<T>,
) -> Result<T, EnrollError> {
    match read(&path) {
        Err(error) if gone(&error) => Ok(T::default()),
        read => read.map_err(|source| EnrollError::Read { path, source }),
    }
}

/// The numbers that a directory of `/proc` lists.
fn numbers(directory: &Path) -> io::Result<Vec<u32>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(directory)? {
        // Its process has ended.
        let Ok(entry) = entry else { break };
        numbers.extend(
            entry
                .file_name()
                .to_str()
                .and_then(|it| it.parse::<u32>().ok()),
        );
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// What a thread has open.
fn of_table(pid: u32, thread: u32) -> Result<Vec<Inherited>, EnrollError> {
    let of_thread = PathBuf::from(format!("/proc/{pid}/task/{thread}"));
    let directory = of_thread.join("fd");
    let mut found = Vec::new();
    for fd in read(directory.clone(), numbers)? {
        if fd <= 2 {
            continue;
        }
        let link = directory.join(fd.to_string());
        match kind(&of_thread, fd, &link) {
            Ok(Some((kind, target))) => found.push(Inherited {
                pid: thread,
                fd: Some(fd),
                kind,
                target,
            }),
            Ok(None) => {}
            // Closed since, or its process ended.
            Err(error) if gone(&error) => {}
            Err(source) => return Err(EnrollError::Read { path: link, source }),
        }
    }
    Ok(found)
}

/// The files of mappings through which they are written, or may be once
/// mprotect(2) has said so, as `/proc/PID/smaps` lists them. Only of a file that
/// was opened for writing is a mapping shared (`sh`).
fn mapped(smaps: &str) -> impl Iterator<Item = &str> {
    let mut target = "";
    smaps.lines().filter_map(move |line| {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            let shared = flags.split_ascii_whitespace().any(|flag| flag == "sh");
            return (shared && !is_memory(target)).then_some(target);
        }
        let mut fields = line.splitn(6, ' ');
        if fields.next().is_some_and(|range| range.contains('-')) {
            target = fields.nth(4).unwrap_or_default().trim_start();
        }
        None
    })
}

/// Whether a mapping is of nothing that a path leads to.
fn is_memory(target: &str) -> bool {
    const MEMORY: [&str; 5] = ["/memfd:", "/SYSV", "/dev/zero", "/[aio]", "["];
    target.is_empty() || MEMORY.iter().any(|prefix| target.starts_with(prefix))
}

/// What a descriptor is, if it reaches past the walls.
fn kind(of_thread: &Path, fd: u32, link: &Path) -> io::Result<Option<(&'static str, String)>> {
    let target = fs::read_link(link)?;
    let target = display(target.as_os_str().as_encoded_bytes());
    let metadata = match fs::metadata(link) {
        // On a FUSE mount that shows nothing even to root.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return Ok(Some(("file that cannot be examined", target)));
        }
        metadata => metadata?,
    };
    let kind = kind_of(
        &target,
        metadata.file_type(),
        metadata.rdev(),
        writable(&of_thread.join(format!("fdinfo/{fd}")))?,
    );
    Ok(kind.map(|kind| (kind, target)))
}

fn gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

fn kind_of(
    target: &str,
    file_type: fs::FileType,
    device: u64,
    writable: bool,
) -> Option<&'static str> {
    if let Some(name) = target.strip_prefix("anon_inode:") {
        let name = name.trim_matches(['[', ']']);
        return (!HARMLESS.contains(&name)).then_some("kernel object");
    }
    if target.starts_with("pidfd:") || target.starts_with("/memfd:") {
        return None;
    }
    if file_type.is_socket() {
        Some("socket")
    } else if file_type.is_dir() {
        Some("directory")
    } else if file_type.is_block_device() {
        Some("block device")
    } else if file_type.is_char_device() {
        (!ordinary_device(device)).then_some("device")
    } else if file_type.is_fifo() {
        None
    } else {
        writable.then_some("writable file")
    }
}

/// Those that every sandbox may open: null, zero, full, random, urandom, tty,
/// ptmx and pseudo-terminals.
fn ordinary_device(device: u64) -> bool {
    match (libc::major(device), libc::minor(device)) {
        (1, minor) => matches!(minor, 3 | 5 | 7 | 8 | 9),
        (5, minor) => matches!(minor, 0 | 2),
        (major, _) => (136..=143).contains(&major),
    }
}

fn writable(fdinfo: &Path) -> io::Result<bool> {
    let text = fs::read_to_string(fdinfo)?;
    let flags = text
        .lines()
        .find_map(|line| line.strip_prefix("flags:"))
        .and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no flags in fdinfo"))?;
    Ok(flags & libc::O_PATH == 0 && flags & libc::O_ACCMODE != libc::O_RDONLY)
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{File, OpenOptions},
        os::{fd::AsRawFd as _, unix::net::UnixStream},
    };

    use super::*;

    fn kinds(fd: &impl std::os::fd::AsRawFd) -> Option<&'static str> {
        let fd = fd.as_raw_fd().cast_unsigned();
        of_process(std::process::id())
            .unwrap()
            .into_iter()
            .find(|held| held.fd == Some(fd))
            .map(|held| held.kind)
    }

    #[test]
    fn what_reaches_past_the_walls_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        let written = File::create(&file).unwrap();
        let read = File::open(&file).unwrap();
        let (socket, _other) = UnixStream::pair().unwrap();
        let directory = File::open(dir.path()).unwrap();
        let (pipe, _end) = nix::unistd::pipe().unwrap();
        let null = OpenOptions::new().write(true).open("/dev/null").unwrap();
        assert_eq!(kinds(&written), Some("writable file"));
        assert_eq!(kinds(&socket), Some("socket"));
        assert_eq!(kinds(&directory), Some("directory"));
        assert_eq!(kinds(&read), None);
        assert_eq!(kinds(&pipe.as_raw_fd()), None);
        assert_eq!(kinds(&null), None);
    }

    #[test]
    fn a_mapping_that_writes_to_a_file_is_found() {
        let line = "7f00-7f01 r--s 00000000 fd:00 42    ";
        let smaps = |target: &str, flags: &str| {
            format!("{line}{target}\nSize: 4 kB\nVmFlags: rd mr {flags} \n")
        };
        let text = [
            smaps("/home/a b", "mw me ms sh"),
            smaps("/only/read", "me ms"),
            smaps("/memfd:x (deleted)", "mw sh"),
            smaps("", "mw sh"),
        ];
        assert_eq!(mapped(&text.concat()).collect::<Vec<_>>(), ["/home/a b"]);
    }

    #[test]
    fn a_long_list_is_cut() {
        let held = Inherited {
            pid: 7,
            fd: Some(9),
            kind: "socket",
            target: "socket:[1]".to_owned(),
        };
        let text = list(&vec![held; NAMED + 3]);
        assert!(text.ends_with(" and 3 more"));
        assert!(text.contains("socket `socket:[1]` (descriptor 9 of process 7)"));
    }
}
