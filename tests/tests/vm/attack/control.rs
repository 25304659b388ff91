//! Attacks through what is not opening: attributes, ioctl(2), fcntl(2),
//! watches, devices and terminals.

use std::{
    ffi::{CStr, CString, OsStr},
    io::IoSliceMut,
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
        unix::ffi::OsStrExt as _,
    },
    process,
    ptr::null_mut,
};

use nix::{
    errno::Errno,
    fcntl::{AtFlags, OFlag, open},
    pty::{grantpt, posix_openpt, ptsname_r, unlockpt},
    sys::{
        inotify::{AddWatchFlags, InitFlags, Inotify},
        socket::{ControlMessageOwned, MsgFlags, recvmsg},
        stat::{Mode, SFlag, makedev, mknod},
        wait::{WaitStatus, waitpid},
    },
    unistd::{ForkResult, execveat, fork, setsid},
};

use super::{Found, number, text};

const NONE: Result<String, Errno> = Ok(String::new());

/// Of `F_NOTIFY`: something is made in the directory.
const DN_CREATE: i32 = 4;

pub(super) fn perform(operation: &str, arguments: &[&OsStr]) -> Option<Found> {
    Some(match (operation, arguments) {
        ("setxattr", [path, name]) => set_attribute(path, name),
        ("fsetxattr", [path, name]) => set_open_attribute(path, name),
        ("getxattr", [path, name]) => get_attribute(path, name),
        ("listxattr", [path]) => list_attributes(path),
        ("removexattr", [path, name]) => remove_attribute(path, name),
        ("ioctl", [path, command]) => reading(path)
            .and_then(|file| Call::named(text(command)).perform(&file))
            .and(NONE),
        ("ioctl32", [path, command]) => reading(path)
            .and_then(|file| Call::named(text(command)).perform_as_32_bit(&file))
            .and(NONE),
        ("type", [command]) => on_own_terminal(|terminal| {
            Call::named(text(command)).perform(terminal)?;
            Ok(())
        }),
        ("type32", [command]) => on_own_terminal(|terminal| {
            Call::named(text(command)).perform_as_32_bit(terminal)?;
            Ok(())
        }),
        ("lease", [path]) => reading(path).and_then(|file| {
            fcntl(&file, libc::F_SETLEASE, libc::F_RDLCK)?;
            fcntl(&file, libc::F_SETLEASE, libc::F_UNLCK)
        }),
        ("dnotify", [path]) => {
            reading(path).and_then(|file| fcntl(&file, libc::F_NOTIFY, DN_CREATE))
        }
        ("watch", [path]) => Inotify::init(InitFlags::IN_CLOEXEC)
            .and_then(|watches| watches.add_watch(*path, AddWatchFlags::IN_ALL_EVENTS))
            .and(NONE),
        ("mknod", [path, kind, major, minor]) => {
            let kind = match text(kind) {
                "c" => SFlag::S_IFCHR,
                "b" => SFlag::S_IFBLK,
                other => panic!("no kind of device `{other}`"),
            };
            let device = makedev(number(major), number(minor));
            mknod(*path, kind, Mode::from_bits_truncate(0o600), device).and(NONE)
        }
        ("queue", [name]) => queue(name),
        ("receive", []) => receive(),
        ("exec-open", [path]) => execute_open(path),
        ("terminal", []) => on_own_terminal(|_| {
            let options = OFlag::O_RDWR | OFlag::O_CLOEXEC;
            open("/dev/tty", options, Mode::empty()).map(drop)
        }),
        _ => return None,
    })
}

fn reading(path: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC | OFlag::O_NOCTTY;
    open(path, flags, Mode::empty())
}

/// Opens a POSIX message queue, or makes it.
fn queue(name: &OsStr) -> Found {
    let name = c_string(name);
    let flags = libc::O_RDWR | libc::O_CREAT;
    let attributes = std::ptr::null::<libc::mq_attr>();
    // SAFETY: the name ends with a NUL; without attributes those of the system.
    let queue = unsafe { libc::mq_open(name.as_ptr(), flags, 0o666, attributes) };
    Errno::result(queue).and(NONE)
}

