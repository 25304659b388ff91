//! What goes through a connection whose host and port are known: transparent
//! ones, and those asked for by CONNECT. What a client says first has to agree
//! with the host.

use std::{
    future::Future,
    io,
    mem::take,
    pin::Pin,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use bytes::BytesMut;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, copy_bidirectional},
    net::TcpStream,
    time::timeout,
};

use crate::{
    caller::{Caller, Grant, Refusal},
    channel::Operation,
    client::{Client, Stream},
    dial::Dialer,
    host::Host,
    http, intercept,
    ledger::Tally,
    relay,
    sniff::{self, First},
};

/// How long a client that is refused may take to say what it speaks, at a port
/// where it might wait for the server to speak first.
const SHORT_PATIENCE: Duration = Duration::from_millis(300);

/// How long a client that was refused may take to read that.
const FAREWELL: Duration = Duration::from_secs(5);

/// A connection to a host.
#[derive(Clone, Debug)]
pub struct Passage {
    /// Who made it.
    pub caller: Caller,
    /// Makes the other half.
    pub dialer: Dialer,
    /// The host.
    pub host: Host,
    /// Its port.
    pub port: u16,
}

/// How looking at a client's first bytes ended, if they do not just go through.
enum Stop {
    Refused(First, Refusal),
    Http(First),
    /// TLS that has to end here.
    Tls,
    Failed(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

impl Passage {
    /// Serves a transparent connection.
    pub async fn transparent(self, mut client: Client) {
        if matches!(self.port, 80 | 443) {
            self.client_first(client).await;
            return;
        }
        let grant = match self.reach() {
            Ok(grant) => grant,
            Err(refusal) => {
                let first = sniff::first(&mut client.stream, &mut client.ahead);
                let first = match timeout(SHORT_PATIENCE, first).await {
                    Ok(Ok(first)) => first,
                    _ => First::Slow,
                };
                return refuse(client, &first, &refusal).await;
            }
        };
        match self
            .dialer
            .dial(&self.caller, Operation::Connect, &grant)
            .await
        {
            Ok(host) => self.dialled(client, host, grant).await,
            Err(error) => {
                tracing::debug!(%error, "no connection");
                client.reset();
            }
        }
    }

    /// A connection that a client asked for, and that was made.
    pub fn asked_for(
        self,
        client: Client,
        host: TcpStream,
        grant: Grant,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        // Boxed: HTTP in a tunnel comes back to here.
        Box::pin(self.dialled(client, host, grant))
    }

    fn reach(&self) -> Result<Grant, Refusal> {
        self.caller.reach(Operation::Connect, &self.host, self.port)
    }

    /// At the ports of HTTP and TLS the client speaks first, and nothing is
    /// dialled before.
    pub(crate) async fn client_first(self, mut client: Client) {
        let Ok(first) = sniff::first(&mut client.stream, &mut client.ahead).await else {
            return;
        };
        let allowed = match &first {
            // Each of its requests is decided.
            First::Http | First::Http2 => return self.http(client, &first, None).await,
            First::Closed if client.ahead.is_empty() => return,
            _ => self.reach(),
        };
        let agreed = allowed.and_then(|grant| {
            self.agrees(&first)?;
            Ok(grant)
        });
        let grant = match agreed {
            Ok(grant) => grant,
            Err(refusal) => return refuse(client, &first, &refusal).await,
        };
        if self.ends_here(&first) {
            // Boxed: it is much, and most connections are none of these.
            return Box::pin(intercept::serve(self, client, grant, None)).await;
        }
        match self
            .dialer
            .dial(&self.caller, Operation::Connect, &grant)
            .await
        {
            Ok(host) => self.pass(client, host, grant, true).await,
            Err(crate::dial::DialError::Refused(refusal)) => {
                refuse(client, &first, &refusal).await;
            }
            Err(error) => {
                tracing::debug!(%error, "no connection");
                client.reset();
            }
        }
    }

    async fn dialled(self, client: Client, host: TcpStream, grant: Grant) {
        self.pass(client, host, grant, false).await;
    }

    /// Relays, and looks at the client's first bytes unless that was done.
    async fn pass(self, mut client: Client, mut host: TcpStream, grant: Grant, looked_at: bool) {
        let look = (!looked_at).then_some(&self);
        match run(&mut client, &mut host, &grant.tally, look).await {
            Ok(()) => {}
            Err(Stop::Failed(error)) => {
                tracing::debug!(%error, "a tunnel broke off");
                // What one end broke off ends so at the other.
                let _ = host.set_zero_linger();
                client.reset();
            }
            Err(Stop::Refused(first, refusal)) => {
                let _ = host.set_zero_linger();
                drop(host);
                refuse(client, &first, &refusal).await;
            }
            Err(Stop::Http(first)) => {
                self.http(client, &first, Some((host, grant))).await;
            }
            Err(Stop::Tls) => Box::pin(intercept::serve(self, client, grant, Some(host))).await,
        }
    }

    /// Whether TLS ends here, because there are credentials for the host.
    fn ends_here(&self, first: &First) -> bool {
        matches!(first, First::Tls(_)) && self.credential().is_some()
    }

    /// Looks at what the client says first.
    async fn look<R>(
        &self,
        from: &mut R,
        ahead: &mut BytesMut,
        spoke: &AtomicBool,
    ) -> Result<(), Stop>
    where
        R: AsyncRead + Unpin,
    {
        let first = sniff::first(from, ahead).await?;
        if matches!(first, First::Http | First::Http2) {
            if !spoke.load(Ordering::Relaxed) {
                return Err(Stop::Http(first));
            }
            let rule = "HTTP where the server spoke first";
            return self
                .refuse(&self.host.to_string(), rule)
                .map_err(|refusal| Stop::Refused(First::Other, refusal));
        }
        let ends_here = self.ends_here(&first);
        self.agrees(&first)
            .map_err(|refusal| Stop::Refused(first, refusal))?;
        if ends_here { Err(Stop::Tls) } else { Ok(()) }
    }

    /// Whether what a client says first agrees with where it goes.
    fn agrees(&self, first: &First) -> Result<(), Refusal> {
        match first {
            // For an address there is no name to agree on.
            First::Tls(Some(name)) if !matches!(&self.host, Host::Name(it) if it == name) => self
                .refuse(
                    name.as_str(),
                    &format!("TLS for another name than {}", self.host),
                ),
            First::BadTls(error) => self.refuse(&self.host.to_string(), &error.to_string()),
            First::Slow => self.refuse(&self.host.to_string(), "it never said what it speaks"),
            First::Other => match self.credential() {
                // As a hello of SSL 2, by which servers still begin TLS, is nothing that
                // could be looked into.
                Some(name) => self.refuse(
                    &self.host.to_string(),
                    &format!("neither TLS nor HTTP to a host of credential `{name}`"),
                ),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// The first credential for the host.
    fn credential(&self) -> Option<String> {
        let policy = self.caller.sandbox.policy();
        let credentials = policy.credentials(&self.host, self.port);
        credentials.first().map(|it| it.name.clone())
    }

    fn refuse(&self, host: &str, rule: &str) -> Result<(), Refusal> {
        self.caller
            .refuse(Operation::Connect, host, self.port, rule)
            .map(drop)
    }

    async fn http(self, client: Client, first: &First, host: Option<(TcpStream, Grant)>) {
        let session = http::Session::bound(self, host).await;
        http::serve(session, client, *first == First::Http2).await;
    }
}

/// A connection on which HTTP was spoken until now; `ahead` is what was read from
/// the host already.
pub async fn joined(mut client: Client, mut host: TcpStream, ahead: &[u8], tally: &Tally) {
    let told = async {
        client.write_all(ahead).await?;
        client.flush().await?;
        run(&mut client, &mut host, tally, None).await
    };
    if told.await.is_err() {
        let _ = host.set_zero_linger();
        client.reset();
    }
}

/// The same where TLS ends here; its bytes are counted as they come and go.
pub async fn joined_secure<H>(mut client: Client, mut host: H, ahead: &[u8])
where
    H: AsyncRead + AsyncWrite + Unpin,
{
    let told = async {
        client.write_all(ahead).await?;
        client.flush().await?;
        copy_bidirectional(&mut client, &mut host).await
    };
    if let Err(error) = told.await {
        tracing::debug!(%error, "a tunnel broke off");
    }
}

/// Relays in both directions, after a look at what the client says first.
async fn run(
    client: &mut Client,
    host: &mut TcpStream,
    tally: &Tally,
    look: Option<&Passage>,
) -> Result<(), Stop> {
    let spoke = AtomicBool::new(false);
    let sent = |bytes| {
        tally.sent.fetch_add(bytes, Ordering::Relaxed);
    };
    let received = |bytes| {
        spoke.store(true, Ordering::Relaxed);
        tally.received.fetch_add(bytes, Ordering::Relaxed);
    };
    let ahead = &mut client.ahead;
    match &mut client.stream {
        Stream::Tcp(stream) => {
            let (mut from, to) = stream.split();
            let (mut host_from, host_to) = host.split();
            let host = host_to.as_ref();
            let up = async {
                if let Some(passage) = look {
                    passage.look(&mut from, ahead, &spoke).await?;
                }
                relay::write(host, &mut take(ahead).freeze(), sent).await?;
                Ok(relay::spliced(&mut from, host, sent).await?)
            };
            both(up, relay::spliced(&mut host_from, to.as_ref(), received)).await
        }
        stream => {
            let (mut from, mut to) = tokio::io::split(stream);
            let (mut host_from, mut host_to) = host.split();
            let up = async {
                if let Some(passage) = look {
                    passage.look(&mut from, ahead, &spoke).await?;
                }
                relay::write(host_to.as_ref(), &mut take(ahead).freeze(), sent).await?;
                Ok(relay::copied(&mut from, &mut host_to, sent).await?)
            };
            both(up, relay::copied(&mut host_from, &mut to, received)).await
        }
    }
}

/// Until both directions have ended, or one fails.
async fn both(
    up: impl Future<Output = Result<(), Stop>>,
    down: impl Future<Output = io::Result<()>>,
) -> Result<(), Stop> {
    tokio::try_join!(up, async { Ok(down.await?) })?;
    Ok(())
}

/// Tells a client that it is refused, in its own words.
pub async fn refuse(mut client: Client, first: &First, refusal: &Refusal) {
    match first {
        First::Tls(_) | First::BadTls(_) => {
            /// Alert, TLS 1.2 as every version writes it, two bytes: fatal,
            /// `access_denied` (RFC 8446, 6).
            const ALERT: [u8; 7] = [21, 3, 3, 0, 2, 2, 49];
            say(&mut client, &ALERT).await;
        }
        First::Http => say(&mut client, &http::refused_as_bytes(refusal)).await,
        _ => client.reset(),
    }
}

/// Writes, and waits until the client has read it: what it sent meanwhile would
/// make the end of the connection a reset, which takes the words away.
async fn say(client: &mut Client, bytes: &[u8]) {
    let farewell = async {
        client.write_all(bytes).await?;
        client.shutdown().await?;
        let mut rest = BytesMut::new();
        while sniff::read(&mut client.stream, &mut rest).await? > 0 {
            rest.clear();
        }
        io::Result::Ok(())
    };
    // It need not listen.
    let _ = timeout(FAREWELL, farewell).await;
}
