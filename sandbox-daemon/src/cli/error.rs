//! What can go wrong in the client, and what to say about it.

use std::{fmt::Write as _, io, path::PathBuf};

use prost::Message as _;
use tonic::{Code, Status};
use tonic_types::{StatusExt as _, pb};

use crate::{
    chain::Chain, config::ConfigError, policy::Diagnostics, proto::ValidatePolicyResponse,
    secrets::SecretError,
};

/// What a [`CliError::Path`] calls the directory of `-w`.
pub(super) const WORKSPACE: &str = "the workspace";

/// The exit statuses of `sandbox`; a part of its interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// 0.
    Success,
    /// 1: what was asked for could not be done, or a check failed.
    Failure,
    /// 2: wrong options (`run`: 125).
    Usage,
    /// 3: there is no such sandbox, exec or policy.
    NotFound,
    /// 4: the caller may not do this.
    Permission,
    /// 125: `run` could not start its command, or lost it.
    Sandbox,
    /// 126: the command of `run` is not executable.
    NotExecutable,
    /// 127: the command of `run` was not found.
    CommandNotFound,
    /// The status of the command of `run`.
    Command(u8),
}

impl Exit {
    /// The number that the caller's shell sees.
    pub fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Failure => 1,
            Self::Usage => 2,
            Self::NotFound => 3,
            Self::Permission => 4,
            Self::Sandbox => 125,
            Self::NotExecutable => 126,
            Self::CommandNotFound => 127,
            Self::Command(code) => code,
        }
    }

    /// The status of a command that `signal` ended.
    pub fn signal(signal: u32) -> Self {
        Self::Command(u8::try_from(signal).map_or(u8::MAX, |signal| signal.saturating_add(128)))
    }
}

