//! Bodies on their way through.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Either, Full};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::timeout;

use super::{
    answer::Failure,
    push::{Broken, Push},
    upstream::Lease,
};
use crate::{caller::Refusal, dummies::Search};

/// Of an answer: the host's, or a sentence of the proxy's own.
pub(super) type Answer = Either<Full<Bytes>, Leased>;

/// What has to happen before a body is read.
pub(super) type Gate = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Why a body breaks off.
pub(super) type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// What a body holds that it must not: the refusal; none: it was only told.
pub(super) type Object = Box<dyn Fn(&str) -> Option<Refusal> + Send>;

/// Of a request.
pub(super) struct Sent {
    /// None: there is nothing to send.
    body: Option<Source>,
    gate: Option<Gate>,
    watch: Option<Watch>,
    /// Where it is left for whoever answers why it broke off.
    stopped: Stopped,
    /// Whether there was nothing more to send.
    whole: Arc<AtomicBool>,
}

enum Source {
    /// A client's, as it is.
    Client(Incoming),
    /// One that is looked into.
    Push(Box<Push>),
    /// One that was refused.
    Left,
}

/// Takes the rest of a body that goes nowhere, for a while: a client of HTTP/2 whose
/// request is broken off may not read the answer.
pub(super) fn leave(mut body: Incoming) {
    const PATIENCE: Duration = Duration::from_secs(10);
    if !body.is_end_stream() {
        let rest = async move { while let Some(Ok(_)) = body.frame().await {} };
        tokio::spawn(timeout(PATIENCE, rest));
    }
}

/// Looks for dummies in a body.
pub(super) struct Watch {
    search: Search,
    object: Object,
}

/// Why a body broke off, if it was refused.
#[derive(Clone, Debug, Default)]
pub(super) struct Stopped(Arc<Mutex<Option<Failure>>>);

impl Stopped {
    /// Leaves it, for an error that says the same.
    fn put(&self, failure: Failure) -> BodyError {
        let told = failure.to_string();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
        told.into()
    }

    /// Takes it; none: it was not refused.
    pub(super) fn take(&self) -> Option<Failure> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Sent {
    /// Goes through as soon as `gate` opens.
    pub(super) fn new(body: Incoming, gate: Option<Gate>) -> Self {
        let body = Some(body).filter(|body| !body.is_end_stream());
        Self::of(body.map(Source::Client), gate)
    }

    /// One that is looked into.
    pub(super) fn push(push: Push) -> Self {
        Self::of(Some(Source::Push(Box::new(push))), None)
    }

    /// There is no body.
    pub(super) fn nothing() -> Self {
        Self::of(None, None)
    }

    fn of(body: Option<Source>, gate: Option<Gate>) -> Self {
        Self {
            whole: Arc::new(AtomicBool::new(body.is_none())),
            body,
            gate,
            watch: None,
            stopped: Stopped::default(),
        }
    }

    /// Breaks off at a dummy.
    pub(super) fn watched(mut self, search: Option<Search>, object: Object) -> Self {
        self.watch = search.map(|search| Watch { search, object });
        self
    }

    /// Why it broke off, once it has.
    pub(super) fn stopped(&self) -> Stopped {
        self.stopped.clone()
    }

    /// Whether it has been sent.
    pub(super) fn whole(&self) -> Arc<AtomicBool> {
        self.whole.clone()
    }
}

impl Watch {
    /// The refusal of a dummy in it.
    fn look(&mut self, frame: &Frame<Bytes>) -> Option<Refusal> {
        let found = match (frame.data_ref(), frame.trailers_ref()) {
            (Some(data), _) => self.search.next(data),
            (None, Some(trailers)) => {
                let mut values = trailers.values();
                values.find_map(|it| self.search.dummies().find(it.as_bytes()))
            }
            (None, None) => None,
        };
        found.and_then(|credential| (self.object)(credential))
    }
}

impl Body for Sent {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let Some(body) = &mut this.body else {
            return Poll::Ready(None);
        };
        if let Some(gate) = &mut this.gate {
            ready!(gate.as_mut().poll(context));
            this.gate = None;
        }
        let frame = match body {
            Source::Client(body) => {
                let frame = ready!(Pin::new(body).poll_frame(context));
                frame.map(|frame| frame.map_err(Into::into))
            }
            Source::Left => return Poll::Ready(Some(Err("refused".into()))),
            Source::Push(push) => {
                let frame = ready!(push.poll_next(context));
                frame.map(|frame| {
                    frame.map_err(|broken| match broken {
                        Broken::Client(error) => error,
                        Broken::Refused(failure) => this.stopped.put(failure),
                    })
                })
            }
        };
        if frame.is_none() {
            this.whole.store(true, Ordering::Relaxed);
        }
        if let (Some(Ok(frame)), Some(watch)) = (&frame, &mut this.watch)
            && let Some(refusal) = watch.look(frame)
        {
            let error = this.stopped.put(refusal.into());
            if let Some(Source::Client(body)) = this.body.replace(Source::Left) {
                leave(body);
            }
            return Poll::Ready(Some(Err(error)));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.body {
            Some(Source::Client(body)) => body.is_end_stream(),
            Some(Source::Push(_) | Source::Left) => false,
            None => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Some(Source::Client(body)) => body.size_hint(),
            // Its length is not its own: the end may be held back.
            Some(Source::Push(_) | Source::Left) => SizeHint::default(),
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
    pub(super) fn new(body: Incoming, lease: Option<Lease>) -> Self {
        let mut leased = Self { body, lease };
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
