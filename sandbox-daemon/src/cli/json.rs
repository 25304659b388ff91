//! The same events for programs: one JSON object a line.
//!
//! Field names are those of `sandbox.proto`; `type` says which message it is.
//! Enumerations are their lower-case names without the prefix, times RFC 3339.
//! A path is a string under its own name; one that is not UTF-8 is instead
//! base64 under the name with `_base64`, beside `object_display`. Fields are
//! only ever added.

use std::{fs::File, io, io::Write as _, os::fd::RawFd, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use prost_types::Timestamp;
use serde::Serialize;

use super::error::CliError;
use crate::{
    proto::{self, Right, Verdict, denial::Object, exited, lost},
    sys::duplicate,
};

/// A line.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Event<'a> {
    /// The command of `run` is about to start.
    Started {
        /// Id.
        sandbox_id: &'a str,
        /// Id.
        exec_id: &'a str,
        /// Its first process.
        pid: u32,
        /// The policy in force.
        policy_name: &'a str,
        /// Its sha256.
        policy_digest: &'a str,
        /// Names of variables that the policy did not let in.
        withheld_env: &'a [String],
        /// Nothing is refused, only told.
        observe: bool,
    },
    /// Processes were moved in by `enroll`.
    Enrolled {
        /// Id.
        sandbox_id: &'a str,
        /// Id.
        exec_id: &'a str,
        /// All of them.
        pids: &'a [u32],
    },
    /// `events` will miss nothing from here on.
    Watching {
        /// The run of the daemon.
        epoch: &'a str,
        /// The last sequence so far.
        sequence: u64,
    },
    /// A refusal.
    Denial(Box<Denial<'a>>),
    /// A credential was added to a request.
    CredentialUse(Box<CredentialUse<'a>>),
    /// Refusals, or uses, without a record.
    Lost {
        /// `rate`, `ring_buffer`, `reader`; `use`: of credentials.
        reason: &'static str,
        /// How many.
        count: u64,
        /// Id, if they were one sandbox's.
        sandbox_id: &'a str,
        /// Id, likewise.
        exec_id: &'a str,
        /// The run of the daemon.
        epoch: &'a str,
        /// Among those of denials; 0: this reader's own loss.
        sequence: u64,
    },
    /// The command of `run` ended.
    Exited {
        /// Its status, unless a signal ended it.
        #[serde(skip_serializing_if = "Option::is_none")]
        code: Option<u32>,
        /// The signal that ended it.
        #[serde(skip_serializing_if = "Option::is_none")]
        signal: Option<u32>,
        /// `exited`, `killed`, `timeout`, `sandbox_timeout`, `memory`,
        /// `machine_memory`, `output`, `daemon`.
        reason: &'static str,
        /// All refusals.
        denied: u64,
        /// Those of them without a record.
        lost: u64,
        /// What it took, as far as the host counts it.
        usage: Usage,
        /// What it might have taken; those there were.
        limits: Limits,
    },
    /// What was enrolled has ended.
    Ended {
        /// All refusals.
        denied: u64,
        /// Those of them without a record.
        lost: u64,
    },
    /// The command of `run` was not started, or was lost.
    Failed {
        /// For programs: `POLICY_INVALID`, ...
        reason: String,
        /// For people.
        message: String,
    },
}

/// What a command took.
#[derive(Debug, Serialize)]
pub(super) struct Usage {
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_memory: Option<u64>,
    /// Seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_time: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_pids: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    read_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    written_bytes: Option<u64>,
    refused_forks: u64,
}

/// What a command might have taken.
#[derive(Debug, Serialize)]
pub(super) struct Limits {
    /// Seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<f64>,
    /// Seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    sandbox_timeout: Option<f64>,
    #[serde(skip_serializing_if = "is_zero")]
    memory: u64,
    #[serde(skip_serializing_if = "is_zero")]
    cpu_millis: u32,
    #[serde(skip_serializing_if = "is_zero")]
    pids: u32,
    #[serde(skip_serializing_if = "is_zero")]
    disk: u64,
    #[serde(skip_serializing_if = "is_zero")]
    output: u64,
}

/// The fields of a refusal.
#[derive(Debug, Serialize)]
pub(super) struct Denial<'a> {
    sandbox_id: &'a str,
    exec_id: &'a str,
    epoch: &'a str,
    sequence: u64,
    first_time: String,
    last_time: String,
    pid: u32,
    uid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    exe: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exe_base64: Option<String>,
    exe_display: &'a str,
    right: &'static str,
    operation: &'a str,
    #[serde(flatten)]
    object: ObjectFields<'a>,
    object_display: &'a str,
    rule: &'a str,
    policy_digest: &'a str,
    errno: u32,
    verdict: &'static str,
    count: u64,
}

/// The fields of a use of a credential.
#[derive(Debug, Serialize)]
pub(super) struct CredentialUse<'a> {
    sandbox_id: &'a str,
    exec_id: &'a str,
    epoch: &'a str,
    sequence: u64,
    first_time: String,
    last_time: String,
    pid: u32,
    uid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    exe: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exe_base64: Option<String>,
    exe_display: &'a str,
    credential: &'a str,
    rule: &'a str,
    host: &'a str,
    method: &'a str,
    path: &'a str,
    repository: &'a str,
    refs: &'a [String],
    further_refs: u32,
    request_display: &'a str,
    policy_digest: &'a str,
    count: u64,
}

