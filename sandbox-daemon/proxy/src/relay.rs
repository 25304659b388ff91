//! Bytes from one end of a tunnel to the other. Between sockets they go through
//! a pipe of the kernel's (splice(2)) and are not copied into this process,
//! unless they are few; a tunnel has a pipe only while bytes flow.

use std::{
    future::poll_fn,
    io,
    mem::MaybeUninit,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
    pin::Pin,
    sync::{Mutex, PoisonError},
    task::ready,
};

use bytes::{Buf as _, Bytes, BytesMut};
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice},
    sys::socket::{Shutdown, shutdown},
    unistd::pipe2,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, Interest, ReadBuf},
    net::{TcpStream, tcp::ReadHalf},
    task::coop,
};

use crate::sniff;

/// What a pipe holds. An unprivileged user may have 64 MiB in pipes
/// (`pipe-user-pages-soft`); beyond, the kernel gives less.
const PIPE_BYTES: usize = 512 << 10;

/// Fewer bytes than this are copied, which takes fewer steps. A record of TLS is
/// not larger.
const FEW: usize = 16 << 10;

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
pub async fn spliced(
    from: &mut ReadHalf<'_>,
    to: &TcpStream,
    count: impl Fn(u64),
) -> io::Result<()> {
    let mut many = false;
    loop {
        if many {
            from.readable().await?;
            let pipe = Pipe::take()?;
            let flow = flow(from.as_ref(), to, &pipe, &count).await?;
            // After an error it may hold bytes, and is not given back.
            pipe.give();
            if flow.end {
                break;
            }
            many = flow.bytes >= FEW;
        } else {
            let mut bytes = read(from).await?;
            if bytes.is_empty() {
                break;
            }
            many = bytes.len() == FEW;
            write(to, &mut bytes, &count).await?;
        }
    }
    end(to)
}

/// Reads a few bytes; none: the end. There is no buffer while there is nothing
/// to read.
async fn read(from: &mut ReadHalf<'_>) -> io::Result<Bytes> {
    poll_fn(|context| {
        let mut bytes = [MaybeUninit::uninit(); FEW];
        let mut read = ReadBuf::uninit(&mut bytes);
        ready!(Pin::new(&mut *from).poll_read(context, &mut read))?;
        Ok(Bytes::copy_from_slice(read.filled())).into()
    })
    .await
}

/// Writes all of these bytes.
///
/// # Errors
/// The socket failed.
pub async fn write(to: &TcpStream, bytes: &mut Bytes, count: impl Fn(u64)) -> io::Result<()> {
    while !bytes.is_empty() {
        to.writable().await?;
        match to.try_write(bytes) {
            Ok(length) => {
                bytes.advance(length);
                count(length as u64);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// What was moved.
struct Flow {
    bytes: usize,
    /// Whether that was the end.
    end: bool,
}

/// Moves what there is.
async fn flow(
    from: &TcpStream,
    to: &TcpStream,
    pipe: &Pipe,
    count: &impl Fn(u64),
) -> io::Result<Flow> {
    let mut bytes = 0;
    loop {
        let fill = || step(from.as_fd(), pipe.to.as_fd(), PIPE_BYTES);
        let mut filled = match from.try_io(Interest::READABLE, fill) {
            Ok(0) => return Ok(Flow { bytes, end: true }),
            Ok(filled) => filled,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Ok(Flow { bytes, end: false });
            }
            Err(error) => return Err(error),
        };
        bytes += filled;
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
