//! Event records as they stand in the ring buffer.

/// Version of the records.
pub const EVENT_VERSION: u16 = 1;

/// Bytes of an object's path in a record.
pub const PATH_BYTES: usize = 2048;

/// Bytes of an executable's path in a record.
pub const EXE_BYTES: usize = 512;

/// What was attempted.
#[repr(u16)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// open(2) and its kin, execve(2).
    Open = 1,
    /// `O_TRUNC`, truncate(2), ftruncate(2).
    Truncate,
    /// `O_CREAT`.
    Create,
    /// mkdir(2).
    Mkdir,
    /// mknod(2), bind(2) of a Unix socket.
    Mknod,
    /// symlink(2).
    Symlink,
    /// link(2).
    Link,
    /// unlink(2).
    Unlink,
    /// rmdir(2).
    Rmdir,
    /// rename(2).
    Rename,
    /// chmod(2), chown(2), utimensat(2).
    Setattr,
    /// stat(2).
    Stat,
    /// readlink(2).
    Readlink,
    /// connect(2), TCP Fast Open.
    Connect,
    /// sendto(2), sendmsg(2).
    Send,
    /// A packet on its way out.
    Packet,
    /// socket(2).
    Socket,
    /// clone3(2) into another cgroup.
    Clone,
}

impl Operation {
    /// The operation of a record, if this build knows it.
    #[must_use]
    pub const fn from_raw(raw: u16) -> Option<Self> {
        Some(match raw {
            1 => Self::Open,
            2 => Self::Truncate,
            3 => Self::Create,
            4 => Self::Mkdir,
            5 => Self::Mknod,
            6 => Self::Symlink,
            7 => Self::Link,
            8 => Self::Unlink,
            9 => Self::Rmdir,
            10 => Self::Rename,
            11 => Self::Setattr,
            12 => Self::Stat,
            13 => Self::Readlink,
            14 => Self::Connect,
            15 => Self::Send,
            16 => Self::Packet,
            17 => Self::Socket,
            18 => Self::Clone,
            _ => return None,
        })
    }

    /// As events have it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Truncate => "truncate",
            Self::Create => "create",
            Self::Mkdir => "mkdir",
            Self::Mknod => "mknod",
            Self::Symlink => "symlink",
            Self::Link => "link",
            Self::Unlink => "unlink",
            Self::Rmdir => "rmdir",
            Self::Rename => "rename",
            Self::Setattr => "setattr",
            Self::Stat => "stat",
            Self::Readlink => "readlink",
            Self::Connect => "connect",
            Self::Send => "send",
            Self::Packet => "packet",
            Self::Socket => "socket",
            Self::Clone => "clone",
        }
    }

    /// Whether the record is a [`NetEvent`].
    #[must_use]
    pub const fn is_network(self) -> bool {
        matches!(
            self,
            Self::Connect | Self::Send | Self::Packet | Self::Socket
        )
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
    pub const PATH_TRUNCATED: u16 = 1;
    /// The same for the executable's path.
    pub const EXE_TRUNCATED: u16 = 1 << 1;
    /// No process stands behind it (packets in softirq).
    pub const NO_TASK: u16 = 1 << 2;
    /// The object is a directory.
    pub const DIRECTORY: u16 = 1 << 3;
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
    /// [`flags`].
    pub flags: u16,
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
