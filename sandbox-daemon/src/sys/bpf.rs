//! Commands of bpf(2) that aya has nothing for: many entries at once, and maps
//! in maps without the wait that follows them.

use std::{
    io,
    os::fd::{AsFd, AsRawFd as _},
    ptr,
};

use aya::Pod;

use super::check;

const BPF_MAP_LOOKUP_ELEM: libc::c_int = 1;
const BPF_MAP_UPDATE_ELEM: libc::c_int = 2;
const BPF_MAP_DELETE_ELEM: libc::c_int = 3;
const BPF_MAP_UPDATE_BATCH: libc::c_int = 26;

/// The member `batch` of `union bpf_attr`.
#[repr(C)]
#[derive(Default)]
struct Batch {
    first: u64,
    next: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

/// The member for single elements.
#[repr(C)]
#[derive(Default)]
struct Element {
    map_fd: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// Inserts entries into a map whose keys and values have these types. Linux 5.6.
pub fn map_insert_all<K: Pod, V: Pod>(map: impl AsFd, keys: &[K], values: &[V]) -> io::Result<()> {
    if keys.len() != values.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    if keys.is_empty() {
        return Ok(());
    }
    let mut attributes = Batch {
        keys: address(keys.as_ptr()),
        values: address(values.as_ptr()),
        count: u32::try_from(keys.len()).map_err(io::Error::other)?,
        map_fd: number(map),
        ..Batch::default()
    };
    // SAFETY: both slices have `count` elements and outlive the call; the kernel
    // writes to nothing but `attributes`.
    check(unsafe { bpf(BPF_MAP_UPDATE_BATCH, &mut attributes) }).map(drop)
}

/// Sets the first value of an array whose values have this size.
pub fn map_set_first<V: Pod>(map: impl AsFd, value: &[V]) -> io::Result<()> {
    let key = 0_u32;
    let mut attributes = Element {
        map_fd: number(map),
        key: address(&raw const key),
        value: address(value.as_ptr()),
        ..Element::default()
    };
    // SAFETY: the key of an array is 32 bits wide, the value is as large as the
    // caller says, and both outlive the call.
    check(unsafe { bpf(BPF_MAP_UPDATE_ELEM, &mut attributes) }).map(drop)
}

/// Puts a map into a map of maps. When this returns, no program reads the one
/// that was there before any more, for which the kernel waits.
pub fn map_insert_map(outer: impl AsFd, key: u64, inner: impl AsFd) -> io::Result<()> {
    let inner = number(inner);
    let mut attributes = Element {
        map_fd: number(outer),
        key: address(&raw const key),
        value: address(&raw const inner),
        ..Element::default()
    };
    // SAFETY: key and value have the sizes of a map of maps with 64-bit keys, and
    // outlive the call.
    check(unsafe { bpf(BPF_MAP_UPDATE_ELEM, &mut attributes) }).map(drop)
}

/// Whether a map of maps has a map for a key.
pub fn map_has_map(outer: impl AsFd, key: u64) -> io::Result<bool> {
    let mut id = 0_u32;
    let mut attributes = Element {
        map_fd: number(outer),
        key: address(&raw const key),
        value: address(&raw mut id),
        ..Element::default()
    };
    // SAFETY: as above; the value of a map of maps is the number of the inner one.
    match check(unsafe { bpf(BPF_MAP_LOOKUP_ELEM, &mut attributes) }) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Takes a map out of a map of maps, if it is there. When this returns, no
/// program reads it any more.
pub fn map_remove_map(outer: impl AsFd, key: u64) -> io::Result<()> {
    let mut attributes = Element {
        map_fd: number(outer),
        key: address(&raw const key),
        ..Element::default()
    };
    // SAFETY: as above.
    match check(unsafe { bpf(BPF_MAP_DELETE_ELEM, &mut attributes) }) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// # Safety
/// The attributes are those of the command.
unsafe fn bpf<T>(command: libc::c_int, attributes: &mut T) -> libc::c_long {
    // SAFETY: the attributes have this size, and are what the caller says.
    unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            ptr::from_mut(attributes),
            size_of::<T>(),
        )
    }
}

fn address<T>(pointer: *const T) -> u64 {
    pointer.expose_provenance() as u64
}

fn number(fd: impl AsFd) -> u32 {
    fd.as_fd().as_raw_fd().cast_unsigned()
}
