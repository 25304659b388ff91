//! What a request of `sandbox.v1` asks of the registry.

use std::{
    ffi::OsString,
    os::unix::ffi::OsStringExt as _,
    path::PathBuf,
    time::{Duration, Instant},
};

use crate::{
    launch::Size,
    policy::{Limits, WorkspaceMode},
    proto,
    sandbox::{
        DEFAULT_IDLE, EnrollSpec, Input, OutputStream, PolicyFrom, PolicySource, RunSpec,
        SandboxError, Spec, Stdio, Target,
    },
};

pub(super) fn policy_source(source: Option<proto::PolicySource>) -> PolicySource {
    use proto::policy_source::Source;
    let Some(source) = source else {
        return PolicySource::default();
    };
    let from = match source.source {
        None => PolicyFrom::default(),
        Some(Source::Name(name)) => PolicyFrom::Name(name),
        Some(Source::Text(text)) => PolicyFrom::Text {
            display_name: text.display_name,
            toml: text.toml,
            origin: path(text.origin),
        },
    };
    let paths = |paths: Vec<String>| paths.into_iter().map(PathBuf::from).collect();
    PolicySource {
        from,
        extra_read: paths(source.extra_read),
        extra_write: paths(source.extra_write),
    }
}

pub(super) fn spec(spec: Option<proto::SandboxSpec>) -> Result<Spec, SandboxError> {
    let spec = spec.unwrap_or_default();
    let idle_timeout = match spec.idle_timeout {
        None => DEFAULT_IDLE,
        Some(duration) => Duration::try_from(duration)
            .ok()
            .filter(|duration| !duration.is_zero())
            .ok_or_else(|| SandboxError::invalid("idle_timeout", "must be positive"))?,
    };
    Ok(Spec {
        policy: policy_source(spec.policy),
        workspace: path(spec.workspace),
        name: spec.name,
        idle_timeout,
        uid: spec.uid,
        workspace_mode: workspace_mode(spec.workspace_mode),
        limits: limits(spec.limits)?,
    })
}

fn workspace_mode(mode: i32) -> Option<WorkspaceMode> {
    match proto::WorkspaceMode::try_from(mode) {
        Ok(proto::WorkspaceMode::Direct) => Some(WorkspaceMode::Direct),
        Ok(proto::WorkspaceMode::Ephemeral) => Some(WorkspaceMode::Ephemeral),
        Ok(proto::WorkspaceMode::Unspecified) | Err(_) => None,
    }
}

fn limits(limits: Option<proto::Limits>) -> Result<Limits, SandboxError> {
    let limits = limits.unwrap_or_default();
    let positive = |value: u64| (value != 0).then_some(value);
    Ok(Limits {
        timeout: timeout("limits.timeout", limits.timeout)?,
        sandbox_timeout: timeout("limits.sandbox_timeout", limits.sandbox_timeout)?,
        memory: positive(limits.memory),
        cpu_millis: (limits.cpu_millis != 0).then_some(limits.cpu_millis),
        pids: (limits.pids != 0).then_some(limits.pids),
        disk: positive(limits.disk),
        output: positive(limits.output),
    })
}

fn timeout(
    field: &'static str,
    duration: Option<prost_types::Duration>,
) -> Result<Option<Duration>, SandboxError> {
    let Some(duration) = duration else {
        return Ok(None);
    };
    let duration = Duration::try_from(duration)
        .map_err(|_| SandboxError::invalid(field, "must not be negative"))?;
    Ok((!duration.is_zero()).then_some(duration))
}

/// That of one exec, as the sandbox's limits might have it.
fn exec_timeout(duration: Option<prost_types::Duration>) -> Result<Option<Duration>, SandboxError> {
    let limits = Limits {
        timeout: timeout("timeout", duration)?,
        ..Limits::default()
    };
    let checked = limits.check();
    checked.map_err(|(_, problem)| SandboxError::invalid("timeout", problem))?;
    Ok(limits.timeout)
}

pub(super) fn path(text: String) -> Option<PathBuf> {
    (!text.is_empty()).then(|| text.into())
}

