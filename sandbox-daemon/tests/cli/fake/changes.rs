//! What the sandbox of the fake daemon changed.

use std::collections::HashMap;

use sandbox_daemon::proto::{
    ApplyChangesRequest, ApplyChangesResponse, Change, ExportPatchRequest, ExportPatchResponse,
    GetChangesRequest, GetChangesResponse, LeftOut, Progress, apply_changes_response as apply,
    change::Kind, export_patch_response as export, get_changes_response as get,
};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

const FILE: u32 = 0o100_644;
const DIRECTORY: u32 = 0o040_755;

fn change(kind: Kind, path: &'static [u8], display: &str, mode: u32) -> Change {
    let mut change = Change {
        path: path.into(),
        path_display: display.into(),
        mode,
        size: 6,
        ..Change::default()
    };
    change.set_kind(kind);
    change
}

fn all() -> Vec<Change> {
    vec![
        change(Kind::Modified, b".git/index", ".git/index", FILE),
        change(Kind::Added, b"empty", "empty", DIRECTORY),
        change(Kind::Added, b"full", "full", DIRECTORY),
        Change {
            added_lines: 2,
            ..change(Kind::Added, b"full/a\xff", "full/a\\xff", FILE)
        },
        Change {
            old_path: "from".into(),
            old_path_display: "from".into(),
            old_mode: FILE,
            ..change(Kind::Renamed, b"to", "to", FILE)
        },
        Change {
            left_out: "is read-only by the policy's rule `it`".into(),
            added_lines: 1,
            deleted_lines: 3,
            ..change(Kind::Modified, b"x\x1b", "x\\x1b", FILE)
        },
    ]
}

pub(super) fn changes(request: &GetChangesRequest) -> Vec<Result<GetChangesResponse, Status>> {
    let chosen = |change: &Change| {
        request.paths.is_empty()
            || request
                .paths
                .iter()
                .any(|path| change.path.starts_with(path))
    };
    let progress = get::Response::Progress(Progress { files: 7 });
    let changes = all().into_iter().filter(chosen).map(get::Response::Change);
    std::iter::once(progress)
        .chain(changes)
        .map(|response| {
            Ok(GetChangesResponse {
                response: Some(response),
            })
        })
        .collect()
}

fn left_out() -> LeftOut {
    LeftOut {
        path: "x\x1b".into(),
        path_display: "x\\x1b".into(),
        reason: "is an empty directory".into(),
    }
}

pub(super) fn patch(request: &ExportPatchRequest) -> Vec<Result<ExportPatchResponse, Status>> {
    let binary = if request.binary { "literal" } else { "differ" };
    [
        export::Response::Patch("diff --git a/a b/a\n@@ -1 +1 @@\n-a\n+".into()),
        export::Response::LeftOut(left_out()),
        export::Response::Patch(format!("\x1b\n{binary}\n").into()),
    ]
    .into_iter()
    .map(|response| {
        Ok(ExportPatchResponse {
            response: Some(response),
        })
    })
    .collect()
}

pub(super) fn applied(request: &ApplyChangesRequest) -> Vec<Result<ApplyChangesResponse, Status>> {
    if !request.force {
        let info = ErrorDetails::with_error_info("CONFLICT", "sandboxd", HashMap::new());
        let mut details = info;
        details.add_precondition_failure_violation("CONFLICT", "x\\x1b", "was changed");
        details.add_help_link("apply with `--force`", "");
        let message = "a file of the real workspace changed; nothing was applied";
        let code = Code::FailedPrecondition;
        return vec![Err(Status::with_error_details(code, message, details))];
    }
    [
        apply::Response::Applied(change(Kind::Modified, b"a", "a", FILE)),
        apply::Response::LeftOut(left_out()),
    ]
    .into_iter()
    .map(|response| {
        Ok(ApplyChangesResponse {
            response: Some(response),
        })
    })
    .collect()
}
