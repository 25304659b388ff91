//! What actions need to be there before they are watched.

use std::{
    ffi::{CStr, CString},
    fs,
    io::Write as _,
    mem::MaybeUninit,
    os::{
        fd::{AsRawFd as _, IntoRawFd as _, OwnedFd},
        unix::fs::PermissionsExt as _,
    },
    process,
};

use libc::{AT_FDCWD, O_CREAT, O_DIRECTORY, O_RDONLY, O_RDWR, O_TMPFILE};
use nix::{
    errno::Errno,
    mount::{MsFlags, mount},
    sys::{
        signal::{Signal, kill},
        socket::{AddressFamily, SockFlag, SockType, socketpair},
    },
    unistd::{ForkResult, Pid, fork, pause},
};

use super::call::{descriptor, sys};

/// The names of files.
pub(super) const FILE: &CStr = c"file";
pub(super) const OTHER: &CStr = c"other";

/// [`FILE`], with something in it.
pub(super) fn file() {
    fs::write("file", [b'x'; 8192]).unwrap();
}

/// [`OTHER`], open for reading and writing.
pub(super) fn other() -> OwnedFd {
    descriptor(sys!(SYS_openat, AT_FDCWD, OTHER, O_CREAT | O_RDWR, 0o600).unwrap())
}

/// [`FILE`], open.
pub(super) fn opened(flags: i32) -> OwnedFd {
    file();
    descriptor(sys!(SYS_openat, AT_FDCWD, FILE, flags).unwrap())
}

/// A file that has no name.
pub(super) fn nameless() -> OwnedFd {
    descriptor(sys!(SYS_openat, AT_FDCWD, c".", O_TMPFILE | O_RDWR, 0o600).unwrap())
}

/// The current directory, open.
pub(super) fn directory() -> OwnedFd {
    descriptor(sys!(SYS_openat, AT_FDCWD, c".", O_RDONLY | O_DIRECTORY).unwrap())
}

/// The name of an open file among those of this process.
pub(super) fn in_proc(file: &OwnedFd) -> CString {
    CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap()
}

/// Both ends: to read from, to write to.
pub(super) fn pipe() -> (OwnedFd, OwnedFd) {
    nix::unistd::pipe().unwrap()
}

/// The handle of [`FILE`].
pub(super) fn handle() -> [u32; 34] {
    let mut handle = [0; 34];
    handle[0] = 128; // MAX_HANDLE_SZ
    let mut mount = 0_i32;
    sys!(
        SYS_name_to_handle_at,
        AT_FDCWD,
        FILE,
        handle.as_mut_ptr(),
        &raw mut mount,
        0
    )
    .unwrap();
    handle
}

