//! Attacks on files.

use std::{
    ffi::{CString, OsStr},
    os::{
        fd::{AsFd as _, AsRawFd as _, OwnedFd},
        unix::{ffi::OsStrExt as _, net::UnixListener},
    },
};

use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, AtFlags, OFlag, RenameFlags, open, readlink, renameat2},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        stat::{
            FchmodatFlags, Mode, UtimensatFlags, fchmod, fchmodat, fstat, lstat, stat, utimensat,
        },
        time::TimeSpec,
    },
    unistd,
};

use super::{Found, Kept, number, text};

const NONE: Result<String, Errno> = Ok(String::new());

pub(super) fn perform(kept: &mut Kept, operation: &str, arguments: &[&OsStr]) -> Option<Found> {
    Some(match (operation, arguments) {
        ("open", [path, flags]) => open_as(path, text(flags)).and(NONE),
        ("read", [path]) => read(path),
        ("append", [path]) => append(path),
        ("put", [path, content]) => put(path, content),
        ("list", [path]) => list(path),
        ("stat", [path]) => stat(*path).map(|found| found.st_size.to_string()),
        ("lstat", [path]) => lstat(*path).and(NONE),
        ("readlink", [path]) => readlink(*path).map(|target| target.display().to_string()),
        ("access", [path]) => unistd::access(*path, unistd::AccessFlags::F_OK).and(NONE),
        ("exec", [path]) => execute(path),
        ("truncate", [path]) => unistd::truncate(*path, 0).and(NONE),
        ("mkdir", [path]) => unistd::mkdir(*path, Mode::from_bits_truncate(0o755)).and(NONE),
        ("mkfifo", [path]) => unistd::mkfifo(*path, Mode::from_bits_truncate(0o644)).and(NONE),
        ("bind", [path]) => UnixListener::bind(path)
            .map_err(|error| super::errno(&error))
            .and(NONE),
        ("symlink", [target, path]) => unistd::symlinkat(*target, AT_FDCWD, *path).and(NONE),
        ("link", [old, new]) => link(old, new, AtFlags::empty()),
        ("link-open", [old, new]) => open_as(old, "path").and_then(|file| {
            let old = format!("/proc/self/fd/{}", file.as_raw_fd());
            link(OsStr::new(&old), new, AtFlags::AT_SYMLINK_FOLLOW)
        }),
        ("unlink", [path]) => unistd::unlink(*path).and(NONE),
        ("rmdir", [path]) => rmdir(path),
        ("rename", [old, new]) => rename(old, new, RenameFlags::empty()),
        ("rename-new", [old, new]) => rename(old, new, RenameFlags::RENAME_NOREPLACE),
        ("exchange", [old, new]) => rename(old, new, RenameFlags::RENAME_EXCHANGE),
        ("chmod", [path]) => chmod(path),
        ("mode", [path, mode]) => {
            fchmodat(AT_FDCWD, *path, octal(mode), FchmodatFlags::FollowSymlink).and(NONE)
        }
        ("make", [path, mode]) => make(path, OFlag::O_CREAT | OFlag::O_EXCL, mode),
        ("make-nameless", [path, mode]) => make(path, OFlag::O_TMPFILE, mode),
        ("fchmod", [path]) => open_as(path, "r")
            .and_then(|file| fchmod(&file, Mode::from_bits_truncate(0o640)))
            .and(NONE),
        ("chown", [path]) => unistd::chown(*path, None, Some(unistd::getgid())).and(NONE),
        ("utimes", [path]) => utimes(path),
        ("chdir", [path]) => unistd::chdir(*path).and(NONE),
        ("chroot", [path]) => unistd::chroot(*path).and(NONE),
        ("reopen", [path, flags]) => open_as(path, "path").and_then(|file| {
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            open_as(OsStr::new(&path), text(flags)).and(NONE)
        }),
        ("keep", [name, path, flags]) => open_as(path, text(flags)).map(|file| {
            kept.descriptors.insert(text(name).to_owned(), file);
            String::new()
        }),
        ("kept-truncate", [name]) => unistd::ftruncate(&kept.descriptors[text(name)], 0).and(NONE),
        ("kept-stat", [name]) => fstat(&kept.descriptors[text(name)]).and(NONE),
        ("kept-reopen", [name, flags]) => {
            let file = kept.descriptors[text(name)].as_raw_fd();
            open_as(OsStr::new(&format!("/proc/self/fd/{file}")), text(flags)).and(NONE)
        }
        ("deep", [path, depth]) => deep(path, number(depth)),
        ("many", [path, count]) => {
            let results: Vec<_> = (0..number::<u32>(count))
                .map(|_| open_as(path, "r").and(NONE))
                .collect();
            results.last().cloned().unwrap_or(NONE)
        }
        ("hammer", [path]) => hammer(path),
        ("flood", [path, count]) => {
            for number in 0..number::<u32>(count) {
                let path = format!("{}{number}", path.display());
                assert!(open_as(OsStr::new(&path), "creat").is_err(), "{path}");
            }
            NONE
        }
        _ => return None,
    })
}

