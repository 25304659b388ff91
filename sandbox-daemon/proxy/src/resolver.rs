//! What addresses a name has: by the host's `/etc/hosts` and name servers, whose
//! texts the daemon sends, and again when they change.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use hickory_resolver::{
    Hosts, Resolver as Client, TokioResolver,
    config::{NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts},
    lookup_ip::LookupIp,
    net::{DnsError, NetError, NoRecords, runtime::TokioRuntimeProvider},
    proto::{
        op::{Query, ResponseCode},
        rr::{Name as DnsName, RecordType},
    },
    system_conf,
};
use tokio::time;

use crate::name::Name;

/// One lookup, with all repetitions: programs give a query up after five
/// seconds, and send it again.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Answers that are kept for as long as they say they are good.
const CACHED: u64 = 1024;

/// Looks names up as the host does.
pub struct Resolver(RwLock<Arc<Source>>);

struct Source {
    hosts: Hosts,
    client: TokioResolver,
}

/// Why a name has no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// NXDOMAIN.
    #[error("no such name")]
    NoSuchName,
    /// There is such a name, but nothing to connect to.
    #[error("the name has no address")]
    NoAddress,
    /// No server answered.
    #[error("name servers do not answer")]
    TimedOut,
    /// A server did, but knew no answer.
    #[error("name servers fail: {0}")]
    Failed(String),
}

impl Resolver {
    /// By the texts of `/etc/resolv.conf` and `/etc/hosts`.
    ///
    /// # Errors
    /// The resolver cannot be set up.
    pub fn new(resolv_conf: &str, hosts: &str) -> Result<Self, ResolveError> {
        let (servers, options) = read(resolv_conf);
        let source = Source::new(servers, options, hosts)?;
        Ok(Self(RwLock::new(Arc::new(source))))
    }

    /// By a name server at an address and port of its own, and nothing else.
    ///
    /// # Errors
    /// The resolver cannot be set up.
    pub fn of_server(server: SocketAddr) -> Result<Self, ResolveError> {
        let mut config = NameServerConfig::udp_and_tcp(server.ip());
        for connection in &mut config.connections {
            connection.port = server.port();
        }
        let source = Source::new(vec![config], ResolverOpts::default(), "")?;
        Ok(Self(RwLock::new(Arc::new(source))))
    }

    /// Looks up by other texts from now on. Lookups under way are not disturbed.
    ///
    /// # Errors
    /// The resolver cannot be set up; the earlier one stays.
    pub fn replace(&self, resolv_conf: &str, hosts: &str) -> Result<(), ResolveError> {
        let (servers, options) = read(resolv_conf);
        let source = Arc::new(Source::new(servers, options, hosts)?);
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = source;
        Ok(())
    }

    /// The addresses of a name, at least one, IPv4 first.
    ///
    /// # Errors
    /// It has none, or nobody knows.
    pub async fn lookup(&self, name: &Name) -> Result<Vec<IpAddr>, ResolveError> {
        let source = self
            .0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let mut addresses = time::timeout(TIMEOUT, source.lookup(name))
            .await
            .unwrap_or(Err(ResolveError::TimedOut))?;
        addresses.sort_by_key(IpAddr::is_ipv6);
        addresses.dedup();
        if addresses.is_empty() {
            return Err(ResolveError::NoAddress);
        }
        Ok(addresses)
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver").finish_non_exhaustive()
    }
}

impl Source {
    fn new(
        servers: Vec<NameServerConfig>,
        mut options: ResolverOpts,
        text: &str,
    ) -> Result<Self, ResolveError> {
        let failed = |error: NetError| ResolveError::Failed(error.to_string());
        let mut hosts = Hosts::default();
        hosts
            .read_hosts_conf(text.as_bytes())
            .map_err(|error| ResolveError::Failed(error.to_string()))?;
        // This process may read no file.
        options.use_hosts_file = ResolveHosts::Never;
        options.cache_size = CACHED;
        // No search list: what was checked is what is looked up.
        let config = ResolverConfig::from_name_servers(servers);
        let mut builder = Client::builder_with_config(config, TokioRuntimeProvider::default());
        *builder.options_mut() = options;
        let client = builder.build().map_err(failed)?;
        Ok(Self { hosts, client })
    }

    async fn lookup(&self, name: &Name) -> Result<Vec<IpAddr>, ResolveError> {
        let mut query = DnsName::from_ascii(name.as_str())
            .map_err(|error| ResolveError::Failed(error.to_string()))?;
        query.set_fqdn(true);
        let known = self.in_hosts(&query);
        if !known.is_empty() {
            return Ok(known);
        }
        match self.client.lookup_ip(query).await {
            Ok(lookup) => Ok(lookup.iter().collect()),
            Err(error) => Err(error.into()),
        }
    }

