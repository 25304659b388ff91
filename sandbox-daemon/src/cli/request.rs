//! Command-line arguments as requests.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::{self, Read as _},
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::{Path, PathBuf},
};

use bytes::Bytes;

use super::{
    args::{CommandArgs, RunArgs, SandboxArgs},
    caller::Caller,
    error::{CliError, WORKSPACE},
    stdio::Kind,
};
use crate::{
    proto::{
        EnvVar, PolicySource, PolicyText, Sandbox, SandboxSpec, Start, WindowSize, WorkspaceMode,
        policy_source::Source, start,
    },
    sys::window_size,
};

/// What `--policy` names.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PolicyArgument {
    /// An installed policy.
    Name(String),
    /// A file of the caller's.
    File(PathBuf),
}

impl PolicyArgument {
    /// A `/` or `.toml` makes it a file.
    pub(super) fn parse(argument: &OsStr) -> Result<Self, CliError> {
        let bytes = argument.as_bytes();
        if bytes.contains(&b'/') || bytes.ends_with(b".toml") {
            return Ok(Self::File(argument.into()));
        }
        match argument.to_str() {
            Some(name) if !name.is_empty() && !name.starts_with('.') => {
                Ok(Self::Name(name.to_owned()))
            }
            _ => Err(CliError::PolicyName {
                name: argument.to_string_lossy().into_owned(),
            }),
        }
    }

    fn source(&self, caller: &Caller) -> Result<Source, CliError> {
        match self {
            Self::Name(name) => Ok(Source::Name(name.clone())),
            Self::File(path) => Ok(Source::Text(PolicyText {
                display_name: path.to_string_lossy().into_owned(),
                toml: read_policy(&caller.cwd.join(path), path)?,
                origin: real_path(caller, path)?,
            })),
        }
    }
}

/// The first request of `run`.
pub(super) fn start(args: &RunArgs, caller: &Caller, kind: Kind) -> Result<Start, CliError> {
    let mut spec = spec(&args.sandbox, caller)?;
    spec.name = args.lasting.name.clone().unwrap_or_default();
    Ok(Start {
        cwd: below(&spec.workspace, caller),
        sandbox: Some(start::Sandbox::Inline(spec)),
        ..command(&args.how, caller, kind)?
    })
}

/// The command, wherever it is to run.
pub(super) fn command(args: &CommandArgs, caller: &Caller, kind: Kind) -> Result<Start, CliError> {
    let window_size = match kind {
        // A terminal that nobody sees yet has the usual size.
        Kind::Pty { .. } if args.left.detach => Some(window().unwrap_or(WindowSize {
            rows: 24,
            columns: 80,
        })),
        Kind::Pty { .. } => Some(window()?),
        Kind::Inherit | Kind::Relay => None,
    };
    let variable = |(name, value): &(OsString, OsString)| EnvVar {
        name: bytes(name),
        value: bytes(value),
    };
    Ok(Start {
        argv: args.command.iter().map(|word| bytes(word)).collect(),
        env: caller.env.iter().map(variable).collect(),
        env_set: args
            .env
            .iter()
            .map(|argument| env_set(argument, caller))
            .collect::<Result<_, _>>()?,
        stdio: kind.proto().into(),
        window_size,
        caller_start_time: caller.start_time,
        umask: Some(caller.umask),
        stderr_apart: kind == Kind::Pty { stderr_apart: true },
        detach: args.left.detach,
        no_stdin: args.left.detach && !args.left.interactive && kind == Kind::Relay,
        ..Start::default()
    })
}

/// Below the workspace a command starts where the caller is, otherwise at its top.
fn below(workspace: &str, caller: &Caller) -> Bytes {
    if !workspace.is_empty() && caller.cwd.starts_with(workspace) {
        bytes(caller.cwd.as_os_str())
    } else {
        Bytes::new()
    }
}

