//! What the registry has, as `sandbox.v1` says it.

use std::{
    path::PathBuf,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use sandbox_proxy::channel::Decision;

use crate::{
    egress::Report,
    escape,
    events::{Denial, Item, Loss, LossReason, Object, Right, Used, Verdict},
    launch::ExitStatus,
    policy::{Diagnostic, Limits, Severity, WorkspaceMode},
    proto,
    sandbox::{
        Cause, Enforcer, EnrollOutput, Exec, Exited, Info, Job, News, Output, OutputStream,
        PolicyFrom, PolicySource, Sandbox, Usage,
    },
};

pub(super) fn logs_response(news: News) -> proto::GetLogsResponse {
    use proto::get_logs_response::Response;
    let response = match news {
        News::Lost(bytes) => Response::Dropped(bytes),
        News::Exited(it) => Response::Exited(exited(&it)),
        News::Record(record) => Response::Chunk(proto::LogChunk {
            output: match record.stream {
                OutputStream::Stdout => proto::Output::Stdout,
                OutputStream::Stderr => proto::Output::Stderr,
            }
            .into(),
            data: record.bytes,
            time: Some(record.time.into()),
        }),
    };
    proto::GetLogsResponse {
        response: Some(response),
    }
}

pub(super) fn run_response(epoch: &str, output: Output) -> proto::RunResponse {
    use proto::run_response::Response;
    let response = match output {
        Output::Started(started) => Response::Started(proto::Started {
            sandbox_id: started.sandbox,
            exec_id: started.exec,
            pid: started.pid,
            policy_name: started.policy_name,
            policy_digest: started.policy_digest,
            withheld_env: started.withheld_env,
            observe: started.observe,
        }),
        Output::Bytes(OutputStream::Stdout, bytes) => Response::Stdout(bytes),
        Output::Bytes(OutputStream::Stderr, bytes) => Response::Stderr(bytes),
        Output::Item(Item::Denial(it)) => Response::Denial(denial(epoch, &it)),
        Output::Item(Item::Used(it)) => Response::Used(used(epoch, &it)),
        Output::Item(Item::Lost(it)) => Response::Lost(lost(epoch, &it)),
        Output::Unkillable(pids) => Response::Unkillable(proto::Unkillable { pids }),
        Output::Exited(it) => Response::Exited(exited(&it)),
    };
    proto::RunResponse {
        response: Some(response),
    }
}

pub(super) fn enroll_response(epoch: &str, output: EnrollOutput) -> proto::EnrollResponse {
    use proto::enroll_response::Response;
    let response = match output {
        EnrollOutput::Enrolled {
            sandbox,
            exec,
            pids,
        } => Response::Enrolled(proto::Enrolled {
            sandbox_id: sandbox,
            exec_id: exec,
            pids,
        }),
        EnrollOutput::Item(Item::Denial(it)) => Response::Denial(denial(epoch, &it)),
        EnrollOutput::Item(Item::Used(it)) => Response::Used(used(epoch, &it)),
        EnrollOutput::Item(Item::Lost(it)) => Response::Lost(lost(epoch, &it)),
        EnrollOutput::Ended {
            ending,
            cause,
            limits,
        } => Response::Ended(proto::Ended {
            denied: ending.denied,
            lost: ending.lost,
            reason: reason(cause).into(),
            usage: Some(usage(&ending.usage)),
            limits: Some(proto_limits(&limits)),
        }),
    };
    proto::EnrollResponse {
        response: Some(response),
    }
}

pub(super) fn watch_response(epoch: &str, item: Item) -> proto::WatchEventsResponse {
    use proto::watch_events_response::Response;
    let response = match item {
        Item::Denial(it) => Response::Denial(denial(epoch, &it)),
        Item::Used(it) => Response::Used(used(epoch, &it)),
        Item::Lost(it) => Response::Lost(lost(epoch, &it)),
    };
    proto::WatchEventsResponse {
        response: Some(response),
    }
}

pub(super) fn exited(exited: &Exited) -> proto::Exited {
    use proto::exited::Status;
    proto::Exited {
        status: Some(match exited.status {
            ExitStatus::Code(code) => Status::Code(code.into()),
            ExitStatus::Signal(signal) => Status::Signal(signal.unsigned_abs()),
        }),
        reason: reason(exited.cause).into(),
        denied: exited.ending.denied,
        lost: exited.ending.lost,
        usage: Some(usage(&exited.ending.usage)),
        limits: Some(proto_limits(&exited.limits)),
    }
}

fn reason(cause: Option<Cause>) -> proto::exited::Reason {
    use proto::exited::Reason;
    match cause {
        None => Reason::Exited,
        Some(Cause::Request) => Reason::Killed,
        Some(Cause::Timeout) => Reason::Timeout,
        Some(Cause::Daemon) => Reason::Daemon,
        Some(Cause::Memory) => Reason::Memory,
        Some(Cause::MachineMemory) => Reason::MachineMemory,
        Some(Cause::Output) => Reason::Output,
        Some(Cause::SandboxTimeout) => Reason::SandboxTimeout,
    }
}

fn usage(usage: &Usage) -> proto::Usage {
    proto::Usage {
        peak_memory: usage.peak_memory,
        cpu_time: usage.cpu_time.and_then(|it| it.try_into().ok()),
        peak_pids: usage.peak_pids,
        read_bytes: usage.read_bytes,
        written_bytes: usage.written_bytes,
        refused_forks: usage.refused_forks,
    }
}

fn proto_limits(limits: &Limits) -> proto::Limits {
    let duration = |it: Option<Duration>| it.and_then(|it| it.try_into().ok());
    proto::Limits {
        timeout: duration(limits.timeout),
        sandbox_timeout: duration(limits.sandbox_timeout),
        memory: limits.memory.unwrap_or_default(),
        cpu_millis: limits.cpu_millis.unwrap_or_default(),
        pids: limits.pids.unwrap_or_default(),
        disk: limits.disk.unwrap_or_default(),
        output: limits.output.unwrap_or_default(),
    }
}

pub(super) fn denial(epoch: &str, denial: &Denial) -> proto::Denial {
    use proto::denial::Object as Kind;
    let refusal = &denial.refusal;
    proto::Denial {
        sandbox_id: denial.owner.sandbox.clone(),
        exec_id: denial.owner.exec.clone(),
        epoch: epoch.into(),
        sequence: denial.sequence,
        first_time: Some(denial.first.into()),
        last_time: Some(denial.last.into()),
        pid: refusal.pid,
        uid: refusal.uid,
        exe: Bytes::copy_from_slice(&refusal.exe),
        exe_display: escape::display(&refusal.exe),
        right: match refusal.right {
            Right::Read => proto::Right::Read,
            Right::Write => proto::Right::Write,
            Right::Connect => proto::Right::Connect,
            Right::Scope => proto::Right::Scope,
        }
        .into(),
        operation: refusal.operation.into(),
        object: Some(match &refusal.object {
            Object::Path(path) => Kind::Path(Bytes::copy_from_slice(path)),
            Object::Address(address) => Kind::Address(address.clone()),
            Object::Host(host) => Kind::Host(host.clone()),
            Object::UnixSocket(name) => Kind::UnixSocket(Bytes::copy_from_slice(name)),
            Object::Process(pid, _) => Kind::TargetPid(*pid),
            Object::Capability(name) => Kind::Capability(name.clone()),
            Object::Facility(name) => Kind::Facility(name.clone()),
        }),
        object_display: refusal.object.display(),
        rule: refusal.rule.to_string(),
        policy_digest: refusal.policy_digest.to_string(),
        errno: refusal.errno,
        verdict: match refusal.verdict {
            Verdict::Denied => proto::Verdict::Denied,
            Verdict::Observed => proto::Verdict::Observed,
        }
        .into(),
        count: denial.count,
    }
}

fn used(epoch: &str, used: &Used) -> proto::CredentialUse {
    let request = &used.request;
    proto::CredentialUse {
        sandbox_id: used.owner.sandbox.clone(),
        exec_id: used.owner.exec.clone(),
        epoch: epoch.into(),
        sequence: used.sequence,
        first_time: Some(used.time.into()),
        last_time: Some(used.time.into()),
        pid: request.pid,
        uid: request.uid,
        exe: Bytes::copy_from_slice(&request.exe),
        exe_display: escape::display(&request.exe),
        credential: request.credential.clone(),
        rule: request.rule.clone(),
        host: request.host.clone(),
        method: request.method.clone(),
        path: request.path.clone(),
        repository: request.repository.clone(),
        refs: request.refs.clone(),
        further_refs: request.further_refs,
        request_display: request.display(),
        policy_digest: request.policy_digest.to_string(),
        count: used.count,
    }
}

fn lost(epoch: &str, loss: &Loss) -> proto::Lost {
    let (sandbox_id, exec_id) = match &loss.owner {
        Some(owner) => (owner.sandbox.clone(), owner.exec.clone()),
        None => Default::default(),
    };
    proto::Lost {
        reason: match loss.reason {
            LossReason::Rate => proto::lost::Reason::Rate,
            LossReason::RingBuffer => proto::lost::Reason::RingBuffer,
            LossReason::Reader => proto::lost::Reason::Reader,
            LossReason::Use => proto::lost::Reason::Use,
        }
        .into(),
        count: loss.count,
        sandbox_id,
        exec_id,
        epoch: epoch.into(),
        sequence: loss.sequence,
    }
}

pub(super) fn sandbox(sandbox: &Sandbox, enforcer: &dyn Enforcer) -> proto::Sandbox {
    let policy = sandbox.policy();
    let (denied, lost) = sandbox.counts(enforcer);
    proto::Sandbox {
        id: sandbox.id.clone(),
        spec: Some(proto_spec(sandbox, &policy.source)),
        uid: sandbox.account.uid,
        policy_name: policy.policy.name.clone(),
        policy_digest: policy.policy.digest.clone(),
        etag: policy.etag.clone(),
        create_time: Some(sandbox.created.into()),
        execs: execs(sandbox),
        observe: policy.policy.mode == crate::policy::Mode::Observe,
        denied,
        lost,
        workspace_mode: match sandbox.workspace_mode() {
            WorkspaceMode::Direct => proto::WorkspaceMode::Direct,
            WorkspaceMode::Ephemeral => proto::WorkspaceMode::Ephemeral,
        }
        .into(),
        limits: Some(proto_limits(&sandbox.limits())),
        expire_time: sandbox.expire_time().map(Into::into),
    }
}

fn proto_spec(sandbox: &Sandbox, source: &PolicySource) -> proto::SandboxSpec {
    use proto::policy_source::Source;
    let text = |path: &PathBuf| path.to_string_lossy().into_owned();
    let source = proto::PolicySource {
        source: Some(match &source.from {
            PolicyFrom::Name(name) => Source::Name(name.clone()),
            PolicyFrom::Text {
                display_name,
                toml,
                origin,
            } => Source::Text(proto::PolicyText {
                display_name: display_name.clone(),
                toml: toml.clone(),
                origin: origin.as_ref().map(text).unwrap_or_default(),
            }),
        }),
        extra_read: source.extra_read.iter().map(text).collect(),
        extra_write: source.extra_write.iter().map(text).collect(),
    };
    proto::SandboxSpec {
        policy: Some(source),
        workspace: sandbox.workspace.as_ref().map(text).unwrap_or_default(),
        name: sandbox.spec.name.clone(),
        idle_timeout: prost_types::Duration::try_from(sandbox.spec.idle_timeout).ok(),
        uid: sandbox.spec.uid,
        workspace_mode: match sandbox.spec.workspace_mode {
            None => proto::WorkspaceMode::Unspecified,
            Some(WorkspaceMode::Direct) => proto::WorkspaceMode::Direct,
            Some(WorkspaceMode::Ephemeral) => proto::WorkspaceMode::Ephemeral,
        }
        .into(),
        limits: Some(proto_limits(&sandbox.spec.limits)),
    }
}

/// What runs in it, and what was detached and has ended; the oldest first.
fn execs(sandbox: &Sandbox) -> Vec<proto::Exec> {
    let running = sandbox.execs();
    let jobs = sandbox.jobs();
    let attended = running
        .iter()
        .filter(|exec| jobs.iter().all(|job| job.exec != exec.id));
    let mut all: Vec<_> = attended.map(|it| exec(it)).collect();
    all.extend(jobs.iter().map(|it| detached(it)));
    all.sort_by_key(|exec| exec.start_time.map(|it| (it.seconds, it.nanos)));
    all
}

fn exec(exec: &Exec) -> proto::Exec {
    proto::Exec {
        id: exec.id.clone(),
        argv: exec.argv.clone(),
        pid: exec.pid(),
        start_time: Some(SystemTime::into(exec.started)),
        enrolled: exec.enrolled,
        detached: false,
        exited: None,
        terminal: false,
    }
}

fn detached(job: &Job) -> proto::Exec {
    proto::Exec {
        id: job.exec.clone(),
        argv: job.argv.clone(),
        pid: job.started.pid,
        start_time: Some(job.since.into()),
        enrolled: false,
        detached: true,
        exited: job.exited().map(|it| exited(&it)),
        terminal: job.terminal,
    }
}

pub(super) fn traffic(report: Report) -> proto::GetTrafficResponse {
    use proto::traffic::Decision as Decided;
    let traffic = report.rows.into_iter().map(|row| proto::Traffic {
        host: row.host,
        port: row.port.into(),
        rule: row.rule,
        decision: match row.decision {
            Decision::Allowed => Decided::Allowed,
            Decision::Denied => Decided::Denied,
            Decision::Observed => Decided::Observed,
        }
        .into(),
        requests: row.requests,
        sent_bytes: row.sent,
        received_bytes: row.received,
    });
    proto::GetTrafficResponse {
        traffic: traffic.collect(),
        unused_rules: report.unused,
        never_refused: report.never_refused,
    }
}

pub(super) fn info(epoch: &str, info: Info) -> proto::GetInfoResponse {
    let release = nix::sys::utsname::uname().map(|it| it.release().to_owned());
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let walls = info.enforcer.walls.into_iter().map(|wall| proto::Wall {
        name: wall.name.into(),
        in_force: wall.in_force,
        detail: wall.detail,
    });
    let hooks = info.enforcer.hooks.into_iter().map(|hook| proto::Hook {
        name: hook.name,
        kind: hook.kind.into(),
        loaded: hook.loaded,
        class: hook.class.into(),
        verified_instructions: hook.verified_instructions,
    });
    proto::GetInfoResponse {
        version: env!("CARGO_PKG_VERSION").into(),
        kernel: release.unwrap_or_default().to_string_lossy().into_owned(),
        epoch: epoch.into(),
        walls: walls.collect(),
        hooks: hooks.collect(),
        denied: info.counted.denied,
        emitted: info.counted.emitted,
        lost: info.counted.lost,
        sandboxes: count(info.sandboxes),
        execs: count(info.execs),
        proxy: Some(proto::Proxy {
            running: info.proxy_trouble.is_none(),
            detail: info.proxy_trouble.unwrap_or_default(),
        }),
    }
}

pub(super) fn diagnostic(diagnostic: Diagnostic) -> proto::Diagnostic {
    proto::Diagnostic {
        severity: match diagnostic.severity {
            Severity::Error => proto::diagnostic::Severity::Error,
            Severity::Warning => proto::diagnostic::Severity::Warning,
        }
        .into(),
        file: diagnostic.file,
        line: diagnostic.line,
        column: diagnostic.column,
        message: diagnostic.message,
        hint: diagnostic.hint.unwrap_or_default(),
        rendered: diagnostic.rendered,
    }
}
