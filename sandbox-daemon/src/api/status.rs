//! Errors as gRPC statuses: a code, a message for people, a reason for
//! programs (`ErrorInfo`), and a remedy (`Help`) where there is one.

use std::{collections::HashMap, fmt::Write as _};

use prost::Message as _;
use prost_types::Any;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _, pb};

use super::response;
use crate::{
    cgroup::CgroupError,
    chain::Chain,
    escape,
    events::ResumeError,
    launch::{EnrollError, LaunchError, PeerError},
    policy::Diagnostics,
    proto::ValidatePolicyResponse,
    sandbox::SandboxError,
    secrets::SecretError,
    workspace::{Refusal, WorkspaceError},
};

/// Of every `ErrorInfo`.
const DOMAIN: &str = "sandboxd";

/// A status travels in headers, of which many clients take 8 KiB only.
const MESSAGE_BYTES: usize = 1500;
const DIAGNOSTIC_BYTES: usize = 3000;

/// An error as a status.
pub(super) fn of(error: SandboxError) -> Status {
    let (code, reason) = kind(&error);
    if code == Code::Internal {
        tracing::error!(error = %Chain::of(&error), "a request failed");
    }
    if let SandboxError::Policy(diagnostics) = error {
        return invalid_policy(diagnostics);
    }
    let mut details = details(reason);
    match &error {
        SandboxError::Invalid { field, problem } => {
            details.add_bad_request_violation(*field, problem);
        }
        SandboxError::Quota { uid, what, limit } => {
            details.add_quota_failure_violation(
                format!("uid:{uid}"),
                format!("at most {limit} {what}"),
            );
        }
        SandboxError::Workspace(WorkspaceError::Conflict(found)) => {
            refusals(&mut details, "CONFLICT", found);
        }
        SandboxError::Workspace(WorkspaceError::NotWritable(found)) => {
            refusals(&mut details, "NOT_WRITABLE", found);
        }
        _ => {}
    }
    let chain = Chain::of(&error);
    if let Some(hint) = hint(&error).or(chain.hint) {
        details.add_help_link(hint, "");
    }
    Status::with_error_details(code, cut(chain.message, MESSAGE_BYTES), details)
}

/// A watcher cannot resume.
pub(super) fn of_resume(error: &ResumeError) -> Status {
    let mut details = details("EVENTS_GONE");
    details.add_help_link(
        "watch with `history` and without `epoch`, to start with what is there",
        "",
    );
    Status::with_error_details(Code::OutOfRange, error.to_string(), details)
}

/// What is attached was slower than the command for too long.
pub(super) fn of_lag(exec: &str, lost: u64) -> Status {
    let mut details = details("OUTPUT_GONE");
    details.add_help_link("the command goes on; attach again", "");
    let message = format!("exec `{exec}` wrote {lost} bytes more than are kept, unread");
    Status::with_error_details(Code::OutOfRange, message, details)
}

fn details(reason: &str) -> ErrorDetails {
    ErrorDetails::with_error_info(reason, DOMAIN, HashMap::new())
}

fn kind(error: &SandboxError) -> (Code, &'static str) {
    match error {
        SandboxError::NoSandbox(_) => (Code::NotFound, "SANDBOX_NOT_FOUND"),
        SandboxError::NoExec(_) | SandboxError::NoJob(_) => (Code::NotFound, "EXEC_NOT_FOUND"),
        SandboxError::NotDetached(_) => (Code::FailedPrecondition, "NOT_DETACHED"),
        SandboxError::Uncounted => (Code::FailedPrecondition, "OUTPUT_NOT_COUNTED"),
        SandboxError::Closing(_) => (Code::FailedPrecondition, "SANDBOX_CLOSING"),
        SandboxError::Invalid { .. } => (Code::InvalidArgument, "INVALID_ARGUMENT"),
        SandboxError::Policy(_) => (Code::InvalidArgument, "POLICY_INVALID"),
        SandboxError::NoPolicy { .. } => (Code::NotFound, "POLICY_NOT_FOUND"),
        SandboxError::ReadPolicy { .. } => (Code::FailedPrecondition, "POLICY_UNREADABLE"),
        SandboxError::ForeignUid(_) => (Code::PermissionDenied, "FOREIGN_UID"),
        SandboxError::Quota { .. } => (Code::ResourceExhausted, "QUOTA_EXCEEDED"),
        SandboxError::Etag { .. } => (Code::Aborted, "ETAG_MISMATCH"),
        SandboxError::RequestReused(_) => (Code::AlreadyExists, "REQUEST_ID_REUSED"),
        SandboxError::InSandbox(_) => (Code::PermissionDenied, "IN_SANDBOX"),
        SandboxError::Secret(error) => secret_kind(error),
        SandboxError::Workspace(error) => workspace_kind(error),
        SandboxError::Confined(_) | SandboxError::ConfinedKeeper(_) => {
            (Code::PermissionDenied, "CALLER_CONFINED")
        }
        SandboxError::Peer(PeerError::Account(error)) | SandboxError::Launch(error) => {
            launch_kind(error)
        }
        SandboxError::Peer(_) => (Code::PermissionDenied, "CALLER_UNVERIFIED"),
        SandboxError::Enroll(error) => enroll_kind(error),
        SandboxError::ShuttingDown => (Code::Unavailable, "SHUTTING_DOWN"),
        SandboxError::Enforce(_) => (Code::FailedPrecondition, "POLICY_NOT_ENFORCED"),
        SandboxError::Egress(_) | SandboxError::Rotation(_) => {
            (Code::Unavailable, "PROXY_UNAVAILABLE")
        }
        SandboxError::Credential(_) => (Code::FailedPrecondition, "CREDENTIAL_UNUSABLE"),
        SandboxError::Cgroup(CgroupError::NoController { .. }) => {
            (Code::FailedPrecondition, "KERNEL_FEATURE_MISSING")
        }
        SandboxError::Cgroup(_) => (Code::Internal, "CGROUP_FAILED"),
        SandboxError::Step { .. } => (Code::Internal, "STEP_FAILED"),
        SandboxError::Internal => (Code::Internal, "INTERNAL"),
    }
}

