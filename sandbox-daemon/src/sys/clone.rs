//! A child process in this process's own memory, as vfork(2) makes it: a copy of
//! a daemon's memory costs more than all else that starting a command takes.

use std::{
    alloc::{GlobalAlloc as _, Layout, System},
    arch::asm,
    io, ptr,
};

#[cfg(not(target_arch = "x86_64"))]
compile_error!("a child cannot be started in place on this architecture yet: see `clone_in_place`");

/// The child's, in bytes: it calls little, and that not deeply.
const STACK: Layout = match Layout::from_size_align(64 * 1024, 16) {
    Ok(layout) => layout,
    Err(_) => panic!("this is a layout"),
};

const CLONE_VM: u64 = 0x100;
const CLONE_VFORK: u64 = 0x4000;

/// clone3(2), where the child runs `run(argument)` on a stack of its own, in the
/// memory of this process. This thread waits until the child has executed
/// another program or has ended. Returns its process id. Linux 5.3.
///
/// The kernel's OOM killer passes such a child over, and what is set of its OOM
/// score is its own: neither reaches this process by the memory that they share.
///
/// # Safety
/// The flags of `args` share nothing else, and what they point to is valid.
/// `run` does only what signal-safety(7) allows, and changes nothing that other
/// threads look at.
pub unsafe fn clone_in_place<T>(
    args: &mut libc::clone_args,
    argument: &T,
    run: extern "C" fn(&T) -> !,
) -> io::Result<u32> {
    // Of the system's allocator: another might overwrite all of it in the end.
    // SAFETY: the size is not 0.
    let stack = unsafe { System.alloc(STACK) };
    if stack.is_null() {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    args.flags |= CLONE_VM | CLONE_VFORK;
    args.stack = stack.expose_provenance() as u64;
    args.stack_size = STACK.size() as u64;
    let result: libc::c_long;
    // SAFETY: the child returns from the system call with this thread's registers
    // and its own stack, which is where it stays. This thread, and with it all
    // that is borrowed here, waits until the child has left this memory.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            // The outermost frame.
            "xor ebp, ebp",
            "mov rdi, {argument}",
            "call {run}",
            "ud2",
            "2:",
            argument = in(reg) ptr::from_ref(argument),
            run = in(reg) run,
            inlateout("rax") libc::SYS_clone3 => result,
            in("rdi") ptr::from_mut(args),
            in("rsi") size_of::<libc::clone_args>(),
            out("rcx") _,
            out("r11") _,
        );
    }
    // SAFETY: it is from there, and the child has left it.
    unsafe { System.dealloc(stack, STACK) };
    u32::try_from(result).map_err(|_| {
        let errno = i32::try_from(-result).unwrap_or(libc::EIO);
        io::Error::from_raw_os_error(errno)
    })
}
