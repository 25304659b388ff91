//! Whether this kernel takes the programs: it is asked by loading and attaching
//! two that let everything through, because its configuration does not say.

use std::fs::File;

use aya::{Btf as AyaBtf, Ebpf, EbpfLoader, programs::Program};

use super::{
    KernelError, OBJECT,
    btf::Btf,
    layout,
    programs::{self, Attach},
};
use crate::{cgroup::Hierarchy, chain::Chain};

/// An attempt and its outcome.
#[derive(Debug)]
pub struct Probe {
    /// What was attempted.
    pub name: &'static str,
    /// Why it failed.
    pub outcome: Result<(), KernelError>,
    /// What to do if it failed.
    pub remedy: &'static str,
}

/// Tries everything that the daemon does at start, short of its walls. Needs
/// root.
pub fn probe() -> Vec<Probe> {
    let types = Btf::of_kernel().and_then(|btf| layout::offsets(&btf, None).map(drop));
    vec![
        Probe {
            name: "kernel structures as expected",
            outcome: types.map_err(KernelError::from),
            remedy: "boot a kernel that this version supports",
        },
        Probe {
            name: "LSM programs load and attach",
            outcome: lsm(),
            remedy: "boot with `bpf` in the `lsm=` list; where it is there, another \
                     security module or a container forbids it",
        },
        Probe {
            name: "cgroup programs load and attach",
            outcome: cgroup(),
            remedy: "run as root of the host, outside containers",
        },
    ]
}

fn lsm() -> Result<(), KernelError> {
    let types = AyaBtf::from_sys_fs().map_err(|error| KernelError::Maps(Box::new(error.into())))?;
    let mut ebpf = object()?;
    let hook = "inode_readlink";
    attach(
        &mut ebpf,
        "probe_lsm",
        Attach::Lsm(hook),
        |program| match program {
            Program::Lsm(program) => Some(program.load(hook, &types)),
            _ => None,
        },
    )
}

fn cgroup() -> Result<(), KernelError> {
    let mut ebpf = object()?;
    attach(
        &mut ebpf,
        "probe_cgroup",
        Attach::Sock,
        |program| match program {
            Program::CgroupSock(program) => Some(program.load()),
            _ => None,
        },
    )
}

/// Attached until the object is dropped.
fn attach(
    ebpf: &mut Ebpf,
    name: &'static str,
    to: Attach,
    load: impl FnOnce(&mut Program) -> Option<Result<(), aya::programs::ProgramError>>,
) -> Result<(), KernelError> {
    let program = ebpf.program_mut(name).ok_or(KernelError::Object(name))?;
    load(program)
        .ok_or(KernelError::Object(name))?
        .map_err(|error| KernelError::load(name, error))?;
    programs::link(program, to, root()?)
        .map(drop)
        .map_err(|source| KernelError::Attach {
            program: name,
            source,
        })
}

fn object() -> Result<Ebpf, KernelError> {
    EbpfLoader::new()
        .load(OBJECT)
        .map_err(|error| KernelError::Maps(Box::new(error)))
}

/// The root of the cgroup2 hierarchy.
fn root() -> Result<File, KernelError> {
    let failed = |source| KernelError::Attach {
        program: "probe_cgroup",
        source,
    };
    let hierarchy = Hierarchy::find().map_err(|error| failed(error.into()))?;
    File::open(hierarchy.path()).map_err(|error| failed(error.into()))
}

impl Probe {
    /// Why it failed, on one line, without the verifier's log.
    pub fn detail(&self) -> Option<String> {
        let Chain { message, .. } = Chain::of(self.outcome.as_ref().err()?);
        Some(message.lines().next().unwrap_or_default().to_owned())
    }
}
