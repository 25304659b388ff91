//! Loads by probe, for what the verifier's pointer types do not reach: the
//! event writer, which runs once a refusal is decided, and other processes and
//! sockets.

use aya_ebpf::helpers::{bpf_probe_read_kernel, generated::bpf_probe_read_kernel_str};
use sandbox_common::UNIX_BYTES;

use super::{
    CGROUP__ANCESTORS, CGROUP__KN, CGROUP__LEVEL, CRED__CAP_BSET, CRED__CAP_EFFECTIVE, CRED__UID,
    CSS_SET__DFL_CGRP, DENTRY__D_INODE, DENTRY__D_NAME_NAME, DENTRY__D_PARENT, DENTRY__D_SB,
    FILE__F_PATH_DENTRY, FILE__PRIVATE_DATA, Global, INODE__I_GENERATION, INODE__I_INO,
    INODE__I_MODE, KERN_IPC_PERM__ID, KERNFS_NODE__ID, MM_STRUCT__EXE_FILE, PID__LEVEL,
    PID__NUMBERS, PID__TASKS, PROC_INODE__PID, PROC_INODE__VFS_INODE_I_INO, QSTR__NAME,
    SIGNAL_STRUCT__TTY, SOCK__SK_CGRP_DATA_CGROUP, SOCK__SK_COOKIE, SOCK__SK_FAMILY, SOCK__SK_NUM,
    SOCKET__SK, SUPER_BLOCK__S_DEV, SUPER_BLOCK__S_MAGIC, TASK_STRUCT__CGROUPS, TASK_STRUCT__COMM,
    TASK_STRUCT__CRED, TASK_STRUCT__GROUP_LEADER, TASK_STRUCT__MM, TASK_STRUCT__PID_LINKS,
    TASK_STRUCT__REAL_CRED, TASK_STRUCT__REAL_PARENT, TASK_STRUCT__SIGNAL, TASK_STRUCT__TGID,
    TASK_STRUCT__THREAD_PID, TTY_FILE_PRIVATE__TTY, TTY_STRUCT__DRIVER_DATA, TTY_STRUCT__LINK,
    UNIX_ADDRESS__LEN, UNIX_ADDRESS__NAME, UNIX_SOCK__ADDR, UNIX_SOCK__PATH_DENTRY,
    USER_NAMESPACE__LEVEL,
};

#[inline(always)]
fn read<T: Copy + Default>(base: u64, offset: &Global<u32>) -> T {
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_kernel((base + u64::from(offset.load())) as *const T) }
        .unwrap_or_default()
}

#[inline(always)]
pub fn parent(dentry: u64) -> u64 {
    read(dentry, &DENTRY__D_PARENT)
}

#[inline(always)]
pub fn name(dentry: u64) -> u64 {
    read(dentry, &DENTRY__D_NAME_NAME)
}

#[inline(always)]
pub fn dev(dentry: u64) -> u32 {
    read(read(dentry, &DENTRY__D_SB), &SUPER_BLOCK__S_DEV)
}

#[inline(always)]
pub fn magic(dentry: u64) -> u64 {
    read(read(dentry, &DENTRY__D_SB), &SUPER_BLOCK__S_MAGIC)
}

/// Number and mode of the inode, zeros where there is none.
#[inline(always)]
pub fn inode(dentry: u64) -> (u64, u16) {
    let inode: u64 = read(dentry, &DENTRY__D_INODE);
    if inode == 0 {
        return (0, 0);
    }
    (read(inode, &INODE__I_INO), read(inode, &INODE__I_MODE))
}

#[inline(always)]
pub fn inode_address(dentry: u64) -> u64 {
    read(dentry, &DENTRY__D_INODE)
}

/// The effective capabilities of credentials.
#[inline(always)]
pub fn capabilities(credentials: u64) -> u64 {
    read(credentials, &CRED__CAP_EFFECTIVE)
}

/// The capabilities that a program of theirs could have.
#[inline(always)]
pub fn bounding_set(credentials: u64) -> u64 {
    read(credentials, &CRED__CAP_BSET)
}

/// The user of credentials, as the first user namespace has it.
#[inline(always)]
pub fn uid(credentials: u64) -> u32 {
    read(credentials, &CRED__UID)
}

#[inline(always)]
pub fn generation(dentry: u64) -> u32 {
    let inode: u64 = read(dentry, &DENTRY__D_INODE);
    if inode == 0 {
        return 0;
    }
    read(inode, &INODE__I_GENERATION)
}

