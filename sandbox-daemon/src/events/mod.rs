//! Refusals on their way from the ring buffer to whoever listens: decoded,
//! attributed to an exec, folded, numbered, fanned out.

use std::{sync::Arc, time::SystemTime};

pub use sandbox_common::{Right, Verdict};

pub mod decode;
pub mod fold;
pub mod journal;
pub mod mounts;
mod scope;
mod told;
mod used;

pub use decode::DecodeError;
pub use journal::{Filter, Item, Journal, Loss, LossReason, ResumeError, Since, Subscription};
pub use mounts::{Mounts, SharedMounts};
pub use scope::{Events, Owner, Rules, Scope};
pub use told::Told;
pub use used::{Request, Used};

use crate::escape::display;

/// One refused operation, in the user's terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Process; 0: none stands behind it.
    pub pid: u32,
    /// Its real user id.
    pub uid: u32,
    /// Path of its executable, or its comm where it has none.
    pub exe: Vec<u8>,
    /// What would have been needed.
    pub right: Right,
    /// As `Operation::as_str` has it.
    pub operation: &'static str,
    /// What was refused.
    pub object: Object,
    /// What the policy calls the rule that refused it.
    pub rule: Arc<str>,
    /// The policy that decided.
    pub policy_digest: Arc<str>,
    /// Positive; 0: the proxy refused it, in the words of its protocol.
    pub errno: u32,
    /// Refused, or only noted.
    pub verdict: Verdict,
}

/// What was refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Object {
    /// A path, as the sandbox sees it.
    Path(Vec<u8>),
    /// `ADDRESS:PORT`, or a kind of socket.
    Address(String),
    /// `HOST:PORT`, or a name that was asked for.
    Host(String),
    /// A Unix socket: its path, or its abstract name with the NUL that it begins
    /// with. Empty: it has neither.
    UnixSocket(Vec<u8>),
    /// A process and its comm.
    Process(u32, Vec<u8>),
    /// `CAP_SYS_ADMIN`, ...
    Capability(String),
    /// A part of the kernel: `io_uring`, `System V shared memory 3`, ...
    Facility(String),
}

impl Object {
    /// Fit for a terminal.
    pub fn display(&self) -> String {
        match self {
            Self::Path(path) => display(path),
            Self::Host(text) => display(text.as_bytes()),
            Self::Address(text) | Self::Capability(text) | Self::Facility(text) => text.clone(),
            Self::UnixSocket(name) => match name.split_first() {
                None => "a socket without a name".into(),
                // As ss(8) and systemd write it.
                Some((0, name)) => format!("@{}", display(name)),
                Some(_) => display(name),
            },
            Self::Process(pid, comm) => format!("process {pid} ({})", display(comm)),
        }
    }
}

/// Identical refusals, numbered.
#[derive(Clone, Debug)]
pub struct Denial {
    /// Whose it is.
    pub owner: Arc<Owner>,
    /// Counts from 1 in every epoch.
    pub sequence: u64,
    /// When the first happened.
    pub first: SystemTime,
    /// When the last happened.
    pub last: SystemTime,
    /// How many this stands for.
    pub count: u64,
    /// The first of them.
    pub refusal: Arc<Refusal>,
}
