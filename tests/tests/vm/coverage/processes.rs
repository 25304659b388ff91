//! What is done to processes: to others, and to oneself.

use libc::{AT_EMPTY_PATH, AT_FDCWD, O_RDONLY, O_RDWR, O_WRONLY, SIGUSR1};

use super::{
    call::{Window, actions, descriptor, sys},
    make::{self, FILE, this, victim},
};

const PIDFD_GETFD_TARGET: i32 = 0;
const KCMP_FILE: i32 = 0;

actions! {
    "execve" => |window| {
        make::executable("file", &make::program());
        window.watch(|| execute(AT_FDCWD, FILE, 0))
    },
    "execve of a script" => |window| {
        make::executable("program", &make::program());
        make::executable("file", b"#!program\n");
        window.watch(|| execute(AT_FDCWD, FILE, 0))
    },
    "execve of what is in memory" => |window| {
        let memory = descriptor(sys!(SYS_memfd_create, c"memory", 0)?);
        let program = make::program();
        sys!(SYS_write, &memory, program.as_slice(), program.len())?;
        window.watch(|| execute(std::os::fd::AsRawFd::as_raw_fd(&memory), c"", AT_EMPTY_PATH))
    },
    "execve of a setuid program" => |window| {
        make::executable("file", &make::program());
        sys!(SYS_chmod, FILE, 0o4755)?;
        sys!(SYS_setresuid, 1000, 1000, 1000)?;
        window.watch(|| execute(AT_FDCWD, FILE, 0))
    },
    "fork" => |window| {
        window.watch(|| {
            let child = sys!(SYS_clone, libc::SIGCHLD, 0, 0, 0, 0)?;
            if child == 0 {
                sys!(SYS_exit_group, 0)?;
            }
            sys!(SYS_wait4, child, 0, 0, 0)
        })
    },
    "unshare the user namespace" => |window| unshared(window, libc::CLONE_NEWUSER),
    "unshare mounts" => |window| unshared(window, libc::CLONE_NEWNS),
    "unshare the network" => |window| unshared(window, libc::CLONE_NEWNET),
    "unshare process ids" => |window| unshared(window, libc::CLONE_NEWPID),
    "unshare IPC" => |window| unshared(window, libc::CLONE_NEWIPC),
    "unshare the host's name" => |window| unshared(window, libc::CLONE_NEWUTS),
    "unshare cgroups" => |window| unshared(window, libc::CLONE_NEWCGROUP),
    "setns to another's mounts" => |window| joined(window, c"/proc/1/ns/mnt"),
    "setns to another's network" => |window| joined(window, c"/proc/1/ns/net"),
    "setns to another's cgroups" => |window| joined(window, c"/proc/1/ns/cgroup"),
    "setns to a process" => |window| {
        let other = descriptor(sys!(SYS_pidfd_open, 1, 0)?);
        window.watch(|| sys!(SYS_setns, &other, libc::CLONE_NEWNS))
    },
    "open a namespace of another" => |window| {
        window.watch(|| sys!(SYS_openat, AT_FDCWD, c"/proc/1/ns/mnt", O_RDONLY))
    },

    "ptrace attach" => |window| {
        let other = victim();
        window.watch(|| sys!(SYS_ptrace, libc::PTRACE_ATTACH, other.pid(), 0, 0))
    },
    "ptrace seize" => |window| {
        let other = victim();
        window.watch(|| sys!(SYS_ptrace, libc::PTRACE_SEIZE, other.pid(), 0, 0))
    },
    "ptrace by the parent" => |window| {
        window.watch(|| sys!(SYS_ptrace, libc::PTRACE_TRACEME, 0, 0, 0))
    },
    "process_vm_readv" => |window| {
        let page = make::page();
        let other = victim();
        window.watch(|| memory(&other, page, libc::SYS_process_vm_readv))
    },
    "process_vm_writev" => |window| {
        let page = make::page();
        let other = victim();
        window.watch(|| memory(&other, page, libc::SYS_process_vm_writev))
    },
    "open another's memory" => |window| opened(window, "mem", O_RDWR),
    "read another's environment" => |window| read(window, "environ"),
    "read another's command line" => |window| read(window, "cmdline"),
    "read another's status" => |window| read(window, "status"),
    "read another's stat" => |window| read(window, "stat"),
    "read another's mappings" => |window| read(window, "maps"),
    "read another's system call" => |window| read(window, "syscall"),
    "read another's stack" => |window| read(window, "stack"),
    "read another's limits" => |window| read(window, "limits"),
    "read another's name" => |window| read(window, "comm"),
    "read another's mounts" => |window| read(window, "mountinfo"),
    "read another's auxiliary vector" => |window| read(window, "auxv"),
    "change another's name" => |window| opened(window, "comm", O_WRONLY),
    "change another's mapping of users" => |window| opened(window, "uid_map", O_WRONLY),
    "clear another's references" => |window| opened(window, "clear_refs", O_WRONLY),
    "change another's OOM score" => |window| opened(window, "oom_score_adj", O_WRONLY),
    "list another's descriptors" => |window| opened(window, "fd", O_RDONLY),
    "open another's descriptor" => |window| {
        let _file = make::opened(O_RDONLY);
        opened(window, "fd/0", O_RDONLY)
    },
    "open another's root" => |window| opened(window, "root", O_RDONLY),
    "open another's working directory" => |window| opened(window, "cwd", O_RDONLY),
    "open another's program" => |window| opened(window, "exe", O_RDONLY),
    "read where another's program lies" => |window| {
        let other = victim();
        let link = other.in_proc("exe");
        let mut target = [0_u8; 256];
        window.watch(|| {
            sys!(SYS_readlink, link.as_c_str(), target.as_mut_ptr(), target.len())
        })
    },
    "pidfd_open" => |window| {
        let other = victim();
        window.watch(|| sys!(SYS_pidfd_open, other.pid(), 0))
    },
    "pidfd_getfd" => |window| {
        let other = victim();
        let descriptor = other.descriptor();
        window.watch(|| sys!(SYS_pidfd_getfd, &descriptor, PIDFD_GETFD_TARGET, 0))
    },
    "kcmp" => |window| {
        let other = victim();
        window.watch(|| sys!(SYS_kcmp, this(), other.pid(), KCMP_FILE, 0, 0))
    },
    "get_robust_list" => |window| {
        let other = victim();
        let (mut head, mut length) = (0_usize, 0_usize);
        window.watch(|| {
            sys!(SYS_get_robust_list, other.pid(), &raw mut head, &raw mut length)
        })
    },

    "kill" => |window| {
        let other = victim();
        window.watch(|| sys!(SYS_kill, other.pid(), SIGUSR1))
    },
    "kill with signal 0" => |window| {
        let other = victim();
        window.watch(|| sys!(SYS_kill, other.pid(), 0))
    },
    "kill a group" => |window| {
        let other = victim();
        sys!(SYS_setpgid, other.pid(), other.pid())?;
        window.watch(|| sys!(SYS_kill, -other.pid(), SIGUSR1))
    },
    "kill oneself" => |window| window.watch(|| sys!(SYS_kill, this(), 0)),
    "tgkill" => |window| {
        let other = victim();
        window.watch(|| sys!(SYS_tgkill, other.pid(), other.pid(), SIGUSR1))
    },
    "rt_sigqueueinfo" => |window| {
        let other = victim();
        let mut info = [0_i32; 32];
        (info[0], info[2]) = (SIGUSR1, libc::SI_QUEUE);
        window.watch(|| sys!(SYS_rt_sigqueueinfo, other.pid(), SIGUSR1, info.as_ptr()))
    },
    "pidfd_send_signal" => |window| {
        let other = victim();
        let descriptor = other.descriptor();
        window.watch(|| sys!(SYS_pidfd_send_signal, &descriptor, SIGUSR1, 0, 0))
    },
    "F_SETOWN to another" => |window| {
        let other = victim();
        let (read, _write) = make::pipe();
        window.watch(|| sys!(SYS_fcntl, &read, libc::F_SETOWN, other.pid()))
    },
    "a signal by F_SETOWN" => |window| {
        let other = victim();
        let (read, write) = make::pipe();
        sys!(SYS_fcntl, &read, libc::F_SETOWN, other.pid())?;
        sys!(SYS_fcntl, &read, make::F_SETSIG, SIGUSR1)?;
        sys!(SYS_fcntl, &read, libc::F_SETFL, libc::O_ASYNC)?;
        window.watch(|| sys!(SYS_write, &write, c"x", 1))
    },
    "FIOSETOWN to another" => |window| {
        let other = victim();
        let (socket, _peer) = make::pair();
        let pid = other.pid();
        window.watch(|| sys!(SYS_ioctl, &socket, make::FIOSETOWN, &raw const pid))
    },
    "process_mrelease" => |window| {
        let other = victim();
        let descriptor = other.descriptor();
        window.watch(|| sys!(SYS_process_mrelease, &descriptor, 0))
    },
    "process_madvise" => |window| {
        let range = [make::page(), 4096];
        let other = victim();
        let descriptor = other.descriptor();
        window.watch(|| {
            sys!(SYS_process_madvise, &descriptor, range.as_ptr(), 1, libc::MADV_COLD, 0)
        })
    },
    "move_pages" => |window| {
        let (page, mut status) = (make::page(), 0_i32);
        let other = victim();
        window.watch(|| {
            sys!(SYS_move_pages, other.pid(), 1, &raw const page, 0, &raw mut status, 0)
        })
    },
    "migrate_pages" => |window| {
        let other = victim();
        let nodes = 1_u64;
        window.watch(|| {
            sys!(SYS_migrate_pages, other.pid(), 64, &raw const nodes, &raw const nodes)
        })
    },

    "prlimit of another" => |window| {
        let other = victim();
        let limit = [1024_u64, 1024];
        window.watch(|| {
            sys!(SYS_prlimit64, other.pid(), libc::RLIMIT_NOFILE, limit.as_ptr(), 0)
        })
    },
    "read another's limits by prlimit" => |window| {
        let other = victim();
        let mut limit = [0_u64; 2];
        window.watch(|| {
            sys!(SYS_prlimit64, other.pid(), libc::RLIMIT_NOFILE, 0, limit.as_mut_ptr())
        })
    },
    "setrlimit" => |window| {
        let limit = [1024_u64, 1024];
        window.watch(|| sys!(SYS_setrlimit, libc::RLIMIT_NOFILE, limit.as_ptr()))
    },
    "setpriority of another" => |window| {
        let other = victim();
        window.watch(|| sys!(SYS_setpriority, libc::PRIO_PROCESS, other.pid(), 5))
    },
    "ioprio_set of another" => |window| {
        let other = victim();
        window.watch(|| sys!(SYS_ioprio_set, 1, other.pid(), 2 << 13 | 4))
    },
    "ioprio_get of another" => |window| {
        let other = victim();
        window.watch(|| sys!(SYS_ioprio_get, 1, other.pid()))
    },
    "sched_setscheduler of another" => |window| {
        let other = victim();
        let priority = 0_i32;
        window.watch(|| {
            sys!(SYS_sched_setscheduler, other.pid(), libc::SCHED_BATCH, &raw const priority)
        })
    },
    "sched_getscheduler of another" => |window| {
        let other = victim();
        window.watch(|| sys!(SYS_sched_getscheduler, other.pid()))
    },
    "sched_setaffinity of another" => |window| {
        let other = victim();
        let processors = 1_u64;
        window.watch(|| sys!(SYS_sched_setaffinity, other.pid(), 8, &raw const processors))
    },
    "setpgid of a child" => |window| {
        let other = victim();
        window.watch(|| sys!(SYS_setpgid, other.pid(), 0))
    },
    "getpgid of another" => |window| {
        let other = victim();
        window.watch(|| sys!(SYS_getpgid, other.pid()))
    },
    "getsid of another" => |window| {
        let other = victim();
        window.watch(|| sys!(SYS_getsid, other.pid()))
    },
    "setsid" => |window| window.watch(|| sys!(SYS_setsid)),

    "prctl that names" => |window| {
        window.watch(|| sys!(SYS_prctl, libc::PR_SET_NAME, c"name"))
    },
    "prctl that drops a capability" => |window| {
        window.watch(|| sys!(SYS_prctl, libc::PR_CAPBSET_DROP, 21))
    },
    "prctl that moves the program" => |window| {
        let file = make::opened(O_RDONLY);
        let what = libc::PR_SET_MM_EXE_FILE;
        window.watch(|| sys!(SYS_prctl, libc::PR_SET_MM, what, &file, 0, 0))
    },
    "capget of another" => |window| {
        let other = victim();
        let header = [0x2008_0522_u32, other.pid().cast_unsigned()];
        let mut sets = [0_u32; 6];
        window.watch(|| sys!(SYS_capget, header.as_ptr(), sets.as_mut_ptr()))
    },
    "capset" => |window| {
        let header = [0x2008_0522_u32, 0];
        let sets = [0_u32; 6];
        window.watch(|| sys!(SYS_capset, header.as_ptr(), sets.as_ptr()))
    },
    "setuid" => |window| window.watch(|| sys!(SYS_setuid, 1000)),
    "setgid" => |window| window.watch(|| sys!(SYS_setgid, 1000)),
    "setgroups" => |window| {
        let groups = [1000_u32];
        window.watch(|| sys!(SYS_setgroups, 1, groups.as_ptr()))
    },
    "seccomp" => |window| {
        let program = [0x7fff_0000_0000_0006_u64]; // return SECCOMP_RET_ALLOW
        let filter = [1_usize, program.as_ptr().expose_provenance()];
        let how = libc::SECCOMP_SET_MODE_FILTER;
        window.watch(|| sys!(SYS_seccomp, how, 0, filter.as_ptr()))
    },
    "wait for a child" => |window| {
        let other = victim();
        let mut info = make::room::<libc::siginfo_t>();
        let how = libc::WEXITED | libc::WNOHANG;
        window.watch(|| {
            sys!(SYS_waitid, libc::P_PID, other.pid(), info.as_mut_ptr(), how, 0)
        })
    },
}

