//! Connections to the world: a name is resolved once, its addresses are checked,
//! and exactly a checked address is dialled.

use std::{
    io::{self, ErrorKind},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    sync::Arc,
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time,
};
use tokio_rustls::client::TlsStream;

use crate::{
    address,
    authority::Alpn,
    caller::{Caller, Grant, Refusal},
    channel::Operation,
    host::Host,
    name::Name,
    policy::Policy,
    resolver::Resolver,
    tls::{Offer, Tls, TlsError},
};

/// One attempt at one address.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Addresses of one name that are tried.
const ATTEMPTS: usize = 4;

/// Connects to names.
#[derive(Clone, Debug)]
pub struct Dialer {
    resolver: Arc<Resolver>,
    tls: Arc<Tls>,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The name leads to an address that it may not lead to; it was told.
    #[error("{0}")]
    Refused(Refusal),
    /// The name has no address.
    #[error("{0}")]
    Unresolved(String),
    /// The last address that was tried does not answer.
    #[error("{0}")]
    Unreachable(#[from] io::Error),
    /// It does not speak TLS as it should.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// It takes too long.
    #[error("the connection timed out")]
    TimedOut,
}

impl Dialer {
    /// Looks names up by this.
    #[must_use]
    pub fn new(resolver: Arc<Resolver>, tls: Arc<Tls>) -> Self {
        Self { resolver, tls }
    }

    /// For connections on which TLS ends here.
    #[must_use]
    pub fn tls(&self) -> &Tls {
        &self.tls
    }

    /// Connects to what was granted.
    ///
    /// # Errors
    /// See [`DialError`].
    pub async fn dial(
        &self,
        caller: &Caller,
        operation: Operation,
        grant: &Grant,
    ) -> Result<TcpStream, DialError> {
        let name = match &grant.host {
            Host::Name(name) => name,
            // What was granted is the address itself.
            Host::Address(address) => return connect(&[*address], grant.port).await,
        };
        let addresses = self
            .resolver
            .lookup(name)
            .await
            .map_err(|error| DialError::Unresolved(format!("{name}: {error}")))?;
        let checked = check(&caller.sandbox.policy(), &addresses, grant.port)?;
        let addresses = match checked {
            Checked::Some(addresses) => addresses,
            Checked::None { all, first, kind } => {
                let rule = format!("resolves to {first}, {kind}");
                caller
                    .refuse(operation, name.as_str(), grant.port, rule)
                    .map_err(DialError::Refused)?;
                all
            }
        };
        connect(&addresses, grant.port).await
    }
}

impl Dialer {
    /// Speaks TLS over a connection to a host, which has to prove who it is.
    ///
    /// # Errors
    /// See [`DialError`]. One that is not who it should be is refused, in observe
    /// mode too.
    pub async fn secure<S>(
        &self,
        caller: &Caller,
        operation: Operation,
        to: (&Name, u16),
        offer: Offer,
        stream: S,
    ) -> Result<(TlsStream<S>, Alpn), DialError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let (name, port) = to;
        let connected = self.tls.connect(name, offer, stream);
        match time::timeout(TIMEOUT, connected).await {
            Ok(Err(error @ (TlsError::Invalid(_) | TlsError::NoRoots))) => {
                let refusal = caller.deny(operation, name.as_str(), port, error.to_string());
                Err(DialError::Refused(refusal))
            }
            Ok(connected) => Ok(connected?),
            Err(_) => Err(DialError::TimedOut),
        }
    }
}

enum Checked {
    /// These may be dialled.
    Some(Vec<IpAddr>),
    /// None of `all` may: what `first` of them is.
    None {
        all: Vec<IpAddr>,
        first: IpAddr,
        kind: &'static str,
    },
}

fn check(policy: &Policy, addresses: &[IpAddr], port: u16) -> io::Result<Checked> {
    let all: Vec<_> = addresses.iter().map(IpAddr::to_canonical).collect();
    let mut good = Vec::new();
    let mut bad = None;
    for &address in &all {
        match refused(policy, address, port)? {
            None => good.push(address),
            Some(kind) => bad = bad.or(Some((address, kind))),
        }
    }
    Ok(match bad {
        Some((first, kind)) if good.is_empty() => Checked::None { all, first, kind },
        _ => Checked::Some(good),
    })
}

fn refused(policy: &Policy, address: IpAddr, port: u16) -> io::Result<Option<&'static str>> {
    if policy.names(address, port) {
        return Ok(None);
    }
    if let Some(kind) = address::refused(address) {
        return Ok(Some(kind));
    }
    Ok(is_own(address)?.then_some("an address of this machine"))
}

