//! Just enough of `io_uring` for one request at a time.

use std::{ffi::CStr, os::fd::OwnedFd, ptr};

use libc::AT_FDCWD;
use nix::errno::Errno;

use super::{
    call::{descriptor, sys},
    make::halves,
};

const OPENAT: u8 = 18;
const CONNECT: u8 = 16;
const ASYNC: u8 = 1 << 4;
const ENTER_GETEVENTS: u32 = 1;
const OFFSET_COMPLETIONS: i64 = 0x800_0000;
const OFFSET_ENTRIES: i64 = 0x1000_0000;
const SIZE: usize = 4096;

/// A queue with room for one request.
pub(super) struct Ring {
    queue: OwnedFd,
    submissions: *mut u32,
    completions: *mut u32,
    entries: *mut u32,
    parameters: [u32; 30],
}

impl Ring {
    pub(super) fn new() -> Self {
        let mut parameters = [0_u32; 30];
        let queue = sys!(SYS_io_uring_setup, 1, parameters.as_mut_ptr()).unwrap();
        let queue = descriptor(queue);
        let part = |offset: i64| {
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            let how = libc::MAP_SHARED;
            let start = sys!(SYS_mmap, 0, SIZE, rights, how, &queue, offset).unwrap();
            ptr::with_exposed_provenance_mut(usize::try_from(start).expect("an address"))
        };
        Self {
            submissions: part(0),
            completions: part(OFFSET_COMPLETIONS),
            entries: part(OFFSET_ENTRIES),
            queue,
            parameters,
        }
    }

    /// Opens a file to read, perhaps by a thread of the kernel's.
    pub(super) fn open(&mut self, path: &CStr, by_worker: bool) -> nix::Result<i64> {
        let path = path.as_ptr().expose_provenance();
        self.request(OPENAT, by_worker, AT_FDCWD, path, 0)
    }

    /// Connects a socket.
    pub(super) fn connect(&mut self, socket: i32, address: &[u8]) -> nix::Result<i64> {
        let start = address.as_ptr().expose_provenance();
        self.request(CONNECT, false, socket, start, address.len())
    }

    /// The first and only one: its queues have not been used.
    fn request(
        &mut self,
        code: u8,
        by_worker: bool,
        file: i32,
        address: usize,
        offset: usize,
    ) -> nix::Result<i64> {
        let flags = if by_worker { ASYNC } else { 0 };
        // In words; `sq_off` follows ten of them, and `cq_off` ten more.
        let [tail, array, answers] =
            [11, 16, 25].map(|field| self.parameters[field] as usize / size_of::<u32>());
        let entry = [
            [
                u32::from(code) | u32::from(flags) << 8,
                file.cast_unsigned(),
            ],
            halves(offset),
            halves(address),
        ];
        // SAFETY: the offsets are the kernel's own, into mappings of its own; the
        // entry begins as `struct io_uring_sqe` does, and is zeroed.
        unsafe {
            self.entries.cast::<[[u32; 2]; 3]>().write(entry);
            self.submissions.add(array).write(0);
            self.submissions.add(tail).write_volatile(1);
        }
        sys!(SYS_io_uring_enter, &self.queue, 1, 1, ENTER_GETEVENTS, 0, 0)?;
        // SAFETY: as above; `struct io_uring_cqe`, after its first two words.
        let answer = unsafe { self.completions.add(answers + 2).read_volatile() }.cast_signed();
        if answer < 0 {
            Err(Errno::from_raw(-answer))
        } else {
            Ok(i64::from(answer))
        }
    }
}