/// Where a command starts in a sandbox that is there.
pub(super) fn within(
    directory: Option<&Path>,
    caller: &Caller,
    sandbox: &Sandbox,
) -> Result<Bytes, CliError> {
    let workspace = sandbox.spec.as_ref().map_or("", |spec| &spec.workspace);
    match directory {
        // It may be there only inside.
        Some(directory) => Ok(caller.absolute("the directory", directory)?.into()),
        None => Ok(below(workspace, caller)),
    }
}

/// The sandbox that the arguments describe.
pub(super) fn spec(args: &SandboxArgs, caller: &Caller) -> Result<SandboxSpec, CliError> {
    let workspace = args.workspace.as_deref().unwrap_or(Path::new("."));
    let argument = match &args.policy {
        Some(argument) => PolicyArgument::parse(argument)?,
        None => PolicyArgument::Name("default".to_owned()),
    };
    let absolute = |paths: &[PathBuf]| {
        paths
            .iter()
            .map(|path| caller.absolute("the path", path))
            .collect::<Result<Vec<_>, _>>()
    };
    Ok(SandboxSpec {
        policy: Some(PolicySource {
            source: Some(argument.source(caller)?),
            extra_read: absolute(&args.ro)?,
            extra_write: absolute(&args.rw)?,
        }),
        workspace: caller.directory(WORKSPACE, workspace)?,
        workspace_mode: mode(args.ephemeral).into(),
        limits: args.limits.proto(),
        ..SandboxSpec::default()
    })
}

/// Without the flag it is as the policy says.
fn mode(ephemeral: bool) -> WorkspaceMode {
    if ephemeral {
        WorkspaceMode::Ephemeral
    } else {
        WorkspaceMode::Unspecified
    }
}

/// The size of the caller's window.
pub(super) fn window() -> Result<WindowSize, CliError> {
    let (rows, columns) = window_size(io::stdin()).map_err(|source| CliError::Io {
        operation: "read the size of the terminal",
        source,
    })?;
    Ok(WindowSize {
        rows: rows.into(),
        columns: columns.into(),
    })
}

/// A policy's text, with the caller's own rights.
pub(super) fn read_policy(path: &Path, shown: &Path) -> Result<String, CliError> {
    let error = |source| CliError::ReadPolicy {
        path: shown.to_owned(),
        source,
    };
    let limit = crate::policy::MAX_POLICY_BYTES;
    let mut text = Vec::new();
    File::open(path)
        // One more than may be, to notice it.
        .and_then(|file| file.take(limit as u64 + 1).read_to_end(&mut text))
        .map_err(error)?;
    if text.len() > limit {
        return Err(CliError::PolicyTooLarge {
            path: shown.to_owned(),
            limit,
        });
    }
    String::from_utf8(text).map_err(|_| {
        error(io::Error::new(
            io::ErrorKind::InvalidData,
            "it is not UTF-8",
        ))
    })
}

fn real_path(caller: &Caller, path: &Path) -> Result<String, CliError> {
    let real = fs::canonicalize(caller.cwd.join(path)).map_err(|source| CliError::ReadPolicy {
        path: path.to_owned(),
        source,
    })?;
    real.into_os_string()
        .into_string()
        .map_err(|path| CliError::NotUtf8 {
            what: "the policy",
            path: path.into(),
        })
}

fn env_set(argument: &OsStr, caller: &Caller) -> Result<EnvVar, CliError> {
    let whole = argument.as_bytes();
    let (name, value) = if let Some(end) = whole.iter().position(|byte| *byte == b'=') {
        (&whole[..end], OsStr::from_bytes(&whole[end + 1..]))
    } else {
        let value = caller.var(argument).ok_or_else(|| CliError::Unset {
            name: argument.to_string_lossy().into_owned(),
        })?;
        (whole, value)
    };
    if name.is_empty() {
        return Err(CliError::VariableName {
            argument: argument.to_string_lossy().into_owned(),
        });
    }
    Ok(EnvVar {
        name: Bytes::copy_from_slice(name),
        value: bytes(value),
    })
}

