//! A descriptor whose readiness tokio watches.

use std::{io, os::fd::OwnedFd};

use tokio::io::{Interest, unix::AsyncFd};

/// An owned descriptor registered with the runtime. It is lent out as shared
/// only, so that nothing can put another one in its place.
#[derive(Debug)]
pub struct Watched(AsyncFd<OwnedFd>);

impl Watched {
    /// Registers it; call this within a tokio runtime.
    pub fn new(fd: impl Into<OwnedFd>, interest: Interest) -> io::Result<Self> {
        // SAFETY: the descriptor is owned by what registers it and cannot be
        // taken or replaced before that is dropped.
        let fd = unsafe { AsyncFd::register_with_interest(fd.into(), interest) };
        Ok(Self(fd.map_err(io::Error::from)?))
    }

    /// To wait with, and to read from.
    pub fn fd(&self) -> &AsyncFd<OwnedFd> {
        &self.0
    }

    /// Returns once it was ready; the next call waits for the next time.
    pub async fn ready(&self, interest: Interest) -> io::Result<()> {
        self.0.ready(interest).await?.clear_ready();
        Ok(())
    }
}
