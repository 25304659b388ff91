//! Event records as they stand in the ring buffer.

/// Version of the records.
pub const EVENT_VERSION: u16 = 2;

/// Bytes of an object's path in a record.
pub const PATH_BYTES: usize = 2048;

/// Bytes of an executable's path in a record.
pub const EXE_BYTES: usize = 512;

/// Bytes of the name of an abstract Unix socket in a record (`UNIX_PATH_MAX`).
pub const UNIX_BYTES: usize = 108;

/// A list of names: the enumeration, its numbers, and its words.
macro_rules! words {
    (
        $(#[$doc:meta])*
        $name:ident: $raw:ty {
            $($(#[$variant_doc:meta])* $variant:ident = $number:literal $word:literal,)*
        }
    ) => {
        $(#[$doc])*
        #[repr($raw)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$variant_doc])* $variant = $number,)*
        }

        impl $name {
            /// That of a record, if this build knows it.
            #[must_use]
            pub const fn from_raw(raw: $raw) -> Option<Self> {
                Some(match raw {
                    $($number => Self::$variant,)*
                    _ => return None,
                })
            }

            /// As events have it.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }
        }
    };
}

words! {
    /// What was attempted.
    Operation: u16 {
        /// open(2) and its kin, execve(2).
        Open = 1 "open",
        /// `O_TRUNC`, truncate(2), ftruncate(2).
        Truncate = 2 "truncate",
        /// `O_CREAT`.
        Create = 3 "create",
        /// mkdir(2).
        Mkdir = 4 "mkdir",
        /// mknod(2), bind(2) of a Unix socket.
        Mknod = 5 "mknod",
        /// symlink(2).
        Symlink = 6 "symlink",
        /// link(2).
        Link = 7 "link",
        /// unlink(2).
        Unlink = 8 "unlink",
        /// rmdir(2).
        Rmdir = 9 "rmdir",
        /// rename(2).
        Rename = 10 "rename",
        /// chmod(2), chown(2), utimensat(2).
        Setattr = 11 "setattr",
        /// stat(2).
        Stat = 12 "stat",
        /// readlink(2).
        Readlink = 13 "readlink",
        /// connect(2), TCP Fast Open.
        Connect = 14 "connect",
        /// sendto(2), sendmsg(2).
        Send = 15 "send",
        /// A packet on its way out.
        Packet = 16 "packet",
        /// socket(2).
        Socket = 17 "socket",
        /// clone3(2) into another cgroup.
        Clone = 18 "clone",
        /// setxattr(2), also of an ACL.
        Setxattr = 19 "setxattr",
        /// removexattr(2), likewise.
        Removexattr = 20 "removexattr",
        /// ioctl(2).
        Ioctl = 21 "ioctl",
        /// fcntl(2).
        Fcntl = 22 "fcntl",
        /// inotify(7), fanotify(7), `F_NOTIFY`.
        Watch = 24 "watch",
        /// A descriptor that another process sent.
        Receive = 26 "receive",
        /// bind(2).
        Bind = 27 "bind",
        /// listen(2).
        Listen = 28 "listen",
        /// mount(2), fsmount(2), `move_mount(2)`, `pivot_root(2)`.
        Mount = 29 "mount",
        /// umount(2).
        Unmount = 30 "umount",
        /// chroot(2).
        Chroot = 31 "chroot",
        /// ptrace(2), and what needs the same right: most of `/proc/PID`,
        /// `process_vm_readv(2)`, `pidfd_getfd(2)`, ...
        Ptrace = 32 "ptrace",
        /// kill(2) and its kin.
        Signal = 33 "signal",
        /// setpriority(2), `ioprio_set(2)`.
        Priority = 34 "setpriority",
        /// `sched_setscheduler(2)`, `sched_setaffinity(2)`.
        Schedule = 35 "setscheduler",
        /// prlimit(2).
        Limit = 36 "prlimit",
        /// getxattr(2), listxattr(2), also of an ACL.
        Getxattr = 37 "getxattr",
        /// Of a [`Facility`].
        Use = 39 "use",
    }
}

words! {
    /// A part of the kernel that sandboxes do not reach.
    Facility: u32 {
        /// A capability; the detail is its number.
        Capability = 1 "capability",
        /// unshare(2), clone(2) of a user namespace.
        UserNamespace = 2 "user namespace",
        /// `io_uring_setup(2)`.
        IoUring = 3 "io_uring",
        /// userfaultfd(2).
        Userfaultfd = 4 "userfaultfd",
        /// bpf(2).
        Bpf = 5 "bpf",
        /// `perf_event_open(2)`.
        Perf = 6 "perf_event_open",
        /// syslog(2).
        KernelLog = 7 "kernel log",
        /// `init_module(2)` and its kin, and modules that a call asks for.
        KernelModule = 8 "kernel module",
        /// `add_key(2)`, `request_key(2)`, keyctl(2).
        Keyring = 10 "keyring",
        /// quotactl(2).
        Quota = 12 "quota",
        /// shmget(2), semget(2), msgget(2) and their kin; the detail is the
        /// identifier.
        Ipc = 13 "System V object",
        /// `F_SETOWN` and its kin; the detail is the process, or minus the group,
        /// that signals would go to.
        SignalOwner = 14 "owner of signals",
        /// A descriptor that is no file of a path: a socket from outside.
        Descriptor = 16 "descriptor",
    }
}

/// What was refused: which record it is.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Object {
    /// [`FileEvent`].
    File = 1,
    /// [`NetEvent`]: an address.
    Address = 2,
    /// [`NetEvent`]: a kind of socket.
    Socket = 3,
    /// [`FileEvent`]: a Unix socket with a path.
    UnixPath = 4,
    /// [`UnixEvent`]: a Unix socket without.
    UnixName = 5,
    /// [`ProcessEvent`].
    Process = 6,
    /// [`FacilityEvent`].
    Facility = 7,
}

impl Object {
    /// That of a record, if this build knows it.
    #[must_use]
    pub const fn from_raw(raw: u8) -> Option<Self> {
        Some(match raw {
            1 => Self::File,
            2 => Self::Address,
            3 => Self::Socket,
            4 => Self::UnixPath,
            5 => Self::UnixName,
            6 => Self::Process,
            7 => Self::Facility,
            _ => return None,
        })
    }
}

/// What would have been needed.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Right {
    /// See `bits::READ`.
    Read = 1,
    /// See `bits::WRITE`.
    Write = 2,
    /// Reaching an address.
    Connect = 3,
    /// Reaching another process, or a privilege.
    Scope = 4,
}

impl Right {
    /// The right of a record, if this build knows it.
    #[must_use]
    pub const fn from_raw(raw: u8) -> Option<Self> {
        Some(match raw {
            1 => Self::Read,
            2 => Self::Write,
            3 => Self::Connect,
            4 => Self::Scope,
            _ => return None,
        })
    }
}

/// What was done about it.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The call failed with `errno`.
    Denied = 1,
    /// Observe mode: it would have.
    Observed = 2,
}

