//! Attacks on other processes, and through what processes share.

use std::{
    ffi::OsStr,
    fs::File,
    io::{IoSlice, IoSliceMut, Write as _},
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
    process, ptr, thread,
    time::Duration,
};

use libc::{c_int, c_long, c_uint, c_ulong, pid_t};
use nix::{
    errno::Errno,
    sys::{
        signal::{self, Signal},
        uio::{RemoteIoVec, process_vm_readv, process_vm_writev},
        wait::waitpid,
    },
    unistd::{ForkResult, Pid, fork, getpid, pause},
};

use super::{Found, number, text};

const NONE: Result<String, Errno> = Ok(String::new());

/// What a victim is read and written at.
static mut SECRET: [u8; 8] = *b"secret!\n";

pub(super) fn perform(operation: &str, arguments: &[&OsStr]) -> Option<Found> {
    Some(match (operation, arguments) {
        ("victim", []) => victim(),
        ("ptrace-attach", [pid]) => attach(number(pid)),
        ("ptrace-seize", [pid]) => trace(libc::PTRACE_SEIZE, number(pid)),
        ("trace-me", []) => trace(libc::PTRACE_TRACEME, 0),
        ("trace-child", []) => trace_child(),
        ("vm-read", [pid, address]) => vm_read(number(pid), number(address)),
        ("vm-write", [pid, address]) => vm_write(number(pid), number(address)),
        ("get-descriptor", [pid]) => get_descriptor(number(pid)),
        ("enter-namespace", [pid]) => enter_namespace(number(pid)),
        ("kcmp", [pid]) => call(libc::SYS_kcmp, [getpid().as_raw().into(), id(pid), 1, 0, 0]),
        ("madvise", [pid, address]) => advise(number(pid), number(address)),
        ("robust-list", [pid]) => {
            let (mut head, mut size) = (0_u64, 0_u64);
            let [head, size] = [&raw mut head, &raw mut size].map(|it| it as c_long);
            call(libc::SYS_get_robust_list, [id(pid), head, size, 0, 0])
        }
        ("move-pages", [pid]) => call(libc::SYS_move_pages, [id(pid), 0, 0, 0, 0]),
        ("kill", [pid, signal]) => kill(number(pid), number(signal)),
        ("tgkill", [pid, signal]) => call(libc::SYS_tgkill, [id(pid), id(pid), id(signal), 0, 0]),
        ("pidfd-signal", [pid, signal]) => pidfd(number(pid)).and_then(|process| {
            let arguments = [process.as_raw_fd().into(), id(signal), 0, 0, 0];
            call(libc::SYS_pidfd_send_signal, arguments)
        }),
        ("kill-group", [pid, signal]) => kill(-number::<pid_t>(pid), number(signal)),
        ("kill-all", [signal]) => kill(-1, number(signal)),
        ("kill-child", []) => kill_child(),
        ("priority", [pid]) => call(libc::SYS_setpriority, [0, id(pid), 5, 0, 0]),
        ("io-priority", [pid]) => call(libc::SYS_ioprio_set, [1, id(pid), 3 << 13, 0, 0]),
        ("scheduler", [pid]) => {
            let parameter = libc::sched_param { sched_priority: 0 };
            let parameter = (&raw const parameter) as c_long;
            let batch = libc::SCHED_BATCH.into();
            call(
                libc::SYS_sched_setscheduler,
                [id(pid), batch, parameter, 0, 0],
            )
        }
        ("affinity", [pid]) => {
            let mask = 1_u64;
            let mask = (&raw const mask) as c_long;
            call(libc::SYS_sched_setaffinity, [id(pid), 8, mask, 0, 0])
        }
        ("limit", [pid]) => limit(number(pid)),
        ("signal-owner", [pid, how]) => signal_owner(number(pid), text(how)),
        ("own-signals", []) => own_signals(),
        ("terminal-signals", []) => terminal_signals(false),
        ("terminal-signals-ioctl", []) => terminal_signals(true),
        ("shm-make", []) => own_shared_memory().map(|id| id.to_string()),
        ("shm-fill", [size]) => filled_memory(number(size)).map(|id| id.to_string()),
        ("shm-family", []) => shared_with_a_child(),
        ("shm-attach", [id]) => shm_attach(number(id)).and(NONE),
        ("shm-stat", [id]) => shm_control(number(id), libc::IPC_STAT),
        ("shm-remove", [id]) => shm_control(number(id), libc::IPC_RMID),
        ("queues", [limit]) => Ok(queues(number(limit))),
        ("shm-limits", []) => shm_control(0, 3),
        ("shm-get", [key]) => call(libc::SYS_shmget, [id(key), 0, 0, 0, 0]),
        ("sem-add", [id_]) => {
            let operation = libc::sembuf {
                sem_num: 0,
                sem_op: 1,
                sem_flg: 0,
            };
            let operation = (&raw const operation) as c_long;
            call(libc::SYS_semop, [id(id_), operation, 1, 0, 0])
        }
        ("sem-value", [id_]) => call(libc::SYS_semctl, [id(id_), 0, 12, 0, 0]),
        ("sem-remove", [id_]) => call(libc::SYS_semctl, [id(id_), 0, libc::IPC_RMID.into(), 0, 0]),
        ("queue-send", [id_]) => {
            let message = [1_u64, 0];
            let message = (&raw const message) as c_long;
            let wait = libc::IPC_NOWAIT.into();
            call(libc::SYS_msgsnd, [id(id_), message, 8, wait, 0])
        }
        ("queue-receive", [id_]) => {
            let mut message = [0_u64; 2];
            let message = (&raw mut message) as c_long;
            let wait = libc::IPC_NOWAIT.into();
            call(libc::SYS_msgrcv, [id(id_), message, 8, 0, wait])
        }
        ("queue-remove", [id_]) => {
            call(libc::SYS_msgctl, [id(id_), libc::IPC_RMID.into(), 0, 0, 0])
        }
        ("objects-family", []) => objects_family(),
        _ => return None,
    })
}

