//! What a process holds open that the walls cannot take back: they stand at
//! opening and connecting, and these are open and connected.

use std::{
    fs, io,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::Path,
};

use super::EnrollError;
use crate::escape::display;

/// A descriptor that reaches past the walls, because it is open already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inherited {
    /// Who holds it.
    pub pid: u32,
    /// Its number.
    pub fd: u32,
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
            format!("{kind} `{target}` (descriptor {fd} of process {pid})")
        })
        .collect::<Vec<_>>()
        .join(", ");
    match found.len().saturating_sub(NAMED) {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}

fn of_process(pid: u32) -> Result<Vec<Inherited>, EnrollError> {
    let dir = format!("/proc/{pid}/fd");
    let entries = match fs::read_dir(&dir) {
        Ok(entries) => entries,
        // It has ended.
        Err(error) if gone(&error) => return Ok(Vec::new()),
        Err(source) => {
            return Err(EnrollError::Read {
                path: dir.into(),
                source,
            });
        }
    };
    let mut found = Vec::new();
    for entry in entries {
        let Ok(entry) = entry else {
            break;
        };
        let Some(fd) = entry.file_name().to_str().and_then(|fd| fd.parse().ok()) else {
            continue;
        };
        if fd <= 2 {
            continue;
        }
        match kind(pid, fd, &entry.path()) {
            Ok(Some((kind, target))) => found.push(Inherited {
                pid,
                fd,
                kind,
                target,
            }),
            Ok(None) => {}
            // Closed since, or its process ended.
            Err(error) if gone(&error) => {}
            Err(source) => {
                return Err(EnrollError::Read {
                    path: entry.path(),
                    source,
                });
            }
        }
    }
    found.sort_by_key(|held| held.fd);
    Ok(found)
}

/// What a descriptor is, if it reaches past the walls.
fn kind(pid: u32, fd: u32, link: &Path) -> io::Result<Option<(&'static str, String)>> {
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
        writable(pid, fd)?,
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

fn writable(pid: u32, fd: u32) -> io::Result<bool> {
    let text = fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}"))?;
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
            .find(|held| held.fd == fd)
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
    fn a_long_list_is_cut() {
        let held = Inherited {
            pid: 7,
            fd: 9,
            kind: "socket",
            target: "socket:[1]".to_owned(),
        };
        let text = list(&vec![held; NAMED + 3]);
        assert!(text.ends_with(" and 3 more"));
        assert!(text.contains("socket `socket:[1]` (descriptor 9 of process 7)"));
    }
}