/// What is in the file that somebody sends over stdin, a socket.
fn receive() -> Found {
    let mut byte = [0];
    let mut bytes = [IoSliceMut::new(&mut byte)];
    let mut space = nix::cmsg_space!(RawFd);
    let stdin = std::io::stdin();
    let message = recvmsg::<()>(
        stdin.as_raw_fd(),
        &mut bytes,
        Some(&mut space),
        MsgFlags::MSG_CMSG_CLOEXEC,
    )?;
    // What was kept back is missing from the message (`MSG_CTRUNC`).
    let mut sent = match message.cmsgs() {
        Err(Errno::ENOBUFS) => return Ok("nothing".into()),
        sent => sent?,
    };
    let Some(ControlMessageOwned::ScmRights(files)) = sent.next() else {
        return Err(Errno::ENOMSG);
    };
    let [file] = files[..] else {
        return Err(Errno::EMSGSIZE);
    };
    let mut content = [0; 64];
    // SAFETY: the kernel has just made this descriptor and nobody else owns it.
    let file = unsafe { OwnedFd::from_raw_fd(file) };
    let length = nix::unistd::read(&file, &mut content)?;
    let content = String::from_utf8_lossy(&content[..length]);
    Ok(content.lines().next().unwrap_or_default().to_owned())
}

/// execveat(2) of a descriptor, in a child.
fn execute_open(path: &OsStr) -> Found {
    // An interpreter opens it once more.
    let file = open(path, OFlag::O_PATH, Mode::empty())?;
    let arguments = [c"attacked"];
    let nothing: [&CStr; 0] = [];
    // SAFETY: this program has one thread.
    if let ForkResult::Parent { child } = unsafe { fork() }? {
        return match waitpid(child, None)? {
            WaitStatus::Exited(_, 0) => NONE,
            WaitStatus::Exited(_, errno) => Err(Errno::from_raw(errno)),
            other => panic!("{other:?}"),
        };
    }
    let Err(errno) = execveat(&file, c"", &arguments, &nothing, AtFlags::AT_EMPTY_PATH);
    process::exit(errno as i32);
}

fn c_string(bytes: &OsStr) -> CString {
    CString::new(bytes.as_bytes()).unwrap_or_else(|_| panic!("a NUL in {}", bytes.display()))
}

/// What an attribute is set to: of an ACL a valid one, which lets everybody
/// read (version 2, the three classes of a mode).
fn value(name: &OsStr) -> Vec<u8> {
    if name != "system.posix_acl_access" {
        return b"attacked".to_vec();
    }
    let mut acl = vec![2, 0, 0, 0];
    for tag in [1_u16, 4, 0x20] {
        acl.extend_from_slice(&tag.to_le_bytes());
        acl.extend_from_slice(&6_u16.to_le_bytes());
        acl.extend_from_slice(&u32::MAX.to_le_bytes());
    }
    acl
}

fn set_attribute(path: &OsStr, name: &OsStr) -> Found {
    let (value, path, name) = (value(name), c_string(path), c_string(name));
    // SAFETY: the names end with a NUL, the value has that length.
    Errno::result(unsafe {
        libc::setxattr(
            path.as_ptr(),
            name.as_ptr(),
            value.as_ptr().cast(),
            value.len(),
            0,
        )
    })
    .and(NONE)
}

fn set_open_attribute(path: &OsStr, name: &OsStr) -> Found {
    let file = reading(path)?;
    let (value, name) = (value(name), c_string(name));
    // SAFETY: as in `set_attribute`.
    Errno::result(unsafe {
        libc::fsetxattr(
            file.as_raw_fd(),
            name.as_ptr(),
            value.as_ptr().cast(),
            value.len(),
            0,
        )
    })
    .and(NONE)
}

/// Its length is what it answers.
fn get_attribute(path: &OsStr, name: &OsStr) -> Found {
    let (path, name) = (c_string(path), c_string(name));
    // SAFETY: both end with a NUL, and nothing is written where there is no room.
    let length = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), null_mut(), 0) };
    Errno::result(length).map(|length| length.to_string())
}

fn list_attributes(path: &OsStr) -> Found {
    let path = c_string(path);
    // SAFETY: it ends with a NUL, and nothing is written where there is no room.
    let length = unsafe { libc::listxattr(path.as_ptr(), null_mut(), 0) };
    Errno::result(length).map(|length| length.to_string())
}

fn remove_attribute(path: &OsStr, name: &OsStr) -> Found {
    let (path, name) = (c_string(path), c_string(name));
    // SAFETY: both end with a NUL.
    Errno::result(unsafe { libc::removexattr(path.as_ptr(), name.as_ptr()) }).and(NONE)
}

fn fcntl(file: &OwnedFd, command: i32, argument: i32) -> Found {
    // SAFETY: these commands take numbers.
    Errno::result(unsafe { libc::fcntl(file.as_raw_fd(), command, argument) }).and(NONE)
}