fn id(argument: &OsStr) -> c_long {
    number(argument)
}

fn call(number: c_long, arguments: [c_long; 5]) -> Found {
    raw(number, arguments).and(NONE)
}

fn raw(number: c_long, arguments: [c_long; 5]) -> Result<c_long, Errno> {
    let [first, second, third, fourth, fifth] = arguments;
    // SAFETY: pointers among the arguments are to live values of the caller's.
    Errno::result(unsafe { libc::syscall(number, first, second, third, fourth, fifth) })
}

/// Says where its secret is, and stays until it is killed.
fn victim() -> Found {
    let said = format!("{}\n", (&raw const SECRET) as usize);
    nix::unistd::write(std::io::stdout(), said.as_bytes())?;
    loop {
        pause();
    }
}

fn trace(request: c_uint, pid: pid_t) -> Found {
    call(libc::SYS_ptrace, [request.into(), pid.into(), 0, 0, 0])
}

fn attach(pid: pid_t) -> Found {
    trace(libc::PTRACE_ATTACH, pid)?;
    waitpid(Pid::from_raw(pid), None)?;
    trace(libc::PTRACE_DETACH, pid)
}

/// As debuggers and strace(1) do.
fn trace_child() -> Found {
    // SAFETY: this program has one thread.
    let child = match unsafe { fork() }? {
        ForkResult::Parent { child } => child,
        ForkResult::Child => {
            if trace(libc::PTRACE_TRACEME, 0).is_ok() {
                let _ = signal::raise(Signal::SIGSTOP);
            }
            loop {
                thread::sleep(Duration::from_secs(1));
            }
        }
    };
    waitpid(child, None)?;
    let secret = vm_read(child.as_raw(), (&raw const SECRET) as usize)?;
    File::open(format!("/proc/{child}/environ")).map_err(|error| super::errno(&error))?;
    kill(child.as_raw(), libc::SIGKILL)?;
    waitpid(child, None)?;
    Ok(secret)
}

fn vm_read(pid: pid_t, base: usize) -> Found {
    let mut secret = [0; 7];
    let remote = [RemoteIoVec { base, len: 7 }];
    process_vm_readv(
        Pid::from_raw(pid),
        &mut [IoSliceMut::new(&mut secret)],
        &remote,
    )?;
    Ok(String::from_utf8_lossy(&secret).into_owned())
}

fn vm_write(pid: pid_t, base: usize) -> Found {
    let remote = [RemoteIoVec { base, len: 7 }];
    process_vm_writev(Pid::from_raw(pid), &[IoSlice::new(b"secret!")], &remote).and(NONE)
}

