//! What is done to mounts, and to file systems as a whole.

use std::fs;

use libc::{
    AT_EMPTY_PATH, AT_FDCWD, MS_BIND, MS_MOVE, MS_NOSUID, MS_REMOUNT, O_PATH, O_RDONLY, O_WRONLY,
};

use super::{
    call::{Window, actions, descriptor, sys},
    make,
};

const FSOPEN_CLOEXEC: u32 = 1;
const FSCONFIG_CMD_CREATE: u32 = 6;
const MOVE_MOUNT_F_EMPTY_PATH: u32 = 4;
const OPEN_TREE_CLONE: u32 = 1;
const QFMT: u32 = 0x80_0004 << 8; // QCMD(Q_GETFMT, USRQUOTA)
const QUOTAON: u32 = 0x80_0002 << 8;

actions! {
    "mount a tmpfs" => |window| {
        let place = place();
        window.watch(|| sys!(SYS_mount, c"none", place, c"tmpfs", 0, 0))
    },
    "mount an overlay" => |window| {
        for directory in ["lower", "upper", "work"] {
            fs::create_dir(directory).unwrap();
        }
        let place = place();
        let data = c"lowerdir=lower,upperdir=upper,workdir=work";
        window.watch(|| sys!(SYS_mount, c"none", place, c"overlay", 0, data))
    },
    "mount proc" => |window| {
        let place = place();
        window.watch(|| sys!(SYS_mount, c"none", place, c"proc", 0, 0))
    },
    "mount a disk" => |window| {
        let place = place();
        window.watch(|| sys!(SYS_mount, c"/dev/vda", place, c"ext4", 0, 0))
    },
    "mount by a bind" => |window| {
        let place = place();
        window.watch(|| sys!(SYS_mount, c"/usr", place, 0, MS_BIND, 0))
    },
    "remount" => |window| {
        let place = mounted();
        window.watch(|| sys!(SYS_mount, c"none", place, 0, MS_REMOUNT | MS_NOSUID, 0))
    },
    "remount a bind" => |window| {
        let place = mounted();
        let how = MS_REMOUNT | MS_BIND | MS_NOSUID;
        window.watch(|| sys!(SYS_mount, c"none", place, 0, how, 0))
    },
    "move a mount" => |window| {
        let place = mounted();
        fs::create_dir("other").unwrap();
        window.watch(|| sys!(SYS_mount, place, c"other", 0, MS_MOVE, 0))
    },
    "make a mount shared" => |window| {
        let place = mounted();
        window.watch(|| sys!(SYS_mount, c"none", place, 0, libc::MS_SHARED, 0))
    },
    "unmount" => |window| {
        let place = mounted();
        window.watch(|| sys!(SYS_umount2, place, 0))
    },
    "open_tree" => |window| window.watch(|| sys!(SYS_open_tree, AT_FDCWD, c"/usr", 0)),
    "open_tree of a copy" => |window| {
        window.watch(|| sys!(SYS_open_tree, AT_FDCWD, c"/usr", OPEN_TREE_CLONE))
    },
    "open in a detached tree" => |window| {
        let tree = sys!(SYS_open_tree, AT_FDCWD, c"/etc", OPEN_TREE_CLONE)?;
        window.watch(|| sys!(SYS_openat, tree, c"passwd", O_RDONLY))
    },
    "move_mount" => |window| {
        let tree = sys!(SYS_open_tree, AT_FDCWD, c"/usr", OPEN_TREE_CLONE)?;
        let place = place();
        let how = MOVE_MOUNT_F_EMPTY_PATH;
        window.watch(|| sys!(SYS_move_mount, tree, c"", AT_FDCWD, place, how))
    },
    "fsopen" => |window| window.watch(|| sys!(SYS_fsopen, c"tmpfs", FSOPEN_CLOEXEC)),
    "fsconfig" => |window| {
        let context = sys!(SYS_fsopen, c"tmpfs", FSOPEN_CLOEXEC)?;
        window.watch(|| sys!(SYS_fsconfig, context, FSCONFIG_CMD_CREATE, 0, 0, 0))
    },
    "fsmount" => |window| {
        let context = sys!(SYS_fsopen, c"tmpfs", FSOPEN_CLOEXEC)?;
        sys!(SYS_fsconfig, context, FSCONFIG_CMD_CREATE, 0, 0, 0)?;
        window.watch(|| sys!(SYS_fsmount, context, 0, 0))
    },
    "fspick" => |window| {
        let place = mounted();
        window.watch(|| sys!(SYS_fspick, AT_FDCWD, place, 0))
    },
    "mount_setattr" => |window| {
        let place = mounted();
        let attributes = [libc::MOUNT_ATTR_NOSUID, 0, 0, 0];
        window.watch(|| {
            sys!(SYS_mount_setattr, AT_FDCWD, place, 0, attributes.as_ptr(), 32)
        })
    },
    "pivot_root" => |window| {
        let place = mounted();
        sys!(SYS_mkdir, c"place/old", 0o700)?;
        window.watch(|| sys!(SYS_pivot_root, place, c"place/old"))
    },
    "statmount" => |window| {
        let mut mounts = [0_u64; 64];
        listed(&mut mounts)?;
        let request = [24_u64, mounts[0], 1]; // STATMOUNT_SB_BASIC
        let mut answer = [0_u8; 1024];
        window.watch(|| {
            sys!(SYS_STATMOUNT, request.as_ptr(), answer.as_mut_ptr(), answer.len(), 0)
        })
    },
    "listmount" => |window| {
        let mut mounts = [0_u64; 64];
        window.watch(|| listed(&mut mounts))
    },
    "quotactl" => |window| {
        let mut format = 0_u32;
        window.watch(|| sys!(SYS_quotactl, QFMT, c"/dev/vda", 0, &raw mut format))
    },
    "quotactl that turns on" => |window| {
        window.watch(|| sys!(SYS_quotactl, QUOTAON, c"/dev/vda", 0, c"/etc/passwd"))
    },
    "quotactl by a descriptor" => |window| {
        let here = make::directory();
        let mut format = 0_u32;
        window.watch(|| sys!(SYS_quotactl_fd, &here, QFMT, 0, &raw mut format))
    },
    "swapon" => |window| {
        make::file();
        window.watch(|| sys!(SYS_swapon, make::FILE, 0))
    },
    "swapoff" => |window| {
        make::file();
        window.watch(|| sys!(SYS_swapoff, make::FILE))
    },

    "write to /proc/sys" => |window| written(window, "/proc/sys/kernel/core_pattern"),
    "write to /sys" => |window| written(window, "/sys/kernel/mm/transparent_hugepage/enabled"),
    "write to sysrq-trigger" => |window| {
        window.watch(|| sys!(SYS_openat, AT_FDCWD, c"/proc/sysrq-trigger", O_WRONLY))
    },
    "read from tracefs" => |window| {
        window.watch(|| sys!(SYS_openat, AT_FDCWD, c"/sys/kernel/tracing/trace", O_RDONLY))
    },
    "read from securityfs" => |window| {
        window.watch(|| sys!(SYS_openat, AT_FDCWD, c"/sys/kernel/security/lsm", O_RDONLY))
    },
    "list bpffs" => |window| {
        window.watch(|| sys!(SYS_openat, AT_FDCWD, c"/sys/fs/bpf", O_RDONLY))
    },
    "join another cgroup" => |window| {
        let cgroup = Cgroup::new();
        let file = descriptor(sys!(SYS_openat, &cgroup.0, c"cgroup.procs", O_WRONLY)?);
        window.watch(|| sys!(SYS_write, &file, c"0", 1))
    },
    "open another cgroup's processes to write" => |window| {
        let cgroup = Cgroup::new();
        window.watch(|| sys!(SYS_openat, &cgroup.0, c"cgroup.procs", O_WRONLY))
    },
    "make a cgroup" => |window| {
        let cgroup = Cgroup::new();
        let answer = window.watch(|| sys!(SYS_mkdirat, &cgroup.0, c"new", 0o755));
        sys!(SYS_unlinkat, &cgroup.0, c"new", libc::AT_REMOVEDIR)?;
        answer
    },
    "start in another cgroup" => |window| {
        let cgroup = Cgroup::new();
        window.watch(|| make::clone_into(&cgroup.0))
    },
    "use an empty path" => |window| {
        let place = make::opened(O_PATH);
        let mut stat = make::room::<libc::stat>();
        window.watch(|| {
            sys!(SYS_newfstatat, &place, c"", stat.as_mut_ptr(), AT_EMPTY_PATH)
        })
    },
}

