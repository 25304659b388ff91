//! What this process keeps of the memory that it does not use any more.

use std::io;

use super::check;

/// Gives what was freed back to the kernel.
pub fn trim() {
    // SAFETY: takes a number, and looks at the allocator's own lists alone.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// In bytes; the allocator's own, which it would raise with what is freed.
const LARGE: libc::c_int = 128 * 1024;

/// Has threads share what they free instead of keeping it each, and what is large
/// go back to the kernel at once.
pub fn share_free_memory() {
    // SAFETY: takes numbers; what cannot be set stays as it is.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
    }
}

/// Forgets the pages of a constant; they are read from the program's file when
/// they are needed again.
pub fn forget_constant(constant: &'static [u8]) -> io::Result<()> {
    let page =
        usize::try_from(nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)?.unwrap_or(4096))
            .map_err(io::Error::other)?;
    let range = constant.as_ptr_range();
    let start = range.start.addr().next_multiple_of(page);
    let end = range.end.addr() / page * page;
    let Some(length) = end.checked_sub(start).filter(|length| *length > 0) else {
        return Ok(());
    };
    // SAFETY: whole pages of a constant, which is mapped privately from the
    // program's file and never written: they have the same content afterwards.
    check(
        unsafe {
            libc::madvise(
                range.start.with_addr(start).cast_mut().cast(),
                length,
                libc::MADV_DONTNEED,
            )
        }
        .into(),
    )
    .map(drop)
}
