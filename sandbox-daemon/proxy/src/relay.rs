//! Bytes from one end of a tunnel to the other. Between sockets they go through
//! a pipe of the kernel's (splice(2)) and are not copied into this process;
//! a tunnel has a pipe only while bytes flow.

use std::{
    io,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
    sync::{Mutex, PoisonError},
};

use bytes::BytesMut;
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice},
    sys::socket::{Shutdown, shutdown},
    unistd::pipe2,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, Interest},
    net::TcpStream,
    task::coop,
};

use crate::sniff;

/// What a pipe holds. An unprivileged user may have 64 MiB in pipes
/// (`pipe-user-pages-soft`); beyond, the kernel gives less.
const PIPE_BYTES: usize = 512 << 10;

/// Pipes that are kept while nobody needs them.
const MAX_SPARE: usize = 16;

static SPARE: Mutex<Vec<Pipe>> = Mutex::new(Vec::new());

/// An empty pipe.
#[derive(Debug)]
struct Pipe {
    from: OwnedFd,
    to: OwnedFd,
}

impl Pipe {
    fn take() -> io::Result<Self> {
        let spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(pipe) = spare {
            return Ok(pipe);
        }
        let (from, to) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        let bytes = i32::try_from(PIPE_BYTES).unwrap_or(i32::MAX);
        // One that stays small only takes more steps.
        let _ = fcntl(&from, FcntlArg::F_SETPIPE_SZ(bytes));
        Ok(Self { from, to })
    }

    fn give(self) {
        let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < MAX_SPARE {
            spare.push(self);
        }
    }
}

/// Moves bytes from one socket to another until the first ends, then ends the
/// other in that direction.
///
/// # Errors
/// One of them failed.
pub async fn spliced(from: &TcpStream, to: &TcpStream, count: impl Fn(u64)) -> io::Result<()> {
    loop {
        from.readable().await?;
        let pipe = Pipe::take()?;
        let end = flow(from, to, &pipe, &count).await?;
        // After an error it may hold bytes, and is not given back.
        pipe.give();
        if end {
            break;
        }
    }
    end(to)
}

/// Moves what there is; whether that was the end.
async fn flow(
    from: &TcpStream,
    to: &TcpStream,
    pipe: &Pipe,
    count: &impl Fn(u64),
) -> io::Result<bool> {
    loop {
        let fill = || step(from.as_fd(), pipe.to.as_fd(), PIPE_BYTES);
        let mut filled = match from.try_io(Interest::READABLE, fill) {
            Ok(0) => return Ok(true),
            Ok(filled) => filled,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        };
        while filled > 0 {
            let drain = || step(pipe.from.as_fd(), to.as_fd(), filled);
            match to.try_io(Interest::WRITABLE, drain) {
                Ok(moved) => {
                    filled -= moved;
                    count(moved as u64);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => to.writable().await?,
                Err(error) => return Err(error),
            }
        }
        coop::consume_budget().await;
    }
}

fn step(from: BorrowedFd<'_>, to: BorrowedFd<'_>, length: usize) -> io::Result<usize> {
    let flags = SpliceFFlags::SPLICE_F_NONBLOCK | SpliceFFlags::SPLICE_F_MOVE;
    loop {
        match splice(from, None, to, None, length, flags) {
            Err(Errno::EINTR) => {}
            other => return Ok(other?),
        }
    }
}

/// The same for streams that are no sockets.
///
/// # Errors
/// One of them failed.
pub async fn copied<R, W>(from: &mut R, to: &mut W, count: impl Fn(u64)) -> io::Result<()>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut bytes = BytesMut::new();
    while sniff::read(from, &mut bytes).await? > 0 {
        count(bytes.len() as u64);
        to.write_all_buf(&mut bytes).await?;
        to.flush().await?;
        bytes = BytesMut::new();
    }
    to.shutdown().await
}

/// Says that nothing more comes.
///
/// # Errors
/// The connection failed.
pub fn end(stream: &TcpStream) -> io::Result<()> {
    match shutdown(stream.as_raw_fd(), Shutdown::Write) {
        Err(Errno::ENOTCONN) => Ok(()),
        other => Ok(other?),
    }
}
