//! Attacks over and over, by several processes at once.

use std::{ffi::OsStr, io::Write as _, os::fd::AsFd as _, process, thread, time::Duration};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        prctl,
        signal::{SigHandler, Signal, signal},
        wait::{WaitStatus, waitpid},
    },
    unistd::{ForkResult, Pid, fork, pause},
};

use super::{Found, Kept, number, text};

/// Between the steps of `hold`.
const AND: &str = ";";

/// Generations of a `bomb` that are alive at a time.
const LINES: u32 = 6;

pub(super) fn perform(kept: &mut Kept, operation: &str, arguments: &[&OsStr]) -> Option<Found> {
    Some(match (operation, arguments) {
        ("times", [processes, count, step @ ..]) => {
            times(kept, number(processes), number(count), step)
        }
        ("hold", [processes, steps @ ..]) => hold(kept, number(processes), steps),
        ("bomb", [rest]) => bomb(number(rest)),
        _ => return None,
    })
}

fn step(kept: &mut Kept, step: &[&OsStr]) -> Found {
    match step {
        [operation, arguments @ ..] => super::perform(kept, text(operation), arguments),
        [] => Err(Errno::EINVAL),
    }
}

/// Performs a step `count` times; what it answers if that is always the same.
fn times(kept: &mut Kept, processes: u32, count: u32, attack: &[&OsStr]) -> Found {
    let share = |process: u32| count / processes + u32::from(process < count % processes);
    let children = (0..processes)
        .map(|process| {
            child(|| {
                let mut answers = (0..share(process)).map(|_| code(&step(kept, attack)));
                let first = answers.next().unwrap_or(MIXED);
                if answers.all(|answer| answer == first) {
                    first
                } else {
                    MIXED
                }
            })
        })
        .collect::<Result<Vec<_>, _>>()?;
    let codes = children
        .into_iter()
        .map(ended)
        .collect::<Result<Vec<_>, _>>()?;
    match codes[..] {
        [0, ..] if codes.iter().all(|&code| code == 0) => Ok(String::new()),
        [first, ..] if codes.iter().all(|&code| code == first) => Err(Errno::from_raw(first)),
        _ => Err(Errno::EILSEQ),
    }
}

/// No errno of Linux.
const MIXED: i32 = 255;

fn code(found: &Found) -> i32 {
    found.as_ref().map_or_else(|errno| *errno as i32, |_| 0)
}

/// Performs steps, each with the answer that it must have, until somebody
/// writes to stdin: whether they always had it, and otherwise which had not.
fn hold(kept: &mut Kept, processes: u32, steps: &[&OsStr]) -> Found {
    let steps: Vec<_> = steps.split(|word| *word == AND).collect();
    let children = (0..processes)
        .map(|_| {
            child(|| {
                while !told() {
                    for (index, attack) in steps.iter().enumerate() {
                        let [expected, attack @ ..] = attack else {
                            return MIXED;
                        };
                        let answer = match step(kept, attack) {
                            Ok(_) => "ok".to_owned(),
                            Err(errno) => format!("{errno:?}"),
                        };
                        if answer != text(expected) {
                            eprintln!("{attack:?} gave {answer}, not {}", text(expected));
                            return 1 + i32::try_from(index).unwrap_or(0);
                        }
                    }
                }
                0
            })
        })
        .collect::<Result<Vec<_>, _>>()?;
    for child in children {
        let code = ended(child)?;
        if code != 0 {
            return Ok(format!("step {code} did not hold"));
        }
    }
    Ok("held".into())
}

/// Whether there is something on stdin, which nobody takes.
fn told() -> bool {
    let stdin = std::io::stdin();
    let mut waiting = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
    poll(&mut waiting, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

/// Processes that do nothing but make another one and end, and their first
/// ancestor, who is their parent again and again. Each rests for so many
/// milliseconds before.
fn bomb(rest: u32) -> Found {
    prctl::set_child_subreaper(true)?;
    // SAFETY: ignoring a signal runs no code of ours. Nobody waits for them.
    unsafe { signal(Signal::SIGCHLD, SigHandler::SigIgn) }?;
    for _ in 0..LINES {
        // SAFETY: this program has one thread.
        if let ForkResult::Child = unsafe { fork() }? {
            loop {
                thread::sleep(Duration::from_millis(rest.into()));
                // SAFETY: as above.
                match unsafe { fork() } {
                    Ok(ForkResult::Child) => {}
                    // SAFETY: ends this process, without its buffers.
                    Ok(ForkResult::Parent { .. }) => unsafe { libc::_exit(0) },
                    Err(_) => {
                        pause();
                    }
                }
            }
        }
    }
    println!("ok");
    let _ = std::io::stdout().flush();
    loop {
        pause();
    }
}

/// A process that does something, and ends with what that returns.
fn child(act: impl FnOnce() -> i32) -> Result<Pid, Errno> {
    // SAFETY: this program has one thread.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => Ok(child),
        ForkResult::Child => process::exit(act()),
    }
}

fn ended(child: Pid) -> Result<i32, Errno> {
    match waitpid(child, None)? {
        WaitStatus::Exited(_, code) => Ok(code),
        other => {
            eprintln!("{other:?}");
            Ok(MIXED)
        }
    }
}