fn pidfd(pid: pid_t) -> Result<OwnedFd, Errno> {
    let file = raw(libc::SYS_pidfd_open, [pid.into(), 0, 0, 0, 0])?;
    let file = RawFd::try_from(file).map_err(|_| Errno::EBADF)?;
    // SAFETY: pidfd_open(2) has made it.
    Ok(unsafe { OwnedFd::from_raw_fd(file) })
}

fn get_descriptor(pid: pid_t) -> Found {
    let process = pidfd(pid)?;
    let arguments = [process.as_raw_fd().into(), 1, 0, 0, 0];
    call(libc::SYS_pidfd_getfd, arguments)
}

fn enter_namespace(pid: pid_t) -> Found {
    let process = pidfd(pid)?;
    let flags = libc::CLONE_NEWUTS.into();
    call(
        libc::SYS_setns,
        [process.as_raw_fd().into(), flags, 0, 0, 0],
    )
}

fn advise(pid: pid_t, address: usize) -> Found {
    let process = pidfd(pid)?;
    let range = libc::iovec {
        iov_base: (address & !4095) as *mut _,
        iov_len: 4096,
    };
    let range = (&raw const range) as c_long;
    let advice = libc::MADV_COLD.into();
    call(
        libc::SYS_process_madvise,
        [process.as_raw_fd().into(), range, 1, advice, 0],
    )
}

fn kill(pid: pid_t, signal: c_int) -> Found {
    // SAFETY: no memory is involved.
    Errno::result(unsafe { libc::kill(pid, signal) }).and(NONE)
}

/// A child is a process of the same sandbox.
fn kill_child() -> Found {
    // SAFETY: this program has one thread.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => {
            kill(child.as_raw(), libc::SIGKILL)?;
            waitpid(child, None).and(NONE)
        }
        ForkResult::Child => loop {
            pause();
        },
    }
}

fn limit(pid: pid_t) -> Found {
    let mut old = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `old` is valid for a write.
    Errno::result(unsafe { libc::prlimit(pid, libc::RLIMIT_CORE, ptr::null(), &raw mut old) })?;
    // SAFETY: `old` is valid for a read.
    Errno::result(unsafe { libc::prlimit(pid, libc::RLIMIT_CORE, &raw const old, ptr::null_mut()) })
        .and(NONE)
}

const FIOSETOWN: c_ulong = 0x8901;
const SIOCSPGRP: c_ulong = 0x8902;

/// Has the kernel kill a process when a pipe can be read.
fn signal_owner(pid: pid_t, how: &str) -> Found {
    const F_SETSIG: c_int = 10;
    const F_SETOWN_EX: c_int = 15;
    let (reader, mut writer) =
        std::os::unix::net::UnixStream::pair().map_err(|error| super::errno(&error))?;
    let file = reader.as_raw_fd();
    // SAFETY: the descriptor is open, and pointers are to live values.
    unsafe {
        match how {
            "fcntl" => Errno::result(libc::fcntl(file, libc::F_SETOWN, pid))?,
            "group" => Errno::result(libc::fcntl(file, libc::F_SETOWN, -pid))?,
            "fcntl-ex" => {
                let owner = [1, pid];
                Errno::result(libc::fcntl(file, F_SETOWN_EX, &raw const owner))?
            }
            "fiosetown" => Errno::result(libc::ioctl(file, FIOSETOWN, &raw const pid))?,
            _ => Errno::result(libc::ioctl(file, SIOCSPGRP, &raw const pid))?,
        };
        Errno::result(libc::fcntl(file, F_SETSIG, libc::SIGKILL))?;
        Errno::result(libc::fcntl(file, libc::F_SETFL, libc::O_ASYNC))?;
    }
    writer
        .write_all(b"x")
        .map_err(|error| super::errno(&error))
        .and(NONE)
}

/// What a program that waits for input by signals does.
fn own_signals() -> Found {
    let (reader, mut writer) =
        std::os::unix::net::UnixStream::pair().map_err(|error| super::errno(&error))?;
    let file = reader.as_raw_fd();
    let mut wanted = signal::SigSet::empty();
    wanted.add(Signal::SIGIO);
    wanted.thread_block()?;
    // SAFETY: the descriptor is open.
    unsafe {
        let pid = pid_t::try_from(process::id()).map_err(|_| Errno::EINVAL)?;
        Errno::result(libc::fcntl(file, libc::F_SETOWN, pid))?;
        Errno::result(libc::fcntl(file, libc::F_SETFL, libc::O_ASYNC))?;
    }
    writer
        .write_all(b"x")
        .map_err(|error| super::errno(&error))?;
    wanted.wait().map(|signal| signal.to_string())
}

