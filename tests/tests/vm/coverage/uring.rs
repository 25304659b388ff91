//! Just enough of `io_uring` for one request at a time.

use std::{ffi::CStr, os::fd::OwnedFd, ptr};

use libc::AT_FDCWD;
use nix::errno::Errno;

use super::{
    call::{descriptor, sys},
    make::halves,
};

const NOP: u8 = 0;
const CONNECT: u8 = 16;
const OPENAT: u8 = 18;
const URING_CMD: u8 = 46;
const ASYNC: u8 = 1 << 4;
const ENTER_GETEVENTS: u32 = 1;
const REGISTER_PERSONALITY: u32 = 9;
const OFFSET_COMPLETIONS: i64 = 0x800_0000;
const OFFSET_ENTRIES: i64 = 0x1000_0000;
const SIZE: usize = 4096;

/// A queue with room for one request.
pub(crate) struct Ring {
    pub(crate) queue: OwnedFd,
    submissions: *mut u32,
    completions: *mut u32,
    entries: *mut u32,
    parameters: [u32; 30],
    used: u32,
}

impl Ring {
    pub(crate) fn new() -> Self {
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
            used: 0,
        }
    }

    /// Opens a file to read, perhaps by a thread of the kernel's.
    pub(crate) fn open(&mut self, path: &CStr, by_worker: bool) -> nix::Result<i64> {
        self.request(&Request {
            code: OPENAT,
            flags: if by_worker { ASYNC } else { 0 },
            file: AT_FDCWD,
            address: path.as_ptr().expose_provenance(),
            ..Request::default()
        })
    }

    /// Connects a socket.
    pub(super) fn connect(&mut self, socket: i32, address: &[u8]) -> nix::Result<i64> {
        self.request(&Request {
            code: CONNECT,
            file: socket,
            address: address.as_ptr().expose_provenance(),
            offset: address.len(),
            ..Request::default()
        })
    }

    /// Keeps the process's credentials for requests to come.
    pub(crate) fn personality(&self) -> nix::Result<u16> {
        let number = sys!(
            SYS_io_uring_register,
            &self.queue,
            REGISTER_PERSONALITY,
            0,
            0
        )?;
        Ok(u16::try_from(number).expect("a personality has 16 bits"))
    }

    /// Does nothing, with credentials that were kept.
    pub(crate) fn nothing_as(&mut self, personality: u16) -> nix::Result<i64> {
        self.request(&Request {
            code: NOP,
            personality,
            ..Request::default()
        })
    }

    /// A command of a file's own kind.
    pub(crate) fn command(&mut self, file: i32) -> nix::Result<i64> {
        self.request(&Request {
            code: URING_CMD,
            file,
            ..Request::default()
        })
    }

    fn request(&mut self, request: &Request) -> nix::Result<i64> {
        // In words; `sq_off` follows ten of them, and `cq_off` ten more.
        let [tail, array, head, answers] =
            [11, 16, 20, 25].map(|field| self.parameters[field] as usize / size_of::<u32>());
        let [offset, address] = [request.offset, request.address].map(halves);
        let mut entry = [0_u32; 16];
        entry[0] = u32::from(request.code) | u32::from(request.flags) << 8;
        entry[1] = request.file.cast_unsigned();
        entry[2..4].copy_from_slice(&offset);
        entry[4..6].copy_from_slice(&address);
        // After the index of a buffer.
        entry[10] = u32::from(request.personality) << 16;
        // There is room for two answers, of four words each.
        let answer = answers + (self.used as usize % 2) * 4;
        self.used += 1;
        // SAFETY: the offsets are the kernel's own, into mappings of its own; the
        // entry has the size of `struct io_uring_sqe`.
        unsafe {
            self.entries.cast::<[u32; 16]>().write(entry);
            self.submissions.add(array).write(0);
            self.submissions.add(tail).write_volatile(self.used);
        }
        sys!(SYS_io_uring_enter, &self.queue, 1, 1, ENTER_GETEVENTS, 0, 0)?;
        // SAFETY: as above; `struct io_uring_cqe`, after its first two words.
        let answer = unsafe {
            let answer = self.completions.add(answer + 2).read_volatile();
            self.completions.add(head).write_volatile(self.used);
            answer.cast_signed()
        };
        if answer < 0 {
            Err(Errno::from_raw(-answer))
        } else {
            Ok(i64::from(answer))
        }
    }
}

/// What a request says, as far as one is made here.
#[derive(Default)]
struct Request {
    code: u8,
    flags: u8,
    file: i32,
    offset: usize,
    address: usize,
    personality: u16,
}
