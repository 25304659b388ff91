//! What is asked of the kernel itself.

use libc::{AT_FDCWD, O_RDONLY};

use super::{
    call::{Window, actions, descriptor, sys},
    make::{self, FILE, victim},
    uring::Ring,
};

const BPF_MAP_CREATE: u32 = 0;
const BPF_PROG_LOAD: u32 = 5;
const BPF_OBJ_GET: u32 = 7;
const BPF_PROG_GET_FD_BY_ID: u32 = 13;
const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_PROG_TYPE_SOCKET_FILTER: u32 = 1;
const PERF_COUNT_SW_CPU_CLOCK: u64 = 0;
const SYSLOG_ACTION_READ_ALL: i32 = 3;
const SYSLOG_ACTION_SIZE_BUFFER: i32 = 10;
const KEY_SPEC_SESSION_KEYRING: i32 = -3;
const KEYCTL_JOIN_SESSION_KEYRING: i32 = 1;
const KEYCTL_SEARCH: i32 = 10;
const KEYCTL_READ: i32 = 11;
const USERFAULTFD_USER_MODE_ONLY: u32 = 1;

actions! {
    "bpf that makes a map" => |window| {
        let attributes = [BPF_MAP_TYPE_ARRAY, 4, 4, 1, 0, 0, 0, 0, 0, 0, 0, 0];
        window.watch(|| bpf(BPF_MAP_CREATE, &attributes))
    },
    "bpf that loads a program" => |window| {
        let program = [0xb7_u64, 0x95]; // mov r0, 0; exit
        let [low, high] = make::halves(program.as_ptr().expose_provenance());
        let [licence_low, licence_high] = make::halves(c"GPL".as_ptr().expose_provenance());
        let mut attributes = [0_u32; 12];
        attributes[..6].copy_from_slice(&[
            BPF_PROG_TYPE_SOCKET_FILTER, 2, low, high, licence_low, licence_high,
        ]);
        window.watch(|| bpf(BPF_PROG_LOAD, &attributes))
    },
    "bpf that takes a program by its number" => |window| {
        let mut attributes = [0_u32; 12];
        attributes[0] = make::program_id();
        window.watch(|| bpf(BPF_PROG_GET_FD_BY_ID, &attributes))
    },
    "bpf that takes what is pinned" => |window| {
        let [low, high] = make::halves(c"/sys/fs/bpf/nothing".as_ptr().expose_provenance());
        let mut attributes = [0_u32; 12];
        (attributes[0], attributes[1]) = (low, high);
        window.watch(|| bpf(BPF_OBJ_GET, &attributes))
    },
    "perf_event_open" => |window| {
        let mut attributes = [0_u64; 16];
        attributes[0] = 128 << 32 | 1; // PERF_TYPE_SOFTWARE, and the size
        attributes[1] = PERF_COUNT_SW_CPU_CLOCK;
        window.watch(|| sys!(SYS_perf_event_open, attributes.as_ptr(), 0, -1, -1, 0))
    },
    "perf_event_open of another" => |window| {
        let other = victim();
        let mut attributes = [0_u64; 16];
        attributes[0] = 128 << 32 | 1;
        window.watch(|| sys!(SYS_perf_event_open, attributes.as_ptr(), other.pid(), -1, -1, 0))
    },
    "userfaultfd" => |window| {
        window.watch(|| sys!(SYS_userfaultfd, USERFAULTFD_USER_MODE_ONLY))
    },
    "io_uring_setup" => |window| {
        let mut parameters = [0_u32; 30];
        window.watch(|| sys!(SYS_io_uring_setup, 1, parameters.as_mut_ptr()))
    },
    "openat by io_uring" => |window| {
        make::file();
        let mut ring = Ring::new();
        window.watch(|| ring.open(FILE, false))
    },
    "openat by io_uring, by a worker" => |window| {
        make::file();
        let mut ring = Ring::new();
        window.watch(|| ring.open(FILE, true))
    },
    "io_setup" => |window| {
        let mut context = 0_usize;
        window.watch(|| sys!(SYS_io_setup, 1, &raw mut context))
    },
    "memfd_secret" => |window| window.watch(|| sys!(SYS_memfd_secret, 0)),
    "eventfd" => |window| window.watch(|| sys!(SYS_eventfd2, 0, 0)),
    "epoll" => |window| window.watch(|| sys!(SYS_epoll_create1, 0)),
    "timerfd" => |window| window.watch(|| sys!(SYS_timerfd_create, libc::CLOCK_MONOTONIC, 0)),
    "signalfd" => |window| {
        let signals = 0_u64;
        window.watch(|| sys!(SYS_signalfd4, -1, &raw const signals, 8, 0))
    },
    "landlock_create_ruleset" => |window| {
        let handled = 1_u64;
        window.watch(|| sys!(SYS_landlock_create_ruleset, &raw const handled, 8, 0))
    },
    "lsm_set_self_attr" => |window| {
        let attribute = [0_u64; 4];
        window.watch(|| sys!(SYS_LSM_SET_SELF_ATTR, 100, attribute.as_ptr(), 32, 0))
    },

    "add_key" => |window| {
        window.watch(|| add_key().map(i64::from))
    },
    "request_key" => |window| {
        window.watch(|| {
            sys!(SYS_request_key, c"user", c"nothing", 0, KEY_SPEC_SESSION_KEYRING)
        })
    },
    "search a keyring" => |window| {
        let key = c"observed";
        window.watch(|| {
            sys!(SYS_keyctl, KEYCTL_SEARCH, KEY_SPEC_SESSION_KEYRING, c"user", key, 0)
        })
    },
    "read a key" => |window| {
        let key = add_key()?;
        let mut value = [0_u8; 16];
        window.watch(|| sys!(SYS_keyctl, KEYCTL_READ, key, value.as_mut_ptr(), value.len()))
    },
    "join a session keyring" => |window| {
        window.watch(|| sys!(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, 0))
    },

    "read the kernel's log" => |window| {
        let mut text = [0_u8; 64];
        window.watch(|| sys!(SYS_syslog, SYSLOG_ACTION_READ_ALL, text.as_mut_ptr(), text.len()))
    },
    "ask for the size of the kernel's log" => |window| {
        window.watch(|| sys!(SYS_syslog, SYSLOG_ACTION_SIZE_BUFFER, 0, 0))
    },
    "settimeofday" => |window| {
        let mut time = [0_i64; 2];
        sys!(SYS_gettimeofday, time.as_mut_ptr(), 0)?;
        window.watch(|| sys!(SYS_settimeofday, time.as_ptr(), 0))
    },
    "clock_settime" => |window| {
        let mut time = [0_i64; 2];
        sys!(SYS_clock_gettime, libc::CLOCK_REALTIME, time.as_mut_ptr())?;
        window.watch(|| sys!(SYS_clock_settime, libc::CLOCK_REALTIME, time.as_ptr()))
    },
    "adjtimex" => |window| {
        let mut what = make::room::<libc::timex>();
        window.watch(|| sys!(SYS_adjtimex, what.as_mut_ptr()))
    },
    "adjtimex that adjusts" => |window| {
        let mut what = make::room::<libc::timex>();
        sys!(SYS_adjtimex, what.as_mut_ptr())?;
        // SAFETY: the kernel has filled it.
        unsafe { what.assume_init_mut() }.modes = libc::ADJ_FREQUENCY;
        window.watch(|| sys!(SYS_adjtimex, what.as_mut_ptr()))
    },
    "sethostname" => |window| window.watch(|| sys!(SYS_sethostname, c"sandbox-vm", 10)),
    "setdomainname" => |window| window.watch(|| sys!(SYS_setdomainname, c"(none)", 6)),
    "acct" => |window| {
        make::file();
        let answer = window.watch(|| sys!(SYS_acct, FILE));
        sys!(SYS_acct, 0)?;
        answer
    },
    "vhangup" => |window| window.watch(|| sys!(SYS_vhangup)),
    // With no number of its, it changes nothing.
    "reboot" => |window| window.watch(|| sys!(SYS_reboot, 0, 0, 0, 0)),
    "kexec_load" => |window| window.watch(|| sys!(SYS_kexec_load, 0, 0, 0, 62 << 16)),
    "kexec_file_load" => |window| {
        let file = make::opened(O_RDONLY);
        window.watch(|| sys!(SYS_kexec_file_load, &file, -1, 1, c"", 4))
    },
    "init_module" => |window| {
        let rubbish = [0_u8; 64];
        window.watch(|| sys!(SYS_init_module, rubbish.as_slice(), rubbish.len(), c""))
    },
    "finit_module" => |window| {
        let file = make::opened(O_RDONLY);
        window.watch(|| sys!(SYS_finit_module, &file, c"", 0))
    },
    "delete_module" => |window| {
        window.watch(|| sys!(SYS_delete_module, c"nothing", libc::O_NONBLOCK))
    },
    "iopl" => |window| window.watch(|| sys!(SYS_iopl, 3)),
    "ioperm" => |window| window.watch(|| sys!(SYS_ioperm, 0x80, 1, 1)),
    "modify_ldt" => |window| {
        let mut table = [0_u8; 16];
        window.watch(|| sys!(SYS_modify_ldt, 0, table.as_mut_ptr(), table.len()))
    },
    "mlock" => |window| {
        let page = make::page();
        window.watch(|| sys!(SYS_mlock, page, 4096))
    },
    "mbind" => |window| {
        let page = make::page();
        let nodes = 1_u64;
        window.watch(|| sys!(SYS_mbind, page, 4096, 2, &raw const nodes, 64, 0))
    },
    "TIOCSTI" => |window| {
        let terminal = make::terminal();
        window.watch(|| sys!(SYS_ioctl, &terminal, libc::TIOCSTI, c"x"))
    },
    "TIOCSTI by the 32-bit road" => |window| {
        let terminal = make::terminal();
        window.watch(|| make::compat_ioctl(&terminal, 0x5412))
    },
    "TIOCLINUX" => |window| {
        let terminal = make::terminal();
        let what = [6_u8; 4];
        window.watch(|| sys!(SYS_ioctl, &terminal, make::TIOCLINUX, what.as_slice()))
    },
    "TIOCSCTTY" => |window| {
        let terminal = make::terminal();
        sys!(SYS_setsid)?;
        window.watch(|| sys!(SYS_ioctl, &terminal, libc::TIOCSCTTY, 0))
    },
    "open the kernel's memory" => |window| {
        window.watch(|| sys!(SYS_openat, AT_FDCWD, c"/proc/kcore", O_RDONLY))
    },
    "open the memory of the machine" => |window| {
        window.watch(|| sys!(SYS_openat, AT_FDCWD, c"/dev/mem", O_RDONLY))
    },
    "open a port of the machine" => |window| {
        window.watch(|| sys!(SYS_openat, AT_FDCWD, c"/dev/port", O_RDONLY))
    },

    "shmget" => |window| {
        let answer = window.watch(|| sys!(SYS_shmget, KEY, 4096, libc::IPC_CREAT | 0o600));
        removed(libc::SYS_shmctl, sys!(SYS_shmget, KEY, 0, 0)?);
        answer
    },
    "shmget of another's" => |window| shared(window, |_| sys!(SYS_shmget, KEY, 0, 0)),
    "shmat" => |window| shared(window, |id| sys!(SYS_shmat, id, 0, 0)),
    "shmctl that tells" => |window| {
        let mut state = make::room::<libc::shmid_ds>();
        shared(window, move |id| sys!(SYS_shmctl, id, libc::IPC_STAT, state.as_mut_ptr()))
    },
    "shmctl that removes" => |window| {
        let id = sys!(SYS_shmget, libc::IPC_PRIVATE, 4096, 0o600)?;
        window.watch(|| sys!(SYS_shmctl, id, libc::IPC_RMID, 0))
    },
    "msgget" => |window| {
        let answer = window.watch(|| sys!(SYS_msgget, KEY, libc::IPC_CREAT | 0o600));
        removed(libc::SYS_msgctl, sys!(SYS_msgget, KEY, 0)?);
        answer
    },
    "msgget of another's" => |window| queue(window, |_| sys!(SYS_msgget, KEY, 0)),
    "msgsnd" => |window| {
        let message = [1_i64, 0];
        queue(window, move |id| sys!(SYS_msgsnd, id, message.as_ptr(), 1, 0))
    },
    "msgrcv" => |window| {
        let mut message = [1_i64, 0];
        queue(window, move |id| {
            sys!(SYS_msgrcv, id, message.as_mut_ptr(), 1, 0, libc::IPC_NOWAIT)
        })
    },
    "msgctl that tells" => |window| {
        let mut state = make::room::<libc::msqid_ds>();
        queue(window, move |id| sys!(SYS_msgctl, id, libc::IPC_STAT, state.as_mut_ptr()))
    },
    "semget" => |window| {
        let answer = window.watch(|| sys!(SYS_semget, KEY, 1, libc::IPC_CREAT | 0o600));
        removed(libc::SYS_semctl, sys!(SYS_semget, KEY, 0, 0)?);
        answer
    },
    "semget of another's" => |window| semaphore(window, |_| sys!(SYS_semget, KEY, 0, 0)),
    "semop" => |window| {
        let up = [0_u16, 1, 0];
        semaphore(window, move |id| sys!(SYS_semop, id, up.as_ptr(), 1))
    },
    "semctl that tells" => |window| {
        semaphore(window, |id| sys!(SYS_semctl, id, 0, libc::GETVAL, 0))
    },
    "mq_open" => |window| {
        let how = libc::O_CREAT | libc::O_RDWR;
        let answer = window.watch(|| sys!(SYS_mq_open, c"observed", how, 0o600, 0));
        sys!(SYS_mq_unlink, c"observed")?;
        answer
    },
    "mq_timedsend" => |window| {
        let queue = posix_queue()?;
        window.watch(|| sys!(SYS_mq_timedsend, &queue, c"x", 1, 0, 0))
    },
    "mq_notify" => |window| {
        let queue = posix_queue()?;
        let event = make::room::<libc::sigevent>();
        window.watch(|| sys!(SYS_mq_notify, &queue, event.as_ptr()))
    },
    "mq_unlink" => |window| {
        let how = libc::O_CREAT | libc::O_RDWR;
        sys!(SYS_mq_open, c"observed", how, 0o600, 0)?;
        window.watch(|| sys!(SYS_mq_unlink, c"observed"))
    },
}

