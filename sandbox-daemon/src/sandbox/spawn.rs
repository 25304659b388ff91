//! From what a caller asks for to a process.

use std::{
    ffi::CString,
    os::{fd::AsFd as _, unix::ffi::OsStrExt as _},
    path::PathBuf,
};

use super::{
    Caller, Enforcer, Exec, RunSpec, Sandbox, SandboxError, Started, Stdio,
    environment::Ingredients, streams::Streams,
};
use crate::{
    egress::Egress,
    launch::{Account, Child, Command, Limits},
    policy::Mode,
    steps,
};

/// A process that runs.
pub(super) struct Spawned {
    pub(super) child: Child,
    pub(super) streams: Streams,
    pub(super) started: Started,
}

/// Starts the first process of an exec. Blocks; to be called within a runtime.
pub(super) fn spawn(
    enforcer: &dyn Enforcer,
    egress: &Egress,
    caller: &Caller,
    spec: &RunSpec,
    exec: &Exec,
) -> Result<Spawned, SandboxError> {
    let sandbox = &exec.sandbox;
    // One that was made for this command was made for this caller, just now.
    let account = if sandbox.one_shot {
        sandbox.account.clone()
    } else {
        caller.account(sandbox.account.uid)?
    };
    let policy = sandbox.policy();
    let environment = Ingredients {
        policy: &policy.policy.env,
        caller: &spec.env,
        insisted: &spec.env_set,
        account: &account,
        cache: policy.cache.as_deref(),
        network: &policy.policy.network,
        credentials: egress.environment(sandbox.cgroup.id(), &account, &spec.env)?,
        sandbox: &sandbox.id,
        policy_name: &policy.policy.name,
    }
    .compose()?;
    if matches!(spec.stdio, Stdio::Inherit { .. }) && exec.limits().output.is_some() {
        return Err(SandboxError::Uncounted);
    }
    let (streams, theirs) = Streams::open(caller, &account, &sandbox.view, spec.stdio)?;
    for stream in [&theirs.stdin, &theirs.stdout, &theirs.stderr] {
        enforcer.lend(sandbox.cgroup.id(), stream.as_fd())?;
    }
    let cgroup = exec.cgroup().try_clone_dir();
    let child = sandbox.view.spawn(Command {
        argv: arguments(&spec.argv)?,
        env: environment.variables,
        cwd: working_directory(spec.cwd.as_ref(), sandbox, &account)?,
        limits: limits(caller),
        account,
        cgroup: cgroup.map_err(|source| SandboxError::Step {
            what: "duplicate a descriptor",
            source,
        })?,
        stdin: theirs.stdin,
        stdout: theirs.stdout,
        stderr: theirs.stderr,
        controlling_terminal: matches!(spec.stdio, Stdio::Pty { .. }),
        umask: spec.umask.unwrap_or(0o022) & 0o777,
    })?;
    exec.set_pid(child.pid);
    steps::done("started");
    if exec.cause().is_some() {
        // It was killed before there was anything to kill.
        exec.cgroup().kill()?;
    }
    Ok(Spawned {
        started: Started {
            sandbox: sandbox.id.clone(),
            exec: exec.id.clone(),
            pid: child.pid,
            policy_name: policy.policy.name.clone(),
            policy_digest: policy.policy.digest.clone(),
            withheld_env: environment.withheld,
            observe: policy.policy.mode == Mode::Observe,
        },
        child,
        streams,
    })
}

fn arguments(argv: &[Vec<u8>]) -> Result<Vec<CString>, SandboxError> {
    if argv.is_empty() {
        return Err(SandboxError::invalid("argv", "is empty"));
    }
    argv.iter()
        .map(|argument| CString::new(argument.clone()))
        .collect::<Result<_, _>>()
        .map_err(|_| SandboxError::invalid("argv", "holds a NUL byte"))
}

fn working_directory(
    cwd: Option<&PathBuf>,
    sandbox: &Sandbox,
    account: &Account,
) -> Result<CString, SandboxError> {
    let cwd = cwd.or(sandbox.workspace.as_ref()).unwrap_or(&account.home);
    if !cwd.is_absolute() {
        return Err(SandboxError::invalid("cwd", "must be an absolute path"));
    }
    CString::new(cwd.as_os_str().as_bytes())
        .map_err(|_| SandboxError::invalid("cwd", "holds a NUL byte"))
}

/// The caller's own, as if it had started the command itself.
fn limits(caller: &Caller) -> Option<Limits> {
    let peer = caller.peer.as_ref()?;
    Limits::of_process(peer.pid()).ok()
}
