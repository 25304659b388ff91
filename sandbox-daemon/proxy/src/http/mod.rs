//! HTTP/1 and HTTP/2 from a sandbox: requests to the proxy, and requests on
//! connections to one host. Each is decided on its own, and goes out as HTTP/1.1.

mod answer;
mod authority;
mod body;
mod credentials;
mod echo;
mod headers;
mod metered;
mod place;
mod push;
mod session;
mod strange;
mod upstream;

use std::{convert::Infallible, future::ready, sync::Arc, time::Duration};

use hyper::{Request, Response, body::Incoming, server::conn, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};

use self::{answer::Failure, body::Answer};
pub use self::{
    answer::refused_as_bytes,
    metered::Metered,
    session::{Secure, Session},
};
use crate::{caller::Refusal, client::Client};

/// The head of a request: all of it, and its headers.
const MAX_HEAD: usize = 64 << 10;
const MAX_HEADERS: usize = 100;

/// How long a head may take; also, how long a connection may wait for a next one.
pub(crate) const HEAD_PATIENCE: Duration = Duration::from_secs(30);

/// Requests at a time on one connection of HTTP/2.
const MAX_STREAMS: u32 = 128;

/// How often a connection of HTTP/2 on which nothing happens is asked whether it
/// is still there.
const PING: Duration = Duration::from_mins(1);

/// Answers a client's requests until it has no more.
pub async fn serve(session: Session, client: Client, http2: bool) {
    let session = Arc::new(session);
    let answer = move |request| {
        let session = session.clone();
        async move { session.answer(request).await }
    };
    answer_all(answer, client, http2).await;
}

/// Tells a client that asks anything that it is refused.
pub async fn refuse(client: Client, http2: bool, refusal: Refusal) {
    let failure = Failure::Refused(refusal);
    answer_all(move |_| ready(failure.answer()), client, http2).await;
}

/// Tells a client that asks anything that its host cannot be reached, and why.
pub async fn fail(client: Client, http2: bool, why: String) {
    let failure = Failure::Unreachable(why);
    answer_all(move |_| ready(failure.answer()), client, http2).await;
}

async fn answer_all<A>(
    answer: impl Fn(Request<Incoming>) -> A + Send + 'static,
    client: Client,
    http2: bool,
) where
    A: Future<Output = Response<Answer>> + Send + 'static,
{
    let service = service_fn(move |request| {
        let answered = answer(request);
        async move { Ok::<_, Infallible>(answered.await) }
    });
    let io = TokioIo::new(client);
    let served = if http2 {
        conn::http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_header_list_size(u32::try_from(MAX_HEAD).unwrap_or(u32::MAX))
            .max_concurrent_streams(MAX_STREAMS)
            .keep_alive_interval(PING)
            .auto_date_header(false)
            .serve_connection(io, service)
            .await
    } else {
        conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_PATIENCE)
            .max_headers(MAX_HEADERS)
            .max_header_size(MAX_HEAD)
            .max_buf_size(MAX_HEAD)
            // Who has said everything may still wait for the answer.
            .half_close(true)
            .preserve_header_case(true)
            .auto_date_header(false)
            .serve_connection(io, service)
            .with_upgrades()
            .await
    };
    if let Err(error) = served {
        tracing::debug!(%error, "a connection of HTTP broke off");
    }
}