/// Exactly one of them is there.
#[derive(Debug, Default, Serialize)]
struct ObjectFields<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unix_socket: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unix_socket_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    capability: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    facility: Option<&'a str>,
}

impl<'a> From<&'a proto::Started> for Event<'a> {
    fn from(started: &'a proto::Started) -> Self {
        Self::Started {
            sandbox_id: &started.sandbox_id,
            exec_id: &started.exec_id,
            pid: started.pid,
            policy_name: &started.policy_name,
            policy_digest: &started.policy_digest,
            withheld_env: &started.withheld_env,
            observe: started.observe,
        }
    }
}

impl<'a> From<&'a proto::Enrolled> for Event<'a> {
    fn from(enrolled: &'a proto::Enrolled) -> Self {
        Self::Enrolled {
            sandbox_id: &enrolled.sandbox_id,
            exec_id: &enrolled.exec_id,
            pids: &enrolled.pids,
        }
    }
}

impl<'a> From<&'a proto::Watching> for Event<'a> {
    fn from(watching: &'a proto::Watching) -> Self {
        Self::Watching {
            epoch: &watching.epoch,
            sequence: watching.sequence,
        }
    }
}

impl<'a> From<&'a proto::Denial> for Event<'a> {
    fn from(denial: &'a proto::Denial) -> Self {
        let (exe, exe_base64) = bytes(&denial.exe);
        Self::Denial(Box::new(Denial {
            sandbox_id: &denial.sandbox_id,
            exec_id: &denial.exec_id,
            epoch: &denial.epoch,
            sequence: denial.sequence,
            first_time: time(denial.first_time.as_ref()),
            last_time: time(denial.last_time.as_ref()),
            pid: denial.pid,
            uid: denial.uid,
            exe,
            exe_base64,
            exe_display: &denial.exe_display,
            right: match denial.right() {
                Right::Unspecified => "unspecified",
                Right::Read => "read",
                Right::Write => "write",
                Right::Connect => "connect",
                Right::Scope => "scope",
            },
            operation: &denial.operation,
            object: object(denial.object.as_ref()),
            object_display: &denial.object_display,
            rule: &denial.rule,
            policy_digest: &denial.policy_digest,
            errno: denial.errno,
            verdict: match denial.verdict() {
                Verdict::Unspecified => "unspecified",
                Verdict::Denied => "denied",
                Verdict::Observed => "observed",
            },
            count: denial.count,
        }))
    }
}

impl<'a> From<&'a proto::CredentialUse> for Event<'a> {
    fn from(used: &'a proto::CredentialUse) -> Self {
        let (exe, exe_base64) = bytes(&used.exe);
        Self::CredentialUse(Box::new(CredentialUse {
            sandbox_id: &used.sandbox_id,
            exec_id: &used.exec_id,
            epoch: &used.epoch,
            sequence: used.sequence,
            first_time: time(used.first_time.as_ref()),
            last_time: time(used.last_time.as_ref()),
            pid: used.pid,
            uid: used.uid,
            exe,
            exe_base64,
            exe_display: &used.exe_display,
            credential: &used.credential,
            rule: &used.rule,
            host: &used.host,
            method: &used.method,
            path: &used.path,
            repository: &used.repository,
            refs: &used.refs,
            further_refs: used.further_refs,
            request_display: &used.request_display,
            policy_digest: &used.policy_digest,
            count: used.count,
        }))
    }
}

