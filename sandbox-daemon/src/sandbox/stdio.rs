//! The daemon's ends of a command's standard streams: pipes, or the master of
//! a pseudo-terminal.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use bytes::{Buf as _, Bytes, BytesMut};
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    unistd::{pipe2, read, write},
};
use tokio::io::Interest;
use tokio_util::sync::CancellationToken;

use crate::sys::Watched;

/// Most that is read at once: what a pipe holds.
const CHUNK: usize = 64 * 1024;

/// An end of a stream that does not block.
#[derive(Clone)]
pub(super) struct End(Arc<Watched>);

impl End {
    /// Takes over a descriptor and makes it non-blocking.
    pub(super) fn new(fd: OwnedFd, interest: Interest) -> io::Result<Self> {
        let flags = OFlag::from_bits_retain(fcntl(&fd, FcntlArg::F_GETFL)?);
        fcntl(&fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
        Ok(Self(Arc::new(Watched::new(fd, interest)?)))
    }

    /// A pipe that the daemon writes to: its end, and the command's.
    pub(super) fn to_command() -> io::Result<(Self, OwnedFd)> {
        let (theirs, ours) = pipe2(OFlag::O_CLOEXEC)?;
        Ok((Self::new(ours, Interest::WRITABLE)?, theirs))
    }

    /// A pipe that the daemon reads from: its end, and the command's.
    pub(super) fn from_command() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = pipe2(OFlag::O_CLOEXEC)?;
        Ok((Self::new(ours, Interest::READABLE)?, theirs))
    }

    /// The descriptor.
    pub(super) fn fd(&self) -> impl AsFd + '_ {
        self.0.fd().get_ref()
    }

    /// Writes all of it. Nobody reading any more is not an error: the rest is
    /// dropped, as it would be for a shell's pipe.
    pub(super) async fn write_all(&self, mut bytes: Bytes) -> io::Result<()> {
        while bytes.has_remaining() {
            let mut guard = self.0.fd().writable().await?;
            match guard.try_io(|fd| Ok(write(fd, &bytes)?)) {
                Ok(Ok(written)) => bytes.advance(written),
                Ok(Err(error)) if gone(&error) => return Ok(()),
                Ok(Err(error)) => return Err(error),
                Err(_would_block) => {}
            }
        }
        Ok(())
    }

    /// The next bytes; empty at the end.
    async fn read(&self, buffer: &mut BytesMut) -> io::Result<Bytes> {
        loop {
            let mut guard = self.0.fd().readable().await?;
            if let Ok(result) = guard.try_io(|fd| read_now(fd.get_ref(), buffer)) {
                return result;
            }
        }
    }

    /// Hands on what is read until nobody can write any more, or until
    /// `ended`, and then what is still in it: a process that took the writing
    /// end elsewhere is not waited for. Stops when `hand_on` says so.
    pub(super) async fn pump<F: Future<Output = bool>>(
        self,
        ended: CancellationToken,
        mut hand_on: impl FnMut(Bytes) -> F,
    ) {
        let mut buffer = BytesMut::new();
        loop {
            let bytes = tokio::select! {
                biased;
                bytes = self.read(&mut buffer) => bytes,
                () = ended.cancelled() => read_now(self.0.fd().get_ref(), &mut buffer),
            };
            match bytes {
                Ok(bytes) if bytes.is_empty() => return,
                Ok(bytes) => {
                    if !hand_on(bytes).await {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    tracing::warn!(%error, "cannot read a command's output");
                    return;
                }
            }
        }
    }
}

/// What can be read without waiting. A master whose slaves are all closed
/// says `EIO`.
fn read_now(fd: &OwnedFd, buffer: &mut BytesMut) -> io::Result<Bytes> {
    buffer.resize(CHUNK, 0);
    match read(fd, buffer) {
        Ok(count) => Ok(buffer.split_to(count).freeze()),
        Err(Errno::EIO) => Ok(Bytes::new()),
        Err(error) => Err(error.into()),
    }
}

fn gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe || error.raw_os_error() == Some(Errno::EIO as i32)
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::{Read as _, Write as _},
        sync::Mutex,
    };

    use super::*;

    /// Pumps into a buffer until the pump stops.
    async fn collect(end: End, ended: CancellationToken) -> Vec<u8> {
        let collected = Mutex::new(Vec::new());
        end.pump(ended, |bytes| {
            collected.lock().unwrap().extend_from_slice(&bytes);
            async { true }
        })
        .await;
        collected.into_inner().unwrap()
    }

    #[tokio::test]
    async fn all_that_was_written_is_handed_on() {
        let (ours, theirs) = End::from_command().unwrap();
        let writer = std::thread::spawn(move || {
            let mut pipe = File::from(theirs);
            for _ in 0..1000 {
                pipe.write_all(&[7; 1000]).unwrap();
            }
        });
        let bytes = collect(ours, CancellationToken::new()).await;
        assert_eq!(bytes.len(), 1_000_000);
        writer.join().unwrap();
    }

    #[tokio::test]
    async fn an_end_held_open_elsewhere_is_not_waited_for() {
        let (ours, theirs) = End::from_command().unwrap();
        let mut held = File::from(theirs);
        held.write_all(b"last words").unwrap();
        let ended = CancellationToken::new();
        ended.cancel();
        assert_eq!(collect(ours, ended).await, b"last words");
    }

    #[tokio::test]
    async fn writing_to_nobody_is_not_an_error() {
        let (ours, theirs) = End::to_command().unwrap();
        drop(theirs);
        ours.write_all(Bytes::from_static(b"x")).await.unwrap();
    }

    #[tokio::test]
    async fn more_than_a_pipe_holds_is_written() {
        let (ours, theirs) = End::to_command().unwrap();
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            File::from(theirs).read_to_end(&mut all).unwrap();
            all.len()
        });
        ours.write_all(vec![1; 300_000].into()).await.unwrap();
        drop(ours);
        assert_eq!(reader.join().unwrap(), 300_000);
    }
}
