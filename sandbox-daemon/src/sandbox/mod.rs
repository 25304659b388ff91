//! Sandboxes and what runs in them.

mod changes;
mod ending;
mod enforcer;
mod enroll;
mod environment;
mod error;
mod exec;
mod follow;
mod ground;
mod jobs;
mod kernel;
mod known;
mod lately;
mod log;
mod policies;
mod quota;
mod reader;
mod registry;
mod run;
#[expect(clippy::module_inception, reason = "it is the noun")]
mod sandbox;
mod secrets;
mod shelf;
mod spawn;
mod spec;
mod stdio;
mod streams;
mod stuck;
mod usage;
mod watches;

pub use changes::{Answer, Told, Wanted};
pub use enforcer::{
    EnforceError, Enforcer, EnforcerState, FlowMaps, HookState, Installation, Installed, WallState,
};
pub use enroll::{EnrollOutput, EnrollSpec};
pub use environment::Variable;
pub use error::{DEFAULT_IDLE, MAX_IDLE, SandboxError};
pub use exec::{Cause, Ending, Exec};
pub use jobs::Job;
pub use kernel::KernelEnforcer;
pub use log::Record;
pub use quota::Share;
pub use reader::{News, Reader};
pub use registry::{Counted, Info, Registry};
pub use run::{Exited, Input, Output, OutputStream, RunSpec, Started, Stdio};
pub use sandbox::{InForce, Sandbox};
pub use spec::{Caller, PolicyFrom, PolicySource, Spec, Target};
pub use usage::Usage;

/// Where the generations of this daemon's policies begin: not where those of
/// the daemon before did, of which records may still come.
fn random_generation() -> u32 {
    let mut bytes = [0; 2];
    getrandom::fill(&mut bytes).expect("the kernel has random numbers");
    u32::from(u16::from_ne_bytes(bytes)) << 12 | 1
}

/// A random id: 12 hexadecimal digits.
///
/// # Panics
/// Without random numbers of the kernel's, which there always are.
pub fn new_id() -> String {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes[2..]).expect("the kernel has random numbers");
    format!("{:012x}", u64::from_be_bytes(bytes))
}
