//! Attacks on the kernel: privileges, mounts, and interfaces that no sandbox
//! needs.

use std::{
    ffi::{CString, OsStr},
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
        unix::ffi::OsStrExt as _,
    },
    process,
};

use libc::{c_int, c_long, c_uint};
use nix::{
    errno::Errno,
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, unshare},
    sys::wait::{WaitStatus, waitpid},
    unistd::{self, ForkResult, fork},
};

use super::{Found, Kept, number, text};
use crate::coverage::uring::Ring;

const NONE: Result<String, Errno> = Ok(String::new());

pub(super) fn perform(kept: &mut Kept, operation: &str, arguments: &[&OsStr]) -> Option<Found> {
    Some(match (operation, arguments) {
        // In a child, which ends: what it did to itself is nobody's.
        ("apart", [operation, rest @ ..]) => apart(kept, text(operation), rest),
        // The rest in a user namespace, and a mount namespace of its own.
        ("in-userns", [operation, rest @ ..]) => in_user_namespace(kept, text(operation), rest),
        // From here on in namespaces of its own.
        ("own-namespaces", []) => {
            unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS).and(NONE)
        }
        ("reconfigure", [at]) => reconfigure(at),
        ("unshare", [what]) => unshare(match text(what) {
            "user" => CloneFlags::CLONE_NEWUSER,
            "net" => CloneFlags::CLONE_NEWNET,
            _ => CloneFlags::CLONE_NEWNS,
        })
        .and(NONE),
        ("clone-userns", []) => clone_user_namespace(),
        ("mount-bind", [from, to]) => mount(
            Some(*from),
            *to,
            None::<&str>,
            MsFlags::MS_BIND,
            None::<&str>,
        )
        .and(NONE),
        ("mount-tmpfs", [to]) => {
            let kind = Some("tmpfs");
            mount(kind, *to, kind, MsFlags::empty(), None::<&str>).and(NONE)
        }
        ("remount", [at]) => {
            let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
            mount(None::<&str>, *at, None::<&str>, flags, None::<&str>).and(NONE)
        }
        ("unmount", [at]) => umount2(*at, MntFlags::MNT_DETACH).and(NONE),
        ("file-system-open", []) => file_system_open().and(NONE),
        ("file-system-mount", []) => file_system_mount().and(NONE),
        ("tree-clone", [path]) => tree_clone(path).and(NONE),
        ("mount-move", [path, to]) => mount_move(path, to),
        ("mount-attributes", [path]) => mount_attributes(path),
        ("pivot", [new, old]) => unistd::pivot_root(*new, *old).and(NONE),
        ("userfaultfd", []) => {
            const USER_MODE_ONLY: c_long = 1;
            call(libc::SYS_userfaultfd, [USER_MODE_ONLY, 0, 0, 0, 0])
        }
        ("memfd", []) => call(
            libc::SYS_memfd_create,
            [c"x".as_ptr() as c_long, 0, 0, 0, 0],
        ),
        ("eventfd", []) => call(libc::SYS_eventfd2, [0, 0, 0, 0, 0]),
        ("bpf-map", []) => bpf(0, &[2, 4, 4, 1]),
        ("bpf-next-program", []) => bpf(11, &[0, 0, 0, 0]),
        ("bpf-link", [id]) => bpf(30, &[number(id), 0, 0, 0]),
        ("bpf-open", [path]) => bpf_open(path),
        ("perf", []) => perf(),
        ("syslog", []) => {
            let mut buffer = [0_u8; 64];
            call(libc::SYS_syslog, [3, (&raw mut buffer) as c_long, 64, 0, 0])
        }
        ("syslog-size", []) => call(libc::SYS_syslog, [10, 0, 0, 0, 0]),
        ("quota", []) => call(libc::SYS_quotactl, [0x80_0001 << 8, 0, 0, 0, 0]),
        ("add-key", []) => add_key(-3),
        ("add-key-process", []) => add_key(-2),
        ("request-key", []) => call(
            libc::SYS_request_key,
            [
                c"user".as_ptr() as c_long,
                c"host-secret".as_ptr() as c_long,
                0,
                0,
                0,
            ],
        ),
        ("read-key", [serial]) => {
            let mut buffer = [0_u8; 64];
            let (read, buffer) = (11, (&raw mut buffer) as c_long);
            call(libc::SYS_keyctl, [read, number(serial), buffer, 64, 0])
        }
        ("join-keyring", []) => call(libc::SYS_keyctl, [1, 0, 0, 0, 0]),
        // For the control: a key in the user's keyring.
        ("make-key", []) => make_key(-4),
        ("socket-family", [family]) => call(
            libc::SYS_socket,
            [number(family), libc::SOCK_DGRAM.into(), 0, 0, 0],
        ),
        ("capability", [what]) => capability(text(what)),
        ("device-node", [path]) => device_node(path),
        ("set-attribute", [path, name]) => set_attribute(path, name),
        ("shell", [script]) => shell(script),
        ("groups", []) => unistd::setgroups(&[]).and(NONE),
        ("become", [uid]) => unistd::setuid(number::<u32>(uid).into()).and(NONE),
        ("ids", []) => Ok(format!("{} {}", unistd::getuid(), unistd::geteuid())),
        _ => return ring(kept, operation, arguments),
    })
}

