//! What goes wrong between daemon and kernel.

use std::{io, path::PathBuf};

use aya::{EbpfError, maps::MapError, programs::ProgramError};

use super::BtfError;

/// The remedy where the kernel lacks something, which is found by trying.
const DOCTOR: &str = "\n\nhint: `sandbox doctor` says what this kernel lacks";

/// What went wrong between daemon and kernel.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// The kernel's types do not have what the programs need.
    #[error(transparent)]
    Btf(#[from] BtfError),
    /// The object cannot be loaded: maps, relocations.
    #[error("cannot load the kernel programs{DOCTOR}")]
    Maps(#[source] Box<EbpfError>),
    /// The object that was built in lacks something.
    #[error("the built-in object has no usable `{0}`")]
    Object(&'static str),
    /// The verifier, or a policy of the machine, refused a program.
    #[error("the kernel refuses the program `{program}`{DOCTOR}")]
    Load {
        /// Which.
        program: &'static str,
        /// Why, with the verifier's log.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Loaded, but not attached.
    #[error("cannot attach the program `{program}`{DOCTOR}")]
    Attach {
        /// Which.
        program: &'static str,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A map operation failed.
    #[error("cannot {action}")]
    Map {
        /// For example "install a policy".
        action: &'static str,
        /// Why.
        source: Box<MapError>,
    },
    /// The bpf file system.
    #[error(
        "cannot {action} at `{path}`\n\nhint: a bpf file system is needed at `/sys/fs/bpf`: `mount -t bpf bpf /sys/fs/bpf`"
    )]
    Pin {
        /// For example "pin a link".
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Whoever refuses what it does not know still does.
    #[error(
        "programs of an earlier daemon are still attached\n\nhint: `bpftool link` and `bpftool prog` say who holds them"
    )]
    Lingering,
    /// The list of programs.
    #[error("the kernel does not say which programs are loaded")]
    Programs(#[source] ProgramError),
    /// The event buffer was taken already, or cannot be polled.
    #[error("cannot read events")]
    Events(#[source] io::Error),
    /// The key of names.
    #[error("the kernel has no random numbers")]
    Random(#[source] getrandom::Error),
    /// A file's identity did not come back from the kernel.
    #[error(
        "the kernel did not say which file `{0}` is\n\nhint: sandboxd must run in the host's pid namespace"
    )]
    Unidentified(PathBuf),
}

impl KernelError {
    /// Without aya's words around it, which are there also when the verifier
    /// said nothing.
    pub(super) fn load(program: &'static str, error: ProgramError) -> Self {
        let source = match error {
            ProgramError::LoadError {
                io_error,
                verifier_log,
            } => match verifier_log.to_string() {
                log if log.is_empty() => io_error.into(),
                log => format!("{io_error}\n{log}").into(),
            },
            other => other.into(),
        };
        Self::Load { program, source }
    }
}
