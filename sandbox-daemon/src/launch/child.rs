//! The child between clone and exec. It shares nothing with the daemon but its
//! memory, in which others hold locks: here is only what signal-safety(7)
//! allows, on what the parent has prepared.

use std::{
    cell::Cell,
    ffi::{CStr, CString, c_char, c_int},
    io,
    os::fd::RawFd,
};

use super::Limits;
use crate::sys::Credentials;

/// What the parent has prepared.
pub(super) struct Plan<'a> {
    /// Files to try, at least one.
    pub(super) candidates: &'a [CString],
    /// A free slot, the arguments, null.
    pub(super) argv: &'a [Cell<*const c_char>],
    /// The environment, null.
    pub(super) env: &'a [*const c_char],
    pub(super) cwd: &'a CStr,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) stdio: [RawFd; 3],
    /// Takes the child's process id, and gives one byte when the parent is done
    /// with the child.
    pub(super) gate: RawFd,
    /// Takes a [`Report`] if there is no exec.
    pub(super) report: RawFd,
    pub(super) controlling_terminal: bool,
    pub(super) umask: u32,
    pub(super) limits: &'a Limits,
}

/// Where a child got stuck.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Gate,
    Session,
    Stdio,
    Terminal,
    Close,
    Signals,
    Limits,
    Identity,
    WorkingDirectory,
    NotFound,
    Interpreter,
    Execute,
}

/// What a child that could not exec says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Report {
    stage: u32,
    pub(super) errno: i32,
    /// Index of the file that could not be executed.
    pub(super) candidate: u32,
}

/// The descriptor that the report gets: the first after stderr.
pub(super) const REPORT: RawFd = 3;

const SIZE: usize = 12;
const STAGES: [Stage; 12] = [
    Stage::Gate,
    Stage::Session,
    Stage::Stdio,
    Stage::Terminal,
    Stage::Close,
    Stage::Signals,
    Stage::Limits,
    Stage::Identity,
    Stage::WorkingDirectory,
    Stage::NotFound,
    Stage::Interpreter,
    Stage::Execute,
];
/// How many signals Linux has.
const SIGNALS: c_int = 64;
const SHELL: &CStr = c"/bin/sh";

impl Stage {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Gate => "wait for the daemon",
            Self::Session => "make a session",
            Self::Stdio => "set up descriptors 0 to 2",
            Self::Terminal => "take the controlling terminal",
            Self::Close => "close inherited descriptors",
            Self::Signals => "reset signals",
            Self::Limits => "set resource limits",
            Self::Identity => "become the user",
            Self::WorkingDirectory => "enter the working directory",
            Self::NotFound => "find the command",
            Self::Interpreter => "find the interpreter",
            Self::Execute => "execute the command",
        }
    }
}

impl Report {
    pub(super) fn stage(&self) -> Option<Stage> {
        STAGES.get(usize::try_from(self.stage).ok()?).copied()
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        (bytes.len() == SIZE).then_some(())?;
        Some(Self {
            stage: word(0)?,
            errno: word(4)?.cast_signed(),
            candidate: word(8)?,
        })
    }

    fn to_bytes(self) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        let words = [
            self.stage.to_ne_bytes(),
            self.errno.to_ne_bytes(),
            self.candidate.to_ne_bytes(),
        ];
        for (slot, byte) in bytes.iter_mut().zip(words.as_flattened()) {
            *slot = *byte;
        }
        bytes
    }
}

/// Becomes the command, or says why not and ends.
pub(super) extern "C" fn run(plan: &Plan<'_>) -> ! {
    let (stage, errno, candidate) = match prepare(plan) {
        Ok(()) => execute(plan),
        Err((stage, error)) => (stage, error, 0),
    };
    let report = Report {
        stage: stage as u32,
        errno,
        candidate,
    }
    .to_bytes();
    // Before the descriptors were set up it is at its old place. Nothing is
    // left to do if nobody takes it.
    let early = matches!(stage, Stage::Gate | Stage::Session | Stage::Stdio);
    let fd = if early { plan.report } else { REPORT };
    // SAFETY: `report` outlives the call; _exit runs no handlers.
    unsafe {
        libc::write(fd, report.as_ptr().cast(), report.len());
        libc::_exit(127)
    }
}

type Failure = (Stage, i32);

