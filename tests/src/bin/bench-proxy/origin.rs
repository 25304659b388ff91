//! The server: small answers to HTTP at port 80, and at 443 something that no
//! proxy knows, which says first what it wants: bytes without end, or each
//! message back.

use std::{io, net::Ipv4Addr, path::Path};

use anyhow::Result;
use nix::sched::{CloneFlags, unshare};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use crate::secure::Server;

/// Asks for bytes.
pub(crate) const STREAM: u8 = 1;
/// Begins a message, which comes back.
pub(crate) const ECHO: u8 = 2;
/// Bytes of a message.
pub(crate) const MESSAGE: usize = 100;

/// Bytes that are written at a time.
const CHUNK: usize = 256 << 10;

pub(crate) const ANSWER: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 100\r\n\r\n\
    0123456789012345678901234567890123456789012345678\n\
    0123456789012345678901234567890123456789012345678\n";

/// Serves for ever, in a network namespace of its own, after a line on stdout;
/// over TLS with these files.
pub(crate) fn serve(files: &Path) -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNET)?;
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?
        .block_on(async {
            let http = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 80)).await?;
            let other = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 443)).await?;
            let secure = Server::bind(files).await?;
            println!("listening");
            loop {
                tokio::select! {
                    Ok((stream, _)) = http.accept() => drop(tokio::spawn(answer(stream))),
                    Ok((stream, _)) = other.accept() => drop(tokio::spawn(speak(stream))),
                    Ok(()) = secure.accept() => {}
                }
            }
        })
}

async fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut bytes = Vec::new();
    loop {
        let Some(end) = head(&bytes) else {
            if stream.read_buf(&mut bytes).await? == 0 {
                return Ok(());
            }
            continue;
        };
        let last = closes(&bytes[..end]);
        stream.write_all(ANSWER).await?;
        if last {
            return Ok(());
        }
        bytes.drain(..end);
    }
}

async fn speak(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut message = [0; MESSAGE];
    loop {
        stream.read_exact(&mut message).await?;
        if message[0] == STREAM {
            let chunk = vec![b'x'; CHUNK];
            loop {
                stream.write_all(&chunk).await?;
            }
        }
        stream.write_all(&message).await?;
    }
}

/// Where a head ends that begins here.
pub(crate) fn head(bytes: &[u8]) -> Option<usize> {
    let end = bytes.windows(4).position(|it| it == b"\r\n\r\n")?;
    Some(end + 4)
}

/// Whether the connection ends with this message.
pub(crate) fn closes(head: &[u8]) -> bool {
    let line = head.split(|byte| *byte == b'\n').next().unwrap_or(head);
    let old = line.windows(8).any(|it| it == b"HTTP/1.0");
    match field(head, "connection") {
        Some(value) if value.eq_ignore_ascii_case("keep-alive") => false,
        Some(value) if value.eq_ignore_ascii_case("close") => true,
        _ => old,
    }
}

/// A header's value.
pub(crate) fn field<'h>(head: &'h [u8], name: &str) -> Option<&'h str> {
    let text = std::str::from_utf8(head).ok()?;
    text.lines().skip(1).find_map(|line| {
        let (found, value) = line.split_once(':')?;
        found.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}
