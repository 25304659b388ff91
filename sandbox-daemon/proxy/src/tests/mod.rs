//! The proxy as a client sees it, with hosts on loopback and a kernel that
//! always answers the same.

mod addresses;
mod credentials;
mod forward;
mod http2;
mod malformed;
mod tunnels;

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use sandbox_common::{Asked, PROXY_ADDRESS, PROXY_PORT, mapped};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::timeout,
};

use crate::{
    caller::{Caller, Refusal, Sandboxes},
    channel::{FromProxy, Refused, SandboxPolicy, Traffic},
    dial::Dialer,
    dns,
    ledger::Outbox,
    resolver::Resolver,
    serve::{Identify, Server},
    testing::{name, rule},
    tls::Tls,
    tunnel::Passage,
};

const LONG: Duration = Duration::from_secs(10);

/// `other.test` is the same machine, and never allowed.
const HOSTS: &str = "127.0.0.1 host.test second.test other.test\n10.9.9.9 private.test\n";

/// Says of everybody who it is.
struct Known(Arc<Mutex<Option<Asked>>>);

impl Identify for Known {
    fn find(&self, _: u16, _: SocketAddr) -> io::Result<Option<Asked>> {
        Ok(*self.0.lock().unwrap())
    }
}

/// A proxy, and one sandbox that uses it.
struct Stage {
    address: SocketAddr,
    asked: Arc<Mutex<Option<Asked>>>,
    sandboxes: Arc<Sandboxes>,
    outbox: Arc<Outbox>,
    dialer: Dialer,
}

impl Stage {
    /// Allows these.
    async fn new(allow: &[&str]) -> Self {
        Self::with(SandboxPolicy {
            allow: allow.iter().copied().map(rule).collect(),
            ..SandboxPolicy::default()
        })
        .await
    }

    /// Allows two names at the host's port, and that they are on this machine.
    async fn for_host(host: &Host) -> Self {
        let port = host.port();
        Self::new(&[&format!("host.test:{port}"), &format!("second.test:{port}")]).await
    }

    async fn with(policy: SandboxPolicy) -> Self {
        let outbox = Arc::new(Outbox::default());
        let sandboxes = Arc::new(Sandboxes::new(outbox.clone()));
        sandboxes.put(SandboxPolicy {
            sandbox: 7,
            direct: [
                vec![("127.0.0.1".parse().unwrap(), None)],
                policy.direct.clone(),
            ]
            .concat(),
            ..policy
        });
        let asked = Arc::new(Mutex::new(None));
        let resolver = Arc::new(Resolver::new("", HOSTS).unwrap());
        let dialer = Dialer::new(resolver.clone(), Arc::new(Tls::new().unwrap()));
        let server = Server {
            identify: Known(asked.clone()),
            sandboxes: sandboxes.clone(),
            outbox: outbox.clone(),
            dialer: dialer.clone(),
            dns: Arc::new(dns::Server::new(resolver)),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(Arc::new(server).tcp(listener));
        let stage = Self {
            address,
            asked,
            sandboxes,
            outbox,
            dialer,
        };
        stage.ask(SocketAddr::new(PROXY_ADDRESS.into(), PROXY_PORT));
        stage
    }

    /// Everybody wants to go there from now on.
    fn ask(&self, to: SocketAddr) {
        *self.asked.lock().unwrap() = Some(Asked {
            sandbox: 7,
            exec: 8,
            address: mapped(match to.ip() {
                std::net::IpAddr::V4(address) => address.octets(),
                std::net::IpAddr::V6(_) => unreachable!(),
            }),
            port: to.port(),
            ..Asked::default()
        });
    }

    fn caller(&self) -> Caller {
        let asked = self.asked.lock().unwrap().unwrap();
        self.sandboxes.caller(&asked).unwrap()
    }

    /// Everybody connects to this name, as if it were a host.
    fn transparent(&self, host: &str, port: u16) {
        let address = self.caller().sandbox.address(&name(host)).unwrap();
        self.ask((address, port).into());
    }

    async fn connect(&self) -> Peer {
        Peer(TcpStream::connect(self.address).await.unwrap())
    }

    /// A connection as at the ports of HTTP and TLS, where the client is first.
    async fn client_first(&self, host: &str, port: u16) -> Peer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let passage = Passage {
            caller: self.caller(),
            dialer: self.dialer.clone(),
            host: name(host).into(),
            port,
        };
        let peer = TcpStream::connect(listener.local_addr().unwrap());
        let (peer, accepted) = tokio::join!(peer, listener.accept());
        let client = crate::client::Client::new(accepted.unwrap().0);
        tokio::spawn(passage.client_first(client));
        Peer(peer.unwrap())
    }