fn workspace_kind(error: &WorkspaceError) -> (Code, &'static str) {
    match error {
        WorkspaceError::Cancelled => (Code::Cancelled, "CANCELLED"),
        WorkspaceError::Selection { .. } => (Code::InvalidArgument, "INVALID_ARGUMENT"),
        WorkspaceError::TooMany => (Code::ResourceExhausted, "TOO_MANY_CHANGES"),
        WorkspaceError::Unsettled { .. } => (Code::Aborted, "CHANGED_MEANWHILE"),
        WorkspaceError::Conflict(_) => (Code::FailedPrecondition, "CONFLICT"),
        WorkspaceError::NotWritable(_) => (Code::FailedPrecondition, "NOT_WRITABLE"),
        WorkspaceError::Room { .. } => (Code::ResourceExhausted, "NO_ROOM"),
        WorkspaceError::Write { .. } => (Code::FailedPrecondition, "WRITE_FAILED"),
        WorkspaceError::Look { .. } | WorkspaceError::Act { .. } => {
            (Code::Internal, "CHANGES_FAILED")
        }
    }
}

/// The paths that a refusal is about, as many as fit.
fn refusals(details: &mut ErrorDetails, kind: &str, refusals: &[Refusal]) {
    let mut left = DIAGNOSTIC_BYTES;
    for refusal in refusals {
        let path = escape::display(refusal.path.as_os_str().as_encoded_bytes());
        let path = cut(path, DIAGNOSTIC_BYTES / 4);
        let size = path.len() + refusal.reason.len() + kind.len();
        if size > left {
            break;
        }
        left -= size;
        details.add_precondition_failure_violation(kind, path, refusal.reason);
    }
}

fn secret_kind(error: &SecretError) -> (Code, &'static str) {
    match error {
        SecretError::Name | SecretError::Value => (Code::InvalidArgument, "SECRET_INVALID"),
        SecretError::NotFound { .. } => (Code::NotFound, "SECRET_NOT_FOUND"),
        SecretError::Full { .. } => (Code::ResourceExhausted, "QUOTA_EXCEEDED"),
        SecretError::Exposed { .. } => (Code::FailedPrecondition, "SECRETS_EXPOSED"),
        SecretError::Io { .. } => (Code::Internal, "SECRETS_FAILED"),
    }
}

fn launch_kind(error: &LaunchError) -> (Code, &'static str) {
    match error {
        LaunchError::CommandNotFound { .. } => (Code::NotFound, "COMMAND_NOT_FOUND"),
        LaunchError::NoCommand => (Code::InvalidArgument, "INVALID_ARGUMENT"),
        LaunchError::NotExecutable { .. } | LaunchError::InterpreterNotFound { .. } => {
            (Code::FailedPrecondition, "NOT_EXECUTABLE")
        }
        LaunchError::WorkingDirectory { .. } => {
            (Code::FailedPrecondition, "WORKING_DIRECTORY_INVALID")
        }
        LaunchError::Workspace { .. }
        | LaunchError::WorkspaceRelative { .. }
        | LaunchError::WorkspaceRefused { .. }
        | LaunchError::MountedBelow { .. } => (Code::InvalidArgument, "WORKSPACE_INVALID"),
        LaunchError::Overlay { source, .. } if source.raw_os_error() == Some(libc::ENODEV) => {
            (Code::FailedPrecondition, "KERNEL_FEATURE_MISSING")
        }
        LaunchError::UnknownUser { .. } => (Code::FailedPrecondition, "UNKNOWN_USER"),
        _ => (Code::Internal, "LAUNCH_FAILED"),
    }
}

