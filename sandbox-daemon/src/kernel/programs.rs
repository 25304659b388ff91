//! The programs: which there are, loading and attaching them.

use std::{error::Error, os::fd::AsFd};

use aya::{
    Btf as AyaBtf, Ebpf,
    programs::{CgroupAttachMode, CgroupSkbAttachType, Program, ProgramError, links::FdLink},
};

use super::{KernelError, btf::Btf};

/// Without it, what is missing?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The boundary: the daemon refuses to start.
    Required,
    /// A road that only some kernels have: loaded where the kernel has it.
    Optional,
}

/// One side of the boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wall {
    /// What may be read and written.
    Files,
    /// What may be reached.
    Network,
    /// Other processes, privileges, the rest of the kernel.
    Scope,
}

/// Where a program goes.
#[derive(Clone, Copy)]
pub(super) enum Attach {
    Lsm(&'static str),
    Sock,
    SockAddr,
    SockOps,
    Skb(CgroupSkbAttachType),
}

/// A program and the hook that it goes to.
struct Entry {
    program: &'static str,
    attach: Attach,
    class: Class,
}

const fn lsm(program: &'static str) -> Entry {
    Entry {
        program,
        attach: Attach::Lsm(program),
        class: Class::Required,
    }
}

/// A hook that only some kernels have.
const fn newer(program: &'static str) -> Entry {
    Entry {
        program,
        attach: Attach::Lsm(program),
        class: Class::Optional,
    }
}

const fn cgroup(program: &'static str, attach: Attach) -> Entry {
    Entry {
        program,
        attach,
        class: Class::Required,
    }
}

const FILES: &[Entry] = &[
    lsm("file_open"),
    lsm("path_truncate"),
    // 6.2 took ftruncate(2) and O_TRUNC from path_truncate.
    newer("file_truncate"),
    lsm("inode_create"),
    lsm("inode_mkdir"),
    lsm("inode_mknod"),
    lsm("inode_symlink"),
    lsm("inode_link"),
    lsm("inode_unlink"),
    lsm("inode_rmdir"),
    lsm("inode_rename"),
    // 6.2 gave it a leading argument; `superseded` picks one of the two.
    lsm("inode_setattr"),
    Entry {
        program: "inode_setattr_idmap",
        attach: Attach::Lsm("inode_setattr"),
        class: Class::Required,
    },
    lsm("inode_getattr"),
    lsm("inode_readlink"),
    lsm("inode_setxattr"),
    lsm("inode_removexattr"),
    // 6.2 took ACLs from inode_setxattr.
    newer("inode_set_acl"),
    newer("inode_remove_acl"),
    lsm("inode_getxattr"),
    lsm("inode_listxattr"),
    newer("inode_get_acl"),
    newer("inode_file_setattr"),
    lsm("file_receive"),
    lsm("file_ioctl"),
    // Without it, a program calls as a 32-bit one would.
    lsm("file_ioctl_compat"),
    lsm("file_fcntl"),
    lsm("path_notify"),
];

const NETWORK: &[Entry] = &[
    cgroup("connect4", Attach::SockAddr),
    cgroup("connect6", Attach::SockAddr),
    cgroup("sendmsg4", Attach::SockAddr),
    cgroup("sendmsg6", Attach::SockAddr),
    cgroup("recvmsg4", Attach::SockAddr),
    cgroup("recvmsg6", Attach::SockAddr),
    cgroup("getpeername4", Attach::SockAddr),
    cgroup("getpeername6", Attach::SockAddr),
    cgroup("sock_state", Attach::SockOps),
    cgroup("sock_release", Attach::Sock),
    cgroup("bind4", Attach::SockAddr),
    cgroup("bind6", Attach::SockAddr),
    cgroup("egress", Attach::Skb(CgroupSkbAttachType::Egress)),
    cgroup("ingress", Attach::Skb(CgroupSkbAttachType::Ingress)),
    lsm("socket_create"),
    lsm("socket_connect"),
    lsm("socket_bind"),
    lsm("socket_listen"),
    lsm("unix_stream_connect"),
    lsm("unix_may_send"),
];

const SCOPE: &[Entry] = &[
    // Other processes.
    lsm("task_alloc"),
    lsm("task_kill"),
    lsm("ptrace_access_check"),
    lsm("ptrace_traceme"),
    lsm("task_setnice"),
    lsm("task_setioprio"),
    lsm("task_setscheduler"),
    lsm("task_setrlimit"),
    // System V objects. Without the hooks that free them, what is known of them
    // is corrected when their addresses are used again.
    lsm("shm_alloc_security"),
    newer("shm_free_security"),
    lsm("sem_alloc_security"),
    newer("sem_free_security"),
    lsm("msg_queue_alloc_security"),
    newer("msg_queue_free_security"),
    lsm("ipc_permission"),
    lsm("shm_shmctl"),
    lsm("sem_semctl"),
    lsm("msg_queue_msgctl"),
    // Privileges and the kernel.
    lsm("capable"),
    lsm("userns_create"),
    lsm("inode_init_security_anon"),
    // 6.18 asks before anything is made.
    newer("uring_allowed"),
    // Of a ring that came from outside.
    lsm("uring_override_creds"),
    lsm("uring_sqpoll"),
    lsm("uring_cmd"),
    lsm("key_alloc"),
    lsm("key_permission"),
    lsm("bpf"),
    lsm("perf_event_open"),
    lsm("syslog"),
    lsm("kernel_module_request"),
    lsm("quotactl"),
    // Mounts.
    lsm("sb_mount"),
    lsm("move_mount"),
    lsm("sb_pivotroot"),
    lsm("sb_kern_mount"),
    lsm("sb_remount"),
    lsm("sb_umount"),
    lsm("path_chroot"),
];

const WALLS: [(Wall, &[Entry]); 3] = [
    (Wall::Files, FILES),
    (Wall::Network, NETWORK),
    (Wall::Scope, SCOPE),
];

fn entries() -> impl Iterator<Item = (Wall, &'static Entry)> {
    WALLS
        .into_iter()
        .flat_map(|(wall, entries)| entries.iter().map(move |entry| (wall, entry)))
}

/// A hook as `GetInfo` shows it.
#[derive(Clone, Debug)]
pub struct HookState {
    /// `file_open`, `connect4`, ...
    pub name: String,
    /// What it is a part of.
    pub wall: Wall,
    /// `lsm` or `cgroup`.
    pub kind: &'static str,
    /// Whether it is in force.
    pub loaded: bool,
    /// See [`Class`].
    pub class: Class,
    /// What the verifier walked through; from 5.16 on.
    pub verified_instructions: u32,
}

/// Attached programs: their links, by program, and what to show of them.
pub(super) struct Attached {
    pub links: Vec<(&'static str, FdLink)>,
    pub hooks: Vec<HookState>,
}

/// Loads every program that this kernel has a hook for.
pub(super) fn load(ebpf: &mut Ebpf, btf: &Btf, types: &AyaBtf) -> Result<(), KernelError> {
    for (_, entry) in entries().filter(|(_, entry)| applies(entry, btf)) {
        let program = program(ebpf, entry)?;
        match (program, entry.attach) {
            (Program::Lsm(program), Attach::Lsm(hook)) => program.load(hook, types),
            (Program::CgroupSockAddr(program), Attach::SockAddr) => program.load(),
            (Program::CgroupSock(program), Attach::Sock) => program.load(),
            (Program::SockOps(program), Attach::SockOps) => program.load(),
            (Program::CgroupSkb(program), Attach::Skb(_)) => program.load(),
            _ => return Err(KernelError::Object(entry.program)),
        }
        .map_err(|error| KernelError::load(entry.program, error))?;
    }
    Ok(())
}

/// Attaches them, the cgroup ones to the parent of all sandboxes.
pub(super) fn attach(
    ebpf: &mut Ebpf,
    btf: &Btf,
    slice: impl AsFd,
) -> Result<Attached, KernelError> {
    let mut attached = Attached {
        links: Vec::new(),
        hooks: Vec::new(),
    };
    for (wall, entry) in entries() {
        let loaded = applies(entry, btf);
        if !loaded {
            if !superseded(entry, btf) {
                attached.hooks.push(state(wall, entry, None));
            }
            continue;
        }
        let program = program(ebpf, entry)?;
        attached.hooks.push(state(
            wall,
            entry,
            program
                .info()
                .ok()
                .and_then(|info| info.verified_instruction_count())
                .or(Some(0)),
        ));
        let link = link(program, entry.attach, &slice).map_err(|source| KernelError::Attach {
            program: entry.program,
            source,
        })?;
        attached.links.push((entry.program, link));
    }
    Ok(attached)
}

pub(super) fn link(
    program: &mut Program,
    attach: Attach,
    slice: impl AsFd,
) -> Result<FdLink, Box<dyn Error + Send + Sync>> {
    // A link on a cgroup is of the kind "multi" whatever the mode says, and the
    // kernel refuses any other mode for links.
    let mode = CgroupAttachMode::Single;
    Ok(match program {
        Program::Lsm(program) => {
            let id = program.attach()?;
            program.take_link(id)?.into()
        }
        Program::CgroupSock(program) => {
            let id = program.attach(slice, mode)?;
            program.take_link(id)?.try_into()?
        }
        Program::SockOps(program) => {
            let id = program.attach(slice, mode)?;
            program.take_link(id)?.try_into()?
        }
        Program::CgroupSockAddr(program) => {
            let id = program.attach(slice, mode)?;
            program.take_link(id)?.try_into()?
        }
        Program::CgroupSkb(program) => {
            let Attach::Skb(direction) = attach else {
                return Err(ProgramError::UnexpectedProgramType.into());
            };
            let id = program.attach(slice, direction, mode)?;
            program.take_link(id)?.try_into()?
        }
        _ => return Err(ProgramError::UnexpectedProgramType.into()),
    })
}

fn program<'a>(ebpf: &'a mut Ebpf, entry: &Entry) -> Result<&'a mut Program, KernelError> {
    ebpf.program_mut(entry.program)
        .ok_or(KernelError::Object(entry.program))
}

/// Whether a program goes to a hook of this kernel.
fn applies(entry: &Entry, btf: &Btf) -> bool {
    match entry.attach {
        Attach::Lsm(hook) => {
            (entry.class == Class::Required || btf.has_hook(hook)) && !superseded(entry, btf)
        }
        _ => true,
    }
}

/// Whether the other of two variants serves this kernel.
fn superseded(entry: &Entry, btf: &Btf) -> bool {
    let idmap = btf.hook_arity("inode_setattr") == Some(3);
    match entry.program {
        "inode_setattr" => idmap,
        "inode_setattr_idmap" => !idmap,
        _ => false,
    }
}

fn state(wall: Wall, entry: &Entry, verified: Option<u32>) -> HookState {
    let (name, kind) = match entry.attach {
        Attach::Lsm(hook) => (hook, "lsm"),
        _ => (entry.program, "cgroup"),
    };
    HookState {
        name: name.into(),
        wall,
        kind,
        loaded: verified.is_some(),
        class: entry.class,
        verified_instructions: verified.unwrap_or(0),
    }
}
