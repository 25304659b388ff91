//! What the daemon and the proxy tell each other over their socket pair: a
//! length of four bytes, then JSON. The proxy's sockets and map descriptors come
//! with the first message (`SCM_RIGHTS`).

use std::{
    io::{self, IoSlice, IoSliceMut},
    net::{IpAddr, SocketAddr},
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd as _, OwnedFd},
        unix::net::UnixStream,
    },
};

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::{
    credential::{Credential, SecretValue},
    rule::HostRule,
};

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
    /// Whose certificates are those of servers: PEM, in the place of earlier ones.
    Roots {
        /// Any number of certificates.
        pem: String,
    },
    /// A secret, in the place of an earlier value; before the first policy that
    /// names it.
    Secret {
        /// Whose.
        uid: u32,
        /// As policies name it.
        name: String,
        /// None: there is none any more.
        value: Option<SecretValue>,
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
    /// Which of the addresses that stand for names the first one has.
    pub first_address: u32,
    /// Whose secrets `credentials` name.
    pub uid: u32,
    /// What is added to requests on their way out.
    pub credentials: Vec<Credential>,
    /// Hosts that are passed untouched whatever `credentials` says.
    pub untouched: Vec<HostRule>,
}

/// From the proxy.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum FromProxy {
    /// It is confined, and serves.
    Ready {
        /// Of the authority that has made the certificates which clients see where
        /// credentials are added: PEM. Another one each time it starts.
        authority: String,
    },
    /// Everything up to this `Sync` is in force, and everything decided before
    /// has been told.
    Done {
        /// Of the `Sync`.
        serial: u64,
    },
    /// Refusals, identical ones as one.
    Refused(Refused),
    /// Uses of credentials, identical ones as one.
    Used(Used),
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
    /// Somebody who is in no sandbox called.
    Stranger {
        /// From where.
        from: SocketAddr,
        /// How many this stands for.
        count: u64,
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

/// A credential was added to a request on its way out.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Used {
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
    /// Which, as the policy calls it.
    pub credential: String,
    /// Of its entries, the one that covers the request: of `repositories`, `paths`
    /// or `hosts`.
    pub rule: String,
    /// The host.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Of the request.
    pub method: String,
    /// Of the request, without its query.
    pub path: String,
    /// Of git; empty: the request is none of git's.
    pub repository: String,
    /// That are pushed.
    pub refs: Vec<String>,
    /// How many more are.
    pub further_refs: u32,
    /// How many this stands for.
    pub count: u64,
}

/// What was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Decision {
    /// A rule lets it through.
    Allowed,
    /// It is refused.
    Denied,
    /// It would be, but was let through.
    Observed,
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
    /// What was decided.
    pub decision: Decision,
    /// Connections, requests, queries.
    pub requests: u64,
    /// Bytes to the host.
    pub sent: u64,
    /// Bytes from the host.
    pub received: u64,
}

/// Descriptors that the first message brings at most.
const MAX_DESCRIPTORS: usize = 6;

/// Reads a message; none: the other side is gone.
///
/// # Errors
/// Reading, or what comes is no message.
pub async fn read<T: DeserializeOwned>(
    from: &mut (impl AsyncRead + Unpin),
) -> io::Result<Option<T>> {
    let length = match from.read_u32().await {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        length => usize::try_from(length?).unwrap_or(usize::MAX),
    };
    if length > MAX_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut message = vec![0; length];
    from.read_exact(&mut message).await?;
    Ok(Some(serde_json::from_slice(&message)?))
}

/// Writes a message.
///
/// # Errors
/// Writing, or it is too large.
pub async fn write<T: Serialize>(
    to: &mut (impl AsyncWrite + Unpin),
    message: &T,
) -> io::Result<()> {
    to.write_all(&encode(message)?).await
}

/// Writes the first message, with descriptors.
///
/// # Errors
/// See [`write`].
pub fn send_first<T: Serialize>(
    to: &UnixStream,
    message: &T,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let bytes = encode(message)?;
    let raw: Vec<_> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let slices = [IoSlice::new(&bytes)];
    let sent = sendmsg::<()>(to.as_raw_fd(), &slices, &rights, MsgFlags::empty(), None)?;
    // A socket that nothing was written to takes a short message whole.
    if sent == bytes.len() {
        Ok(())
    } else {
        Err(io::ErrorKind::WriteZero.into())
    }
}

/// Reads the first message and its descriptors, of a socket that blocks.
///
/// # Errors
/// See [`read`].
pub fn receive_first<T: DeserializeOwned>(from: &UnixStream) -> io::Result<(T, Vec<OwnedFd>)> {
    let mut length = [0; 4];
    let mut space = nix::cmsg_space!([std::os::fd::RawFd; MAX_DESCRIPTORS]);
    let mut slices = [IoSliceMut::new(&mut length)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_WAITALL;
    let received = recvmsg::<()>(from.as_raw_fd(), &mut slices, Some(&mut space), flags)?;
    let mut descriptors = Vec::new();
    for message in received.cmsgs()? {
        if let ControlMessageOwned::ScmRights(raw) = message {
            // SAFETY: the kernel has just opened them for this process.
            descriptors.extend(
                raw.into_iter()
                    .map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }),
            );
        }
    }
    let whole = received.bytes == 4;
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    if !whole || length > MAX_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut message = vec![0; length];
    io::Read::read_exact(&mut &*from, &mut message)?;
    Ok((serde_json::from_slice(&message)?, descriptors))
}

fn encode<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, message)?;
    let length = bytes.len() - 4;
    if length > MAX_BYTES {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let length = u32::try_from(length).map_err(|_| io::ErrorKind::InvalidInput)?;
    bytes[..4].copy_from_slice(&length.to_be_bytes());
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io::Read as _, os::fd::AsFd as _};

    use super::*;

    #[tokio::test]
    async fn a_message_arrives_with_its_descriptors() {
        let (here, there) = UnixStream::pair().unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "here").unwrap();
        let opened = File::open(file.path()).unwrap();
        let begin = ToProxy::Begin { ipv6: true };
        send_first(&here, &begin, &[opened.as_fd()]).unwrap();
        let (message, mut descriptors) = receive_first::<ToProxy>(&there).unwrap();
        assert!(matches!(message, ToProxy::Begin { ipv6: true }));
        let mut text = String::new();
        let mut received = File::from(descriptors.remove(0));
        received.read_to_string(&mut text).unwrap();
        assert_eq!(text, "here");

        there.set_nonblocking(true).unwrap();
        here.set_nonblocking(true).unwrap();
        let mut there = tokio::net::UnixStream::from_std(there).unwrap();
        let mut here = tokio::net::UnixStream::from_std(here).unwrap();
        write(&mut here, &ToProxy::Sync { serial: 7 })
            .await
            .unwrap();
        let message = read(&mut there).await.unwrap();
        assert!(matches!(message, Some(ToProxy::Sync { serial: 7 })));
        drop(here);
        assert!(read::<ToProxy>(&mut there).await.unwrap().is_none());
    }
}