/// Flags of a record.
pub mod flags {
    /// The path did not fit; what is missing is at its root end.
    pub const PATH_TRUNCATED: u8 = 1;
    /// The same for the executable's path.
    pub const EXE_TRUNCATED: u8 = 1 << 1;
    /// No process stands behind it (packets in softirq).
    pub const NO_TASK: u8 = 1 << 2;
    /// The object is a directory.
    pub const DIRECTORY: u8 = 1 << 3;
}

/// The start of every record.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct EventHeader {
    /// [`EVENT_VERSION`].
    pub version: u16,
    /// [`Operation`].
    pub operation: u16,
    /// [`Right`].
    pub right: u8,
    /// [`Verdict`].
    pub verdict: u8,
    /// [`Object`].
    pub object: u8,
    /// [`flags`].
    pub flags: u8,
    /// `CLOCK_BOOTTIME`, ns.
    pub time_ns: u64,
    /// Cgroup id of the sandbox.
    pub sandbox: u64,
    /// Cgroup id of the exec; 0: the process is in none.
    pub exec: u64,
    /// Process (thread group).
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Real user id.
    pub uid: u32,
    /// What would have been returned, positive.
    pub errno: u32,
    /// Index of the rule in the policy + 1, or one of `builtin`.
    pub rule: u32,
    /// Generation of the policy that decided.
    pub generation: u32,
    /// `task_struct.comm`.
    pub comm: [u8; 16],
    /// `s_dev` of the executable; 0: none.
    pub exe_dev: u32,
    /// Bytes used of `exe`.
    pub exe_len: u32,
    /// Names from the executable up to its file system's root, each with a NUL.
    pub exe: [u8; EXE_BYTES],
}

