//! Kernel structures, one typed pointer each. Offsets differ between kernels;
//! the daemon reads them from the running kernel's BTF and writes them into
//! frozen `.rodata`, where the verifier sees constants: a load through a typed
//! kernel pointer at such an offset is an ordinary checked one, and yields 0
//! instead of a fault if the pointer is stale.

pub mod probe;

use aya_ebpf::{Global, programs::LsmContext};

macro_rules! offsets {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            static $name: Global<u32> = Global::new(u32::MAX);
        )*
    };
}

// Named STRUCT__MEMBER; the daemon's `kernel::layout` resolves each.
offsets! {
    DENTRY__D_PARENT DENTRY__D_INODE DENTRY__D_SB DENTRY__D_NAME_NAME
    INODE__I_INO INODE__I_GENERATION INODE__I_MODE INODE__I_RDEV
    SUPER_BLOCK__S_DEV SUPER_BLOCK__S_ROOT SUPER_BLOCK__S_MAGIC SUPER_BLOCK__S_FLAGS
    FILE__F_PATH_DENTRY FILE__F_MODE FILE__PRIVATE_DATA
    IATTR__IA_VALID IATTR__IA_MODE
    PATH__DENTRY
    VFSMOUNT__MNT_ROOT
    QSTR__NAME
    CRED__CAP_EFFECTIVE CRED__CAP_BSET CRED__UID
    TASK_STRUCT__MM TASK_STRUCT__TGID TASK_STRUCT__COMM TASK_STRUCT__GROUP_LEADER
    TASK_STRUCT__THREAD_PID TASK_STRUCT__CRED TASK_STRUCT__REAL_CRED TASK_STRUCT__CGROUPS
    TASK_STRUCT__REAL_PARENT TASK_STRUCT__PID_LINKS TASK_STRUCT__SIGNAL
    MM_STRUCT__EXE_FILE
    PID__LEVEL PID__NUMBERS PID__TASKS
    USER_NAMESPACE__LEVEL
    KERN_IPC_PERM__ID
    CSS_SET__DFL_CGRP
    CGROUP__LEVEL CGROUP__ANCESTORS CGROUP__KN
    KERNFS_NODE__ID
    SOCKET__SK
    SOCK__SK_CGRP_DATA_CGROUP SOCK__SK_FAMILY SOCK__SK_NUM SOCK__SK_COOKIE
    PROC_INODE__PID PROC_INODE__VFS_INODE_I_INO
    SIGNAL_STRUCT__TTY
    TTY_STRUCT__DRIVER_DATA TTY_STRUCT__LINK
    TTY_FILE_PRIVATE__TTY
    UNIX_SOCK__PATH_DENTRY UNIX_SOCK__ADDR
    UNIX_ADDRESS__LEN UNIX_ADDRESS__NAME
}

/// A load from kernel memory at an offset that is constant to the verifier.
///
/// # Safety
///
/// `base` must be a pointer that the verifier knows to be of the structure
/// that `offset` belongs to, and `T` the member's type.
#[inline(always)]
unsafe fn load<T: Copy>(base: *const u8, offset: &Global<u32>) -> T {
    // SAFETY: the caller's contract.
    unsafe { load_at(base, offset.load()) }
}

/// The same with the offset read already.
///
/// # Safety
///
/// As for `load`.
#[inline(always)]
unsafe fn load_at<T: Copy>(base: *const u8, offset: u32) -> T {
    // SAFETY: the verifier checks the load; stale pointers read as 0.
    unsafe { core::ptr::read_volatile(base.add(offset as usize).cast()) }
}

macro_rules! kernel_pointer {
    ($($name:ident: $structure:literal)*) => {
        $(
            #[doc = concat!("`struct ", $structure, "`")]
            #[derive(Clone, Copy, PartialEq, Eq)]
            pub struct $name(*const u8);
        )*
    };
}

kernel_pointer! {
    Dentry: "dentry"
    Inode: "inode"
    SuperBlock: "super_block"
    File: "file"
    Path: "path"
    Attributes: "iattr"
    Mount: "vfsmount"
}

/// Types that hooks have as arguments.
macro_rules! argument {
    ($($name:ident)*) => {
        $(
            impl $name {
                /// The `n`th argument of a hook that has this type there.
                #[inline(always)]
                pub fn arg(ctx: &LsmContext, n: usize) -> Self {
                    Self(ctx.arg(n))
                }
            }
        )*
    };
}

argument! { Attributes Dentry File Mount Path SuperBlock }

// SAFETY, for every `load` below: the newtype is made from a hook's argument
// or a member of that type only, and the offset is that member's.

