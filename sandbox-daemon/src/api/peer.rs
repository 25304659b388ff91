//! A connection and the process behind it.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::UnixStream,
};
use tonic::{Request, Status, transport::server::Connected};

use super::status;
use crate::{
    launch::Peer,
    sandbox::{Caller, Registry, Share},
};

/// A connection whose peer is known.
pub(super) struct Connection {
    stream: UnixStream,
    peer: Arc<Peer>,
    /// Counts against the user's quota.
    _share: Share,
}

impl Connection {
    pub(super) fn new(stream: UnixStream, peer: Peer, share: Share) -> Self {
        Self {
            stream,
            peer: Arc::new(peer),
            _share: share,
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = Arc<Peer>;

    fn connect_info(&self) -> Arc<Peer> {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Who makes this call, if it may call at all.
pub(super) fn caller<T>(registry: &Registry, request: &Request<T>) -> Result<Caller, Status> {
    let peer = request
        .extensions()
        .get::<Arc<Peer>>()
        .ok_or_else(|| Status::unauthenticated("the caller cannot be identified"))?;
    let caller = Caller {
        uid: peer.uid(),
        peer: Some(peer.clone()),
    };
    registry.may_call(&caller).map_err(status::of)?;
    Ok(caller)
}