fn ring(kept: &mut Kept, operation: &str, arguments: &[&OsStr]) -> Option<Found> {
    Some(match (operation, arguments) {
        ("io-uring", []) => ring_setup(0),
        ("io-uring-poll", []) => ring_setup(2),
        ("ring-make", []) => {
            let ring = Ring::new();
            ring.personality().map(|personality| {
                kept.ring = Some((ring, personality));
                String::new()
            })
        }
        ("ring-open", [path]) => ring_open(&mut kept.ring, path),
        ("ring-as", []) => kept
            .ring
            .as_mut()
            .ok_or(Errno::EBADF)
            .and_then(|(ring, personality)| ring.nothing_as(*personality))
            .and(NONE),
        ("ring-command", []) => ring_command(&mut kept.ring),
        _ => return None,
    })
}

fn shell(script: &OsStr) -> Found {
    let status = process::Command::new("sh")
        .arg(script)
        .current_dir("/srv/ground/work")
        .stdout(process::Stdio::null())
        .status()
        .map_err(|error| super::errno(&error))?;
    if status.success() {
        NONE
    } else {
        Ok(status.to_string())
    }
}

fn call(number: c_long, arguments: [c_long; 5]) -> Found {
    raw(number, arguments).and(NONE)
}

fn raw(number: c_long, arguments: [c_long; 5]) -> Result<c_long, Errno> {
    let [first, second, third, fourth, fifth] = arguments;
    // SAFETY: pointers among the arguments are to live values of the caller's.
    Errno::result(unsafe { libc::syscall(number, first, second, third, fourth, fifth) })
}

fn descriptor(number: c_long, arguments: [c_long; 5]) -> Result<OwnedFd, Errno> {
    let file = RawFd::try_from(raw(number, arguments)?).map_err(|_| Errno::EBADF)?;
    // SAFETY: the call has made it.
    Ok(unsafe { OwnedFd::from_raw_fd(file) })
}

fn c_path(path: &OsStr) -> Result<CString, Errno> {
    CString::new(path.as_bytes()).map_err(|_| Errno::EINVAL)
}

fn apart(kept: &mut Kept, operation: &str, rest: &[&OsStr]) -> Found {
    // SAFETY: this program has one thread.
    match unsafe { fork() }? {
        ForkResult::Child => {
            let code = match super::perform(kept, operation, rest) {
                Ok(_) => 0,
                Err(errno) => errno as i32,
            };
            process::exit(code);
        }
        ForkResult::Parent { child } => match waitpid(child, None)? {
            WaitStatus::Exited(_, 0) => NONE,
            WaitStatus::Exited(_, code) => Err(Errno::from_raw(code)),
            _ => Err(Errno::ECANCELED),
        },
    }
}

fn in_user_namespace(kept: &mut Kept, operation: &str, rest: &[&OsStr]) -> Found {
    // SAFETY: this program has one thread.
    match unsafe { fork() }? {
        ForkResult::Child => {
            let namespaces = CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS;
            let done = unshare(namespaces).and_then(|()| super::perform(kept, operation, rest));
            let code = match done {
                Ok(_) => 0,
                Err(errno) => errno as i32,
            };
            process::exit(code);
        }
        ForkResult::Parent { child } => match waitpid(child, None)? {
            WaitStatus::Exited(_, 0) => NONE,
            WaitStatus::Exited(_, code) => Err(Errno::from_raw(code)),
            _ => Err(Errno::ECANCELED),
        },
    }
}

fn ring_setup(flags: u32) -> Found {
    // `struct io_uring_params`.
    let mut parameters = [0_u32; 30];
    parameters[2] = flags;
    call(
        libc::SYS_io_uring_setup,
        [4, (&raw mut parameters) as c_long, 0, 0, 0],
    )
}

/// By a thread of the kernel's, which may be older than the sandbox.
fn ring_open(ring: &mut Option<(Ring, u16)>, path: &OsStr) -> Found {
    let (ring, _) = ring.as_mut().ok_or(Errno::EBADF)?;
    let file = RawFd::try_from(ring.open(&c_path(path)?, true)?).map_err(|_| Errno::EBADF)?;
    // SAFETY: the request has opened it.
    drop(unsafe { OwnedFd::from_raw_fd(file) });
    NONE
}

