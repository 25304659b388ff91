//! The calls about execs that outlive the call that started them.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tokio_util::task::AbortOnDropHandle;
use tonic::{Response, Status, Streaming};

use super::{
    request, response,
    service::{MESSAGES, Responses},
    status,
};
use crate::{
    proto::{self, attach_request},
    sandbox::{Caller, Input, Job, News, Output, Reader, Registry, SandboxError, Share},
};

pub(super) async fn attach(
    registry: &Arc<Registry>,
    caller: &Caller,
    share: Share,
    mut requests: Streaming<proto::AttachRequest>,
) -> Result<Response<Responses<proto::RunResponse>>, Status> {
    let first = requests.message().await?.and_then(|first| first.request);
    let Some(attach_request::Request::Start(start)) = first else {
        let problem = "must be `start` in the first message";
        return Err(status::of(SandboxError::invalid("request", problem)));
    };
    let job = registry.job_to_attach(caller, &start.exec_id);
    let job = job.map_err(status::of)?;
    // What it writes because of what it is sent is not missed.
    let reader = job.read(start.history);
    let size = start
        .window_size
        .map(|size| Input::WindowSize(request::size(Some(size))));
    // Not waited for: a command that reads nothing is seen all the same.
    let feeding = AbortOnDropHandle::new(tokio::spawn(feed(job.clone(), size, requests)));
    let epoch: Arc<str> = registry.events().journal().epoch().into();
    let (to, responses) = mpsc::channel(MESSAGES);
    tokio::spawn(async move {
        let _feeding = feeding;
        show(&epoch, &job, reader, &to).await;
    });
    Ok(held(responses, share))
}

/// Hands on the first of it and what is sent until its sender has no more, or is
/// gone.
async fn feed(job: Arc<Job>, first: Option<Input>, mut requests: Streaming<proto::AttachRequest>) {
    if let Some(first) = first {
        job.feed(first).await;
    }
    while let Ok(Some(request)) = requests.message().await {
        if let Some(input) = request::attach_input(request) {
            job.feed(input).await;
        }
    }
}

/// Shows what is written until it ends, or nobody looks.
async fn show(
    epoch: &str,
    job: &Job,
    mut reader: Reader,
    to: &mpsc::Sender<Result<proto::RunResponse, Status>>,
) {
    let started = Output::Started(job.started.clone());
    let mut next = Ok(response::run_response(epoch, started));
    loop {
        let failed = next.is_err();
        if to.send(next).await.is_err() || failed {
            return;
        }
        let news = tokio::select! {
            news = reader.next(true) => news,
            () = to.closed() => return,
        };
        let output = match news {
            None => return,
            Some(News::Record(record)) => Output::Bytes(record.stream, record.bytes),
            Some(News::Exited(end)) => Output::Exited(end),
            Some(News::Lost(lost)) => {
                next = Err(status::of_lag(&job.exec, lost));
                continue;
            }
        };
        next = Ok(response::run_response(epoch, output));
    }
}

pub(super) fn logs(
    registry: &Arc<Registry>,
    caller: &Caller,
    share: Share,
    request: &proto::GetLogsRequest,
) -> Result<Response<Responses<proto::GetLogsResponse>>, Status> {
    let job = registry.job(caller, &request.exec_id);
    let mut reader = job.map_err(status::of)?.read(true);
    let follow = request.follow;
    let (to, responses) = mpsc::channel(MESSAGES);
    tokio::spawn(async move {
        loop {
            let news = tokio::select! {
                news = reader.next(follow) => news,
                () = to.closed() => return,
            };
            let Some(news) = news else { return };
            if to.send(Ok(response::logs_response(news))).await.is_err() {
                return;
            }
        }
    });
    Ok(held(responses, share))
}

pub(super) async fn wait(
    registry: &Arc<Registry>,
    caller: &Caller,
    share: Share,
    request: &proto::WaitExecRequest,
) -> Result<Response<proto::Exited>, Status> {
    let job = registry.job(caller, &request.exec_id);
    let exited = job.map_err(status::of)?.wait().await;
    drop(share);
    Ok(Response::new(response::exited(&exited)))
}

/// Responses for as long as the call holds its share of the quota.
fn held<T: Send + 'static>(
    responses: mpsc::Receiver<Result<T, Status>>,
    share: Share,
) -> Response<Responses<T>> {
    let responses = ReceiverStream::new(responses).map(move |response| {
        let _held = &share;
        response
    });
    Response::new(Box::pin(responses))
}