fn enroll_kind(error: &EnrollError) -> (Code, &'static str) {
    match error {
        EnrollError::Gone { .. } => (Code::NotFound, "PROCESS_NOT_FOUND"),
        EnrollError::StartTime { .. } => (Code::FailedPrecondition, "PROCESS_CHANGED"),
        EnrollError::NotOwned { .. } => (Code::PermissionDenied, "PROCESS_NOT_OWNED"),
        EnrollError::Refused { .. } => (Code::FailedPrecondition, "PROCESS_REFUSED"),
        EnrollError::InSandbox { .. } => (Code::FailedPrecondition, "PROCESS_IN_SANDBOX"),
        EnrollError::Inherited(_) => (Code::FailedPrecondition, "INHERITED_DESCRIPTORS"),
        EnrollError::Unsettled { .. } => (Code::Aborted, "PROCESS_UNSETTLED"),
        _ => (Code::Internal, "ENROLL_FAILED"),
    }
}

/// What to do about it.
fn hint(error: &SandboxError) -> Option<String> {
    match error {
        SandboxError::Launch(error) | SandboxError::Peer(PeerError::Account(error)) => {
            error.hint().map(str::to_owned)
        }
        SandboxError::Egress(_) => Some(
            "the daemon's log says more; `mode = \"none\"` under `[network]` needs no proxy".into(),
        ),
        SandboxError::Rotation(_) => {
            Some("the daemon's log says more; do the same again, or end those sandboxes".into())
        }
        SandboxError::NoPolicy { name, .. } => Some(format!(
            "a policy file of your own is named with a `/`, as in `./{name}.toml`"
        )),
        SandboxError::Quota { what, .. } => Some(format!(
            "end some, or raise `{what}` under `[quotas]` in /etc/sandboxd/config.toml"
        )),
        SandboxError::Uncounted => Some("ask for STDIO_RELAY".into()),
        SandboxError::Etag { .. } => Some("read the sandbox again and decide anew".into()),
        SandboxError::InSandbox(_) => {
            Some("sandboxes do not nest; run the command as it is".into())
        }
        SandboxError::ConfinedKeeper(_) => {
            Some("use a shell of the host's, or have root name the user".into())
        }
        SandboxError::Secret(error) => error.hint().map(str::to_owned),
        SandboxError::Workspace(error) => error.hint().map(str::to_owned),
        SandboxError::Confined(_) => Some("`Enroll` places a process that runs already".into()),
        SandboxError::Enroll(EnrollError::Inherited(_)) => {
            Some("close them, or accept them with `allow_inherited`".into())
        }
        _ => None,
    }
}

/// All diagnostics that fit, in a form for programs and in one for terminals.
fn invalid_policy(diagnostics: Diagnostics) -> Status {
    let mut message = "the policy is not valid".to_owned();
    if let Some(first) = diagnostics.iter().next() {
        let place = match first.line {
            0 => first.file.clone(),
            line => format!("{}:{line}:{}", first.file, first.column),
        };
        // Writing to a string cannot fail.
        let _ = write!(message, ": {place}: {}", first.message);
    }
    if let more @ 1.. = diagnostics.0.len().saturating_sub(1) {
        let _ = write!(message, " (and {more} more)");
    }
    let mut left = DIAGNOSTIC_BYTES;
    let mut kept = Vec::new();
    let mut details = details("POLICY_INVALID");
    for diagnostic in diagnostics {
        let mut diagnostic = response::diagnostic(diagnostic);
        // One line of a policy may be very long.
        diagnostic.message = cut(diagnostic.message, DIAGNOSTIC_BYTES / 4);
        diagnostic.rendered = cut(diagnostic.rendered, DIAGNOSTIC_BYTES / 2);
        let size = diagnostic.encoded_len();
        if size > left && !kept.is_empty() {
            break;
        }
        left = left.saturating_sub(size);
        details.add_bad_request_violation(
            format!("policy:{}:{}", diagnostic.line, diagnostic.column),
            cut(diagnostic.message.clone(), 200),
        );
        kept.push(diagnostic);
    }
    let message = cut(message, MESSAGE_BYTES);
    let status = Status::with_error_details(Code::InvalidArgument, &message, details);
    let response = ValidatePolicyResponse {
        diagnostics: kept,
        ..ValidatePolicyResponse::default()
    };
    // It was encoded just now.
    let Ok(mut encoded) = pb::Status::decode(status.details()) else {
        return status;
    };
    encoded.details.push(Any {
        type_url: "type.googleapis.com/sandbox.v1.ValidatePolicyResponse".into(),
        value: response.encode_to_vec(),
    });
    Status::with_details(
        Code::InvalidArgument,
        message,
        encoded.encode_to_vec().into(),
    )
}

fn cut(mut text: String, bytes: usize) -> String {
    if text.len() > bytes {
        text.truncate(text.floor_char_boundary(bytes));
        text.push_str("...");
    }
    text
}
