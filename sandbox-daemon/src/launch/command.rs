//! Starting a command: everything is prepared here, so that the child, which
//! is inside from its first instruction, opens nothing and allocates nothing.

use std::{
    cell::Cell,
    collections::HashSet,
    ffi::{CString, c_char},
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
    ptr,
    sync::Mutex,
    thread,
};

use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    sys::{
        signal::{Signal, killpg},
        socket::{AddressFamily, SockFlag, SockType, socketpair},
    },
    unistd::{Pid, pipe2},
};
use tokio::io::Interest;

use super::{
    Account, LaunchError, Limits,
    child::{self, Plan, Report, Stage},
    search,
};
use crate::{
    cgroup::{Cgroup, CgroupError},
    escape::display,
    launch::identity::Restore,
    sys::{self, Credentials, ExitStatus, Watched},
};

/// A command to start.
#[derive(Debug)]
pub struct Command {
    /// Name and arguments. The name is looked for in `PATH` of `env`.
    pub argv: Vec<CString>,
    /// The whole environment, `NAME=VALUE` each.
    pub env: Vec<CString>,
    /// Working directory, entered as the user.
    pub cwd: CString,
    /// Who it runs as.
    pub account: Account,
    /// Directory of the cgroup it starts in.
    pub cgroup: OwnedFd,
    /// Descriptor 0.
    pub stdin: OwnedFd,
    /// Descriptor 1.
    pub stdout: OwnedFd,
    /// Descriptor 2.
    pub stderr: OwnedFd,
    /// Whether descriptor 0 is a terminal that becomes the controlling one.
    /// Without, there is none: nothing can be typed into a terminal outside.
    pub controlling_terminal: bool,
    /// File creation mask.
    pub umask: u32,
    /// Resource limits, as far as the daemon's own allow; without, those with
    /// the usual number of open files.
    pub limits: Option<Limits>,
}

/// A command's first process, which leads a session and a process group. If it
/// is dropped before it has ended, it is killed.
#[derive(Debug)]
pub struct Child {
    /// Its process id, also of its process group.
    pub pid: u32,
    /// The process itself.
    pub pidfd: OwnedFd,
    /// Set once it was reaped: its number may mean another process then.
    status: Mutex<Option<ExitStatus>>,
}

// Wider than the `c_int` that libc has for them.
const CLONE_PIDFD: u64 = 0x1000;
const CLONE_CLEAR_SIGHAND: u64 = 0x1_0000_0000;
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

impl Child {
    /// Waits for its end.
    pub async fn wait(&self) -> io::Result<ExitStatus> {
        let ended = Watched::new(self.pidfd.try_clone()?, Interest::READABLE)?;
        loop {
            if let Some(status) = self.try_wait()? {
                return Ok(status);
            }
            ended.ready(Interest::READABLE).await?;
        }
    }

    /// How it ended, if it has.
    pub fn try_wait(&self) -> io::Result<Option<ExitStatus>> {
        let mut status = self.lock();
        if status.is_none() {
            *status = sys::try_reap(&self.pidfd)?;
        }
        Ok(*status)
    }

