//! What the proxy takes from itself: everything but to talk over sockets. Who
//! takes it over has no files, no programs, no other processes.

use std::collections::BTreeMap;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _,
    RulesetStatus, Scope,
};
use nix::{
    errno::Errno,
    sys::{
        prctl,
        resource::{Resource, getrlimit, setrlimit},
    },
    unistd::{Uid, getresuid},
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// What cannot be taken away.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// It was not started as it has to be.
    #[error("the proxy does not run as root")]
    Root,
    /// A setting of the process.
    #[error("cannot set {0}")]
    Setting(&'static str, #[source] Errno),
    /// This kernel has no Landlock, or it is not enabled.
    #[error("this kernel does not enforce Landlock (`lsm=` has to name it)")]
    NoLandlock,
    /// Landlock refuses.
    #[error("cannot confine by Landlock")]
    Landlock(#[from] landlock::RulesetError),
    /// The filters are wrong, for this architecture perhaps.
    #[error("cannot build the filters of system calls")]
    Build(#[from] seccompiler::BackendError),
    /// The kernel refuses them.
    #[error("cannot put the filters of system calls in force")]
    Filter(#[from] seccompiler::Error),
}

/// Takes away privileges and files. Before there are threads: it is about the
/// calling one, and those that it starts.
///
/// # Errors
/// See [`ConfineError`].
pub fn begin() -> Result<(), ConfineError> {
    let ids = getresuid().map_err(|error| ConfineError::Setting("who it is", error))?;
    if [ids.real, ids.effective, ids.saved].contains(&Uid::from_raw(0)) {
        return Err(ConfineError::Root);
    }
    // Every connection takes two descriptors; the daemon says how many there may
    // be.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)
        .map_err(|error| ConfineError::Setting("the number of descriptors", error))?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)
        .map_err(|error| ConfineError::Setting("the number of descriptors", error))?;
    setrlimit(Resource::RLIMIT_CORE, 0, 0)
        .map_err(|error| ConfineError::Setting("that there is no core dump", error))?;
    prctl::set_dumpable(false)
        .map_err(|error| ConfineError::Setting("that nobody looks into it", error))?;
    prctl::set_no_new_privs()
        .map_err(|error| ConfineError::Setting("that it gains no privileges", error))?;
    files()
}

/// No file and no port: what it uses it has.
fn files() -> Result<(), ConfineError> {
    // Linux 5.19, which the oldest supported kernel has; what is newer is taken
    // where it is there: binding TCP since 6.7, devices since 6.10, abstract sockets and signals
    // since 6.12.
    let status = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(ABI::V2))?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(ABI::V5))?
        .handle_access(AccessNet::BindTcp)?
        .scope(Scope::from_all(ABI::V6))?
        .create()?
        .restrict_self()?;
    match status.ruleset {
        RulesetStatus::NotEnforced => Err(ConfineError::NoLandlock),
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
    }
}

/// Takes away all system calls but those that serving takes, from every thread.
///
/// # Errors
/// See [`ConfineError`].
pub fn finish() -> Result<(), ConfineError> {
    // Where filters disagree the stricter action counts.
    for filter in [gentle()?, allowed()?] {
        seccompiler::apply_filter_all_threads(&filter)?;
    }
    Ok(())
}

/// include/uapi/linux/bpf.h
const BPF_MAP_LOOKUP_ELEM: u64 = 1;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn filter(
    rules: Rules,
    otherwise: SeccompAction,
    matched: SeccompAction,
) -> Result<BpfProgram, ConfineError> {
    let arch = std::env::consts::ARCH.try_into()?;
    Ok(SeccompFilter::new(rules, otherwise, matched, arch)?.try_into()?)
}

/// Calls that libraries make in passing, and go on without: the C library starts
/// threads by clone(2) where there is no clone3(2), whose flags a filter cannot
/// see, and it does without the files that it looks at.
const GENTLE: &[i64] = &[
    libc::SYS_clone3,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    libc::SYS_openat,
];

fn gentle() -> Result<BpfProgram, ConfineError> {
    let rules = GENTLE.iter().map(|call| (*call, vec![])).collect();
    let action = SeccompAction::Errno((Errno::ENOSYS as i32).cast_unsigned());
    filter(rules, SeccompAction::Allow, action)
}

fn allowed() -> Result<BpfProgram, ConfineError> {
    let calls = ALLOWED.iter().chain(GENTLE);
    let mut rules: Rules = calls.map(|call| (*call, vec![])).collect();
    rules.insert(libc::SYS_bpf, one_of(0, &[BPF_MAP_LOOKUP_ELEM])?);
    let families = [libc::AF_INET, libc::AF_INET6];
    rules.insert(libc::SYS_socket, one_of(0, &families.map(word))?);
    let threads = word(libc::CLONE_THREAD | libc::CLONE_VM | libc::CLONE_SIGHAND);
    rules.insert(libc::SYS_clone, masked(0, threads, threads)?);
    let exec = word(libc::PROT_EXEC);
    rules.insert(libc::SYS_mmap, masked(2, exec, 0)?);
    rules.insert(libc::SYS_mprotect, masked(2, exec, 0)?);
    let commands = [
        libc::F_GETFD,
        libc::F_SETFD,
        libc::F_GETFL,
        libc::F_SETFL,
        libc::F_DUPFD_CLOEXEC,
        libc::F_SETPIPE_SZ,
    ];
    rules.insert(libc::SYS_fcntl, one_of(1, &commands.map(word))?);
    // The names of threads and of memory.
    let settings = [word(libc::PR_SET_NAME), word(libc::PR_SET_VMA)];
    rules.insert(libc::SYS_prctl, one_of(0, &settings)?);
    rules.insert(libc::SYS_ioctl, one_of(1, &[libc::FIONBIO])?);
    filter(rules, SeccompAction::KillProcess, SeccompAction::Allow)
}

/// Calls that may have any arguments.
const ALLOWED: &[i64] = &[
    // sockets and pipes
    libc::SYS_accept4,
    libc::SYS_bind, // UDP; TCP by Landlock where it can
    libc::SYS_connect,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_pipe2,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    libc::SYS_splice,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_close,
    // waiting
    libc::SYS_clock_nanosleep,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    libc::SYS_eventfd2,
    libc::SYS_futex,
    libc::SYS_nanosleep,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_restart_syscall,
    libc::SYS_sched_yield,
    // memory
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    // threads
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_set_robust_list,
    libc::SYS_sigaltstack,
    // time and chance
    libc::SYS_clock_gettime,
    libc::SYS_getrandom,
    libc::SYS_gettimeofday,
];

fn one_of(argument: u8, values: &[u64]) -> Result<Vec<SeccompRule>, ConfineError> {
    let mut rules = Vec::new();
    for value in values {
        rules.push(rule(argument, SeccompCmpOp::Eq, *value)?);
    }
    Ok(rules)
}

fn masked(argument: u8, mask: u64, value: u64) -> Result<Vec<SeccompRule>, ConfineError> {
    Ok(vec![rule(argument, SeccompCmpOp::MaskedEq(mask), value)?])
}

fn rule(argument: u8, operator: SeccompCmpOp, value: u64) -> Result<SeccompRule, ConfineError> {
    // The kernel takes these arguments as 32 bits.
    let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)?;
    Ok(SeccompRule::new(vec![condition])?)
}

fn word(value: i32) -> u64 {
    value.cast_unsigned().into()
}