/// One that does nothing.
fn ring_command(ring: &mut Option<(Ring, u16)>) -> Found {
    let (ring, _) = ring.as_mut().ok_or(Errno::EBADF)?;
    let null = std::fs::File::open("/dev/null").map_err(|error| super::errno(&error))?;
    ring.command(null.as_raw_fd()).and(NONE)
}

fn clone_user_namespace() -> Found {
    let flags = libc::CLONE_NEWUSER | libc::SIGCHLD;
    match raw(libc::SYS_clone, [flags.into(), 0, 0, 0, 0])? {
        0 => process::exit(0),
        _ => nix::sys::wait::wait().and(NONE),
    }
}

fn file_system_open() -> Result<OwnedFd, Errno> {
    descriptor(libc::SYS_fsopen, [c"tmpfs".as_ptr() as c_long, 0, 0, 0, 0])
}

/// A file system that nobody mounts anywhere: its files are reached all the
/// same.
fn file_system_mount() -> Result<OwnedFd, Errno> {
    const CREATE: c_long = 6;
    let context = file_system_open()?;
    let file: c_long = context.as_raw_fd().into();
    raw(libc::SYS_fsconfig, [file, CREATE, 0, 0, 0])?;
    descriptor(libc::SYS_fsmount, [file, 0, 0, 0, 0])
}

/// Sets the options of a file system that is mounted, as they are.
fn reconfigure(at: &OsStr) -> Found {
    const RECONFIGURE: c_long = 7;
    let at = c_path(at)?;
    let here = libc::AT_FDCWD.into();
    let arguments = [here, at.as_ptr() as c_long, 0, 0, 0];
    let context = descriptor(libc::SYS_fspick, arguments)?;
    let file = context.as_raw_fd().into();
    call(libc::SYS_fsconfig, [file, RECONFIGURE, 0, 0, 0])
}

fn tree_clone(path: &OsStr) -> Result<OwnedFd, Errno> {
    const CLONE: c_long = 1;
    let path = c_path(path)?;
    let here = libc::AT_FDCWD.into();
    descriptor(
        libc::SYS_open_tree,
        [here, path.as_ptr() as c_long, CLONE, 0, 0],
    )
}

fn mount_move(path: &OsStr, to: &OsStr) -> Found {
    const FROM_EMPTY_PATH: c_long = 4;
    let tree = tree_clone(path)?;
    let to = c_path(to)?;
    let arguments = [
        tree.as_raw_fd().into(),
        c"".as_ptr() as c_long,
        libc::AT_FDCWD.into(),
        to.as_ptr() as c_long,
        FROM_EMPTY_PATH,
    ];
    call(libc::SYS_move_mount, arguments)
}

fn mount_attributes(path: &OsStr) -> Found {
    const NOSUID: u64 = 2;
    let path = c_path(path)?;
    let attributes = [NOSUID, 0, 0, 0];
    let arguments = [
        libc::AT_FDCWD.into(),
        path.as_ptr() as c_long,
        0,
        (&raw const attributes) as c_long,
        32,
    ];
    call(libc::SYS_mount_setattr, arguments)
}

/// `union bpf_attr` begins with what each command needs.
fn bpf(command: c_long, words: &[u32; 4]) -> Found {
    let mut attribute = [0_u32; 32];
    attribute[..4].copy_from_slice(words);
    call(
        libc::SYS_bpf,
        [command, (&raw mut attribute) as c_long, 128, 0, 0],
    )
}

fn bpf_open(path: &OsStr) -> Found {
    let path = c_path(path)?;
    let mut attribute = [0_u64; 16];
    attribute[0] = path.as_ptr() as u64;
    call(
        libc::SYS_bpf,
        [7, (&raw mut attribute) as c_long, 128, 0, 0],
    )
}

fn perf() -> Found {
    // `struct perf_event_attr`: a software event of the task's own, its clock.
    let mut attribute = [0_u32; 32];
    attribute[0] = 1;
    attribute[1] = 128;
    let everywhere = -1;
    let arguments = [(&raw mut attribute) as c_long, 0, everywhere, everywhere, 0];
    call(libc::SYS_perf_event_open, arguments)
}

fn add_key(keyring: c_int) -> Found {
    make_key(keyring).and(NONE)
}

fn make_key(keyring: c_int) -> Found {
    let arguments = [
        c"user".as_ptr() as c_long,
        c"host-secret".as_ptr() as c_long,
        c"secret".as_ptr() as c_long,
        6,
        keyring.into(),
    ];
    raw(libc::SYS_add_key, arguments).map(|serial| serial.to_string())
}