/// A refused operation on a file.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FileEvent {
    /// What all records have.
    pub header: EventHeader,
    /// `s_magic` of its file system.
    pub magic: u64,
    /// `i_ino`; 0: it does not exist.
    pub ino: u64,
    /// `s_dev`.
    pub dev: u32,
    /// Bytes used of `path`.
    pub path_len: u32,
    /// Names from the file up to its file system's root, each with a NUL. A
    /// file system's root itself has no name: `path_len` is 0 for it.
    pub path: [u8; PATH_BYTES],
}

/// A refused network operation.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NetEvent {
    /// What all records have.
    pub header: EventHeader,
    /// `AF_INET`, `AF_INET6`.
    pub family: u16,
    /// Port, host order; 0: none.
    pub port: u16,
    /// `IPPROTO_*`.
    pub protocol: u32,
    /// Address as in the packet; IPv4 in the first four bytes.
    pub address: [u8; 16],
}

/// A refused connection to a Unix socket without a path.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct UnixEvent {
    /// What all records have.
    pub header: EventHeader,
    /// Bytes used of `name`; 0: it is not bound.
    pub name_len: u32,
    /// The abstract name, with the NUL that it begins with.
    pub name: [u8; UNIX_BYTES],
}

/// A refused operation on another process.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ProcessEvent {
    /// What all records have.
    pub header: EventHeader,
    /// Process (thread group).
    pub pid: u32,
    /// 0.
    pub reserved: u32,
    /// `task_struct.comm`.
    pub comm: [u8; 16],
}

/// A refused use of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FacilityEvent {
    /// What all records have.
    pub header: EventHeader,
    /// [`Facility`].
    pub facility: u32,
    /// See [`Facility`].
    pub detail: u32,
}

/// The name of a capability.
#[must_use]
pub fn capability_name(number: u32) -> Option<&'static str> {
    CAPABILITIES.get(number as usize).copied()
}

/// include/uapi/linux/capability.h
const CAPABILITIES: [&str; 41] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETPCAP",
    "CAP_LINUX_IMMUTABLE",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_BROADCAST",
    "CAP_NET_ADMIN",
    "CAP_NET_RAW",
    "CAP_IPC_LOCK",
    "CAP_IPC_OWNER",
    "CAP_SYS_MODULE",
    "CAP_SYS_RAWIO",
    "CAP_SYS_CHROOT",
    "CAP_SYS_PTRACE",
    "CAP_SYS_PACCT",
    "CAP_SYS_ADMIN",
    "CAP_SYS_BOOT",
    "CAP_SYS_NICE",
    "CAP_SYS_RESOURCE",
    "CAP_SYS_TIME",
    "CAP_SYS_TTY_CONFIG",
    "CAP_MKNOD",
    "CAP_LEASE",
    "CAP_AUDIT_WRITE",
    "CAP_AUDIT_CONTROL",
    "CAP_SETFCAP",
    "CAP_MAC_OVERRIDE",
    "CAP_MAC_ADMIN",
    "CAP_SYSLOG",
    "CAP_WAKE_ALARM",
    "CAP_BLOCK_SUSPEND",
    "CAP_AUDIT_READ",
    "CAP_PERFMON",
    "CAP_BPF",
    "CAP_CHECKPOINT_RESTORE",
];