/// The `struct pid` that a file of proc belongs to; 0: to none. Every inode
/// of proc is a part of a `proc_inode`.
#[inline(always)]
pub fn proc_pid(dentry: u64) -> u64 {
    let inode: u64 = read(dentry, &DENTRY__D_INODE);
    if inode == 0 {
        return 0;
    }
    let within = PROC_INODE__VFS_INODE_I_INO.load() - INODE__I_INO.load();
    read(inode - u64::from(within), &PROC_INODE__PID)
}

/// The task that a `struct pid` stands for (`PIDTYPE_PID`, the first); 0: it
/// has ended.
#[inline(always)]
pub fn pid_task(pid: u64) -> u64 {
    let link: u64 = read(pid, &PID__TASKS);
    if link == 0 {
        return 0;
    }
    link - u64::from(TASK_STRUCT__PID_LINKS.load())
}

/// What the driver of a task's controlling terminal keeps there: of a
/// pseudo-terminal its dentry in devpts; 0: there is none.
#[inline(always)]
pub fn terminal_data(task: u64) -> u64 {
    let signal: u64 = read(task, &TASK_STRUCT__SIGNAL);
    let terminal: u64 = read(signal, &SIGNAL_STRUCT__TTY);
    if terminal == 0 {
        return 0;
    }
    read(terminal, &TTY_STRUCT__DRIVER_DATA)
}

/// The dentry in devpts of the slave whose master is this open file of
/// `/dev/ptmx`.
#[inline(always)]
pub fn slave(master: u64) -> u64 {
    let private: u64 = read(master, &FILE__PRIVATE_DATA);
    let terminal: u64 = read(private, &TTY_FILE_PRIVATE__TTY);
    let slave: u64 = read(terminal, &TTY_STRUCT__LINK);
    read(slave, &TTY_STRUCT__DRIVER_DATA)
}

/// The dentry of a task's executable; 0: it has none.
#[inline(always)]
pub fn executable(task: u64) -> u64 {
    let mm: u64 = read(task, &TASK_STRUCT__MM);
    if mm == 0 {
        return 0;
    }
    let file: u64 = read(mm, &MM_STRUCT__EXE_FILE);
    if file == 0 {
        return 0;
    }
    read(file, &FILE__F_PATH_DENTRY)
}

/// Process (thread group) of a task.
#[inline(always)]
pub fn tgid(task: u64) -> u32 {
    read(task, &TASK_STRUCT__TGID)
}

/// The same as the process itself has it, in its pid namespace.
#[inline(always)]
pub fn own_tgid(task: u64) -> u32 {
    // `struct upid`: the number, and the namespace.
    const UPID: u64 = 16;
    let leader: u64 = read(task, &TASK_STRUCT__GROUP_LEADER);
    let pid: u64 = read(leader, &TASK_STRUCT__THREAD_PID);
    let level: u32 = read(pid, &PID__LEVEL);
    read(pid + u64::from(level) * UPID, &PID__NUMBERS)
}

/// The process whose child a task is, by its first thread.
#[inline(always)]
pub fn parent_task(task: u64) -> u64 {
    let parent: u64 = read(task, &TASK_STRUCT__REAL_PARENT);
    read(parent, &TASK_STRUCT__GROUP_LEADER)
}

/// Credentials that a task acts with, and its own.
#[inline(always)]
pub fn credentials(task: u64) -> (u64, u64) {
    (
        read(task, &TASK_STRUCT__CRED),
        read(task, &TASK_STRUCT__REAL_CRED),
    )
}

/// How many user namespaces a user namespace is below the first.
#[inline(always)]
pub fn user_namespace_level(namespace: u64) -> u32 {
    read(namespace, &USER_NAMESPACE__LEVEL)
}

/// The identifier of a System V object.
#[inline(always)]
pub fn ipc_id(object: u64) -> u32 {
    read(object, &KERN_IPC_PERM__ID)
}

/// The first 15 bytes of a `struct qstr`, padded with zeros.
#[inline(always)]
pub fn short_name(name: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    let address: u64 = read(name, &QSTR__NAME);
    // SAFETY: the helper checks the address and writes at most 16 bytes.
    let copied =
        unsafe { bpf_probe_read_kernel_str((&raw mut bytes).cast(), 16, address as *const _) };
    if copied < 0 { [0; 16] } else { bytes }
}