/// What only root's capabilities are good for. Each leaves the machine as it
/// is where it succeeds.
fn capability(what: &str) -> Found {
    match what {
        "SYS_MODULE" => call(
            libc::SYS_delete_module,
            [c"none".as_ptr() as c_long, 0, 0, 0, 0],
        ),
        "SYS_MODULE-init" => call(libc::SYS_init_module, [0, 0, c"".as_ptr() as c_long, 0, 0]),
        "SYS_MODULE-finit" => call(libc::SYS_finit_module, [0, c"".as_ptr() as c_long, 0, 0, 0]),
        "SYS_BOOT" => {
            // CAD_OFF: what the keyboard does.
            let (magic, command) = (0xfee1_dead, 0x2812_1969);
            call(libc::SYS_reboot, [magic, command, 0, 0, 0])
        }
        "SYS_BOOT-kexec" => call(libc::SYS_kexec_load, [0, 0, 0, 0, 0]),
        "SYS_BOOT-kexec-file" => call(libc::SYS_kexec_file_load, [-1, -1, 0, 0, 0]),
        "SYS_TIME" => {
            let mut now = libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            // SAFETY: `now` is valid for a write, and then for a read.
            unsafe {
                libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut now);
                Errno::result(libc::clock_settime(libc::CLOCK_REALTIME, &raw const now)).and(NONE)
            }
        }
        "SYS_ADMIN" => {
            let name =
                std::fs::read("/proc/sys/kernel/hostname").map_err(|error| super::errno(&error))?;
            let length = name.trim_ascii_end().len();
            // SAFETY: `name` is valid for its length.
            Errno::result(unsafe { libc::sethostname(name.as_ptr().cast(), length) }).and(NONE)
        }
        "SYS_ADMIN-swap" => call(libc::SYS_swapoff, [c"/none".as_ptr() as c_long, 0, 0, 0, 0]),
        "SYS_RAWIO" => call(libc::SYS_iopl, [3, 0, 0, 0, 0]),
        "SYS_RAWIO-ports" => call(libc::SYS_ioperm, [0x80, 1, 1, 0, 0]),
        "SYS_PACCT" => call(libc::SYS_acct, [0, 0, 0, 0, 0]),
        "SYS_TTY_CONFIG" => call(libc::SYS_vhangup, [0, 0, 0, 0, 0]),
        "SYSLOG" => call(libc::SYS_syslog, [10, 0, 0, 0, 0]),
        "SYS_RESOURCE" => {
            // One more than the administrator allows.
            let mut limit = libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            };
            // SAFETY: `limit` is valid for a write, and then for a read.
            unsafe {
                Errno::result(libc::getrlimit(libc::RLIMIT_MSGQUEUE, &raw mut limit))?;
                limit.rlim_max += 1;
                Errno::result(libc::setrlimit(libc::RLIMIT_MSGQUEUE, &raw const limit)).and(NONE)
            }
        }
        "NET_ADMIN" => network_interface(),
        other => panic!("nothing is known of {other}"),
    }
}

/// Sets the length of a queue to what it is.
fn network_interface() -> Found {
    const SIOCGIFTXQLEN: libc::c_ulong = 0x8942;
    const SIOCSIFTXQLEN: libc::c_ulong = 0x8943;
    let socket = descriptor(
        libc::SYS_socket,
        [libc::AF_UNIX.into(), libc::SOCK_DGRAM.into(), 0, 0, 0],
    )?;
    let mut request = [0_u8; 40];
    request[..2].copy_from_slice(b"lo");
    // SAFETY: `request` is a `struct ifreq`.
    unsafe {
        Errno::result(libc::ioctl(
            socket.as_raw_fd(),
            SIOCGIFTXQLEN,
            &raw mut request,
        ))?;
        Errno::result(libc::ioctl(
            socket.as_raw_fd(),
            SIOCSIFTXQLEN,
            &raw mut request,
        ))
        .and(NONE)
    }
}

/// A node of a device: /dev/null's.
fn device_node(path: &OsStr) -> Found {
    let path = c_path(path)?;
    let device = libc::makedev(1 as c_uint, 3 as c_uint);
    // SAFETY: the path is NUL-terminated.
    Errno::result(unsafe { libc::mknod(path.as_ptr(), libc::S_IFCHR | 0o600, device) }).and(NONE)
}

fn set_attribute(path: &OsStr, name: &OsStr) -> Found {
    let path = c_path(path)?;
    let capabilities: [u32; 5] = [0x0200_0000, 1, 0, 0, 0];
    let (value, length): (*const u8, usize) = if text(name) == "security.capability" {
        ((&raw const capabilities).cast(), size_of_val(&capabilities))
    } else {
        (b"x".as_ptr(), 1)
    };
    let name = c_path(name)?;
    // SAFETY: the strings are NUL-terminated, and `value` is valid for its length.
    Errno::result(unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), value.cast(), length, 0) })
        .and(NONE)
}