/// A terminal's signals go to the group in its foreground.
fn terminal_signals(by_ioctl: bool) -> Found {
    let terminal = nix::pty::openpty(None, None)?;
    let file = terminal.slave.as_raw_fd();
    let on: c_int = 1;
    // SAFETY: the descriptor is open, and `on` is valid for a read.
    let result = unsafe {
        if by_ioctl {
            libc::ioctl(file, libc::FIOASYNC, &raw const on)
        } else {
            libc::fcntl(file, libc::F_SETFL, libc::O_ASYNC)
        }
    };
    Errno::result(result).and(NONE)
}

fn own_shared_memory() -> Result<c_int, Errno> {
    // SAFETY: no memory is involved.
    Errno::result(unsafe { libc::shmget(libc::IPC_PRIVATE, 4096, 0o600 | libc::IPC_CREAT) })
}

/// A segment with something on every page; it stays.
fn filled_memory(size: usize) -> Result<c_int, Errno> {
    // SAFETY: no memory is involved.
    let id =
        Errno::result(unsafe { libc::shmget(libc::IPC_PRIVATE, size, 0o600 | libc::IPC_CREAT) })?;
    let memory = shm_attach(id)?;
    // SAFETY: so much is attached there, for writing.
    unsafe { ptr::write_bytes(memory, 1, size) };
    Ok(id)
}

fn shm_attach(id: c_int) -> Result<*mut u8, Errno> {
    // SAFETY: the kernel chooses where.
    let at = unsafe { libc::shmat(id, ptr::null(), 0) };
    if at as isize == -1 {
        return Err(Errno::last());
    }
    Ok(at.cast())
}

fn shm_control(id: c_int, command: c_int) -> Found {
    // SAFETY: all zeroes is a valid shmid_ds, which is plain data; `shminfo`,
    // which other commands fill, is no larger.
    let mut data: libc::shmid_ds = unsafe { std::mem::zeroed() };
    // SAFETY: `data` is valid for a write.
    Errno::result(unsafe { libc::shmctl(id, command, &raw mut data) }).and(NONE)
}

/// Memory that a process and its child share.
fn shared_with_a_child() -> Found {
    let id = own_shared_memory()?;
    let here = shm_attach(id)?;
    // SAFETY: this program has one thread.
    match unsafe { fork() }? {
        ForkResult::Child => {
            let code = match shm_attach(id) {
                Ok(there) => {
                    // SAFETY: the memory has a page.
                    unsafe { there.write_volatile(7) };
                    0
                }
                Err(errno) => errno as i32,
            };
            process::exit(code);
        }
        ForkResult::Parent { child } => {
            waitpid(child, None)?;
        }
    }
    // SAFETY: as above.
    let written = unsafe { here.read_volatile() };
    shm_control(id, libc::IPC_STAT)?;
    shm_control(id, libc::IPC_RMID)?;
    Ok(written.to_string())
}

/// As many queues as can be had; how many, and why no more.
fn queues(limit: u32) -> String {
    let made = 0o600 | c_long::from(libc::IPC_CREAT);
    for count in 0..limit {
        if let Err(errno) = raw(libc::SYS_msgget, [0, made, 0, 0, 0]) {
            return format!("{count} {errno:?}");
        }
    }
    limit.to_string()
}

/// Semaphores and a queue of one's own.
fn objects_family() -> Found {
    let made = 0o600 | c_long::from(libc::IPC_CREAT);
    let semaphores = raw(libc::SYS_semget, [0, 1, made, 0, 0])?;
    let queue = raw(libc::SYS_msgget, [0, made, 0, 0, 0])?;
    let [semaphores, queue] = [semaphores, queue].map(|id| id.to_string());
    for (step, id) in [
        ("sem-add", &semaphores),
        ("sem-value", &semaphores),
        ("sem-remove", &semaphores),
        ("queue-send", &queue),
        ("queue-receive", &queue),
        ("queue-remove", &queue),
    ] {
        perform(step, &[id.as_ref()]).unwrap_or(Err(Errno::ENOSYS))?;
    }
    NONE
}