    /// Says this, and hears everything to the end.
    async fn tell(&self, bytes: impl AsRef<[u8]>) -> String {
        let mut peer = self.connect().await;
        peer.say(bytes).await;
        peer.rest().await
    }

    /// What was refused since the last time.
    fn refusals(&self) -> Vec<String> {
        let refused = self.told().into_iter().flat_map(|it| {
            let refusal = Refusal {
                host: it.host,
                port: it.port,
                rule: it.rule,
            };
            std::iter::repeat_n(refusal.to_string(), usize::try_from(it.count).unwrap())
        });
        let mut all: Vec<_> = refused.collect();
        all.sort();
        all
    }

    /// The same as it is told, in no order.
    fn told(&self) -> Vec<Refused> {
        let told = self.outbox.take().into_iter();
        told.filter_map(|message| match message {
            FromProxy::Refused(refused) => Some(refused),
            _ => None,
        })
        .collect()
    }

    /// What was counted since the last time.
    fn traffic(&self) -> Vec<Traffic> {
        self.sandboxes.report();
        let told = self.outbox.take().into_iter();
        told.filter_map(|message| match message {
            FromProxy::Traffic { traffic, .. } => Some(traffic),
            _ => None,
        })
        .flatten()
        .collect()
    }
}

/// A client's or a host's end of a connection.
struct Peer(TcpStream);

impl Peer {
    async fn say(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).await.unwrap();
    }

    /// Everything up to and with these words.
    async fn hear(&mut self, end: &str) -> String {
        let mut heard = Vec::new();
        let hearing = async {
            while !heard.ends_with(end.as_bytes()) {
                heard.push(self.0.read_u8().await.unwrap());
            }
        };
        let heard_it = timeout(LONG, hearing).await;
        let heard = String::from_utf8_lossy(&heard).into_owned();
        assert!(heard_it.is_ok(), "heard only: {heard}");
        heard
    }

    /// Everything until the other side ends.
    async fn rest(&mut self) -> String {
        String::from_utf8_lossy(&self.bytes().await.unwrap()).into_owned()
    }

    async fn bytes(&mut self) -> io::Result<Vec<u8>> {
        let mut heard = Vec::new();
        timeout(LONG, self.0.read_to_end(&mut heard)).await??;
        Ok(heard)
    }

    async fn end(&mut self) {
        self.0.shutdown().await.unwrap();
    }

    async fn is_reset(&mut self) -> bool {
        matches!(self.bytes().await, Err(error) if error.kind() == io::ErrorKind::ConnectionReset)
    }
}

/// A host that a test plays itself.
struct Host(TcpListener);

impl Host {
    async fn new() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    fn port(&self) -> u16 {
        self.0.local_addr().unwrap().port()
    }

    async fn accept(&self) -> Peer {
        let accepted = timeout(LONG, self.0.accept()).await;
        Peer(accepted.expect("nobody connects").unwrap().0)
    }

    async fn is_idle(&self) -> bool {
        timeout(Duration::from_millis(50), self.0.accept())
            .await
            .is_err()
    }
}