    /// A name that the file has is looked up nowhere else, not even for the other
    /// kind of address.
    fn in_hosts(&self, name: &DnsName) -> Vec<IpAddr> {
        [RecordType::A, RecordType::AAAA]
            .into_iter()
            .filter_map(|kind| {
                self.hosts
                    .lookup_static_host(&Query::query(name.clone(), kind))
            })
            .flat_map(|lookup| LookupIp::from(lookup).iter().collect::<Vec<_>>())
            .collect()
    }
}

impl From<NetError> for ResolveError {
    fn from(error: NetError) -> Self {
        match error {
            NetError::Dns(DnsError::NoRecordsFound(NoRecords { response_code, .. })) => {
                match response_code {
                    ResponseCode::NXDomain => Self::NoSuchName,
                    _ => Self::NoAddress,
                }
            }
            NetError::Timeout => Self::TimedOut,
            other => Self::Failed(other.to_string()),
        }
    }
}

/// Without a usable line, a server on this machine: resolv.conf(5).
fn read(resolv_conf: &str) -> (Vec<NameServerConfig>, ResolverOpts) {
    match system_conf::parse_resolv_conf(resolv_conf) {
        Ok((config, options)) => (config.into_parts().2, options),
        Err(_) => (
            vec![NameServerConfig::udp_and_tcp(Ipv4Addr::LOCALHOST.into())],
            ResolverOpts::default(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Upstream, name};

    fn addresses(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|it| it.parse().unwrap()).collect()
    }

    #[tokio::test]
    async fn a_name_has_the_addresses_that_servers_say_ipv4_first() {
        let upstream = Upstream::start(&[("a.test", &["2001:db8::1", "192.0.2.1"])]).await;
        let resolver = Resolver::of_server(upstream.address).unwrap();
        assert_eq!(
            resolver.lookup(&name("a.test")).await,
            Ok(addresses(&["192.0.2.1", "2001:db8::1"]))
        );
    }

    #[tokio::test]
    async fn what_servers_do_not_know_has_a_reason() {
        let upstream = Upstream::start(&[("none.test", &[])]).await;
        let resolver = Resolver::of_server(upstream.address).unwrap();
        let lookup = async |it| resolver.lookup(&name(it)).await;
        assert_eq!(lookup("none.test").await, Err(ResolveError::NoAddress));
        assert_eq!(lookup("b.test").await, Err(ResolveError::NoSuchName));
        assert!(matches!(
            lookup("servfail.test").await,
            Err(ResolveError::Failed(_))
        ));
    }

    #[tokio::test]
    async fn names_of_the_hosts_file_are_not_asked_for() {
        let upstream = Upstream::start(&[("a.test", &["192.0.2.1"])]).await;
        let mut source = Source::new(
            Vec::new(),
            ResolverOpts::default(),
            "2001:db8::7 A.test # local\n",
        )
        .unwrap();
        source.client = Resolver::of_server(upstream.address)
            .unwrap()
            .0
            .into_inner()
            .unwrap()
            .client
            .clone();
        let known = source.lookup(&name("a.test")).await;
        assert_eq!(known, Ok(addresses(&["2001:db8::7"])));
        assert!(upstream.asked().is_empty());
        assert!(source.lookup(&name("b.test")).await.is_err());
        assert!(!upstream.asked().is_empty());
    }

    #[tokio::test]
    async fn a_search_list_is_not_used() {
        let text = "nameserver 192.0.2.53\nsearch corp.test\noptions ndots:5 timeout:3\n";
        let (servers, options) = read(text);
        assert_eq!(options.timeout, Duration::from_secs(3));
        assert_eq!(servers[0].ip, addresses(&["192.0.2.53"])[0]);
        let upstream = Upstream::start(&[("short.corp.test", &["192.0.2.1"])]).await;
        let resolver = Resolver::of_server(upstream.address).unwrap();
        assert!(resolver.lookup(&name("short")).await.is_err());
        assert!(upstream.asked().iter().all(|it| it.starts_with("short. ")));
    }

    #[tokio::test]
    async fn other_texts_take_effect_at_once() {
        let resolver = Resolver::new("", "192.0.2.1 a.test").unwrap();
        let lookup = async || resolver.lookup(&name("a.test")).await;
        assert_eq!(lookup().await, Ok(addresses(&["192.0.2.1"])));
        resolver.replace("", "192.0.2.2 a.test").unwrap();
        assert_eq!(lookup().await, Ok(addresses(&["192.0.2.2"])));
    }
}
