//! The daemon's end: what it says is put in force, what is decided is told.

use std::{
    io,
    os::{fd::OwnedFd, unix::net::UnixStream as StdStream},
    sync::Arc,
    time::Duration,
};

use tokio::{
    io::{AsyncWriteExt as _, BufWriter},
    net::{
        TcpListener, UdpSocket, UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::Mutex,
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};

use crate::{
    authority::AuthorityError,
    caller::Sandboxes,
    channel::{self, FromProxy, ToProxy},
    dial::Dialer,
    dns,
    flows::Flows,
    ledger::Outbox,
    resolver::Resolver,
    serve::Server,
    tls::Tls,
};

/// How often traffic is told.
const REPORT: Duration = Duration::from_secs(1);

/// How long after something was told uses of credentials wait for more like them.
const PAUSE: Duration = Duration::from_millis(5);

/// Why the proxy ends.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The channel is not a channel.
    #[error("cannot talk to the daemon")]
    Channel(#[from] io::Error),
    /// There is no authority for certificates.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// It has another order.
    #[error("the daemon did not say {0} at that point")]
    Order(&'static str),
}

/// A daemon that has said where to serve.
#[derive(Debug)]
pub struct Daemon {
    stream: StdStream,
    flows: Flows,
    sockets: Vec<(std::net::TcpListener, std::net::UdpSocket)>,
}

/// A daemon that has said how names are looked up as well.
#[derive(Debug)]
pub struct Ready {
    reader: OwnedReadHalf,
    told: Arc<Told>,
    server: Arc<Server<Flows>>,
    resolver: Arc<Resolver>,
    sockets: Vec<(TcpListener, UdpSocket)>,
}

/// What is told, in its order.
#[derive(Debug)]
struct Told {
    writer: Mutex<BufWriter<OwnedWriteHalf>>,
    outbox: Arc<Outbox>,
    sandboxes: Arc<Sandboxes>,
}

impl Daemon {
    /// Takes the sockets and maps.
    ///
    /// # Errors
    /// See [`DaemonError`].
    pub fn begin(stream: StdStream) -> Result<Self, DaemonError> {
        let order = DaemonError::Order("`Begin`, with descriptors");
        let (message, descriptors) = channel::receive_first(&stream)?;
        let ToProxy::Begin { ipv6 } = message else {
            return Err(order);
        };
        let mut descriptors = descriptors.into_iter();
        let pair = |descriptors: &mut dyn Iterator<Item = OwnedFd>| {
            let tcp = descriptors.next()?;
            let udp = descriptors.next()?;
            Some((tcp.into(), udp.into()))
        };
        let mut taken = || {
            let mut sockets = vec![pair(&mut descriptors)?];
            let flows = Flows::new(descriptors.next()?, descriptors.next()?);
            if ipv6 {
                sockets.push(pair(&mut descriptors)?);
            }
            Some((flows, sockets))
        };
        let (flows, sockets) = taken().ok_or(order)?;
        Ok(Self {
            stream,
            flows,
            sockets,
        })
    }

    /// Hears how names are looked up, and makes all that is needed to serve.
    ///
    /// # Errors
    /// See [`DaemonError`].
    pub async fn ready(self) -> Result<Ready, DaemonError> {
        self.stream.set_nonblocking(true)?;
        let (mut reader, writer) = UnixStream::from_std(self.stream)?.into_split();
        let Some(ToProxy::Resolver { resolv_conf, hosts }) = channel::read(&mut reader).await?
        else {
            return Err(DaemonError::Order("`Resolver`"));
        };
        let resolver = Arc::new(Resolver::new(&resolv_conf, &hosts).map_err(io::Error::other)?);
        let tls = Arc::new(Tls::new()?);
        let outbox = Arc::new(Outbox::default());
        let sandboxes = Arc::new(Sandboxes::new(outbox.clone()));
        let server = Server {
            identify: self.flows,
            sandboxes: sandboxes.clone(),
            outbox: outbox.clone(),
            dialer: Dialer::new(resolver.clone(), tls),
            dns: Arc::new(dns::Server::new(resolver.clone())),
        };
        let mut sockets = Vec::new();
        for (tcp, udp) in self.sockets {
            tcp.set_nonblocking(true)?;
            udp.set_nonblocking(true)?;
            sockets.push((TcpListener::from_std(tcp)?, UdpSocket::from_std(udp)?));
        }
        Ok(Ready {
            reader,
            told: Arc::new(Told {
                writer: Mutex::new(BufWriter::new(writer)),
                outbox,
                sandboxes,
            }),
            server: Arc::new(server),
            resolver,
            sockets,
        })
    }
}

impl Ready {
    /// Serves until the daemon is gone.
    ///
    /// # Errors
    /// See [`DaemonError`].
    pub async fn serve(mut self) -> Result<(), DaemonError> {
        for (tcp, udp) in self.sockets {
            tokio::spawn(self.server.clone().tcp(tcp));
            tokio::spawn(self.server.clone().udp(udp));
        }
        self.told
            .last(FromProxy::Ready {
                authority: self.server.dialer.tls().authority.pem(),
            })
            .await?;
        let told = self.told.clone();
        let telling = async move {
            let mut reports = interval(REPORT);
            reports.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut pause = Instant::now();
            loop {
                let uses = async {
                    told.outbox.soon().await;
                    sleep_until(pause).await;
                };
                tokio::select! {
                    () = told.outbox.ready() => {}
                    () = uses => {}
                    _ = reports.tick() => told.sandboxes.report(),
                }
                told.everything().await?;
                pause = Instant::now() + PAUSE;
            }
        };
        let hearing = async {
            while let Some(message) = channel::read(&mut self.reader).await? {
                match message {
                    ToProxy::Begin { .. } => return Err(DaemonError::Order("`Begin` only once")),
                    ToProxy::Resolver { resolv_conf, hosts } => {
                        if let Err(error) = self.resolver.replace(&resolv_conf, &hosts) {
                            tracing::error!(%error, "names are looked up as before");
                        }
                    }
                    ToProxy::Roots { pem } => self.server.dialer.tls().believe(&pem),
                    ToProxy::Secret { uid, name, value } => {
                        self.server.sandboxes.secrets().put(uid, name, value);
                    }
                    ToProxy::Policy(policy) => self.server.sandboxes.put(*policy),
                    ToProxy::Forget { sandbox } => self.server.sandboxes.forget(sandbox),
                    ToProxy::Sync { serial } => {
                        self.server.sandboxes.report();
                        self.told.last(FromProxy::Done { serial }).await?;
                    }
                }
            }
            Ok(())
        };
        tokio::select! {
            heard = hearing => heard,
            told = telling => told,
        }
    }
}

impl Told {
    /// Tells all that waits.
    async fn everything(&self) -> Result<(), DaemonError> {
        let mut writer = self.writer.lock().await;
        self.write(&mut writer).await?;
        Ok(writer.flush().await?)
    }

    /// Tells all that waits, and then this.
    async fn last(&self, message: FromProxy) -> Result<(), DaemonError> {
        let mut writer = self.writer.lock().await;
        self.write(&mut writer).await?;
        channel::write(&mut *writer, &message).await?;
        Ok(writer.flush().await?)
    }

    /// What is taken is written before anybody takes more.
    async fn write(&self, writer: &mut BufWriter<OwnedWriteHalf>) -> Result<(), DaemonError> {
        for message in self.outbox.take() {
            channel::write(writer, &message).await?;
        }
        Ok(())
    }
}
