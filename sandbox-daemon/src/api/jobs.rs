//! The calls about execs that outlive the call that started them.

use std::sync::Arc;

use tonic::{Response, Status, Streaming};

use super::service::Responses;
use crate::{
    proto,
    sandbox::{Caller, Registry, Share},
};

#[expect(clippy::unused_async, reason = "not implemented yet")]
pub(super) async fn attach(
    _registry: &Arc<Registry>,
    _caller: &Caller,
    _share: Share,
    _requests: Streaming<proto::AttachRequest>,
) -> Result<Response<Responses<proto::RunResponse>>, Status> {
    Err(Status::unimplemented("Attach"))
}

#[expect(clippy::unused_async, reason = "not implemented yet")]
pub(super) async fn logs(
    _registry: &Arc<Registry>,
    _caller: &Caller,
    _share: Share,
    _request: proto::GetLogsRequest,
) -> Result<Response<Responses<proto::GetLogsResponse>>, Status> {
    Err(Status::unimplemented("GetLogs"))
}

#[expect(clippy::unused_async, reason = "not implemented yet")]
pub(super) async fn wait(
    _registry: &Arc<Registry>,
    _caller: &Caller,
    _share: Share,
    _request: proto::WaitExecRequest,
) -> Result<Response<proto::Exited>, Status> {
    Err(Status::unimplemented("WaitExec"))
}
