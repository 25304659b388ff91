//! What the daemon and the proxy tell each other over their socket pair: a
//! length of four bytes, then JSON. The proxy's sockets and map descriptors come
//! with the first message (`SCM_RIGHTS`).

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::rule::HostRule;

/// Largest message; a policy of 50,000 rules is smaller.
pub const MAX_BYTES: usize = 16 << 20;

/// From the daemon.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ToProxy {
    /// First, with descriptors: TCP at 127.0.0.1, UDP there, the flows, what was
    /// asked for; with `ipv6` then TCP at `::1` and UDP there.
    Begin {
        /// Whether there are sockets at `::1`.
        ipv6: bool,
    },
    /// How names are looked up: the texts of `/etc/resolv.conf` and `/etc/hosts`.
    Resolver {
        /// Name servers, search list, options.
        resolv_conf: String,
        /// Names that need no server.
        hosts: String,
    },
    /// A sandbox's policy, in the place of an earlier one.
    Policy(Box<SandboxPolicy>),
    /// The sandbox is gone.
    Forget {
        /// Its cgroup id.
        sandbox: u64,
    },
    /// Asks for [`FromProxy::Done`].
    Sync {
        /// Comes back.
        serial: u64,
    },
}

/// What one sandbox may reach.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SandboxPolicy {
    /// Cgroup id.
    pub sandbox: u64,
    /// Generation of the policy, which comes back with each decision.
    pub generation: u32,
    /// Everything is let through, and what would not have been is told.
    pub observe: bool,
    /// Hosts that may be reached.
    pub allow: Vec<HostRule>,
    /// Hosts that may not, whatever `allow` says.
    pub deny: Vec<HostRule>,
    /// Addresses that the policy names: a name may lead there although they are
    /// private. No port: all.
    pub direct: Vec<(IpAddr, Option<u16>)>,
    /// Names that have an address already, of an earlier proxy; see
    /// [`FromProxy::Named`].
    pub names: Vec<String>,
}

/// From the proxy.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum FromProxy {
    /// It is confined, and serves.
    Ready,
    /// Everything up to this `Sync` is in force, and everything decided before
    /// has been told.
    Done {
        /// Of the `Sync`.
        serial: u64,
    },
    /// Refusals, identical ones as one.
    Refused(Refused),
    /// A sandbox's next name: its address is `names` of [`SandboxPolicy`] plus
    /// those told since.
    Named {
        /// Cgroup id.
        sandbox: u64,
        /// The name.
        name: String,
    },
    /// What was decided since the last of these.
    Traffic {
        /// Cgroup id.
        sandbox: u64,
        /// By host, port and rule.
        traffic: Vec<Traffic>,
    },
    /// Somebody who is in no sandbox connected.
    Stranger {
        /// From where.
        from: SocketAddr,
    },
    /// Refusals that were too many to keep.
    Lost {
        /// Cgroup id.
        sandbox: u64,
        /// Cgroup id.
        exec: u64,
        /// How many.
        count: u64,
    },
}

/// What was attempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Operation {
    /// A connection: CONNECT, or transparent TCP.
    Connect,
    /// A name was asked for.
    Resolve,
    /// A plain HTTP request.
    Request,
}

/// A refusal, and how often it happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Refused {
    /// Cgroup id.
    pub sandbox: u64,
    /// Cgroup id; 0: none.
    pub exec: u64,
    /// Of the policy that decided.
    pub generation: u32,
    /// Process (thread group).
    pub pid: u32,
    /// Real user id.
    pub uid: u32,
    /// `task_struct.comm`.
    pub comm: [u8; 16],
    /// What was attempted.
    pub operation: Operation,
    /// A name, or what was given for one.
    pub host: String,
    /// 0: none.
    pub port: u16,
    /// Why: a rule of the policy's, or of the proxy's own.
    pub rule: String,
    /// Let through all the same.
    pub observed: bool,
    /// How many this stands for.
    pub count: u64,
}

/// What went to one host under one rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Name, or what was given for one.
    pub host: String,
    /// 0: none.
    pub port: u16,
    /// The rule that allowed or refused it.
    pub rule: String,
    /// Whether it was let through.
    pub allowed: bool,
    /// Connections, requests, queries.
    pub requests: u64,
    /// Bytes to the host.
    pub sent: u64,
    /// Bytes from the host.
    pub received: u64,
}