async fn connect(addresses: &[IpAddr], port: u16) -> Result<TcpStream, DialError> {
    let mut error = DialError::TimedOut;
    for &address in addresses.iter().take(ATTEMPTS) {
        let attempt = TcpStream::connect(SocketAddr::new(address, port));
        match time::timeout(TIMEOUT, attempt).await {
            Ok(Ok(stream)) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Ok(Err(failed)) => error = failed.into(),
            Err(_) => error = DialError::TimedOut,
        }
    }
    Err(error)
}

/// Whether an address is one of this machine's, without a list of them, which
/// would have to be kept: such an address can be bound, and is where packets to
/// it come from. Neither alone: what can be bound is anything with the sysctl
/// `ip_nonlocal_bind`, and packets to a second address of an interface come from
/// its first.
fn is_own(address: IpAddr) -> io::Result<bool> {
    let nobodys = match address {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::new(240, 0, 0, 1)),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 1)),
    };
    Ok((can_bind(address)? && !can_bind(nobodys)?) || is_source(address)?)
}

fn can_bind(address: IpAddr) -> io::Result<bool> {
    match UdpSocket::bind((address, 0)) {
        Ok(_) => Ok(true),
        Err(error) if is_elsewhere(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_source(address: IpAddr) -> io::Result<bool> {
    let any = match address {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    // The port does not matter: nothing is sent.
    let connect = || {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect((address, 9))?;
        socket.local_addr()
    };
    match connect() {
        Ok(from) => Ok(from.ip() == address),
        Err(error) if is_elsewhere(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Not this machine's, and perhaps nowhere: connecting will tell.
fn is_elsewhere(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::AddrNotAvailable
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::PermissionDenied
            | ErrorKind::InvalidInput
    ) || error.raw_os_error() == Some(libc::EAFNOSUPPORT)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::testing::{World, name};

    const HOSTS: &str = "127.0.0.1 here.test\n\
                         10.9.9.9 private.test\n\
                         ::ffff:10.9.9.9 mapped.test\n\
                         ::ffff:127.0.0.1 mapped-here.test\n";

    async fn dial(world: &World, host: &str, port: u16) -> Result<TcpStream, DialError> {
        let resolver = Resolver::new("", HOSTS).unwrap();
        let grant = world
            .caller
            .reach(Operation::Connect, &name(host).into(), port)
            .unwrap();
        Dialer::new(Arc::new(resolver), Arc::new(Tls::new().unwrap()))
            .dial(&world.caller, Operation::Connect, &grant)
            .await
    }

    fn allowing(port: u16) -> World {
        World::allowing(&[&format!("*:{port}")])
    }

    #[tokio::test]
    async fn a_name_that_leads_to_a_private_address_is_refused_and_told() {
        for (host, address) in [("private.test", "10.9.9.9"), ("mapped.test", "10.9.9.9")] {
            let world = allowing(80);
            let Err(DialError::Refused(refusal)) = dial(&world, host, 80).await else {
                panic!("{host} was not refused");
            };
            let told = format!("denied {host}:80 (resolves to {address}, a private address)");
            assert_eq!(refusal.to_string(), told);
            assert_eq!(world.refusals(), [told]);
        }
    }

    #[tokio::test]
    async fn a_loopback_address_is_dialled_only_where_the_policy_names_it() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let world = allowing(port);
        assert!(matches!(
            dial(&world, "here.test", port).await,
            Err(DialError::Refused(_))
        ));
        let mut policy = world.policy.clone();
        policy.direct = vec![("127.0.0.1".parse().unwrap(), Some(port))];
        let world = World::new(policy);
        for host in ["here.test", "mapped-here.test"] {
            let stream = dial(&world, host, port).await.unwrap();
            assert_eq!(stream.peer_addr().unwrap(), listener.local_addr().unwrap());
        }
        assert!(world.refusals().is_empty());
    }

    #[tokio::test]
    async fn observing_lets_a_private_address_through_and_tells() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut policy = allowing(port).policy;
        policy.observe = true;
        let world = World::new(policy);
        dial(&world, "here.test", port).await.unwrap();
        assert_eq!(world.refusals().len(), 1);
    }

    #[tokio::test]
    async fn the_next_address_is_tried_when_one_does_not_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let addresses = ["127.0.0.9", "127.0.0.1"].map(|it| it.parse().unwrap());
        assert!(connect(&addresses[..1], port).await.is_err());
        let stream = connect(&addresses, port).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), listener.local_addr().unwrap());
    }

    #[test]
    fn the_addresses_of_this_machine_are_its_own() {
        // Packets to the second come from the first.
        for own in ["127.0.0.1", "127.0.0.2"] {
            assert!(is_own(own.parse().unwrap()).unwrap(), "{own}");
        }
        for other in ["192.0.2.77", "240.0.0.1", "2001:db8::77"] {
            assert!(!is_own(other.parse().unwrap()).unwrap(), "{other}");
        }
    }
}