/// Opens with flags such as `rw+creat`.
fn open_as(path: &OsStr, flags: &str) -> Result<OwnedFd, Errno> {
    let mut bits = OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    for flag in flags.split('+') {
        bits |= match flag {
            "r" => OFlag::O_RDONLY,
            "w" => OFlag::O_WRONLY,
            "rw" => OFlag::O_RDWR,
            // For ioctl(2) alone.
            "neither" => OFlag::O_ACCMODE,
            "append" => OFlag::O_WRONLY | OFlag::O_APPEND,
            "trunc" => OFlag::O_WRONLY | OFlag::O_TRUNC,
            "trunc-only" => OFlag::O_TRUNC,
            "creat" => OFlag::O_WRONLY | OFlag::O_CREAT,
            "excl" => OFlag::O_EXCL,
            "tmpfile" => OFlag::O_RDWR | OFlag::O_TMPFILE,
            "path" => OFlag::O_PATH,
            "nofollow" => OFlag::O_NOFOLLOW,
            "directory" => OFlag::O_DIRECTORY,
            other => panic!("no flag `{other}`"),
        };
    }
    open(path, bits, Mode::from_bits_truncate(0o644))
}

fn read(path: &OsStr) -> Found {
    let file = open_as(path, "r")?;
    let mut buffer = [0; 64];
    let length = unistd::read(&file, &mut buffer)?;
    let content = String::from_utf8_lossy(&buffer[..length]);
    Ok(content.lines().next().unwrap_or_default().to_owned())
}

fn append(path: &OsStr) -> Found {
    let file = open_as(path, "append")?;
    unistd::write(&file, b"attacked\n").and(NONE)
}

/// As a shell does with `>`.
fn put(path: &OsStr, content: &OsStr) -> Found {
    std::fs::write(path, content.as_bytes())
        .map_err(|error| super::errno(&error))
        .and(NONE)
}

fn list(path: &OsStr) -> Found {
    let entries = std::fs::read_dir(path).map_err(|error| super::errno(&error))?;
    Ok(entries.count().to_string())
}

fn execute(path: &OsStr) -> Found {
    match std::process::Command::new(path).output() {
        Ok(_) => NONE,
        Err(error) => Err(super::errno(&error)),
    }
}

fn link(old: &OsStr, new: &OsStr, flags: AtFlags) -> Found {
    unistd::linkat(AT_FDCWD, old, AT_FDCWD, new, flags).and(NONE)
}

fn rmdir(path: &OsStr) -> Found {
    std::fs::remove_dir(path)
        .map_err(|error| super::errno(&error))
        .and(NONE)
}

fn rename(old: &OsStr, new: &OsStr, flags: RenameFlags) -> Found {
    renameat2(AT_FDCWD, old, AT_FDCWD, new, flags).and(NONE)
}

/// As the system call has it: `4755`.
fn octal(mode: &OsStr) -> Mode {
    Mode::from_bits_truncate(u32::from_str_radix(text(mode), 8).unwrap())
}

fn make(path: &OsStr, flags: OFlag, mode: &OsStr) -> Found {
    open(path, OFlag::O_RDWR | OFlag::O_CLOEXEC | flags, octal(mode)).and(NONE)
}

fn chmod(path: &OsStr) -> Found {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))
        .map_err(|error| super::errno(&error))
        .and(NONE)
}

fn utimes(path: &OsStr) -> Found {
    let time = TimeSpec::new(1, 0);
    utimensat(AT_FDCWD, path, &time, &time, UtimensatFlags::FollowSymlink).and(NONE)
}

/// Tries without a pause until somebody writes to stdin.
fn hammer(path: &OsStr) -> Found {
    let stdin = std::io::stdin();
    loop {
        if let Ok(found) = read(path) {
            return Ok(found);
        }
        let mut waiting = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
        if poll(&mut waiting, PollTimeout::ZERO)? > 0 {
            return Err(Errno::ENOENT);
        }
    }
}

/// Makes `depth` directories in each other, goes into them one by one, and
/// creates a file in the last.
fn deep(path: &OsStr, depth: u32) -> Found {
    unistd::chdir(path)?;
    for _ in 0..depth {
        let name = CString::new(b"d".as_slice()).map_err(|_| Errno::EINVAL)?;
        match unistd::mkdir(name.as_c_str(), Mode::from_bits_truncate(0o755)) {
            Ok(()) | Err(Errno::EEXIST) => unistd::chdir(name.as_c_str())?,
            Err(errno) => return Err(errno),
        }
    }
    open_as(OsStr::from_bytes(b"file"), "creat").and(NONE)
}