/// An ioctl(2) and what it is given.
struct Call {
    command: u32,
    argument: Vec<u8>,
}

impl Call {
    fn named(name: &str) -> Self {
        let (command, argument) = match name {
            "TIOCSTI" => (0x5412, b"x".to_vec()),
            // Paste the selection of the console.
            "TIOCLINUX" => (0x541c, vec![3]),
            "TIOCGWINSZ" => (0x5413, vec![0; 8]),
            "FS_IOC_GETFLAGS" => (0x8008_6601, vec![0; 8]),
            // FS_NODUMP_FL, and FS_EXTENT_FL, which files have and not all lose.
            "FS_IOC_SETFLAGS" => (0x4008_6602, 0x8_0040_u64.to_le_bytes().to_vec()),
            // EXT4_CASEFOLD_FL
            "FS_IOC_SETFLAGS-casefold" => (0x4008_6602, 0x4000_0000_u64.to_le_bytes().to_vec()),
            "FS_IOC_SETVERSION" => (0x4008_7602, 12345_u64.to_le_bytes().to_vec()),
            "FS_IOC32_SETFLAGS" => (0x4004_6602, 0x8_0040_u32.to_le_bytes().to_vec()),
            "FS_IOC_ENABLE_VERITY" => {
                // Version 1, SHA-256, blocks of 4096 bytes.
                let mut argument = vec![0; 128];
                argument[0] = 1;
                argument[4] = 1;
                argument[8..12].copy_from_slice(&4096_u32.to_le_bytes());
                (0x4080_6685, argument)
            }
            "BTRFS_IOC_SUBVOL_CREATE" => {
                let mut argument = vec![0; 4096];
                argument[8..16].copy_from_slice(b"attacked");
                (0x5000_940e, argument)
            }
            other => panic!("no ioctl `{other}`"),
        };
        Self { command, argument }
    }

    fn perform(mut self, file: &OwnedFd) -> Result<(), Errno> {
        let argument = self.argument.as_mut_ptr();
        // SAFETY: the argument is as long as the command wants it.
        let result = unsafe { libc::ioctl(file.as_raw_fd(), self.command.into(), argument) };
        Errno::result(result).map(drop)
    }

    /// As a program of 32 bits would, which the kernel takes from any.
    fn perform_as_32_bit(self, file: &OwnedFd) -> Result<(), Errno> {
        const LENGTH: usize = 4096;
        // SAFETY: a mapping of its own, where 32 bits reach it.
        let memory = unsafe {
            libc::mmap(
                null_mut(),
                LENGTH,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT,
                -1,
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        // SAFETY: no argument is longer than the mapping.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.argument.as_ptr(),
                memory.cast(),
                self.argument.len(),
            );
        }
        let address = u32::try_from(memory as usize).map_err(|_| Errno::EFAULT)?;
        let descriptor = u64::from(file.as_raw_fd().cast_unsigned());
        let result: i32;
        // SAFETY: ioctl(2) of the table for 32 bits; its number is 54. The first
        // argument goes into ebx, which the compiler keeps for itself.
        unsafe {
            std::arch::asm!(
                "xchg rbx, {descriptor}",
                "int 0x80",
                "xchg rbx, {descriptor}",
                descriptor = inout(reg) descriptor => _,
                inlateout("eax") 54 => result,
                in("ecx") self.command,
                in("edx") address,
                lateout("r8") _,
                lateout("r9") _,
                lateout("r10") _,
                lateout("r11") _,
            );
        }
        if result < 0 {
            return Err(Errno::from_raw(-result));
        }
        Ok(())
    }
}

/// Does something in a session of its own whose controlling terminal is a new
/// one.
fn on_own_terminal(act: impl FnOnce(&OwnedFd) -> Result<(), Errno>) -> Found {
    let master = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let name = ptsname_r(&master)?;
    // SAFETY: this program has one thread.
    if let ForkResult::Parent { child } = unsafe { fork() }? {
        return match waitpid(child, None)? {
            WaitStatus::Exited(_, 0) => NONE,
            WaitStatus::Exited(_, errno) => Err(Errno::from_raw(errno)),
            other => panic!("{other:?}"),
        };
    }
    let done = setsid()
        .and_then(|_| open(name.as_str(), OFlag::O_RDWR, Mode::empty()))
        .and_then(|terminal| act(&terminal));
    drop(master);
    process::exit(done.map_or_else(|errno| errno as i32, |()| 0));
}