/// An access control list with one entry for somebody by name, as
/// `include/uapi/linux/posix_acl_xattr.h` has it.
pub(super) fn acl() -> Vec<u8> {
    const NOBODY: u32 = u32::MAX;
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, id) in [
        (0x01_u16, 6_u16, NOBODY),
        (0x02, 4, 1000),
        (0x04, 4, NOBODY),
        (0x10, 4, NOBODY),
        (0x20, 0, NOBODY),
    ] {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(rights.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// Room for what the kernel answers.
pub(super) fn room<T>() -> MaybeUninit<T> {
    MaybeUninit::zeroed()
}

/// An overlay at `merged`, over a `lower` with [`FILE`] in it.
pub(super) fn overlay() {
    for directory in ["lower", "upper", "work", "merged"] {
        fs::create_dir(directory).unwrap();
    }
    fs::write("lower/file", "content").unwrap();
    mount(
        Some("overlay"),
        "merged",
        Some("overlay"),
        MsFlags::empty(),
        Some("lowerdir=lower,upperdir=upper,workdir=work"),
    )
    .unwrap();
}

/// `FS_IOC32_GETFLAGS`
pub(super) const GETFLAGS_32: u32 = 0x8004_6601;

// Of `include/uapi`, and not of the library.
pub(super) const DN_CREATE: u32 = 4;
pub(super) const F_SETSIG: i32 = 10;
pub(super) const FIOSETOWN: u32 = 0x8901;
pub(super) const TIOCLINUX: u32 = 0x541c;

/// An ioctl as a program of 32 bits makes it. The kernel may not find its
/// argument at address 0, after all hooks.
pub(super) fn compat_ioctl(file: &OwnedFd, request: u32) -> nix::Result<i64> {
    const IOCTL: i64 = 54;
    let mut answer = IOCTL;
    // SAFETY: the call takes three registers and returns one; `rbx` is put
    // back, which the compiler has for itself.
    unsafe {
        std::arch::asm!(
            "xchg {first}, rbx",
            "int 0x80",
            "xchg {first}, rbx",
            first = inout(reg) i64::from(file.as_raw_fd()) => _,
            inout("rax") answer,
            in("rcx") request,
            in("rdx") 0,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        );
    }
    // Its lower half is the answer of a 32-bit call.
    match i32::try_from(answer << 32 >> 32) {
        Ok(error) if error < 0 => Err(Errno::from_raw(-error)),
        _ => Ok(answer),
    }
}

/// A program that ends with status 0 and needs no other file.
pub(super) fn program() -> Vec<u8> {
    const START: u64 = 0x40_0000;
    const HEADERS: u64 = 64 + 56;
    // mov eax, 60 (exit); xor edi, edi; syscall
    let code = [0xb8, 60, 0, 0, 0, 0x31, 0xff, 0x0f, 0x05];
    let mut bytes = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0\x01\0\0\0".to_vec();
    for word in [START + HEADERS, 64, 0] {
        bytes.extend(u64::to_le_bytes(word));
    }
    for half in [0_u16, 0, 64, 56, 1, 0, 0, 0] {
        bytes.extend(half.to_le_bytes());
    }
    // One segment: to be loaded, read and executed.
    bytes.extend([1, 0, 0, 0, 5, 0, 0, 0]);
    let size = HEADERS + code.len() as u64;
    for word in [0, START, START, size, size, 4096] {
        bytes.extend(u64::to_le_bytes(word));
    }
    bytes.extend(code);
    bytes
}

/// [`program`] as an executable file.
pub(super) fn executable(path: &str, content: &[u8]) {
    let mut file = fs::File::create(path).unwrap();
    file.write_all(content).unwrap();
    file.set_permissions(fs::Permissions::from_mode(0o755))
        .unwrap();
}

/// Another process, which does nothing and ends with this value.
pub(super) struct Victim(pub(super) Pid);

/// Starts one.
pub(super) fn victim() -> Victim {
    // SAFETY: this program has one thread.
    match unsafe { fork() }.unwrap() {
        ForkResult::Parent { child } => Victim(child),
        ForkResult::Child => loop {
            pause();
        },
    }
}

impl Victim {
    /// Its process id.
    pub(super) fn pid(&self) -> i32 {
        self.0.as_raw()
    }

    /// A file of its directory in `/proc`.
    pub(super) fn in_proc(&self, name: &str) -> CString {
        CString::new(format!("/proc/{}/{name}", self.pid())).unwrap()
    }

    /// A descriptor of it.
    pub(super) fn descriptor(&self) -> OwnedFd {
        descriptor(sys!(SYS_pidfd_open, self.pid(), 0).unwrap())
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGKILL);
    }
}

/// The file of a device, which may yet have to be found a driver.
pub(super) fn device(kind: libc::mode_t, major: u32, minor: u32) {
    let device = libc::makedev(major, minor);
    sys!(SYS_mknodat, AT_FDCWD, FILE, kind | 0o600, device).unwrap();
}

/// Both ends of a connection.
pub(super) fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(
        AddressFamily::Unix,
        SockType::Stream,
        None,
        SockFlag::empty(),
    )
    .unwrap()
}

/// A child in another cgroup, which ends at once.
pub(super) fn clone_into(cgroup: &OwnedFd) -> nix::Result<i64> {
    let mut arguments = [0_u64; 11];
    arguments[0] = 0x2_0000_0000; // CLONE_INTO_CGROUP
    arguments[4] = u64::from(libc::SIGCHLD.unsigned_abs());
    arguments[10] = u64::from(cgroup.as_raw_fd().unsigned_abs());
    let child = sys!(SYS_clone3, arguments.as_ptr(), size_of_val(&arguments))?;
    if child == 0 {
        sys!(SYS_exit_group, 0)?;
    }
    sys!(SYS_wait4, child, 0, 0, 0)
}

/// The address of a page, which children started from now on have too.
pub(super) fn page() -> usize {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
    let page = sys!(SYS_mmap, 0, 4096, rights, how, -1, 0).unwrap();
    usize::try_from(page).expect("an address")
}

/// An address, or what is as long, as two fields of a system call's.
pub(super) fn halves(address: usize) -> [u32; 2] {
    [0, 32].map(|shift| u32::try_from(address >> shift & 0xffff_ffff).expect("a half"))
}

/// The number of a loaded program: there are many.
pub(super) fn program_id() -> u32 {
    const BPF_PROG_GET_NEXT_ID: u32 = 11;
    let mut attributes = [0_u32; 12];
    let size = size_of_val(&attributes);
    sys!(SYS_bpf, BPF_PROG_GET_NEXT_ID, attributes.as_mut_ptr(), size).unwrap();
    attributes[1]
}

/// The far end of a new terminal, whose near one stays open.
pub(super) fn terminal() -> OwnedFd {
    let ends = nix::pty::openpty(None, None).unwrap();
    let _ = ends.master.into_raw_fd();
    ends.slave
}

/// This process' id.
pub(super) fn this() -> i32 {
    process::id().cast_signed()
}