impl<'a> From<&'a proto::Lost> for Event<'a> {
    fn from(lost: &'a proto::Lost) -> Self {
        Self::Lost {
            reason: match lost.reason() {
                lost::Reason::Unspecified => "unspecified",
                lost::Reason::Rate => "rate",
                lost::Reason::RingBuffer => "ring_buffer",
                lost::Reason::Reader => "reader",
                lost::Reason::Use => "use",
            },
            count: lost.count,
            sandbox_id: &lost.sandbox_id,
            exec_id: &lost.exec_id,
            epoch: &lost.epoch,
            sequence: lost.sequence,
        }
    }
}

impl From<&proto::Exited> for Event<'_> {
    fn from(exited: &proto::Exited) -> Self {
        let (code, signal) = match exited.status {
            Some(exited::Status::Code(code)) => (Some(code), None),
            Some(exited::Status::Signal(signal)) => (None, Some(signal)),
            None => (None, None),
        };
        Self::Exited {
            code,
            signal,
            reason: reason(exited.reason()),
            denied: exited.denied,
            lost: exited.lost,
            usage: usage(&exited.usage.unwrap_or_default()),
            limits: limits(&exited.limits.unwrap_or_default()),
        }
    }
}

impl From<&proto::Ended> for Event<'_> {
    fn from(ended: &proto::Ended) -> Self {
        Self::Ended {
            denied: ended.denied,
            lost: ended.lost,
        }
    }
}

impl From<&CliError> for Event<'_> {
    fn from(error: &CliError) -> Self {
        Self::Failed {
            reason: error.reason(),
            message: error.message(),
        }
    }
}

impl Event<'_> {
    /// The line, with its end.
    pub(super) fn line(&self) -> String {
        let mut line = serde_json::to_string(self).expect("strings and numbers always serialise");
        line.push('\n');
        line
    }
}

/// Where the lines of `--json` go.
#[derive(Debug)]
pub(super) struct Sink {
    number: RawFd,
    file: File,
    failed: Option<io::Error>,
}

impl Sink {
    /// Takes the caller's descriptor. Must come before anything is opened here
    /// that could have the same number.
    pub(super) fn open(number: RawFd) -> Result<Self, CliError> {
        let error = |source| CliError::Descriptor { number, source };
        let file = File::from(duplicate(number).map_err(error)?);
        let flags = fcntl(&file, FcntlArg::F_GETFL).map_err(|errno| error(errno.into()))?;
        if OFlag::from_bits_retain(flags) & OFlag::O_ACCMODE == OFlag::O_RDONLY {
            return Err(error(io::Error::other("it is open for reading only")));
        }
        Ok(Self {
            number,
            file,
            failed: None,
        })
    }

    /// Writes a line. After a failure nothing more is written; the run itself
    /// goes on.
    pub(super) fn write<'a>(&mut self, event: impl Into<Event<'a>>) {
        if self.failed.is_none() {
            self.failed = self.file.write_all(event.into().line().as_bytes()).err();
        }
    }

    /// The failure, if there was one.
    pub(super) fn finish(self) -> Result<(), CliError> {
        match self.failed {
            Some(source) => Err(CliError::Descriptor {
                number: self.number,
                source,
            }),
            None => Ok(()),
        }
    }
}

/// A whole document for stdout.
pub(super) fn pretty(document: &impl Serialize) -> String {
    let mut text =
        serde_json::to_string_pretty(document).expect("strings and numbers always serialise");
    text.push('\n');
    text
}

/// Why a command ended.
pub(super) fn reason(reason: exited::Reason) -> &'static str {
    match reason {
        exited::Reason::Unspecified => "unspecified",
        exited::Reason::Exited => "exited",
        exited::Reason::Killed => "killed",
        exited::Reason::Timeout => "timeout",
        exited::Reason::Memory => "memory",
        exited::Reason::MachineMemory => "machine_memory",
        exited::Reason::Daemon => "daemon",
        exited::Reason::Output => "output",
        exited::Reason::SandboxTimeout => "sandbox_timeout",
    }
}

/// RFC 3339, or nothing.
pub(super) fn time(time: Option<&Timestamp>) -> String {
    time.map(ToString::to_string).unwrap_or_default()
}

fn usage(usage: &proto::Usage) -> Usage {
    Usage {
        peak_memory: usage.peak_memory,
        cpu_time: seconds(usage.cpu_time),
        peak_pids: usage.peak_pids,
        read_bytes: usage.read_bytes,
        written_bytes: usage.written_bytes,
        refused_forks: usage.refused_forks,
    }
}

