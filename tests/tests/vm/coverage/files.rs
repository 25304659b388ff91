//! What is done to files.

use libc::{
    AT_EMPTY_PATH, AT_FDCWD, AT_SYMLINK_FOLLOW, O_CREAT, O_DIRECTORY, O_PATH, O_RDONLY, O_RDWR,
    O_TMPFILE, O_TRUNC, O_WRONLY,
};

use super::{
    call::{actions, descriptor, sys},
    make::{self, FILE, OTHER},
};

actions! {
    "open for reading" => |window| {
        make::file();
        window.watch(|| sys!(SYS_openat, AT_FDCWD, FILE, O_RDONLY))
    },
    "open for writing" => |window| {
        make::file();
        window.watch(|| sys!(SYS_openat, AT_FDCWD, FILE, O_WRONLY))
    },
    "open with openat2" => |window| {
        make::file();
        let how = [u64::from(O_RDONLY.cast_unsigned()), 0, libc::RESOLVE_BENEATH];
        window.watch(|| sys!(SYS_openat2, AT_FDCWD, FILE, how.as_ptr(), 24))
    },
    "open a path only" => |window| {
        make::file();
        window.watch(|| sys!(SYS_openat, AT_FDCWD, FILE, O_PATH))
    },
    "open a path only, anew" => |window| {
        let path = make::opened(O_PATH);
        let again = make::in_proc(&path);
        window.watch(|| sys!(SYS_openat, AT_FDCWD, again.as_c_str(), O_RDONLY))
    },
    "open and make" => |window| {
        window.watch(|| sys!(SYS_openat, AT_FDCWD, c"new", O_CREAT | O_WRONLY, 0o600))
    },
    "open and truncate" => |window| {
        make::file();
        window.watch(|| sys!(SYS_openat, AT_FDCWD, FILE, O_TRUNC | O_WRONLY))
    },
    "open without a name" => |window| {
        window.watch(|| sys!(SYS_openat, AT_FDCWD, c".", O_TMPFILE | O_RDWR, 0o600))
    },
    "name what was opened without" => |window| {
        let file = make::nameless();
        window.watch(|| sys!(SYS_linkat, &file, c"", AT_FDCWD, c"new", AT_EMPTY_PATH))
    },
    "open and list a directory" => |window| {
        make::file();
        let mut entries = [0_u8; 1024];
        window.watch(|| {
            let directory = sys!(SYS_openat, AT_FDCWD, c".", O_RDONLY | O_DIRECTORY)?;
            sys!(SYS_getdents64, directory, entries.as_mut_ptr(), entries.len())
        })
    },
    "open by a handle" => |window| {
        make::file();
        let handle = make::handle();
        let here = make::directory();
        window.watch(|| sys!(SYS_open_by_handle_at, &here, handle.as_ptr(), O_RDONLY))
    },
    "take a handle" => |window| {
        make::file();
        window.watch(|| {
            make::handle();
            Ok(0)
        })
    },
    "open what is in a memory file" => |window| {
        let memory = descriptor(sys!(SYS_memfd_create, c"memory", 0)?);
        let path = make::in_proc(&memory);
        window.watch(|| sys!(SYS_openat, AT_FDCWD, path.as_c_str(), O_RDONLY))
    },
    "open a device" => |window| {
        window.watch(|| sys!(SYS_openat, AT_FDCWD, c"/dev/vda", O_RDONLY))
    },
    "open a terminal" => |window| {
        window.watch(|| sys!(SYS_openat, AT_FDCWD, c"/dev/ptmx", O_RDWR))
    },
    "open a fifo" => |window| {
        sys!(SYS_mknodat, AT_FDCWD, FILE, libc::S_IFIFO | 0o600, 0)?;
        window.watch(|| sys!(SYS_openat, AT_FDCWD, FILE, O_RDWR))
    },

    "truncate" => |window| {
        make::file();
        window.watch(|| sys!(SYS_truncate, FILE, 0))
    },
    "ftruncate" => |window| {
        let file = make::opened(O_WRONLY);
        window.watch(|| sys!(SYS_ftruncate, &file, 0))
    },
    "fallocate" => |window| {
        let file = make::opened(O_WRONLY);
        window.watch(|| sys!(SYS_fallocate, &file, 0, 0, 8192))
    },
    "punch a hole" => |window| {
        let file = make::opened(O_WRONLY);
        let how = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        window.watch(|| sys!(SYS_fallocate, &file, how, 0, 4096))
    },
    "rename" => |window| {
        make::file();
        window.watch(|| sys!(SYS_rename, FILE, c"new"))
    },
    "rename over another" => |window| {
        make::file();
        make::other();
        window.watch(|| sys!(SYS_rename, FILE, OTHER))
    },
    "exchange" => |window| {
        make::file();
        make::other();
        let how = libc::RENAME_EXCHANGE;
        window.watch(|| sys!(SYS_renameat2, AT_FDCWD, FILE, AT_FDCWD, OTHER, how))
    },
    "rename and leave a whiteout" => |window| {
        make::file();
        let how = libc::RENAME_WHITEOUT;
        window.watch(|| sys!(SYS_renameat2, AT_FDCWD, FILE, AT_FDCWD, c"new", how))
    },
    "link" => |window| {
        make::file();
        window.watch(|| sys!(SYS_linkat, AT_FDCWD, FILE, AT_FDCWD, c"new", 0))
    },
    "link a descriptor" => |window| {
        let file = make::opened(O_RDONLY);
        window.watch(|| sys!(SYS_linkat, &file, c"", AT_FDCWD, c"new", AT_EMPTY_PATH))
    },
    "link what /proc leads to" => |window| {
        let file = make::nameless();
        let path = make::in_proc(&file);
        let how = AT_SYMLINK_FOLLOW;
        window.watch(|| sys!(SYS_linkat, AT_FDCWD, path.as_c_str(), AT_FDCWD, c"new", how))
    },
    "symlink" => |window| window.watch(|| sys!(SYS_symlink, FILE, c"new")),
    "readlink" => |window| {
        sys!(SYS_symlink, FILE, c"link")?;
        let mut target = [0_u8; 64];
        window.watch(|| sys!(SYS_readlink, c"link", target.as_mut_ptr(), target.len()))
    },
    "follow a link" => |window| {
        make::file();
        sys!(SYS_symlink, FILE, c"link")?;
        window.watch(|| sys!(SYS_openat, AT_FDCWD, c"link", O_RDONLY))
    },
    "mkdir" => |window| window.watch(|| sys!(SYS_mkdir, c"new", 0o700)),
    "rmdir" => |window| {
        sys!(SYS_mkdir, c"new", 0o700)?;
        window.watch(|| sys!(SYS_rmdir, c"new"))
    },
    "unlink" => |window| {
        make::file();
        window.watch(|| sys!(SYS_unlink, FILE))
    },
    "mknod of a file" => |window| {
        window.watch(|| sys!(SYS_mknodat, AT_FDCWD, c"new", libc::S_IFREG | 0o600, 0))
    },
    "mknod of a fifo" => |window| {
        window.watch(|| sys!(SYS_mknodat, AT_FDCWD, c"new", libc::S_IFIFO | 0o600, 0))
    },
    "mknod of a device" => |window| {
        let device = libc::makedev(7, 0);
        window.watch(|| sys!(SYS_mknodat, AT_FDCWD, c"new", libc::S_IFBLK | 0o600, device))
    },

    "chmod" => |window| {
        make::file();
        window.watch(|| sys!(SYS_chmod, FILE, 0o600))
    },
    "fchmod" => |window| {
        let file = make::opened(O_RDONLY);
        window.watch(|| sys!(SYS_fchmod, &file, 0o600))
    },
    "chown" => |window| {
        make::file();
        window.watch(|| sys!(SYS_chown, FILE, 1000, 1000))
    },
    "fchown" => |window| {
        let file = make::opened(O_RDONLY);
        window.watch(|| sys!(SYS_fchown, &file, 1000, 1000))
    },
    "utimensat" => |window| {
        make::file();
        window.watch(|| sys!(SYS_utimensat, AT_FDCWD, FILE, 0, 0))
    },
    "futimens" => |window| {
        let file = make::opened(O_RDONLY);
        window.watch(|| sys!(SYS_utimensat, &file, 0, 0, 0))
    },
    "setxattr" => |window| {
        make::file();
        window.watch(|| sys!(SYS_setxattr, FILE, c"user.name", c"value", 5, 0))
    },
    "fsetxattr" => |window| {
        let file = make::opened(O_RDONLY);
        window.watch(|| sys!(SYS_fsetxattr, &file, c"user.name", c"value", 5, 0))
    },
    "setxattr of capabilities" => |window| {
        make::file();
        let capabilities = [0x0200_0001_u32, 1 << 21, 0, 0, 0];
        let size = size_of_val(&capabilities);
        let value = capabilities.as_ptr();
        window.watch(|| sys!(SYS_setxattr, FILE, c"security.capability", value, size, 0))
    },
    "setxattr that only root may" => |window| {
        make::file();
        window.watch(|| sys!(SYS_setxattr, FILE, c"trusted.name", c"value", 5, 0))
    },
    "setxattr of an ACL" => |window| {
        make::file();
        let acl = make::acl();
        let name = c"system.posix_acl_access";
        window.watch(|| sys!(SYS_setxattr, FILE, name, acl.as_slice(), acl.len(), 0))
    },
    "setxattrat" => |window| {
        make::file();
        let value = [c"value".as_ptr().expose_provenance() as u64, 5];
        window.watch(|| {
            sys!(SYS_SETXATTRAT, AT_FDCWD, FILE, 0, c"user.name", value.as_ptr(), 16)
        })
    },
    "getxattr" => |window| {
        make::file();
        sys!(SYS_setxattr, FILE, c"user.name", c"value", 5, 0)?;
        let mut value = [0_u8; 64];
        window.watch(|| sys!(SYS_getxattr, FILE, c"user.name", value.as_mut_ptr(), value.len()))
    },
    "getxattr of an ACL" => |window| {
        make::file();
        let acl = make::acl();
        let name = c"system.posix_acl_access";
        sys!(SYS_setxattr, FILE, name, acl.as_slice(), acl.len(), 0)?;
        let mut value = [0_u8; 64];
        window.watch(|| sys!(SYS_getxattr, FILE, name, value.as_mut_ptr(), value.len()))
    },
    "listxattr" => |window| {
        make::file();
        let mut names = [0_u8; 64];
        window.watch(|| sys!(SYS_listxattr, FILE, names.as_mut_ptr(), names.len()))
    },
    "removexattr" => |window| {
        make::file();
        sys!(SYS_setxattr, FILE, c"user.name", c"value", 5, 0)?;
        window.watch(|| sys!(SYS_removexattr, FILE, c"user.name"))
    },
    "removexattr of an ACL" => |window| {
        make::file();
        let acl = make::acl();
        let name = c"system.posix_acl_access";
        sys!(SYS_setxattr, FILE, name, acl.as_slice(), acl.len(), 0)?;
        window.watch(|| sys!(SYS_removexattr, FILE, name))
    },
    "file_getattr" => |window| {
        make::file();
        let mut attributes = [0_u64; 3];
        window.watch(|| {
            sys!(SYS_FILE_GETATTR, AT_FDCWD, FILE, attributes.as_mut_ptr(), 24, 0)
        })
    },
    "file_setattr" => |window| {
        make::file();
        let attributes = [0_u64; 3];
        window.watch(|| {
            sys!(SYS_FILE_SETATTR, AT_FDCWD, FILE, attributes.as_ptr(), 24, 0)
        })
    },

    "stat" => |window| {
        make::file();
        let mut stat = make::room::<libc::stat>();
        window.watch(|| sys!(SYS_stat, FILE, stat.as_mut_ptr()))
    },
    "fstat" => |window| {
        let file = make::opened(O_RDONLY);
        let mut stat = make::room::<libc::stat>();
        window.watch(|| sys!(SYS_fstat, &file, stat.as_mut_ptr()))
    },
    "statx" => |window| {
        make::file();
        let mut stat = make::room::<libc::statx>();
        window.watch(|| {
            sys!(SYS_statx, AT_FDCWD, FILE, 0, libc::STATX_BASIC_STATS, stat.as_mut_ptr())
        })
    },
    "statfs" => |window| {
        let mut statfs = make::room::<libc::statfs>();
        window.watch(|| sys!(SYS_statfs, c".", statfs.as_mut_ptr()))
    },
    "access" => |window| {
        make::file();
        window.watch(|| sys!(SYS_access, FILE, libc::R_OK))
    },
    "chdir" => |window| window.watch(|| sys!(SYS_chdir, c"/usr")),
    "fchdir" => |window| {
        let here = make::directory();
        window.watch(|| sys!(SYS_fchdir, &here))
    },
    "chroot" => |window| window.watch(|| sys!(SYS_chroot, c".")),

    "read what was inherited" => |window| {
        let file = make::opened(O_RDONLY);
        let mut bytes = [0_u8; 16];
        window.watch(|| sys!(SYS_read, &file, bytes.as_mut_ptr(), bytes.len()))
    },
    "write to what was inherited" => |window| {
        let file = make::opened(O_WRONLY);
        window.watch(|| sys!(SYS_write, &file, c"bytes", 5))
    },
    "map what was inherited" => |window| {
        let file = make::opened(O_RDONLY);
        let how = libc::MAP_PRIVATE;
        window.watch(|| sys!(SYS_mmap, 0, 4096, libc::PROT_READ, how, &file, 0))
    },
    "map what was inherited to write" => |window| {
        let file = make::opened(O_RDWR);
        let how = libc::MAP_SHARED;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        window.watch(|| sys!(SYS_mmap, 0, 4096, rights, how, &file, 0))
    },
    "map what was inherited to execute" => |window| {
        let file = make::opened(O_RDONLY);
        let how = libc::MAP_PRIVATE;
        let rights = libc::PROT_READ | libc::PROT_EXEC;
        window.watch(|| sys!(SYS_mmap, 0, 4096, rights, how, &file, 0))
    },
    "make memory executable" => |window| {
        let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let memory = sys!(SYS_mmap, 0, 4096, libc::PROT_READ, how, -1, 0)?;
        window.watch(|| sys!(SYS_mprotect, memory, 4096, libc::PROT_EXEC))
    },
    "sendfile" => |window| {
        let file = make::opened(O_RDONLY);
        let (_read, write) = make::pipe();
        window.watch(|| sys!(SYS_sendfile, &write, &file, 0, 16))
    },
    "splice" => |window| {
        let file = make::opened(O_RDONLY);
        let (_read, write) = make::pipe();
        window.watch(|| sys!(SYS_splice, &file, 0, &write, 0, 16, 0))
    },
    "copy_file_range" => |window| {
        let from = make::opened(O_RDONLY);
        let to = make::other();
        window.watch(|| sys!(SYS_copy_file_range, &from, 0, &to, 0, 16, 0))
    },
    "clone a file's blocks" => |window| {
        let from = make::opened(O_RDONLY);
        let to = make::other();
        window.watch(|| sys!(SYS_ioctl, &to, libc::FICLONE, &from))
    },
    "readahead" => |window| {
        let file = make::opened(O_RDONLY);
        window.watch(|| sys!(SYS_readahead, &file, 0, 4096))
    },

    "ioctl that reads flags" => |window| {
        let file = make::opened(O_RDONLY);
        let mut flags = 0_i32;
        window.watch(|| sys!(SYS_ioctl, &file, libc::FS_IOC_GETFLAGS, &raw mut flags))
    },
    "ioctl that sets flags" => |window| {
        let file = make::opened(O_RDONLY);
        let flags = 0x80_i32; // FS_NOATIME_FL
        window.watch(|| sys!(SYS_ioctl, &file, libc::FS_IOC_SETFLAGS, &raw const flags))
    },
    "ioctl by the 32-bit road" => |window| {
        let file = make::opened(O_RDONLY);
        window.watch(|| make::compat_ioctl(&file, make::GETFLAGS_32))
    },
    "flock" => |window| {
        let file = make::opened(O_RDONLY);
        window.watch(|| sys!(SYS_flock, &file, libc::LOCK_EX))
    },
    "lock of a record" => |window| {
        let file = make::opened(O_RDWR);
        // SAFETY: all zeroes is one.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = 1; // F_WRLCK
        window.watch(|| sys!(SYS_fcntl, &file, libc::F_SETLK, &raw const lock))
    },
    "lease" => |window| {
        let file = make::opened(O_RDONLY);
        window.watch(|| sys!(SYS_fcntl, &file, libc::F_SETLEASE, libc::F_RDLCK))
    },
    "F_NOTIFY" => |window| {
        let here = make::directory();
        window.watch(|| sys!(SYS_fcntl, &here, libc::F_NOTIFY, make::DN_CREATE))
    },
    "inotify" => |window| {
        let inotify = sys!(SYS_inotify_init1, 0)?;
        window.watch(|| sys!(SYS_inotify_add_watch, inotify, c".", libc::IN_CREATE))
    },
    "fanotify of a directory" => |window| {
        let fanotify = sys!(SYS_fanotify_init, libc::FAN_CLASS_NOTIF, O_RDONLY)?;
        let (how, what) = (libc::FAN_MARK_ADD, libc::FAN_OPEN);
        window.watch(|| sys!(SYS_fanotify_mark, fanotify, how, what, AT_FDCWD, c"."))
    },
    "fanotify of a mount" => |window| {
        let fanotify = sys!(SYS_fanotify_init, libc::FAN_CLASS_CONTENT, O_RDONLY)?;
        let (how, what) = (libc::FAN_MARK_ADD | libc::FAN_MARK_MOUNT, libc::FAN_OPEN);
        window.watch(|| sys!(SYS_fanotify_mark, fanotify, how, what, AT_FDCWD, c"/"))
    },
    "make a memory file" => |window| window.watch(|| sys!(SYS_memfd_create, c"memory", 0)),
    "seal a memory file" => |window| {
        let memory = sys!(SYS_memfd_create, c"memory", libc::MFD_ALLOW_SEALING)?;
        window.watch(|| sys!(SYS_fcntl, memory, libc::F_ADD_SEALS, libc::F_SEAL_WRITE))
    },
    "make a pipe" => |window| {
        let mut ends = [0_i32; 2];
        window.watch(|| sys!(SYS_pipe2, ends.as_mut_ptr(), 0))
    },
    "close a file that was written" => |window| {
        let file = make::opened(O_WRONLY);
        sys!(SYS_write, &file, c"bytes", 5)?;
        window.watch(|| {
            drop(file);
            Ok(0)
        })
    },
    "sync" => |window| {
        let file = make::opened(O_WRONLY);
        window.watch(|| sys!(SYS_fsync, &file))
    },
    "open through an overlay" => |window| {
        make::overlay();
        window.watch(|| sys!(SYS_openat, AT_FDCWD, c"merged/file", O_RDONLY))
    },
    "write through an overlay" => |window| {
        make::overlay();
        window.watch(|| sys!(SYS_openat, AT_FDCWD, c"merged/file", O_WRONLY))
    },
    "make a file in an overlay" => |window| {
        make::overlay();
        window.watch(|| sys!(SYS_openat, AT_FDCWD, c"merged/new", O_CREAT | O_WRONLY, 0o600))
    },
    "unlink in an overlay" => |window| {
        make::overlay();
        window.watch(|| sys!(SYS_unlink, c"merged/file"))
    },
    "stat in an overlay" => |window| {
        make::overlay();
        let mut stat = make::room::<libc::stat>();
        window.watch(|| sys!(SYS_stat, c"merged/file", stat.as_mut_ptr()))
    },
    "map a file of an overlay" => |window| {
        make::overlay();
        let file = descriptor(sys!(SYS_openat, AT_FDCWD, c"merged/file", O_RDONLY)?);
        let how = libc::MAP_PRIVATE;
        window.watch(|| sys!(SYS_mmap, 0, 4096, libc::PROT_READ, how, &file, 0))
    },
}