    /// Sends a signal to its process group.
    pub fn signal_group(&self, signal: i32) -> io::Result<()> {
        let status = self.lock();
        if status.is_some() {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        // Not reaped while the lock is held: the group is still this one.
        let group = Pid::from_raw(self.pid.cast_signed());
        Ok(killpg(group, Signal::try_from(signal)?)?)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<ExitStatus>> {
        self.status
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !matches!(self.try_wait(), Ok(None)) {
            return;
        }
        // It may be gone already, which is as good.
        drop(sys::pidfd_send_signal(&self.pidfd, libc::SIGKILL));
        if let Ok(pidfd) = self.pidfd.try_clone() {
            // A process in the middle of a slow system call ends after it.
            thread::spawn(move || drop(sys::reap(pidfd)));
        }
    }
}

/// Sends a signal to the processes of one process group in a cgroup, and to
/// no other process, whatever the group's number means by now.
pub fn signal_group(cgroup: &Cgroup, group: i32, signal: i32) -> Result<(), CgroupError> {
    for pid in cgroup.pids()? {
        let Ok(pidfd) = sys::pidfd_open(pid) else {
            continue;
        };
        let in_group = sys::process_stat(pid).is_ok_and(|stat| stat.group == group);
        // Still in the cgroup after the descriptor was opened: it is the one.
        if in_group && cgroup.pids()?.contains(&pid) {
            // One that ended in between needs no signal.
            drop(sys::pidfd_send_signal(pidfd, signal));
        }
    }
    Ok(())
}

/// So many processes are held at a time while they are signalled.
const AT_ONCE: usize = 256;

/// New processes are looked for so often.
const ROUNDS: usize = 8;

/// Sends signals to every process of a cgroup, also to those that come while this
/// goes on, unless they come for ever. Blocks.
pub fn signal_all(cgroup: &Cgroup, signals: &[i32]) -> Result<(), CgroupError> {
    let mut signalled = HashSet::new();
    for _ in 0..ROUNDS {
        let mut new = cgroup.pids()?;
        new.retain(|pid| signalled.insert(*pid));
        if new.is_empty() {
            break;
        }
        for pids in new.chunks(AT_ONCE) {
            let open = |pid: &u32| Some((*pid, sys::pidfd_open(*pid).ok()?));
            let opened: Vec<_> = pids.iter().filter_map(open).collect();
            // Still in the cgroup after the descriptor was opened: it is the one.
            let inside: HashSet<u32> = cgroup.pids()?.into_iter().collect();
            for (_, pidfd) in opened.iter().filter(|(pid, _)| inside.contains(pid)) {
                for signal in signals {
                    // One that ended in between needs no signal.
                    drop(sys::pidfd_send_signal(pidfd, *signal));
                }
            }
        }
    }
    Ok(())
}

/// The way by which a child asks to go on and is let.
pub(super) struct Gate(OwnedFd);

/// The other end, for a thread that is not held up until the child's exec.
pub(super) struct Keeper(OwnedFd);

/// A gate for one child.
pub(super) fn gate() -> Result<(Gate, Keeper), LaunchError> {
    let (child, keeper) = socketpair(
        AddressFamily::Unix,
        SockType::SeqPacket,
        None,
        SockFlag::SOCK_CLOEXEC,
    )
    .map_err(|errno| LaunchError::Prepare {
        step: "make a gate",
        source: errno.into(),
    })?;
    let child = above_stdio(&child).map_err(|source| LaunchError::Prepare {
        step: "make a gate",
        source,
    })?;
    Ok((Gate(child), Keeper(keeper)))
}

impl Keeper {
    /// Waits for the child, does for it what it may not do itself, and lets it
    /// go on. One that was never started is not waited for.
    pub(super) fn open(self) -> io::Result<()> {
        let mut pid = [0; size_of::<i32>()];
        let mut gate = File::from(self.0);
        if gate.read(&mut pid)? == pid.len() {
            reset_oom_score(i32::from_ne_bytes(pid))?;
            // A child that died before it got here shows in the report.
            drop(gate.write(&[1]));
        }
        Ok(())
    }
}

/// Starts a command from this thread, which gives it its mount namespace, and is
/// held up until its exec. Somebody else has to open the gate.
pub(super) fn spawn(command: &Command, gate: Gate) -> Result<Child, LaunchError> {
    let prepared = Prepared::new(command)?;
    let prepare = |step| move |source| LaunchError::Prepare { step, source };
    let (report, report_to) = pipe().map_err(prepare("make a pipe"))?;
    let child = {
        let plan = prepared.plan(&gate, &report_to);
        clone_as(command, &plan)?
    };
    drop((gate, report_to));
    match read_report(report) {
        Ok(None) => Ok(child),
        Ok(Some(report)) => {
            // It ends right after the report; then its cgroup is empty.
            drop(sys::reap(&child.pidfd));
            Err(prepared.error(&report))
        }
        Err(source) => Err(prepare("read the child's report")(source)),
    }
}

/// What the child needs, with stable addresses.
struct Prepared<'a> {
    command: &'a Command,
    candidates: Vec<CString>,
    argv: Vec<Cell<*const c_char>>,
    env: Vec<*const c_char>,
    stdio: [OwnedFd; 3],
    limits: Limits,
}

impl<'a> Prepared<'a> {
    fn new(command: &'a Command) -> Result<Self, LaunchError> {
        let name = command.argv.first().ok_or(LaunchError::NoCommand)?;
        let candidates = search::candidates(name, &command.env);
        if candidates.is_empty() {
            return Err(LaunchError::CommandNotFound {
                command: display(name.to_bytes()),
            });
        }
        let failed = |step| move |source| LaunchError::Prepare { step, source };
        let own = Limits::own().map_err(failed("read resource limits"))?;
        let limits = match &command.limits {
            Some(limits) => limits.at_most(&own),
            None => own.with_usual_files(),
        };
        let high = |fd: &OwnedFd| above_stdio(fd).map_err(failed("duplicate a descriptor"));
        Ok(Self {
            command,
            candidates,
            // Room for `/bin/sh SCRIPT` in front, see `child::execute`.
            argv: std::iter::once(ptr::null())
                .chain(command.argv.iter().map(|argument| argument.as_ptr()))
                .chain([ptr::null()])
                .map(Cell::new)
                .collect(),
            env: command
                .env
                .iter()
                .map(|variable| variable.as_ptr())
                .chain([ptr::null()])
                .collect(),
            stdio: [
                high(&command.stdin)?,
                high(&command.stdout)?,
                high(&command.stderr)?,
            ],
            limits,
        })
    }

