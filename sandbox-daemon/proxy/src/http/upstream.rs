//! Connections to hosts. They belong to one connection of a client's, and are
//! used again for its next requests, never for another's.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use hyper::{
    Request, Response, Version,
    body::{Body as _, Incoming},
    client::conn::{TrySendError, http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use super::{PING, authority::Authority, body::Sent, headers, metered::Metered};
use crate::{
    authority::Alpn,
    caller::{Caller, Grant},
    channel::Operation,
    dial::{DialError, Dialer},
    host::Host,
    name::Name,
    tls::Offer,
};

/// How long a connection may take to be ready for a next request.
const READY: Duration = Duration::from_millis(100);

/// Connections that wait for a next request.
const MAX_IDLE: usize = 32;

/// A connection to a host.
pub(super) type Wire = Either<Metered, Box<TlsStream<Metered>>>;

/// Connections to hosts.
#[derive(Clone, Debug, Default)]
pub(super) struct Upstreams {
    idle: Arc<Mutex<Vec<Idle>>>,
    /// Over TLS, to this host, which speaks that; none: without.
    secure: Option<(Name, Alpn)>,
}

#[derive(Debug)]
struct Idle {
    grant: Grant,
    sender: Sender,
}

#[derive(Debug)]
enum Sender {
    Http1(http1::SendRequest<Sent>),
    /// Which any number of requests use.
    Http2(http2::SendRequest<Sent>),
}

/// A connection that is in use.
#[derive(Debug)]
pub(super) struct Lease {
    to: Upstreams,
    idle: Idle,
    /// Whether the request has been sent.
    whole: Arc<AtomicBool>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum UpstreamError {
    /// There is no connection.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// It broke off.
    #[error("the host did not answer: {0}")]
    Broken(#[from] hyper::Error),
    /// With the host in it, the address is too long.
    #[error("the address is too long")]
    Address,
    /// It speaks something else than before.
    #[error("the host does not speak what it spoke before")]
    Changed,
}

impl Upstreams {
    /// Over TLS, to a host that speaks this.
    pub(super) fn secure(host: Name, alpn: Alpn) -> Self {
        Self {
            idle: Arc::default(),
            secure: Some((host, alpn)),
        }
    }

    /// Uses a connection that was made already.
    ///
    /// # Errors
    /// It failed.
    pub(super) async fn add(&self, wire: Wire, grant: Grant) -> Result<(), hyper::Error> {
        let sender = self.handshake(wire).await?;
        self.lock().push(Idle { grant, sender });
        Ok(())
    }

    /// Sends a request. The lease says when the connection may be used again.
    ///
    /// # Errors
    /// See [`UpstreamError`].
    pub(super) async fn send(
        &self,
        caller: &Caller,
        dialer: &Dialer,
        grant: &Grant,
        request: Request<Sent>,
    ) -> Result<(Response<Incoming>, Option<Lease>), UpstreamError> {
        let whole = request.body().whole();
        let mut request = self.addressed(request, grant)?;
        while let Some(mut sender) = self.take(grant).await {
            let spare = repeatable(&request);
            match sender.try_send(request).await {
                Ok(response) => return Ok((response, self.lease(grant, sender, whole))),
                // The host has closed the connection meanwhile.
                Err(mut error) => match error.take_message().or(spare) {
                    Some(again) => request = again,
                    None => return Err(error.into_error().into()),
                },
            }
        }
        let host = dialer.dial(caller, Operation::Request, grant).await?;
        let wire = self.wire(caller, dialer, host, grant).await?;
        let mut sender = self.handshake(wire).await?;
        if let Sender::Http2(sender) = &sender {
            // Others need not wait for this one's end.
            let sender = Sender::Http2(sender.clone());
            self.lock().push(Idle {
                grant: grant.clone(),
                sender,
            });
        }
        let sent = sender.try_send(request).await;
        let response = sent.map_err(TrySendError::into_error)?;
        Ok((response, self.lease(grant, sender, whole)))
    }

    async fn wire(
        &self,
        caller: &Caller,
        dialer: &Dialer,
        host: TcpStream,
        grant: &Grant,
    ) -> Result<Wire, UpstreamError> {
        let metered = Metered::new(host, grant.tally.clone());
        let Some((name, alpn)) = &self.secure else {
            return Ok(Either::Left(metered));
        };
        let to = (name, grant.port);
        let connected = dialer.secure(caller, Operation::Request, to, Offer::only(*alpn), metered);
        let (stream, spoken) = connected.await?;
        if (spoken == Alpn::Http2) != (*alpn == Alpn::Http2) {
            return Err(UpstreamError::Changed);
        }
        Ok(Either::Right(Box::new(stream)))
    }

    async fn handshake(&self, wire: Wire) -> Result<Sender, hyper::Error> {
        let io = TokioIo::new(wire);
        if matches!(self.secure, Some((_, Alpn::Http2))) {
            let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .keep_alive_interval(PING)
                .handshake(io)
                .await?;
            tokio::spawn(connection);
            return Ok(Sender::Http2(sender));
        }
        let (sender, connection) = http1::Builder::new()
            .preserve_header_case(true)
            .handshake(io)
            .await?;
        // It ends with its last sender.
        tokio::spawn(connection.with_upgrades());
        Ok(Sender::Http1(sender))
    }

    /// In the words of what the host speaks.
    fn addressed(
        &self,
        mut request: Request<Sent>,
        grant: &Grant,
    ) -> Result<Request<Sent>, UpstreamError> {
        if !matches!(self.secure, Some((_, Alpn::Http2))) {
            return Ok(request);
        }
        let Grant { host, port, .. } = grant;
        let authority = Authority {
            host: host.clone(),
            port: *port,
            secure: true,
        };
        let path = request.uri().path_and_query().map_or("/", |it| it.as_str());
        let address = format!("https://{}{path}", authority.text());
        *request.uri_mut() = address.parse().map_err(|_| UpstreamError::Address)?;
        *request.version_mut() = Version::HTTP_2;
        headers::for_http2(request.headers_mut());
        Ok(request)
    }

    /// One that goes back when the answer has been read; none: it is there for all.
    fn lease(&self, grant: &Grant, sender: Sender, whole: Arc<AtomicBool>) -> Option<Lease> {
        matches!(sender, Sender::Http1(_)).then(|| Lease {
            to: self.clone(),
            idle: Idle {
                grant: grant.clone(),
                sender,
            },
            whole,
        })
    }

    /// One that waits for this very host, under this very rule.
    async fn take(&self, grant: &Grant) -> Option<Sender> {
        let same = |idle: &Idle| {
            let Grant { host, port, tally } = &idle.grant;
            (host, port) == (&grant.host, &grant.port) && Arc::ptr_eq(tally, &grant.tally)
        };
        loop {
            let mut sender = {
                let mut idle = self.lock();
                let place = idle.iter().rposition(same)?;
                match &idle[place].sender {
                    Sender::Http2(sender) if !sender.is_closed() => Sender::Http2(sender.clone()),
                    _ => idle.swap_remove(place).sender,
                }
            };
            if let Ok(Ok(())) = timeout(READY, sender.ready()).await {
                return Some(sender);
            }
            if let Sender::Http2(_) = sender {
                // It is busy, or has gone without saying so.
                self.lock().retain(|idle| !same(idle));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sender {
    async fn ready(&mut self) -> Result<(), hyper::Error> {
        match self {
            Self::Http1(sender) => sender.ready().await,
            Self::Http2(sender) => sender.ready().await,
        }
    }

    fn try_send(&mut self, request: Request<Sent>) -> Sending<'_> {
        match self {
            Self::Http1(sender) => Box::pin(sender.try_send_request(request)),
            Self::Http2(sender) => Box::pin(sender.try_send_request(request)),
        }
    }
}

type Sending<'a> = Pin<
    Box<dyn Future<Output = Result<Response<Incoming>, TrySendError<Request<Sent>>>> + Send + 'a>,
>;

impl Lease {
    /// The answer has been read.
    pub(super) fn end(self) {
        // A host that answered early still waits for the rest of a body.
        if self.whole.load(Ordering::Relaxed) {
            let mut idle = self.to.lock();
            if idle.len() < MAX_IDLE {
                idle.push(self.idle);
            }
        }
    }
}

/// The same once more, if a host that had it twice would do the same as one that
/// had it once.
fn repeatable(request: &Request<Sent>) -> Option<Request<Sent>> {
    let safe = request.method().is_idempotent() && request.body().is_end_stream();
    safe.then(|| {
        let mut again = Request::new(Sent::nothing());
        *again.method_mut() = request.method().clone();
        *again.uri_mut() = request.uri().clone();
        *again.version_mut() = request.version();
        *again.headers_mut() = request.headers().clone();
        *again.extensions_mut() = request.extensions().clone();
        again
    })
}

/// The name of a host that is known by one.
pub(super) fn named(host: &Host) -> Option<&Name> {
    match host {
        Host::Name(name) => Some(name),
        Host::Address(_) => None,
    }
}
