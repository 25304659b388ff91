//! Which hooks of the kernel which actions reach: what no program guards is
//! known, and a new kernel's new road shows.

mod call;
mod expectation;
mod files;
mod guards;
mod kernel;
mod make;
mod mounts;
mod observer;
mod processes;
mod sockets;
pub(crate) mod uring;

use std::{fs, process::ExitCode};

use call::Action;
use expectation::{Expectation, Reached};
use observer::Observer;

use crate::host;

crate::trials![
    this_kernels_hooks_are_reached_as_expected,
    what_is_reached_without_a_program_has_its_reason,
    the_reasons_for_having_no_program_are_needed,
];

/// The argument that makes an observer of this program.
pub(crate) const ARGUMENT: &str = "--observe";

const ACTIONS: [&[Action]; 5] = [
    files::ACTIONS,
    mounts::ACTIONS,
    processes::ACTIONS,
    kernel::ACTIONS,
    sockets::ACTIONS,
];

/// Hooks, by parts of their names, that keep the labels of other security
/// modules, and accounts: whether they are reached is a matter of what the
/// kernel has cached or frees later, and what they refuse something else does.
const BOOKKEEPING: [&str; 21] = [
    "_alloc",
    "_committed_",
    "_committing_",
    "_create_files_as",
    "_free",
    "_init_security",
    "_post_",
    "_prepare",
    "_set_fowner",
    "_to_inode",
    "_transfer",
    "backing_file_alloc",
    "bdev_",
    "copy_up",
    "d_instantiate",
    "getsec",
    "inet_csk_clone",
    "sb_delete",
    "sk_clone",
    "sock_graft",
    "vm_enough_memory",
];

/// What begins like bookkeeping and refuses.
const DECIDES: [&str; 2] = ["inode_init_security_anon", "task_alloc"];

fn decides(hook: &str) -> bool {
    DECIDES.contains(&hook) || !BOOKKEEPING.iter().any(|part| hook.contains(part))
}

/// Where the expectations are put.
const EXPECTATIONS: &str = "/mnt/put/coverage";

/// Prints what this kernel's expectations are to be.
pub(crate) fn main() -> ExitCode {
    let mut observer = Observer::start();
    let mut found = Expectation::default();
    for (hook, decides) in observer.hooks() {
        found.hooks.insert(if decides {
            hook.to_owned()
        } else {
            format!("({hook})")
        });
    }
    for action in ACTIONS.into_iter().flatten() {
        let seen = observer.observe(action);
        let reached = Reached {
            answer: seen.answer,
            hooks: seen
                .hooks
                .into_iter()
                .filter(|hook| decides(hook))
                .collect(),
        };
        let before = found.actions.insert(action.name.to_owned(), reached);
        assert!(before.is_none(), "two actions are named `{}`", action.name);
    }
    print!("{found}");
    ExitCode::SUCCESS
}

/// Of the running kernel, such as `6.12`.
fn version() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let numbers: Vec<_> = release.split(['.', '-']).take(2).collect();
    numbers.join(".")
}

fn expected(kernel: &str) -> Expectation {
    let file = format!("{EXPECTATIONS}/{kernel}.txt");
    let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("`{file}`: {error}"));
    Expectation::parse(&text)
}

async fn this_kernels_hooks_are_reached_as_expected() {
    let output = host::run(host::ROOT, &[host::this_program(), ARGUMENT]);
    assert!(output.status.success(), "{}", host::text(&output.stderr));
    let found = Expectation::parse(&host::text(&output.stdout));
    let expected = expected(&version());
    let differences = expected.differences(&found);
    assert!(
        differences.is_empty(),
        "{differences}\nhint: look at each, then run this with `SANDBOX_UPDATE_COVERAGE=1`"
    );
}

async fn what_is_reached_without_a_program_has_its_reason() {
    let missing = guards::missing(&expected(&version()), &guards::loaded().await);
    assert!(missing.is_empty(), "{missing}{HINT}");
}

async fn the_reasons_for_having_no_program_are_needed() {
    let kernels = guards::kernels();
    let kernels: Vec<_> = kernels.iter().map(|kernel| expected(kernel)).collect();
    let unneeded = guards::unneeded(&kernels, &guards::loaded().await);
    assert!(unneeded.is_empty(), "{unneeded}{HINT}");
}

const HINT: &str = "\nhint: the reasons are in `tests/coverage/reasons.toml`";
