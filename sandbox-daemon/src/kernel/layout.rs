//! The offsets that the programs load from: one line for each constant of
//! `sandbox-ebpf/src/layout.rs`.

use super::btf::{Btf, BtfError};

/// Constant, structure, member, and its size in bytes; 0: an array of any size.
const MEMBERS: &[(&str, &str, &str, u32)] = &[
    ("DENTRY__D_PARENT", "dentry", "d_parent", 8),
    ("DENTRY__D_INODE", "dentry", "d_inode", 8),
    ("DENTRY__D_SB", "dentry", "d_sb", 8),
    ("DENTRY__D_NAME_NAME", "dentry", "d_name.name", 8),
    ("INODE__I_INO", "inode", "i_ino", 8),
    ("INODE__I_GENERATION", "inode", "i_generation", 4),
    ("INODE__I_MODE", "inode", "i_mode", 2),
    ("INODE__I_RDEV", "inode", "i_rdev", 4),
    ("SUPER_BLOCK__S_DEV", "super_block", "s_dev", 4),
    ("SUPER_BLOCK__S_ROOT", "super_block", "s_root", 8),
    ("SUPER_BLOCK__S_MAGIC", "super_block", "s_magic", 8),
    ("SUPER_BLOCK__S_FLAGS", "super_block", "s_flags", 8),
    ("FILE__F_PATH_DENTRY", "file", "f_path.dentry", 8),
    ("FILE__F_MODE", "file", "f_mode", 4),
    ("FILE__PRIVATE_DATA", "file", "private_data", 8),
    ("IATTR__IA_VALID", "iattr", "ia_valid", 4),
    ("IATTR__IA_MODE", "iattr", "ia_mode", 2),
    ("PATH__DENTRY", "path", "dentry", 8),
    ("VFSMOUNT__MNT_ROOT", "vfsmount", "mnt_root", 8),
    ("QSTR__NAME", "qstr", "name", 8),
    (
        "TASK_STRUCT__GROUP_LEADER",
        "task_struct",
        "group_leader",
        8,
    ),
    ("TASK_STRUCT__REAL_PARENT", "task_struct", "real_parent", 8),
    ("TASK_STRUCT__THREAD_PID", "task_struct", "thread_pid", 8),
    ("PID__LEVEL", "pid", "level", 4),
    ("PID__NUMBERS", "pid", "numbers", 0),
    ("TASK_STRUCT__CRED", "task_struct", "cred", 8),
    ("TASK_STRUCT__REAL_CRED", "task_struct", "real_cred", 8),
    ("USER_NAMESPACE__LEVEL", "user_namespace", "level", 4),
    ("KERN_IPC_PERM__ID", "kern_ipc_perm", "id", 4),
    ("CRED__CAP_EFFECTIVE", "cred", "cap_effective", 8),
    ("CRED__CAP_BSET", "cred", "cap_bset", 8),
    ("CRED__UID", "cred", "uid", 4),
    ("TASK_STRUCT__MM", "task_struct", "mm", 8),
    ("MM_STRUCT__EXE_FILE", "mm_struct", "exe_file", 8),
    ("TASK_STRUCT__TGID", "task_struct", "tgid", 4),
    ("TASK_STRUCT__COMM", "task_struct", "comm", 16),
    ("TASK_STRUCT__CGROUPS", "task_struct", "cgroups", 8),
    ("CSS_SET__DFL_CGRP", "css_set", "dfl_cgrp", 8),
    ("CGROUP__LEVEL", "cgroup", "level", 4),
    ("CGROUP__ANCESTORS", "cgroup", "ancestors", 0),
    ("CGROUP__KN", "cgroup", "kn", 8),
    ("KERNFS_NODE__ID", "kernfs_node", "id", 8),
    ("PROC_INODE__PID", "proc_inode", "pid", 8),
    // Where the inode lies in it follows from this.
    (
        "PROC_INODE__VFS_INODE_I_INO",
        "proc_inode",
        "vfs_inode.i_ino",
        8,
    ),
    // One list head for each of the four types.
    ("PID__TASKS", "pid", "tasks", 32),
    ("TASK_STRUCT__PID_LINKS", "task_struct", "pid_links", 64),
    ("TASK_STRUCT__SIGNAL", "task_struct", "signal", 8),
    ("SIGNAL_STRUCT__TTY", "signal_struct", "tty", 8),
    ("TTY_STRUCT__DRIVER_DATA", "tty_struct", "driver_data", 8),
    ("TTY_STRUCT__LINK", "tty_struct", "link", 8),
    ("TTY_FILE_PRIVATE__TTY", "tty_file_private", "tty", 8),
    ("SOCKET__SK", "socket", "sk", 8),
    (
        "SOCK__SK_CGRP_DATA_CGROUP",
        "sock",
        "sk_cgrp_data.cgroup",
        8,
    ),
    ("SOCK__SK_FAMILY", "sock", "__sk_common.skc_family", 2),
    ("SOCK__SK_NUM", "sock", "__sk_common.skc_num", 2),
    ("SOCK__SK_COOKIE", "sock", "__sk_common.skc_cookie", 8),
    ("UNIX_SOCK__PATH_DENTRY", "unix_sock", "path.dentry", 8),
    ("UNIX_SOCK__ADDR", "unix_sock", "addr", 8),
    ("UNIX_ADDRESS__LEN", "unix_address", "len", 4),
    ("UNIX_ADDRESS__NAME", "unix_address", "name", 0),
];

/// Every constant with its offset in this kernel; for `mistake` see
/// [`super::Options`].
///
/// # Errors
/// The first member that is missing or of another size.
pub(super) fn offsets(
    btf: &Btf,
    mistake: Option<(&str, &str)>,
) -> Result<Vec<(&'static str, u32)>, BtfError> {
    MEMBERS
        .iter()
        .map(|&(constant, structure, member, size)| {
            let member = match mistake {
                Some((mistaken, other)) if mistaken == constant => other,
                _ => member,
            };
            Ok((constant, btf.offset(structure, member, size)?))
        })
        .collect()
}