/// Of objects that are found by a number.
const KEY: i32 = 0x0b5e;

fn bpf(command: u32, attributes: &[u32; 12]) -> nix::Result<i64> {
    sys!(
        SYS_bpf,
        command,
        attributes.as_ptr(),
        size_of_val(attributes)
    )
}

fn add_key() -> nix::Result<i32> {
    let keyring = KEY_SPEC_SESSION_KEYRING;
    let key = sys!(SYS_add_key, c"user", c"observed", c"value", 5, keyring)?;
    Ok(i32::try_from(key).expect("a key's number"))
}

fn removed(number: libc::c_long, id: i64) {
    let id = usize::try_from(id).expect("an object's number");
    let command = libc::IPC_RMID.unsigned_abs() as usize;
    // Of a set of semaphores, the second is the number of one.
    let words = if number == libc::SYS_semctl {
        [id, 0, command]
    } else {
        [id, command, 0]
    };
    super::call::call(number, &words).unwrap();
}

fn shared(window: Window, act: impl FnOnce(i64) -> nix::Result<i64>) -> nix::Result<()> {
    let id = sys!(SYS_shmget, KEY, 4096, libc::IPC_CREAT | 0o600)?;
    let answer = window.watch(|| act(id));
    removed(libc::SYS_shmctl, id);
    answer
}

/// One with a message in it.
fn queue(window: Window, act: impl FnOnce(i64) -> nix::Result<i64>) -> nix::Result<()> {
    let id = sys!(SYS_msgget, KEY, libc::IPC_CREAT | 0o600)?;
    let message = [1_i64, 0];
    sys!(SYS_msgsnd, id, message.as_ptr(), 1, 0)?;
    let answer = window.watch(|| act(id));
    removed(libc::SYS_msgctl, id);
    answer
}

fn semaphore(window: Window, act: impl FnOnce(i64) -> nix::Result<i64>) -> nix::Result<()> {
    let id = sys!(SYS_semget, KEY, 1, libc::IPC_CREAT | 0o600)?;
    let answer = window.watch(|| act(id));
    removed(libc::SYS_semctl, id);
    answer
}

/// One without a name.
fn posix_queue() -> nix::Result<std::os::fd::OwnedFd> {
    let how = libc::O_CREAT | libc::O_RDWR;
    let queue = descriptor(sys!(SYS_mq_open, c"observed", how, 0o600, 0)?);
    sys!(SYS_mq_unlink, c"observed")?;
    Ok(queue)
}