    fn plan(&self, gate: &Gate, report: &OwnedFd) -> Plan<'_> {
        Plan {
            candidates: &self.candidates,
            argv: &self.argv,
            env: &self.env,
            cwd: &self.command.cwd,
            uid: self.command.account.uid,
            gid: self.command.account.gid,
            stdio: self.stdio.each_ref().map(OwnedFd::as_raw_fd),
            gate: gate.0.as_raw_fd(),
            report: report.as_raw_fd(),
            controlling_terminal: self.command.controlling_terminal,
            umask: self.command.umask,
            limits: &self.limits,
        }
    }

    fn error(&self, report: &Report) -> LaunchError {
        let source = io::Error::from_raw_os_error(report.errno);
        let name = || display(self.command.argv[0].to_bytes());
        let file = || {
            let index = usize::try_from(report.candidate).unwrap_or(0);
            let path = self.candidates.get(index);
            path.map_or_else(name, |path| display(path.to_bytes()))
        };
        match report.stage() {
            Some(Stage::WorkingDirectory) => LaunchError::WorkingDirectory {
                path: display(self.command.cwd.to_bytes()),
                user: self.command.account.name.clone(),
                source,
            },
            Some(Stage::NotFound) => LaunchError::CommandNotFound { command: name() },
            Some(Stage::Interpreter) => LaunchError::InterpreterNotFound { path: file() },
            Some(Stage::Execute) => LaunchError::NotExecutable {
                path: file(),
                source,
            },
            stage => LaunchError::Child {
                step: stage.map_or("an unknown step", Stage::name),
                source,
            },
        }
    }
}

/// Clones with the account's ids lent to this thread: the child makes them its
/// own without a capability, which inside it does not have.
fn clone_as(command: &Command, plan: &Plan<'_>) -> Result<Child, LaunchError> {
    let failed = |step| move |source| LaunchError::Prepare { step, source };
    let account = &command.account;
    let restore = Restore(Credentials::current().map_err(failed("read this thread's ids"))?);
    Credentials::lend(account.uid, account.gid, &account.groups)
        .map_err(failed("take on the user's ids"))?;
    let child = clone_into(command, plan);
    drop(restore);
    child.map_err(LaunchError::Clone)
}

fn clone_into(command: &Command, plan: &Plan<'_>) -> io::Result<Child> {
    let mut pidfd: libc::c_int = -1;
    // SAFETY: all zeroes is a valid clone_args, which is plain data.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    // The daemon's handlers must not run in the child: they would write to
    // descriptors that it shares with the daemon.
    args.flags = CLONE_INTO_CGROUP | CLONE_CLEAR_SIGHAND | CLONE_PIDFD;
    args.pidfd = (&raw mut pidfd).addr() as u64;
    args.exit_signal = u64::from(libc::SIGCHLD.cast_unsigned());
    args.cgroup = u64::from(command.cgroup.as_raw_fd().cast_unsigned());
    // SAFETY: `child::run` allocates nothing and takes no lock; `plan` is this
    // thread's alone.
    let pid = unsafe { sys::clone_in_place(&mut args, plan, child::run) }?;
    Ok(Child {
        pid,
        // SAFETY: CLONE_PIDFD made this descriptor and nobody else owns it.
        pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) },
        status: Mutex::new(None),
    })
}

/// A daemon that the kernel shall spare must not have its commands spared.
fn reset_oom_score(pid: i32) -> io::Result<()> {
    let own = fs::read_to_string("/proc/self/oom_score_adj")?;
    if own.trim_end().starts_with('-') {
        fs::write(format!("/proc/{pid}/oom_score_adj"), "0")?;
    }
    Ok(())
}

/// Nothing, once an exec has closed the pipe.
fn read_report(report: OwnedFd) -> io::Result<Option<Report>> {
    let mut bytes = Vec::new();
    File::from(report).read_to_end(&mut bytes)?;
    if bytes.is_empty() {
        return Ok(None);
    }
    Report::from_bytes(&bytes)
        .map(Some)
        .ok_or_else(|| io::Error::other("it is cut short"))
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = pipe2(OFlag::O_CLOEXEC)?;
    Ok((above_stdio(&read)?, above_stdio(&write)?))
}

/// A copy out of the way of 0 to 2, and of 3, which the report gets.
fn above_stdio(fd: &OwnedFd) -> io::Result<OwnedFd> {
    let fd = fcntl(fd, FcntlArg::F_DUPFD_CLOEXEC(child::REPORT + 1))?;
    // SAFETY: the kernel has just made this descriptor and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
