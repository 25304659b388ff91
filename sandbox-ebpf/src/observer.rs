//! The observer of the end-to-end tests, an object of its own that nobody
//! ships: it records which hooks a process reaches, and lets everything through.

#![no_std]
#![no_main]

use aya_ebpf::{
    EbpfContext as _,
    btf_maps::{Array, HashMap},
    helpers::{bpf_get_current_pid_tgid, generated::bpf_get_func_ip},
    macros::{
        btf_map, cgroup_device, cgroup_skb, cgroup_sock, cgroup_sock_addr, cgroup_sockopt,
        cgroup_sysctl, fentry, lsm,
    },
    programs::{
        DeviceContext, FEntryContext, LsmContext, SkBuffContext, SockAddrContext, SockContext,
        SockoptContext, SysctlContext,
    },
};

/// `BPF_F_MMAPABLE`: opening and closing the window must not itself reach hooks.
const MMAPABLE: usize = 1 << 10;

/// The process that is watched; 0: none.
#[btf_map]
pub static WATCHED: Array<u32, 1, MMAPABLE> = Array::new();

/// What was reached: the address of a function `bpf_lsm_*`, or a [`Point`].
#[btf_map]
pub static REACHED: HashMap<u64, u64, 1024> = HashMap::new();

fn watched() -> u32 {
    // The process that is watched writes it, while programs run.
    WATCHED
        .get_ptr(0)
        // SAFETY: the kernel's own pointer to the array's one value.
        .map_or(0, |watched| unsafe { watched.read_volatile() })
}

fn reached(what: u64) {
    // It has room for all hooks.
    let _ = REACHED.insert(what, 1, 0);
}

/// Loaded once for every hook. The function that the LSM calls for a hook is
/// entered before any program of the hook can refuse, and no value is returned
/// to it: some hooks would take 0 for an answer (`task_prctl`).
#[fentry]
pub fn hook(ctx: FEntryContext) -> i32 {
    let process = (bpf_get_current_pid_tgid() >> 32) as u32;
    if process != 0 && process == watched() {
        // SAFETY: the context of this program.
        reached(unsafe { bpf_get_func_ip(ctx.as_ptr()) });
    }
    0
}

/// Loaded and not attached, to ask which hooks take a program that decides.
#[lsm(hook = "file_open")]
pub fn decide(_: LsmContext) -> i32 {
    0
}

/// Programs on the cgroup of what is watched. They tell no processes apart:
/// packets are on their way without one.
macro_rules! points {
    ($($kind:ident($($attach:ident)?) $name:ident: $context:ident),* $(,)?) => {
        /// What a program on a cgroup records; the tests have the same list.
        #[expect(non_camel_case_types, reason = "the names of the programs")]
        enum Point {
            $($name),*
        }

        $(
            #[$kind$(($attach))?]
            pub fn $name(_: $context) -> i32 {
                if watched() != 0 {
                    reached(Point::$name as u64);
                }
                1
            }
        )*
    };
}

points! {
    cgroup_sock(sock_create) sock_create: SockContext,
    cgroup_sock(sock_release) sock_release: SockContext,
    cgroup_sock(post_bind4) post_bind4: SockContext,
    cgroup_sock(post_bind6) post_bind6: SockContext,
    cgroup_sock_addr(bind4) bind4: SockAddrContext,
    cgroup_sock_addr(bind6) bind6: SockAddrContext,
    cgroup_sock_addr(connect4) connect4: SockAddrContext,
    cgroup_sock_addr(connect6) connect6: SockAddrContext,
    cgroup_sock_addr(sendmsg4) sendmsg4: SockAddrContext,
    cgroup_sock_addr(sendmsg6) sendmsg6: SockAddrContext,
    cgroup_sock_addr(recvmsg4) recvmsg4: SockAddrContext,
    cgroup_sock_addr(recvmsg6) recvmsg6: SockAddrContext,
    cgroup_sock_addr(getpeername4) getpeername4: SockAddrContext,
    cgroup_sock_addr(getpeername6) getpeername6: SockAddrContext,
    cgroup_sock_addr(getsockname4) getsockname4: SockAddrContext,
    cgroup_sock_addr(getsockname6) getsockname6: SockAddrContext,
    cgroup_sockopt(getsockopt) getsockopt: SockoptContext,
    cgroup_sockopt(setsockopt) setsockopt: SockoptContext,
    cgroup_skb(ingress) ingress: SkBuffContext,
    cgroup_skb(egress) egress: SkBuffContext,
    cgroup_device() device: DeviceContext,
    cgroup_sysctl() sysctl: SysctlContext,
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// The kernel lends its helpers to GPL-compatible programs alone.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
