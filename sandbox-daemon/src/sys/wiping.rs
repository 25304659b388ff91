//! An allocator that overwrites what is freed, from when a secret is about to
//! pass through buffers that are not this program's to wipe, as HTTP/2 has them.
//! For all other commands that would be the better part of their own work.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicBool, Ordering},
};

use zeroizing_alloc::ZeroAlloc;

const ZEROING: ZeroAlloc<System> = ZeroAlloc(System);

/// The system's allocator.
#[derive(Debug)]
pub struct Wiping(AtomicBool);

impl Wiping {
    /// One that does not overwrite yet.
    #[must_use]
    pub const fn later() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Overwrites from now on.
    pub fn begin(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn wipes(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

// SAFETY: both allocate and free with the system's allocator, whichever is asked.
unsafe impl GlobalAlloc for Wiping {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's, here and below.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if self.wipes() {
            // SAFETY: as above.
            unsafe { ZEROING.dealloc(pointer, layout) }
        } else {
            // SAFETY: as above.
            unsafe { System.dealloc(pointer, layout) }
        }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if self.wipes() {
            // SAFETY: as above.
            unsafe { ZEROING.realloc(pointer, layout, size) }
        } else {
            // SAFETY: as above.
            unsafe { System.realloc(pointer, layout, size) }
        }
    }
}