impl Dentry {
    /// For what reads it by probe, outside the verifier's types.
    #[inline(always)]
    pub fn raw(self) -> u64 {
        self.0 as u64
    }

    /// Null for a name that does not exist.
    #[inline(always)]
    pub fn inode(self) -> Inode {
        Inode(unsafe { load(self.0, &DENTRY__D_INODE) })
    }

    #[inline(always)]
    pub fn super_block(self) -> SuperBlock {
        SuperBlock(unsafe { load(self.0, &DENTRY__D_SB) })
    }

    #[inline(always)]
    pub fn is_directory(self) -> bool {
        let inode = self.inode();
        !inode.is_null() && inode.mode() & 0o170_000 == 0o040_000
    }

    /// Address of the name, NUL-terminated, at most 255 bytes.
    #[inline(always)]
    pub fn name(self) -> *const u8 {
        unsafe { load(self.0, &DENTRY__D_NAME_NAME) }
    }
}

/// What every step of a walk loads from, read once: each constant is a load of
/// its own when the program runs.
#[derive(Clone, Copy)]
pub struct Steps {
    parent: u32,
    inode: u32,
    ino: u32,
}

impl Steps {
    #[inline(always)]
    pub fn get() -> Self {
        Self {
            parent: DENTRY__D_PARENT.load(),
            inode: DENTRY__D_INODE.load(),
            ino: INODE__I_INO.load(),
        }
    }

    #[inline(always)]
    pub fn parent(self, dentry: Dentry) -> Dentry {
        Dentry(unsafe { load_at(dentry.0, self.parent) })
    }

    /// The inode of a directory, and its number.
    #[inline(always)]
    pub fn inode(self, dentry: Dentry) -> (Inode, u64) {
        let inode = unsafe { load_at(dentry.0, self.inode) };
        (Inode(inode), unsafe { load_at(inode, self.ino) })
    }
}

impl Inode {
    #[inline(always)]
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    #[inline(always)]
    pub fn ino(self) -> u64 {
        unsafe { load(self.0, &INODE__I_INO) }
    }

    #[inline(always)]
    pub fn generation(self) -> u32 {
        unsafe { load(self.0, &INODE__I_GENERATION) }
    }

    #[inline(always)]
    pub fn mode(self) -> u16 {
        unsafe { load(self.0, &INODE__I_MODE) }
    }

    /// Of a device: major << 20 | minor.
    #[inline(always)]
    pub fn rdev(self) -> u32 {
        unsafe { load(self.0, &INODE__I_RDEV) }
    }
}

impl SuperBlock {
    #[inline(always)]
    pub fn dev(self) -> u32 {
        unsafe { load(self.0, &SUPER_BLOCK__S_DEV) }
    }

    #[inline(always)]
    pub fn root(self) -> Dentry {
        Dentry(unsafe { load(self.0, &SUPER_BLOCK__S_ROOT) })
    }

    #[inline(always)]
    pub fn magic(self) -> u64 {
        unsafe { load(self.0, &SUPER_BLOCK__S_MAGIC) }
    }

    #[inline(always)]
    pub fn flags(self) -> u64 {
        unsafe { load(self.0, &SUPER_BLOCK__S_FLAGS) }
    }
}

impl File {
    /// For what reads it by probe.
    #[inline(always)]
    pub fn raw(self) -> u64 {
        self.0 as u64
    }

    #[inline(always)]
    pub fn dentry(self) -> Dentry {
        Dentry(unsafe { load(self.0, &FILE__F_PATH_DENTRY) })
    }

    #[inline(always)]
    pub fn mode(self) -> u32 {
        unsafe { load(self.0, &FILE__F_MODE) }
    }

    /// Address of what it stands for, where it is no file: a `struct socket`.
    #[inline(always)]
    pub fn private_data(self) -> u64 {
        unsafe { load(self.0, &FILE__PRIVATE_DATA) }
    }
}

impl Attributes {
    /// Which of them are set.
    #[inline(always)]
    pub fn valid(self) -> u32 {
        unsafe { load(self.0, &IATTR__IA_VALID) }
    }

    #[inline(always)]
    pub fn mode(self) -> u16 {
        unsafe { load(self.0, &IATTR__IA_MODE) }
    }
}

impl Path {
    #[inline(always)]
    pub fn dentry(self) -> Dentry {
        Dentry(unsafe { load(self.0, &PATH__DENTRY) })
    }
}

impl Mount {
    #[inline(always)]
    pub fn root(self) -> Dentry {
        Dentry(unsafe { load(self.0, &VFSMOUNT__MNT_ROOT) })
    }
}