/// An error of the client.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// No connection.
    #[error("cannot reach the daemon at `{}`: {reason}", socket.display())]
    Unreachable {
        /// Where it should listen.
        socket: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The daemon said no.
    #[error("{}", said(.0))]
    Refused(Box<Status>),
    /// The stream ended without a last message, or broke.
    #[error("lost the connection to the daemon")]
    ConnectionLost,
    /// `sandbox run` in a sandbox.
    #[error("already inside the sandbox `{id}`")]
    InsideSandbox {
        /// Which one.
        id: String,
    },
    /// A policy file that cannot be read.
    #[error("cannot read the policy `{}`", path.display())]
    ReadPolicy {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A policy file beyond the limit.
    #[error("the policy `{}` is larger than {limit} bytes", path.display())]
    PolicyTooLarge {
        /// The file.
        path: PathBuf,
        /// How large it may be.
        limit: usize,
    },
    /// A policy that is wrong; the text is complete.
    #[error("{rendered}")]
    PolicyInvalid {
        /// All diagnostics, as they are shown.
        rendered: String,
    },
    /// The daemon's settings, which say where policies are.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A name that no installed policy has.
    #[error("there is no policy named `{name}`")]
    UnknownPolicy {
        /// The name.
        name: String,
    },
    /// A name that cannot be one.
    #[error("`{name}` is not the name of a policy")]
    PolicyName {
        /// What was given.
        name: String,
    },
    /// A workspace or a granted path that cannot be used.
    #[error("cannot use {what} `{}`", path.display())]
    Path {
        /// `the workspace`, ...
        what: &'static str,
        /// The path as given.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A path that the API cannot carry.
    #[error("cannot use {what} `{}`: the path is not UTF-8", path.display())]
    NotUtf8 {
        /// `the workspace`, ...
        what: &'static str,
        /// The path.
        path: PathBuf,
    },
    /// `-e NAME` of a variable that the caller does not have.
    #[error("cannot pass `{name}`: it is not set")]
    Unset {
        /// The variable.
        name: String,
    },
    /// `-e =VALUE`.
    #[error("`{argument}` does not name a variable")]
    VariableName {
        /// What was given.
        argument: String,
    },
    /// A descriptor for `--json` that is not open, or not for writing.
    #[error("cannot write to file descriptor {number}")]
    Descriptor {
        /// Its number.
        number: i32,
        /// Why not.
        source: io::Error,
    },
    /// What the client needs to know about itself.
    #[error("cannot {operation}")]
    Io {
        /// `read /proc/self/cgroup`, ...
        operation: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// A process that is not there.
    #[error("there is no process {pid}")]
    NoProcess {
        /// Its id.
        pid: u32,
    },
    /// A value of a secret on the command line.
    #[error("the value of a secret is not taken as an argument")]
    SecretArgument,
    /// A name or value of a secret.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// A line that the terminal may have cut.
    #[error("the value is longer than a line of a terminal can be")]
    LongLine,
    /// A user that is not there.
    #[error("there is no user `{name}`")]
    UnknownUser {
        /// What was given.
        name: String,
    },
    /// What was given means several.
    #[error("`{id}` may be any of these:\n  {found}")]
    Ambiguous {
        /// What was given.
        id: String,
        /// A line each.
        found: String,
    },
    /// A sandbox in which nothing was detached.
    #[error("nothing was detached in sandbox `{sandbox}`")]
    NothingDetached {
        /// Its id.
        sandbox: String,
    },
    /// An exec that does not stand for its sandbox.
    #[error("exec `{exec}` is not the only one of sandbox `{sandbox}`")]
    NotAlone {
        /// Its id.
        exec: String,
        /// Where it is.
        sandbox: String,
    },
    /// A path that is no part of the sandbox's workspace.
    #[error("`{}` is not in the workspace `{}`", shown(path), shown(workspace))]
    OutsideWorkspace {
        /// What was given.
        path: PathBuf,
        /// Of the sandbox.
        workspace: PathBuf,
    },
    /// A file that is not overwritten.
    #[error("`{}` is there already", shown(path))]
    Exists {
        /// It.
        path: PathBuf,
    },
    /// Neither an exec nor a sandbox.
    #[error("there is no exec or sandbox `{id}`")]
    UnknownId {
        /// What was given.
        id: String,
    },
}

impl From<Diagnostics> for CliError {
    fn from(diagnostics: Diagnostics) -> Self {
        Self::PolicyInvalid {
            rendered: diagnostics.to_string(),
        }
    }
}

impl From<Status> for CliError {
    fn from(status: Status) -> Self {
        // The daemon's own refusals have no source here: they came as text.
        if std::error::Error::source(&status).is_some() {
            return Self::ConnectionLost;
        }
        match policy_diagnostics(&status) {
            Some(rendered) => Self::PolicyInvalid { rendered },
            None => Self::Refused(Box::new(status)),
        }
    }
}

impl CliError {
    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Unreachable { .. } => {
                "start it with `systemctl start sandboxd`, or `sandboxd --foreground` as root"
                    .into()
            }
            Self::Refused(status) if status.code() == Code::Unimplemented => {
                "client and daemon differ in version; see `sandbox version`".into()
            }
            Self::Refused(status) => {
                let details = status.get_error_details();
                let help = details.help()?;
                let first = help.links.first()?;
                first.description.clone()
            }
            Self::ConnectionLost => {
                "see whether it runs with `sandbox version`; its log says why it ended".into()
            }
            Self::InsideSandbox { .. } => "sandboxes do not nest; run the command as it is".into(),
            Self::ReadPolicy { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                "an installed policy is named without `/` and `.toml`; see `sandbox policy list`"
                    .into()
            }
            Self::PolicyTooLarge { .. } => "name directories rather than the files in them".into(),
            Self::Path { what, .. } if *what == WORKSPACE => {
                "name the directory to work on with `-w DIR`".into()
            }
            Self::UnknownPolicy { .. } => "see `sandbox policy list`".into(),
            Self::PolicyName { .. } => "a file is named with a `/`, as in `./agent.toml`".into(),
            Self::Unset { name } => format!("give it a value: `-e {name}=VALUE`"),
            Self::UnknownId { .. } => "see `sandbox ps`".into(),
            Self::Exists { .. } => "`--force` overwrites it".into(),
            Self::Ambiguous { .. } => "give more of its id".into(),
            Self::NothingDetached { .. } => "`sandbox exec -d` detaches a command".into(),
            Self::NotAlone { sandbox, exec } => {
                format!("`sandbox kill {exec}` ends it alone; the sandbox is `{sandbox}`")
            }
            Self::Secret(error) => error.hint()?.into(),
            Self::SecretArgument => {
                "other users and the shell's history see arguments: give it on stdin, or \
                 with `--file`, and replace this one where it is from"
                    .into()
            }
            Self::LongLine => "give it on stdin, or with `--file`".into(),
            Self::Descriptor { number, .. } => {
                format!("open it in the shell, as in `{number}>events.jsonl`")
            }
            _ => return None,
        })
    }

    /// A name for programs: the daemon's reason where it gave one.
    pub fn reason(&self) -> String {
        match self {
            Self::Refused(status) => status
                .get_details_error_info()
                .map(|info| info.reason)
                .filter(|reason| !reason.is_empty())
                .unwrap_or_else(|| status.code().description().to_owned()),
            Self::PolicyInvalid { .. } | Self::PolicyTooLarge { .. } => "POLICY_INVALID".into(),
            Self::Unreachable { .. } => "DAEMON_UNREACHABLE".into(),
            Self::ConnectionLost => "CONNECTION_LOST".into(),
            Self::InsideSandbox { .. } => "INSIDE_SANDBOX".into(),
            _ => "INVALID_ARGUMENT".into(),
        }
    }

    /// The exit status of every verb but `run`.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Refused(status) => match status.code() {
                Code::NotFound => Exit::NotFound,
                Code::PermissionDenied | Code::Unauthenticated => Exit::Permission,
                _ => Exit::Failure,
            },
            Self::UnknownPolicy { .. }
            | Self::UnknownId { .. }
            | Self::NothingDetached { .. }
            | Self::NoProcess { .. } => Exit::NotFound,
            Self::PolicyName { .. }
            | Self::Unset { .. }
            | Self::VariableName { .. }
            | Self::Ambiguous { .. }
            | Self::SecretArgument
            | Self::Secret(SecretError::Name) => Exit::Usage,
            _ => Exit::Failure,
        }
    }

    /// The exit status of `run`, whose command has the numbers below 125.
    pub fn run_exit(&self) -> Exit {
        match self.reason().as_str() {
            "COMMAND_NOT_FOUND" => Exit::CommandNotFound,
            "NOT_EXECUTABLE" => Exit::NotExecutable,
            _ => Exit::Sandbox,
        }
    }

    /// What went wrong and why, without the hint.
    pub fn message(&self) -> String {
        Chain::of(self).message
    }

    /// The message as it is printed, with its hint.
    pub fn render(&self) -> String {
        // Diagnostics have their own form and their own hints.
        if let Self::PolicyInvalid { rendered } = self {
            return format!("{}\n", rendered.trim_end());
        }
        let mut text = format!("sandbox: {}\n", self.message());
        if let Some(hint) = self.hint() {
            let _ = writeln!(text, "hint: {hint}");
        }
        text
    }
}

