//! Tests that run inside a virtual machine, as root, with sandboxd up: every
//! attack is performed for real inside a sandbox, and outside for the control.

#![expect(
    clippy::unwrap_used,
    reason = "a test says what it expects by panicking"
)]

mod attack;
mod caller;
mod changes;
mod client;
mod commands;
mod counting;
mod coverage;
mod disk;
mod enroll;
mod ephemeral;
mod events;
mod expect;
mod files;
mod ground;
mod host;
mod jobs;
mod leaks;
mod lifecycle;
mod limits;
mod network;
mod offsets;
mod outside;
mod policies;
mod races;
mod repository;
mod restart;
mod scope;
mod strict;
mod terminal;
mod tmux;
mod traced_run;
mod work;

use std::{ffi::OsString, process::ExitCode, sync::mpsc, thread, time::Duration};

use libtest_mimic::{Arguments, Trial};

/// How long a test may take that hangs; its long variant. Some start the daemon
/// again and again, which takes its time on a machine that is busy.
const PATIENCE: Duration = Duration::from_mins(8);
const LONG_PATIENCE: Duration = Duration::from_mins(30);

/// Trials of the tests of a module, by their names.
macro_rules! trials {
    ($($name:ident),* $(,)?) => {
        crate::trials![in trials: $($name),*];
    };
    (in $function:ident: $($name:ident),* $(,)?) => {
        pub(crate) fn $function() -> Vec<libtest_mimic::Trial> {
            vec![$(crate::trial(
                concat!(module_path!(), "::", stringify!($name)),
                || Box::pin($name()),
            )),*]
        }
    };
}
pub(crate) use trials;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    match arguments.split_first() {
        Some((first, steps)) if first == attack::ARGUMENT => attack::main(steps),
        Some((first, [])) if first == client::RELAY => client::relay(),
        Some((first, [])) if first == coverage::ARGUMENT => coverage::main(),
        Some((first, mistake)) if first == offsets::WALLS => offsets::raise(mistake),
        Some((first, [directory])) if first == offsets::CANARY => {
            offsets::canary(directory.as_ref())
        }
        _ => run(),
    }
}

fn run() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // They change the same files of the same machine.
    arguments.test_threads = Some(1);
    let trials = [
        files::trials(),
        changes::trials(),
        ephemeral::trials(),
        network::trials(),
        scope::trials(),
        policies::trials(),
        repository::trials(),
        lifecycle::trials(),
        limits::trials(),
        leaks::trials(),
        events::trials(),
        counting::trials(),
        races::trials(),
        enroll::trials(),
        commands::trials(),
        caller::trials(),
        strict::trials(),
        jobs::trials(),
        terminal::trials(),
        traced_run::trials(),
        work::trials(),
        coverage::trials(),
        // Last: they end the daemon and start others.
        jobs::last(),
        terminal::last(),
        restart::trials(),
        offsets::trials(),
    ];
    libtest_mimic::run(&arguments, trials.into_iter().flatten().collect()).exit_code()
}

type Test = fn() -> std::pin::Pin<Box<dyn Future<Output = ()>>>;

/// A test runs on a thread of its own, which is left behind where it hangs.
fn trial(name: &str, test: Test) -> Trial {
    let name = name.split_once("::").map_or(name, |(_, name)| name);
    Trial::test(name, move || {
        let (done, waiting) = mpsc::channel::<()>();
        let running = thread::spawn(move || {
            // Sent also by a panic, which drops it.
            let _done = done;
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.unwrap().block_on(test());
        });
        let patience = if host::long() {
            LONG_PATIENCE
        } else {
            PATIENCE
        };
        match waiting.recv_timeout(patience) {
            Err(mpsc::RecvTimeoutError::Timeout) => {
                Err(format!("still not done after {} s", patience.as_secs()).into())
            }
            Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => match running.join() {
                Ok(()) => Ok(()),
                Err(panic) => std::panic::resume_unwind(panic),
            },
        }
    })
}
