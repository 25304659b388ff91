//! The calls about what an ephemeral sandbox has made of its workspace.

use std::{
    ffi::OsString,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tonic::{Response, Status};

use super::{service::Responses, status};
use crate::{
    escape,
    proto::{
        self, apply_changes_response, change::Kind as ProtoKind, export_patch_response,
        get_changes_response,
    },
    sandbox::{Caller, Registry, Share, Told, Wanted},
    workspace::{Change, Kind, LeftOut, Lines, Meta},
};

/// Messages between what looks and its call; behind them it waits.
const MESSAGES: usize = 64;

pub(super) async fn get(
    registry: &Arc<Registry>,
    caller: &Caller,
    share: Share,
    request: proto::GetChangesRequest,
) -> Result<Response<Responses<proto::GetChangesResponse>>, Status> {
    use get_changes_response::Response as Is;
    let wanted = Wanted::List {
        count_lines: request.count_lines,
    };
    let asked = (request.sandbox_id, request.paths);
    answer(registry, caller, share, asked, wanted, |told| {
        let response = match told {
            Told::Change {
                change: found,
                lines,
                left_out,
            } => Some(Is::Change(proto::Change {
                left_out,
                ..change(&found, lines)
            })),
            Told::Progress(files) => Some(Is::Progress(proto::Progress { files })),
            Told::Patch(_) | Told::LeftOut(_) | Told::Applied(_) => None,
        };
        proto::GetChangesResponse { response }
    })
    .await
}

pub(super) async fn export(
    registry: &Arc<Registry>,
    caller: &Caller,
    share: Share,
    request: proto::ExportPatchRequest,
) -> Result<Response<Responses<proto::ExportPatchResponse>>, Status> {
    use export_patch_response::Response as Is;
    let wanted = Wanted::Patch {
        binary: request.binary,
    };
    let asked = (request.sandbox_id, request.paths);
    answer(registry, caller, share, asked, wanted, |told| {
        let response = match told {
            Told::Patch(bytes) => Some(Is::Patch(bytes)),
            Told::LeftOut(what) => Some(Is::LeftOut(left_out(&what))),
            Told::Progress(files) => Some(Is::Progress(proto::Progress { files })),
            Told::Change { .. } | Told::Applied(_) => None,
        };
        proto::ExportPatchResponse { response }
    })
    .await
}

pub(super) async fn apply(
    registry: &Arc<Registry>,
    caller: &Caller,
    share: Share,
    request: proto::ApplyChangesRequest,
) -> Result<Response<Responses<proto::ApplyChangesResponse>>, Status> {
    use apply_changes_response::Response as Is;
    let wanted = Wanted::Apply {
        force: request.force,
        dry_run: request.dry_run,
        outside_links: request.outside_links,
    };
    let asked = (request.sandbox_id, request.paths);
    answer(registry, caller, share, asked, wanted, |told| {
        let response = match told {
            Told::Applied(applied) => Some(Is::Applied(change(&applied, None))),
            Told::LeftOut(what) => Some(Is::LeftOut(left_out(&what))),
            Told::Progress(files) => Some(Is::Progress(proto::Progress { files })),
            Told::Change { .. } | Told::Patch(_) => None,
        };
        proto::ApplyChangesResponse { response }
    })
    .await
}

async fn answer<T: 'static>(
    registry: &Arc<Registry>,
    caller: &Caller,
    share: Share,
    (id, paths): (String, Vec<Bytes>),
    wanted: Wanted,
    convert: fn(Told) -> T,
) -> Result<Response<Responses<T>>, Status> {
    let paths = paths
        .into_iter()
        .map(|path| PathBuf::from(OsString::from_vec(path.to_vec())))
        .collect();
    let (sender, receiver) = mpsc::channel(MESSAGES);
    let begun = registry.changes(caller, &id, paths, wanted, sender).await;
    begun.map_err(status::of)?;
    let responses = ReceiverStream::new(receiver).map(move |told| {
        let _held = &share;
        told.map(convert).map_err(status::of)
    });
    Ok(Response::new(Box::pin(responses)))
}

fn change(change: &Change, lines: Option<Lines>) -> proto::Change {
    let mode = |meta: Option<Meta>| meta.map_or(0, |it| it.mode);
    let size = |meta: Option<Meta>| meta.map_or(0, |it| it.size);
    let old_path = change.old_path.as_deref();
    let lines = lines.unwrap_or_default();
    let mut answer = proto::Change {
        path: bytes(&change.path),
        path_display: display(&change.path),
        old_path: old_path.map(bytes).unwrap_or_default(),
        old_path_display: old_path.map(display).unwrap_or_default(),
        old_mode: mode(change.old),
        mode: mode(change.new),
        old_size: size(change.old),
        size: size(change.new),
        binary: lines.binary,
        added_lines: lines.added,
        deleted_lines: lines.deleted,
        xattrs: change
            .xattrs
            .iter()
            .map(|name| escape::display(name.as_bytes()))
            .collect(),
        ..proto::Change::default()
    };
    answer.set_kind(match change.kind {
        Kind::Added => ProtoKind::Added,
        Kind::Modified => ProtoKind::Modified,
        Kind::Deleted => ProtoKind::Deleted,
        Kind::Renamed => ProtoKind::Renamed,
        Kind::TypeChanged => ProtoKind::TypeChanged,
    });
    answer
}

fn left_out(left_out: &LeftOut) -> proto::LeftOut {
    proto::LeftOut {
        path: bytes(&left_out.path),
        path_display: display(&left_out.path),
        reason: left_out.reason.clone(),
    }
}

fn bytes(path: &Path) -> Bytes {
    Bytes::copy_from_slice(path.as_os_str().as_bytes())
}

fn display(path: &Path) -> String {
    escape::display(path.as_os_str().as_bytes())
}