/// Numbers of mounts below the root.
fn listed(mounts: &mut [u64; 64]) -> nix::Result<i64> {
    let request = [24_u64, u64::MAX, 0];
    let room = mounts.as_mut_ptr();
    sys!(SYS_LISTMOUNT, request.as_ptr(), room, mounts.len(), 0)
}

/// A directory to mount at.
fn place() -> &'static std::ffi::CStr {
    fs::create_dir("place").unwrap();
    c"place"
}

/// A tmpfs of this process' own at it.
fn mounted() -> &'static std::ffi::CStr {
    let place = place();
    sys!(SYS_mount, c"none", place, c"tmpfs", 0, 0).unwrap();
    place
}

/// Writes nothing to a file, which is enough to see who is asked.
fn written(window: Window, path: &str) -> nix::Result<()> {
    let path = std::ffi::CString::new(path).unwrap();
    window.watch(|| {
        let file = sys!(SYS_openat, AT_FDCWD, path.as_c_str(), O_WRONLY)?;
        sys!(SYS_write, file, c"", 0)
    })
}

/// A cgroup beside the observed one, for one action.
struct Cgroup(std::os::fd::OwnedFd);

impl Cgroup {
    const PATH: &str = "/sys/fs/cgroup/beside";

    fn new() -> Self {
        fs::create_dir(Self::PATH).unwrap();
        let cgroup = fs::File::open(Self::PATH).unwrap();
        Self(cgroup.into())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        fs::write("/sys/fs/cgroup/observed/cgroup.procs", "0").unwrap();
        while fs::remove_dir(Self::PATH).is_err() {
            std::thread::yield_now();
        }
    }
}