fn limits(limits: &proto::Limits) -> Limits {
    Limits {
        timeout: seconds(limits.timeout),
        sandbox_timeout: seconds(limits.sandbox_timeout),
        memory: limits.memory,
        cpu_millis: limits.cpu_millis,
        pids: limits.pids,
        disk: limits.disk,
        output: limits.output,
    }
}

fn seconds(duration: Option<prost_types::Duration>) -> Option<f64> {
    let duration = Duration::try_from(duration?).ok()?;
    #[expect(clippy::cast_precision_loss, reason = "there are no 285 years of it")]
    let microseconds = duration.as_micros() as f64;
    Some(microseconds / 1e6)
}

fn is_zero<T: Default + PartialEq>(number: &T) -> bool {
    *number == T::default()
}

pub(super) fn bytes(bytes: &[u8]) -> (Option<&str>, Option<String>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (Some(text), None),
        Err(_) => (None, Some(BASE64_STANDARD.encode(bytes))),
    }
}

fn object(object: Option<&Object>) -> ObjectFields<'_> {
    let mut fields = ObjectFields::default();
    match object {
        Some(Object::Path(path)) => (fields.path, fields.path_base64) = bytes(path),
        Some(Object::UnixSocket(path)) => {
            (fields.unix_socket, fields.unix_socket_base64) = bytes(path);
        }
        Some(Object::Address(address)) => fields.address = Some(address),
        Some(Object::Host(host)) => fields.host = Some(host),
        Some(Object::TargetPid(pid)) => fields.target_pid = Some(*pid),
        Some(Object::Capability(name)) => fields.capability = Some(name),
        Some(Object::Facility(name)) => fields.facility = Some(name),
        None => {}
    }
    fields
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value, json};

    use super::*;

    fn parse<'a>(event: impl Into<Event<'a>>) -> Value {
        let line = event.into().line();
        assert_eq!(line.matches('\n').count(), 1);
        serde_json::from_str(&line).unwrap()
    }

    #[test]
    fn a_denial_has_the_names_of_the_proto() {
        let mut denial = proto::Denial {
            sandbox_id: "s".into(),
            exec_id: "e".into(),
            epoch: "1".into(),
            sequence: 7,
            first_time: Some(Timestamp {
                seconds: 0,
                nanos: 5_000_000,
            }),
            last_time: Some(Timestamp::default()),
            pid: 4211,
            uid: 1000,
            exe: "/usr/bin/python3".into(),
            exe_display: "/usr/bin/python3".into(),
            right: Right::Read.into(),
            operation: "open".into(),
            object: Some(Object::Path("/home/dev/.netrc".into())),
            object_display: "/home/dev/.netrc".into(),
            rule: "credentials".into(),
            policy_digest: "ab".into(),
            errno: 2,
            verdict: Verdict::Denied.into(),
            count: 3,
        };
        assert_eq!(
            parse(&denial),
            json!({
                "type": "denial", "sandbox_id": "s", "exec_id": "e",
                "epoch": "1", "sequence": 7,
                "first_time": "1970-01-01T00:00:00.005Z",
                "last_time": "1970-01-01T00:00:00Z",
                "pid": 4211, "uid": 1000,
                "exe": "/usr/bin/python3", "exe_display": "/usr/bin/python3",
                "right": "read", "operation": "open",
                "path": "/home/dev/.netrc", "object_display": "/home/dev/.netrc",
                "rule": "credentials", "policy_digest": "ab",
                "errno": 2, "verdict": "denied", "count": 3,
            })
        );
        denial.object = Some(Object::UnixSocket(b"/a\xff".to_vec().into()));
        let line = parse(&denial);
        assert_eq!(line["unix_socket_base64"], "L2H/");
        assert!(line.get("unix_socket").is_none() && line.get("path").is_none());
        denial.object = Some(Object::Address("[::1]:53".into()));
        assert_eq!(parse(&denial)["address"], "[::1]:53");
    }

    #[test]
    fn an_end_has_either_a_code_or_a_signal() {
        let mut exited = proto::Exited {
            status: Some(exited::Status::Code(3)),
            reason: exited::Reason::Exited.into(),
            denied: 2,
            lost: 1,
            ..proto::Exited::default()
        };
        assert_eq!(
            parse(&exited),
            json!({"type": "exited", "code": 3, "reason": "exited", "denied": 2, "lost": 1,
                "usage": {"refused_forks": 0}, "limits": {}})
        );
        exited.status = Some(exited::Status::Signal(9));
        exited.reason = exited::Reason::Memory.into();
        exited.usage = Some(proto::Usage {
            peak_memory: Some(1 << 20),
            cpu_time: Some(prost_types::Duration {
                seconds: 1,
                nanos: 500_000_000,
            }),
            ..proto::Usage::default()
        });
        exited.limits = Some(proto::Limits {
            timeout: Some(prost_types::Duration {
                seconds: 60,
                nanos: 0,
            }),
            memory: 1 << 20,
            ..proto::Limits::default()
        });
        assert_eq!(
            parse(&exited),
            json!({"type": "exited", "signal": 9, "reason": "memory", "denied": 2, "lost": 1,
                "usage": {"peak_memory": 1 << 20, "cpu_time": 1.5, "refused_forks": 0},
                "limits": {"timeout": 60.0, "memory": 1 << 20}})
        );
    }

    #[test]
    fn a_failure_has_a_reason_for_programs() {
        let error = CliError::InsideSandbox { id: "s".into() };
        assert_eq!(
            parse(&error),
            json!({"type": "failed", "reason": "INSIDE_SANDBOX",
                "message": "already inside the sandbox `s`"})
        );
    }

    #[test]
    fn a_descriptor_that_is_not_for_writing_is_refused() {
        use std::os::fd::AsRawFd as _;
        let reading = File::open("/dev/null").unwrap();
        assert!(Sink::open(reading.as_raw_fd()).is_err());
        let writing = File::create("/dev/null").unwrap();
        assert!(Sink::open(writing.as_raw_fd()).is_ok());
    }

    /// The names in the first column of a row that `title` begins, and those in
    /// its last; what stands in brackets are values.
    fn documented(title: &str, column: usize) -> BTreeSet<String> {
        let text = include_str!("../../../docs/events.md");
        let rows = text.lines().filter(|row| row.starts_with(title));
        let cells = rows.map(|row| row.trim_matches('|').split('|').nth(column).unwrap());
        let mut names = BTreeSet::new();
        for cell in cells {
            let outside = cell.split('(').map(|part| {
                let after = part.split_once(')').map(|(_, after)| after);
                after.unwrap_or(part)
            });
            // Before the first bracket there is no value.
            let outside: String = outside.collect();
            let quoted = outside.split('`').skip(1).step_by(2);
            names.extend(quoted.map(str::to_owned));
        }
        names
    }

    fn fields(events: &[Value]) -> BTreeSet<String> {
        let keys = events.iter().flat_map(|event| event.as_object().unwrap());
        let keys = keys.map(|(key, _)| key.clone());
        keys.filter(|key| key != "type" && !key.ends_with("_base64"))
            .collect()
    }

    #[test]
    fn the_reference_has_every_field_of_every_event() {
        let ends = [exited::Status::Code(3), exited::Status::Signal(9)];
        let exited = ends.map(|status| {
            parse(&proto::Exited {
                status: Some(status),
                ..proto::Exited::default()
            })
        });
        let failed = parse(&CliError::ConnectionLost);
        for (kind, events) in [
            ("started", vec![parse(&proto::Started::default())]),
            ("lost", vec![parse(&proto::Lost::default())]),
            ("exited", exited.to_vec()),
            ("failed", vec![failed]),
            ("watching", vec![parse(&proto::Watching::default())]),
        ] {
            assert!(events.iter().all(|event| event["type"] == kind));
            let title = format!("| `{kind}`");
            assert_eq!(documented(&title, 2), fields(&events), "{kind}");
        }
        let objects = [
            Object::Path("/x".into()),
            Object::Address(String::new()),
            Object::Host(String::new()),
            Object::UnixSocket("/x".into()),
            Object::TargetPid(1),
            Object::Capability(String::new()),
            Object::Facility(String::new()),
        ];
        let denials = objects.map(|object| {
            parse(&proto::Denial {
                object: Some(object),
                ..proto::Denial::default()
            })
        });
        assert_eq!(table("denial"), fields(&denials));
        let used = parse(&proto::CredentialUse::default());
        assert_eq!(used["type"], "credential_use");
        assert_eq!(table("credential_use"), fields(&[used]));
    }

    /// The fields in the table below a title.
    fn table(title: &str) -> BTreeSet<String> {
        let text = include_str!("../../../docs/events.md");
        let (_, below) = text.split_once(&format!("\n## `{title}`\n")).unwrap();
        let (section, _) = below.split_once("\n## ").unwrap_or((below, ""));
        let rows = section.lines().filter(|row| row.starts_with("| `"));
        rows.flat_map(|row| row.split('|').nth(1).unwrap().split('`').skip(1).step_by(2))
            .map(str::to_owned)
            .collect()
    }
}