pub(super) fn run_spec(
    start: proto::Start,
    deadline: Option<Instant>,
) -> Result<RunSpec, SandboxError> {
    use proto::start::Sandbox;
    let variables = |variables: Vec<proto::EnvVar>| {
        variables
            .into_iter()
            .map(|variable| (variable.name.to_vec(), variable.value.to_vec()))
            .collect()
    };
    let stdio = match start.stdio() {
        proto::Stdio::Unspecified | proto::Stdio::Relay => Stdio::Relay,
        proto::Stdio::Inherit => Stdio::Inherit {
            start_time: start.caller_start_time,
        },
        proto::Stdio::Pty => Stdio::Pty {
            size: size(start.window_size),
            stderr_apart: start.stderr_apart,
        },
    };
    let cwd = OsString::from_vec(start.cwd.to_vec());
    Ok(RunSpec {
        target: match start.sandbox {
            Some(Sandbox::SandboxId(id)) => Target::Existing(id),
            Some(Sandbox::Inline(inline)) => Target::OneShot(Box::new(spec(Some(inline))?)),
            None => return Err(no_sandbox()),
        },
        argv: start
            .argv
            .iter()
            .map(|argument| argument.to_vec())
            .collect(),
        cwd: (!cwd.is_empty()).then(|| cwd.into()),
        env: variables(start.env),
        env_set: variables(start.env_set),
        stdio,
        umask: start.umask,
        deadline,
        timeout: exec_timeout(start.timeout)?,
        detach: start.detach,
        no_stdin: start.no_stdin,
    })
}

fn no_sandbox() -> SandboxError {
    SandboxError::invalid("sandbox", "is missing: give `sandbox_id` or `inline`")
}

pub(super) fn enroll_spec(request: proto::EnrollRequest) -> Result<EnrollSpec, SandboxError> {
    use proto::enroll_request::Sandbox;
    Ok(EnrollSpec {
        target: match request.sandbox {
            Some(Sandbox::SandboxId(id)) => Target::Existing(id),
            Some(Sandbox::Inline(inline)) => Target::OneShot(Box::new(spec(Some(inline))?)),
            None => return Err(no_sandbox()),
        },
        pid: request.pid,
        start_time: (request.start_time != 0).then_some(request.start_time),
        allow_inherited: request.allow_inherited,
        stay: request.stay,
    })
}

/// What this build does not know is ignored.
pub(super) fn attach_input(request: proto::AttachRequest) -> Option<Input> {
    use proto::attach_request::Request;
    Some(match request.request? {
        Request::Start(_) => return None,
        Request::Stdin(bytes) => Input::Stdin(bytes),
        Request::CloseStdin(_) => Input::CloseStdin,
        Request::Signal(signal) => Input::Signal(i32::try_from(signal).ok()?),
        Request::WindowSize(window) => Input::WindowSize(size(Some(window))),
    })
}

/// What this build does not know is ignored.
pub(super) fn input(request: proto::RunRequest) -> Option<Input> {
    use proto::run_request::Request;
    Some(match request.request? {
        Request::Start(_) => return None,
        Request::Stdin(bytes) => Input::Stdin(bytes),
        Request::CloseStdin(_) => Input::CloseStdin,
        Request::Signal(signal) => Input::Signal(i32::try_from(signal).ok()?),
        Request::WindowSize(window) => Input::WindowSize(size(Some(window))),
        Request::CloseOutput(output) => {
            Input::CloseOutput(match proto::Output::try_from(output).ok()? {
                proto::Output::Unspecified => return None,
                proto::Output::Stdout => OutputStream::Stdout,
                proto::Output::Stderr => OutputStream::Stderr,
            })
        }
    })
}

pub(super) fn size(window: Option<proto::WindowSize>) -> Size {
    let window = window.unwrap_or_default();
    let cells = |count: u32| u16::try_from(count).unwrap_or(u16::MAX);
    Size {
        rows: cells(window.rows),
        columns: cells(window.columns),
    }
}
