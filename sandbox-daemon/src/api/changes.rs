//! The calls about what an ephemeral sandbox has made of its workspace.

use std::sync::Arc;

use tonic::{Response, Status};

use super::service::Responses;
use crate::{
    proto,
    sandbox::{Caller, Registry, Share},
};

#[expect(clippy::unused_async, reason = "not implemented yet")]
pub(super) async fn get(
    _registry: &Arc<Registry>,
    _caller: &Caller,
    _share: Share,
    _request: proto::GetChangesRequest,
) -> Result<Response<Responses<proto::GetChangesResponse>>, Status> {
    Err(Status::unimplemented("GetChanges"))
}

#[expect(clippy::unused_async, reason = "not implemented yet")]
pub(super) async fn export(
    _registry: &Arc<Registry>,
    _caller: &Caller,
    _share: Share,
    _request: proto::ExportPatchRequest,
) -> Result<Response<Responses<proto::ExportPatchResponse>>, Status> {
    Err(Status::unimplemented("ExportPatch"))
}

#[expect(clippy::unused_async, reason = "not implemented yet")]
pub(super) async fn apply(
    _registry: &Arc<Registry>,
    _caller: &Caller,
    _share: Share,
    _request: proto::ApplyChangesRequest,
) -> Result<Response<Responses<proto::ApplyChangesResponse>>, Status> {
    Err(Status::unimplemented("ApplyChanges"))
}