fn shown(path: &std::path::Path) -> String {
    crate::escape::display(path.as_os_str().as_encoded_bytes())
}

/// A status in one line, without the code's name and the metadata.
fn said(status: &Status) -> String {
    let text = status.message().trim_end_matches(['.', '\n']);
    if text.is_empty() {
        status.code().description().to_lowercase()
    } else {
        text.to_owned()
    }
}

/// The diagnostics among the status's details.
fn policy_diagnostics(status: &Status) -> Option<String> {
    let details = pb::Status::decode(status.details()).ok()?;
    let response = details.details.iter().find_map(|any| {
        any.type_url
            .ends_with("/sandbox.v1.ValidatePolicyResponse")
            .then(|| ValidatePolicyResponse::decode(any.value.as_slice()).ok())?
    })?;
    let rendered: Vec<&str> = response
        .diagnostics
        .iter()
        .map(|diagnostic| diagnostic.rendered.trim_end())
        .filter(|text| !text.is_empty())
        .collect();
    (!rendered.is_empty()).then(|| rendered.join("\n\n"))
}

#[cfg(test)]
mod tests {
    use prost_types::Any;
    use tonic_types::ErrorDetails;

    use super::*;
    use crate::proto::Diagnostic;

    fn refused(code: Code, reason: &str) -> CliError {
        let details =
            ErrorDetails::with_error_info(reason, "sandboxd", std::collections::HashMap::new());
        Status::with_error_details(code, "no `frobnicate` in PATH", details).into()
    }

    #[test]
    fn the_daemons_reason_decides_the_status_of_run() {
        let missing = refused(Code::NotFound, "COMMAND_NOT_FOUND");
        assert_eq!(missing.run_exit().code(), 127);
        assert_eq!(missing.render(), "sandbox: no `frobnicate` in PATH\n");
        let plain = refused(Code::FailedPrecondition, "NOT_EXECUTABLE");
        assert_eq!(plain.run_exit().code(), 126);
        let other = refused(Code::NotFound, "SANDBOX_NOT_FOUND");
        assert_eq!(other.run_exit().code(), 125);
        assert_eq!(other.exit().code(), 3);
        assert_eq!(refused(Code::PermissionDenied, "X").exit().code(), 4);
    }

    #[test]
    fn a_daemon_that_does_not_run_is_one_line_and_a_remedy() {
        let error = CliError::Unreachable {
            socket: "/run/sandboxd/sandboxd.sock".into(),
            reason: "no such file".into(),
        };
        assert_eq!(
            error.render(),
            "sandbox: cannot reach the daemon at `/run/sandboxd/sandboxd.sock`: no such file\n\
             hint: start it with `systemctl start sandboxd`, or `sandboxd --foreground` as root\n"
        );
        assert_eq!(error.run_exit().code(), 125);
        assert_eq!(error.exit().code(), 1);
    }

    #[test]
    fn a_wrong_policy_is_shown_as_it_was_rendered() {
        let response = ValidatePolicyResponse {
            diagnostics: vec![Diagnostic {
                rendered: "error: unknown key `raed`\n --> p.toml:3:1\n".into(),
                ..Diagnostic::default()
            }],
            ..ValidatePolicyResponse::default()
        };
        let details = pb::Status {
            code: Code::InvalidArgument.into(),
            message: "the policy is wrong".into(),
            details: vec![Any {
                type_url: "type.googleapis.com/sandbox.v1.ValidatePolicyResponse".into(),
                value: response.encode_to_vec(),
            }],
        };
        let status = Status::with_details(
            Code::InvalidArgument,
            "the policy is wrong",
            details.encode_to_vec().into(),
        );
        let error = CliError::from(status);
        assert_eq!(
            error.render(),
            "error: unknown key `raed`\n --> p.toml:3:1\n"
        );
        assert_eq!(error.reason(), "POLICY_INVALID");
        assert_eq!(error.run_exit().code(), 125);
    }

    #[test]
    fn signals_count_from_128() {
        assert_eq!(Exit::signal(9).code(), 137);
        assert_eq!(Exit::signal(64).code(), 192);
    }
}
