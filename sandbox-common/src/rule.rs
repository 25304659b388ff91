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
        _ => return None,
    })
}