fn bytes(text: &OsStr) -> Bytes {
    text.to_owned().into_vec().into()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::{super::args, *};

    fn caller(cwd: &Path) -> Caller {
        Caller {
            env: vec![
                ("TERM".into(), "xterm".into()),
                ("GITHUB_TOKEN".into(), "secret".into()),
            ],
            cwd: cwd.to_owned(),
            umask: 0o27,
            ignored_signals: 0,
            start_time: 77,
            sandbox: None,
        }
    }

    fn run_args(words: &[&str]) -> RunArgs {
        let words = ["sandbox", "run"].iter().chain(words);
        match args::Cli::try_parse_from(words).unwrap().command {
            args::Command::Run(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_slash_or_the_ending_makes_a_policy_a_file() {
        let parse = |text: &str| PolicyArgument::parse(OsStr::new(text));
        assert_eq!(
            parse("strict").unwrap(),
            PolicyArgument::Name("strict".into())
        );
        for file in ["./strict", "a.toml", "/etc/p", "dir/strict"] {
            assert_eq!(parse(file).unwrap(), PolicyArgument::File(file.into()));
        }
        assert!(parse("").is_err());
        assert!(parse("..").is_err());
    }

    #[test]
    fn a_policy_file_travels_as_text_with_its_origin() {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().canonicalize().unwrap();
        fs::write(base.join("p.toml"), "version = 1\n").unwrap();
        let args = run_args(&["-p", "./p.toml", "--ro", "x", "--rw", "/y", "--", "true"]);
        let spec = spec(&args.sandbox, &caller(&base)).unwrap();
        let policy = spec.policy.unwrap();
        let base = base.to_str().unwrap();
        assert_eq!(
            policy.source,
            Some(Source::Text(PolicyText {
                display_name: "./p.toml".into(),
                toml: "version = 1\n".into(),
                origin: format!("{base}/p.toml"),
            }))
        );
        assert_eq!(policy.extra_read, [format!("{base}/x")]);
        assert_eq!(policy.extra_write, ["/y"]);
        assert_eq!(spec.workspace, base);
    }

    #[test]
    fn a_policy_beyond_the_limit_is_not_sent() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("big.toml");
        fs::write(&path, vec![b'#'; crate::policy::MAX_POLICY_BYTES + 1]).unwrap();
        let error = read_policy(&path, &path).unwrap_err();
        assert!(matches!(error, CliError::PolicyTooLarge { .. }), "{error}");
    }

    #[test]
    fn the_request_carries_the_caller_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().canonicalize().unwrap();
        fs::create_dir(base.join("sub")).unwrap();
        let args = run_args(&["-w", "..", "-e", "A=b=c", "-e", "TERM", "npm", "--x", "-e"]);
        let start = start(&args, &caller(&base.join("sub")), Kind::Relay).unwrap();
        assert_eq!(start.argv, ["npm", "--x", "-e"]);
        assert_eq!(start.cwd, base.join("sub").to_str().unwrap());
        assert_eq!(start.umask, Some(0o27));
        assert_eq!(start.caller_start_time, 77);
        assert_eq!(start.env.len(), 2);
        let set: Vec<_> = start
            .env_set
            .iter()
            .map(|variable| (&variable.name[..], &variable.value[..]))
            .collect();
        assert_eq!(
            set,
            [(&b"A"[..], &b"b=c"[..]), (&b"TERM"[..], &b"xterm"[..])]
        );
    }

    #[test]
    fn outside_the_workspace_the_command_starts_at_its_top() {
        let directory = tempfile::tempdir().unwrap();
        let workspace = directory.path().to_str().unwrap();
        let args = run_args(&["-w", workspace, "true"]);
        let start = start(&args, &caller(Path::new("/")), Kind::Inherit).unwrap();
        assert!(start.cwd.is_empty());
    }

    #[test]
    fn a_variable_needs_a_name_and_a_value() {
        let caller = caller(Path::new("/"));
        assert!(matches!(
            env_set(OsStr::new("=x"), &caller),
            Err(CliError::VariableName { .. })
        ));
        assert!(matches!(
            env_set(OsStr::new("MISSING"), &caller),
            Err(CliError::Unset { .. })
        ));
    }
}