fn prepare(plan: &Plan<'_>) -> Result<(), Failure> {
    pass_gate(plan.gate)?;
    // A session of its own, so that no terminal outside is its controlling
    // one (TIOCSTI) and its process group is its own.
    // SAFETY: takes nothing.
    check(Stage::Session, unsafe { libc::setsid() })?;
    for (fd, source) in (0..).zip(plan.stdio) {
        // SAFETY: plain integers; `source` is open and above 3.
        check(Stage::Stdio, unsafe { libc::dup2(source, fd) })?;
    }
    // SAFETY: plain integers; `report` is open and above 3.
    check(Stage::Stdio, unsafe {
        libc::dup3(plan.report, REPORT, libc::O_CLOEXEC)
    })?;
    if plan.controlling_terminal {
        // SAFETY: TIOCSCTTY takes its argument by value; 0 steals nothing.
        check(Stage::Terminal, unsafe {
            libc::ioctl(0, libc::TIOCSCTTY, 0)
        })?;
    }
    let first: libc::c_uint = REPORT.cast_unsigned() + 1;
    // SAFETY: nothing here uses a descriptor above the report's any more. The
    // raw call, because glibc's wrapper is newer than what we run on.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) };
    check(Stage::Close, if closed < 0 { -1 } else { 0 })?;
    reset_signals()?;
    // SAFETY: plain integer, and it cannot fail.
    unsafe { libc::umask(plan.umask & 0o777) };
    plan.limits
        .apply()
        .map_err(|error| failure(Stage::Limits, &error))?;
    Credentials::take(plan.uid, plan.gid).map_err(|error| failure(Stage::Identity, &error))?;
    // SAFETY: NUL-terminated and alive.
    check(Stage::WorkingDirectory, unsafe {
        libc::chdir(plan.cwd.as_ptr())
    })
}

fn pass_gate(gate: RawFd) -> Result<(), Failure> {
    // SAFETY: takes nothing.
    let pid = unsafe { libc::getpid() };
    // SAFETY: `pid` has this size and outlives the call. Nobody who takes it is
    // told below.
    unsafe { libc::write(gate, (&raw const pid).cast(), size_of_val(&pid)) };
    let mut byte = 0_u8;
    // SAFETY: reads one byte into `byte`, which outlives the call.
    match unsafe { libc::read(gate, (&raw mut byte).cast(), 1) } {
        1 => Ok(()),
        // The daemon is gone.
        0 => Err((Stage::Gate, libc::EPIPE)),
        _ => Err((Stage::Gate, errno())),
    }
}

/// Default dispositions (ignored ones pass through clone and exec; Rust
/// programs ignore SIGPIPE) and an empty mask.
fn reset_signals() -> Result<(), Failure> {
    // The kernel's sigaction: SIG_DFL, no flags, no restorer, an empty mask.
    let default = [0_u64; 4];
    for signal in 1..=SIGNALS {
        // SAFETY: `default` is at least as long as the kernel's sigaction and
        // outlives the call. What cannot be set (SIGKILL, SIGSTOP) is at its
        // default. The raw call, because glibc's keeps two signals to itself.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                default.as_ptr(),
                std::ptr::null::<u64>(),
                size_of::<u64>(),
            )
        };
    }
    // SAFETY: all zeroes is valid, and sigemptyset sets it up.
    let mut none: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `none` outlives both calls.
    check(Stage::Signals, unsafe {
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut())
    })
}

/// Tries the candidates as execvp does; returns only if none could be run.
fn execute(plan: &Plan<'_>) -> (Stage, i32, u32) {
    let mut outcome = (Stage::NotFound, libc::ENOENT, 0);
    for (index, file) in (0..).zip(plan.candidates) {
        let argv = &plan.argv[1..];
        // SAFETY: all are null-terminated arrays of NUL-terminated strings.
        unsafe { libc::execve(file.as_ptr(), argv.as_ptr().cast(), plan.env.as_ptr()) };
        match errno() {
            libc::ENOEXEC => return (Stage::Execute, execute_script(plan, file), index),
            libc::ENOENT if exists(file) => {
                outcome = (Stage::Interpreter, libc::ENOENT, index);
            }
            libc::ENOENT | libc::ENOTDIR => {}
            errno => {
                outcome = (Stage::Execute, errno, index);
                if errno != libc::EACCES {
                    break;
                }
            }
        }
    }
    outcome
}

/// A script without `#!` is the shell's, which gets its path in place of its
/// name.
fn execute_script(plan: &Plan<'_>, file: &CStr) -> i32 {
    if let [shell, name, ..] = plan.argv {
        shell.set(SHELL.as_ptr());
        name.set(file.as_ptr());
    }
    // SAFETY: both are null-terminated arrays of NUL-terminated strings.
    unsafe { libc::execve(SHELL.as_ptr(), plan.argv.as_ptr().cast(), plan.env.as_ptr()) };
    libc::ENOEXEC
}

fn exists(file: &CStr) -> bool {
    // SAFETY: NUL-terminated and alive.
    unsafe { libc::access(file.as_ptr(), libc::F_OK) == 0 }
}

fn check(stage: Stage, result: c_int) -> Result<(), Failure> {
    if result < 0 {
        Err((stage, errno()))
    } else {
        Ok(())
    }
}

fn failure(stage: Stage, error: &io::Error) -> Failure {
    (stage, error.raw_os_error().unwrap_or(libc::EIO))
}

fn errno() -> i32 {
    // SAFETY: the address of this thread's errno is always valid.
    unsafe { *libc::__errno_location() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_survives_the_pipe() {
        for (index, stage) in (0..).zip(STAGES) {
            let report = Report {
                stage: stage as u32,
                errno: -7,
                candidate: index,
            };
            let read = Report::from_bytes(&report.to_bytes()).unwrap();
            assert_eq!(read, report);
            assert_eq!(read.stage(), Some(stage));
        }
        assert_eq!(Report::from_bytes(&[0; 5]), None);
    }
}
