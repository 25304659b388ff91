//! Connections to hosts. They belong to one connection of a client's, and are
//! used again for its next requests, never for another's.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use hyper::{
    Request, Response,
    body::{Body as _, Incoming},
    client::conn::http1::{self, SendRequest},
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::timeout,
};

use super::body::Sent;
use crate::{
    caller::{Caller, Grant},
    channel::Operation,
    dial::{DialError, Dialer},
    ledger::Tally,
};

/// How long a connection may take to be ready for a next request.
const READY: Duration = Duration::from_millis(100);

/// Connections that wait for a next request.
const MAX_IDLE: usize = 32;

/// Connections to hosts.
#[derive(Clone, Debug, Default)]
pub(super) struct Upstreams(Arc<Mutex<Vec<Idle>>>);

#[derive(Debug)]
struct Idle {
    grant: Grant,
    sender: SendRequest<Sent>,
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
}

impl Upstreams {
    /// Uses a connection that was made already.
    ///
    /// # Errors
    /// It failed.
    pub(super) async fn add(&self, host: TcpStream, grant: Grant) -> Result<(), hyper::Error> {
        let sender = handshake(host, grant.tally.clone()).await?;
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
        mut request: Request<Sent>,
    ) -> Result<(Response<Incoming>, Lease), UpstreamError> {
        let whole = request.body().whole();
        while let Some(mut sender) = self.take(grant).await {
            let spare = repeatable(&request);
            match sender.try_send_request(request).await {
                Ok(response) => return Ok((response, self.lease(grant, sender, whole))),
                // The host has closed the connection meanwhile.
                Err(mut error) => match error.take_message().or(spare) {
                    Some(again) => request = again,
                    None => return Err(error.into_error().into()),
                },
            }
        }
        let host = dialer.dial(caller, Operation::Request, grant).await?;
        let mut sender = handshake(host, grant.tally.clone()).await?;
        let response = sender.send_request(request).await?;
        Ok((response, self.lease(grant, sender, whole)))
    }

    fn lease(&self, grant: &Grant, sender: SendRequest<Sent>, whole: Arc<AtomicBool>) -> Lease {
        Lease {
            to: self.clone(),
            idle: Idle {
                grant: grant.clone(),
                sender,
            },
            whole,
        }
    }

    /// One that waits for this very host, under this very rule.
    async fn take(&self, grant: &Grant) -> Option<SendRequest<Sent>> {
        let same = |idle: &Idle| {
            let Grant { host, port, tally } = &idle.grant;
            (host, port) == (&grant.host, &grant.port) && Arc::ptr_eq(tally, &grant.tally)
        };
        loop {
            let mut sender = {
                let mut idle = self.lock();
                let place = idle.iter().rposition(same)?;
                idle.swap_remove(place).sender
            };
            if let Ok(Ok(())) = timeout(READY, sender.ready()).await {
                return Some(sender);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

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
        *again.headers_mut() = request.headers().clone();
        *again.extensions_mut() = request.extensions().clone();
        again
    })
}

async fn handshake(host: TcpStream, tally: Arc<Tally>) -> Result<SendRequest<Sent>, hyper::Error> {
    let io = TokioIo::new(Metered { host, tally });
    let (sender, connection) = http1::Builder::new()
        .preserve_header_case(true)
        .handshake(io)
        .await?;
    // It ends with its last sender.
    tokio::spawn(connection.with_upgrades());
    Ok(sender)
}

/// A connection to a host whose bytes are counted.
#[derive(Debug)]
pub(super) struct Metered {
    /// The connection.
    pub(super) host: TcpStream,
    tally: Arc<Tally>,
}

impl AsyncRead for Metered {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.host).poll_read(context, buffer))?;
        let read = buffer.filled().len() - before;
        self.tally
            .received
            .fetch_add(read as u64, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl Metered {
    fn sent(&self, written: io::Result<usize>) -> Poll<io::Result<usize>> {
        if let Ok(bytes) = written {
            self.tally.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        }
        Poll::Ready(written)
    }
}

impl AsyncWrite for Metered {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.host).poll_write(context, bytes));
        self.sent(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.host).poll_write_vectored(context, slices));
        self.sent(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.host.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.host).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.host).poll_shutdown(context)
    }
}
