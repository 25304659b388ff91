//! System calls by their numbers, and the window in which they are watched.

use std::{
    ffi::CStr,
    os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
    process,
};

use nix::errno::Errno;

/// The page that the observer's programs look into.
#[derive(Clone, Copy)]
pub(super) struct Window(*mut u32);

impl Window {
    /// Over the value of the map `WATCHED`.
    pub(super) fn over(watched: *mut u32) -> Self {
        Self(watched)
    }

    /// Performs an action while this process is watched. Neither end of the
    /// window is a system call.
    pub(super) fn watch<T>(self, action: impl FnOnce() -> nix::Result<T>) -> nix::Result<()> {
        let this = process::id();
        self.set(this);
        let answer = action();
        self.close();
        answer.map(drop)
    }

    /// Nobody is watched from now on.
    pub(super) fn close(self) {
        self.set(0);
    }

    fn set(self, process: u32) {
        // SAFETY: the map's page stays mapped for as long as there is a window.
        unsafe { self.0.write_volatile(process) };
    }
}

/// Something to do while being watched, after what it needs was made ready.
pub(super) struct Action {
    pub(super) name: &'static str,
    pub(super) act: fn(Window) -> nix::Result<()>,
}

/// Actions by their names.
macro_rules! actions {
    ($($name:literal => $act:expr),* $(,)?) => {
        pub(super) const ACTIONS: &[$crate::coverage::call::Action] = &[
            $($crate::coverage::call::Action { name: $name, act: $act }),*
        ];
    };
}
pub(super) use actions;

/// The numbers of system calls.
pub(super) mod number {
    pub(in crate::coverage) use libc::*;

    // Newer than the library.
    pub(in crate::coverage) const SYS_STATMOUNT: c_long = 457;
    pub(in crate::coverage) const SYS_LISTMOUNT: c_long = 458;
    pub(in crate::coverage) const SYS_LSM_SET_SELF_ATTR: c_long = 460;
    pub(in crate::coverage) const SYS_SETXATTRAT: c_long = 463;
    pub(in crate::coverage) const SYS_FILE_GETATTR: c_long = 468;
    pub(in crate::coverage) const SYS_FILE_SETATTR: c_long = 469;
}

/// A system call, by the name of its number.
macro_rules! sys {
    ($name:ident $(, $argument:expr)* $(,)?) => {
        $crate::coverage::call::call(
            $crate::coverage::call::number::$name,
            &[$($crate::coverage::call::Word::word($argument)),*],
        )
    };
}
pub(super) use sys;

/// What fits into a register.
pub(super) trait Word {
    fn word(self) -> usize;
}

impl Word for usize {
    fn word(self) -> usize {
        self
    }
}

impl Word for i32 {
    fn word(self) -> usize {
        (self as isize).cast_unsigned()
    }
}

impl Word for u32 {
    fn word(self) -> usize {
        self as usize
    }
}

impl Word for i64 {
    fn word(self) -> usize {
        self.cast_unsigned().word()
    }
}

impl Word for u64 {
    fn word(self) -> usize {
        usize::try_from(self).expect("registers have 64 bits")
    }
}

impl Word for &CStr {
    fn word(self) -> usize {
        self.as_ptr().addr()
    }
}

impl Word for &[u8] {
    fn word(self) -> usize {
        self.as_ptr().expose_provenance()
    }
}

impl Word for BorrowedFd<'_> {
    fn word(self) -> usize {
        self.as_raw_fd().word()
    }
}

impl Word for &OwnedFd {
    fn word(self) -> usize {
        self.as_raw_fd().word()
    }
}

impl<T> Word for *const T {
    fn word(self) -> usize {
        self.expose_provenance()
    }
}

impl<T> Word for *mut T {
    fn word(self) -> usize {
        self.expose_provenance()
    }
}

/// See [`sys`].
pub(super) fn call(number: libc::c_long, words: &[usize]) -> nix::Result<i64> {
    let word = |index: usize| words.get(index).copied().unwrap_or(0);
    // SAFETY: the process is one for this one action: what a call does to it,
    // and to memory that it is given, is seen by nobody else.
    Errno::result(unsafe {
        libc::syscall(number, word(0), word(1), word(2), word(3), word(4), word(5))
    })
}

/// What a call returned, as a descriptor.
pub(super) fn descriptor(returned: i64) -> OwnedFd {
    let descriptor = i32::try_from(returned).expect("a descriptor");
    // SAFETY: the call has just opened it.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}
