//! Bodies on their way through.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::body::{Body, Frame, Incoming, SizeHint};

use super::upstream::Lease;

/// Of an answer: the host's, or a sentence of the proxy's own.
pub(super) type Answer = Either<Full<Bytes>, Leased>;

/// What has to happen before a body is read.
pub(super) type Gate = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Of a request.
pub(super) struct Sent {
    /// None: there is nothing to send.
    body: Option<Incoming>,
    gate: Option<Gate>,
    /// Whether there was nothing more to send.
    whole: Arc<AtomicBool>,
}

impl Sent {
    /// Goes through as soon as `gate` opens.
    pub(super) fn new(body: Incoming, gate: Option<Gate>) -> Self {
        let body = Some(body).filter(|body| !body.is_end_stream());
        let whole = Arc::new(AtomicBool::new(body.is_none()));
        Self { body, gate, whole }
    }

    /// There is no body.
    pub(super) fn nothing() -> Self {
        Self {
            body: None,
            gate: None,
            whole: Arc::new(AtomicBool::new(true)),
        }
    }

    /// Whether it has been sent.
    pub(super) fn whole(&self) -> Arc<AtomicBool> {
        self.whole.clone()
    }
}

impl Body for Sent {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.get_mut();
        let Some(body) = &mut this.body else {
            return Poll::Ready(None);
        };
        if let Some(gate) = &mut this.gate {
            ready!(gate.as_mut().poll(context));
            this.gate = None;
        }
        let frame = ready!(Pin::new(body).poll_frame(context));
        if frame.is_none() {
            this.whole.store(true, Ordering::Relaxed);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Some(body) => body.size_hint(),
            None => SizeHint::with_exact(0),
        }
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        // Of a body whose length is known the end is not asked for.
        if self.is_end_stream() {
            self.whole.store(true, Ordering::Relaxed);
        }
    }
}

/// A host's answer. The connection goes back when it has been read.
pub(super) struct Leased {
    body: Incoming,
    lease: Option<Lease>,
}

impl Leased {
    /// What comes over this connection.
    pub(super) fn new(body: Incoming, lease: Lease) -> Self {
        let mut leased = Self {
            body,
            lease: Some(lease),
        };
        if leased.body.is_end_stream() {
            leased.give_back();
        }
        leased
    }

    fn give_back(&mut self) {
        if let Some(lease) = self.lease.take() {
            lease.end();
        }
    }
}

impl Body for Leased {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.get_mut();
        let frame = ready!(Pin::new(&mut this.body).poll_frame(context));
        match &frame {
            Some(Err(_)) => this.lease = None,
            None => this.give_back(),
            Some(Ok(_)) if this.body.is_end_stream() => this.give_back(),
            Some(Ok(_)) => {}
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