#[inline(always)]
pub fn comm(task: u64) -> [u8; 16] {
    read(task, &TASK_STRUCT__COMM)
}

/// The cgroup2 cgroup of a task.
#[inline(always)]
pub fn task_cgroup(task: u64) -> u64 {
    let cgroups: u64 = read(task, &TASK_STRUCT__CGROUPS);
    read(cgroups, &CSS_SET__DFL_CGRP)
}

/// The cgroup2 cgroup that a `struct sock` was made in.
#[inline(always)]
pub fn sock_cgroup(sock: u64) -> u64 {
    read(sock, &SOCK__SK_CGRP_DATA_CGROUP)
}

/// The cookie of a socket; 0: nobody ever asked for it.
#[inline(always)]
pub fn sock_cookie(sock: u64) -> u64 {
    read(sock, &SOCK__SK_COOKIE)
}

/// `AF_*` of a `struct sock`.
#[inline(always)]
pub fn sock_family(sock: u64) -> u16 {
    read(sock, &SOCK__SK_FAMILY)
}

/// The port that a `struct sock` is bound to, host order; 0: none.
#[inline(always)]
pub fn sock_port(sock: u64) -> u16 {
    read(sock, &SOCK__SK_NUM)
}

/// Family, port and address of a `struct sockaddr`; zeros for families other
/// than IPv4 and IPv6.
#[inline(always)]
pub fn sockaddr(address: u64) -> (u16, u16, [u32; 4]) {
    // SAFETY: the helper checks the address.
    unsafe {
        let family = bpf_probe_read_kernel(address as *const u16).unwrap_or_default();
        let port = bpf_probe_read_kernel((address + 2) as *const u16).unwrap_or_default();
        let port = u16::from_be(port);
        match family {
            2 => {
                let ip = bpf_probe_read_kernel((address + 4) as *const u32);
                (family, port, [ip.unwrap_or_default(), 0, 0, 0])
            }
            10 => {
                let ip = bpf_probe_read_kernel((address + 8) as *const [u32; 4]);
                (family, port, ip.unwrap_or_default())
            }
            _ => (family, 0, [0; 4]),
        }
    }
}

/// The number of a pointer that the verifier lets nobody calculate with.
#[inline(always)]
pub fn address<T>(pointer: *const T) -> u64 {
    let mut kept = 0_u64;
    // SAFETY: a live local, of which the helper makes an ordinary number.
    unsafe {
        (&raw mut kept).cast::<*const T>().write_volatile(pointer);
        bpf_probe_read_kernel(&raw const kept).unwrap_or_default()
    }
}

/// Id of a cgroup's ancestor at a level; 0: it is not that deep.
#[inline(always)]
pub fn ancestor_id(cgroup: u64, level: u32) -> u64 {
    let depth: u32 = read(cgroup, &CGROUP__LEVEL);
    if depth < level {
        return 0;
    }
    let ancestor: u64 = read(cgroup + u64::from(level) * 8, &CGROUP__ANCESTORS);
    read(read(ancestor, &CGROUP__KN), &KERNFS_NODE__ID)
}

/// The `struct sock` of a `struct socket`.
#[inline(always)]
pub fn sock(socket: u64) -> u64 {
    read(socket, &SOCKET__SK)
}

/// The dentry that a Unix socket is bound to; 0: none.
#[inline(always)]
pub fn unix_dentry(sock: u64) -> u64 {
    read(sock, &UNIX_SOCK__PATH_DENTRY)
}

/// The abstract name of a Unix socket, with the NUL that it begins with, and
/// its length; 0: it is not bound.
#[inline(always)]
pub fn unix_name(sock: u64) -> ([u8; UNIX_BYTES], u32) {
    // Of `sockaddr_un`, before the name.
    const FAMILY: u64 = 2;
    let address: u64 = read(sock, &UNIX_SOCK__ADDR);
    if address == 0 {
        return ([0; UNIX_BYTES], 0);
    }
    let len: u32 = read(address, &UNIX_ADDRESS__LEN);
    // SAFETY: the helper checks the address.
    let name = unsafe {
        bpf_probe_read_kernel(
            (address + u64::from(UNIX_ADDRESS__NAME.load()) + FAMILY) as *const [u8; UNIX_BYTES],
        )
    };
    (
        name.unwrap_or([0; UNIX_BYTES]),
        len.saturating_sub(FAMILY as u32),
    )
}