fn execute(directory: i32, path: &std::ffi::CStr, flags: i32) -> nix::Result<i64> {
    let none = 0_usize;
    let arguments = [c"program".as_ptr().expose_provenance(), 0];
    sys!(
        SYS_execveat,
        directory,
        path,
        arguments.as_ptr(),
        &raw const none,
        flags
    )
}

fn unshared(window: Window, what: i32) -> nix::Result<()> {
    window.watch(|| sys!(SYS_unshare, what))
}

/// Opened before, so that only the joining is seen.
fn joined(window: Window, namespace: &std::ffi::CStr) -> nix::Result<()> {
    let namespace = descriptor(sys!(SYS_openat, AT_FDCWD, namespace, O_RDONLY)?);
    window.watch(|| sys!(SYS_setns, &namespace, 0))
}

/// Copies a page of another's, which has it at the same place.
fn memory(other: &make::Victim, page: usize, number: libc::c_long) -> nix::Result<i64> {
    let range = [page, 16];
    let range = range.as_ptr().expose_provenance();
    let pid = other.pid().unsigned_abs() as usize;
    super::call::call(number, &[pid, range, 1, range, 1, 0])
}

fn opened(window: Window, name: &str, flags: i32) -> nix::Result<()> {
    let other = victim();
    let path = other.in_proc(name);
    window.watch(|| sys!(SYS_openat, AT_FDCWD, path.as_c_str(), flags))
}

fn read(window: Window, name: &str) -> nix::Result<()> {
    let other = victim();
    let path = other.in_proc(name);
    let mut bytes = [0_u8; 256];
    window.watch(|| {
        let file = sys!(SYS_openat, AT_FDCWD, path.as_c_str(), O_RDONLY)?;
        sys!(SYS_read, file, bytes.as_mut_ptr(), bytes.len())
    })
}
