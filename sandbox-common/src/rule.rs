//! Rule ids: those of a policy count from 1, the built-in ones from the top.

/// Rules that no policy states.
pub mod builtin {
    /// Nothing in the policy allows it.
    pub const NONE: u32 = 0;
    /// More than `MAX_DEPTH` directories between the file and its root.
    pub const TOO_DEEP: u32 = 0xffff_ff01;
    /// A file without a path to its file system's root.
    pub const DISCONNECTED: u32 = 0xffff_ff02;
    /// A file system that appeared after the policy was applied.
    pub const UNKNOWN_FILESYSTEM: u32 = 0xffff_ff03;
    /// Writing to proc, sysfs, cgroup and the like.
    pub const KERNEL_FILESYSTEM: u32 = 0xffff_ff04;
    /// The policy's `[network] mode`.
    pub const NETWORK: u32 = 0xffff_ff05;
    /// A packet that does not go where its socket said.
    pub const PACKET: u32 = 0xffff_ff06;
    /// A process in a sandbox without a policy: it is being removed.
    pub const NO_POLICY: u32 = 0xffff_ff07;
    /// A directory that would leave the directory of a name pattern.
    pub const PATTERN: u32 = 0xffff_ff08;
    /// A process that would be made outside the sandbox.
    pub const LEAVING: u32 = 0xffff_ff09;
    /// Another process, which is not of the sandbox.
    pub const PROCESS: u32 = 0xffff_ff0a;
    /// A part of the kernel that sandboxes do not reach.
    pub const FACILITY: u32 = 0xffff_ff0b;
    /// A capability that sandboxes do not have.
    pub const CAPABILITY: u32 = 0xffff_ff0c;
    /// Mounting, and changing the root.
    pub const MOUNT: u32 = 0xffff_ff0d;
    /// A device that the policy does not open.
    pub const DEVICE: u32 = 0xffff_ff0e;
    /// A kind of socket that sandboxes do not make.
    pub const SOCKET: u32 = 0xffff_ff0f;
    /// A Unix socket of somebody else's.
    pub const UNIX: u32 = 0xffff_ff10;
    /// The policy's `[network] listen`.
    pub const LISTEN: u32 = 0xffff_ff11;
    /// A port of this machine that is somebody else's.
    pub const LOOPBACK: u32 = 0xffff_ff12;
    /// A descriptor that came from outside.
    pub const RECEIVED: u32 = 0xffff_ff13;
    /// An ioctl that would write, or type into a terminal.
    pub const IOCTL: u32 = 0xffff_ff14;
    /// A program that would run as somebody else: a setuid or setgid bit.
    pub const SETUID: u32 = 0xffff_ff15;
    /// The proxy is the only way there, and is away.
    pub const PROXY_AWAY: u32 = 0xffff_ff16;
}

/// What events call a built-in rule.
#[must_use]
pub const fn builtin_label(rule: u32) -> Option<&'static str> {
    Some(match rule {
        builtin::NONE => "not allowed",
        builtin::TOO_DEEP => "too deep",
        builtin::DISCONNECTED => "disconnected file",
        builtin::UNKNOWN_FILESYSTEM => "unknown file system",
        builtin::KERNEL_FILESYSTEM => "kernel file system",
        builtin::NETWORK => "network mode",
        builtin::PACKET => "packet destination",
        builtin::NO_POLICY => "no policy",
        builtin::PATTERN => "name pattern",
        builtin::LEAVING => "leaving the sandbox",
        builtin::PROCESS => "another process",
        builtin::FACILITY => "kernel interface",
        builtin::CAPABILITY => "capability",
        builtin::MOUNT => "mounts",
        builtin::DEVICE => "device",
        builtin::SOCKET => "socket kind",
        builtin::UNIX => "unix socket",
        builtin::LISTEN => "listen",
        builtin::LOOPBACK => "loopback",
        builtin::RECEIVED => "received descriptor",
        builtin::IOCTL => "ioctl",
        builtin::SETUID => "setuid",
        builtin::PROXY_AWAY => "the proxy is away",
        _ => return None,
    })
}
