//! The kernel programs: entry points only. `files`, `network` and `scope` hold
//! what they decide, `verdict` is where each ends.

#![no_std]
#![no_main]
#![feature(core_intrinsics)]
#![expect(
    internal_features,
    reason = "atomic addition has no stable form for BPF"
)]

mod event;
mod files;
mod layout;
mod maps;
mod member;
mod network;
mod resolve;
mod scope;
mod verdict;

use aya_ebpf::{
    macros::{cgroup_skb, cgroup_sock, cgroup_sock_addr, lsm, sock_ops},
    programs::{LsmContext, SkBuffContext, SockAddrContext, SockContext, SockOpsContext},
};
use sandbox_common::{Facility, Operation};

// The file wall.

#[lsm(hook = "file_open")]
pub fn file_open(ctx: LsmContext) -> i32 {
    files::open(&ctx)
}

#[lsm(hook = "path_truncate")]
pub fn path_truncate(ctx: LsmContext) -> i32 {
    files::path_truncate(&ctx)
}

#[lsm(hook = "file_truncate")]
pub fn file_truncate(ctx: LsmContext) -> i32 {
    files::file_truncate(&ctx)
}

#[lsm(hook = "inode_create")]
pub fn inode_create(ctx: LsmContext) -> i32 {
    files::create(&ctx, Operation::Create)
}

#[lsm(hook = "inode_mkdir")]
pub fn inode_mkdir(ctx: LsmContext) -> i32 {
    files::create(&ctx, Operation::Mkdir)
}

#[lsm(hook = "inode_mknod")]
pub fn inode_mknod(ctx: LsmContext) -> i32 {
    files::mknod(&ctx)
}

#[lsm(hook = "inode_symlink")]
pub fn inode_symlink(ctx: LsmContext) -> i32 {
    files::create(&ctx, Operation::Symlink)
}

#[lsm(hook = "inode_link")]
pub fn inode_link(ctx: LsmContext) -> i32 {
    files::link(&ctx)
}

#[lsm(hook = "inode_unlink")]
pub fn inode_unlink(ctx: LsmContext) -> i32 {
    files::remove(&ctx, Operation::Unlink)
}

#[lsm(hook = "inode_rmdir")]
pub fn inode_rmdir(ctx: LsmContext) -> i32 {
    files::remove(&ctx, Operation::Rmdir)
}

#[lsm(hook = "inode_rename")]
pub fn inode_rename(ctx: LsmContext) -> i32 {
    files::rename(&ctx)
}

/// Up to 6.1: `(dentry, attr)`.
#[lsm(hook = "inode_setattr")]
pub fn inode_setattr(ctx: LsmContext) -> i32 {
    files::setattr(&ctx, 0)
}

/// From 6.2 on: `(idmap, dentry, attr)`. The daemon loads one of the two.
#[lsm(hook = "inode_setattr")]
pub fn inode_setattr_idmap(ctx: LsmContext) -> i32 {
    files::setattr(&ctx, 1)
}

#[lsm(hook = "inode_getattr")]
pub fn inode_getattr(ctx: LsmContext) -> i32 {
    resolve::record(&ctx);
    files::getattr(&ctx)
}

#[lsm(hook = "inode_readlink")]
pub fn inode_readlink(ctx: LsmContext) -> i32 {
    files::readlink(&ctx)
}

/// On 6.1 also for ACLs, which have hooks of their own from 6.2 on.
#[lsm(hook = "inode_setxattr")]
pub fn inode_setxattr(ctx: LsmContext) -> i32 {
    files::attribute(&ctx, Operation::Setxattr)
}

#[lsm(hook = "inode_removexattr")]
pub fn inode_removexattr(ctx: LsmContext) -> i32 {
    files::attribute(&ctx, Operation::Removexattr)
}

#[lsm(hook = "inode_set_acl")]
pub fn inode_set_acl(ctx: LsmContext) -> i32 {
    files::attribute(&ctx, Operation::Setxattr)
}

#[lsm(hook = "inode_remove_acl")]
pub fn inode_remove_acl(ctx: LsmContext) -> i32 {
    files::attribute(&ctx, Operation::Removexattr)
}

#[lsm(hook = "inode_getxattr")]
pub fn inode_getxattr(ctx: LsmContext) -> i32 {
    files::attributes(&ctx, 0)
}

#[lsm(hook = "inode_listxattr")]
pub fn inode_listxattr(ctx: LsmContext) -> i32 {
    files::attributes(&ctx, 0)
}

#[lsm(hook = "inode_get_acl")]
pub fn inode_get_acl(ctx: LsmContext) -> i32 {
    files::attributes(&ctx, 1)
}

/// From 6.17 on: `file_setattr(2)`, and the ioctls that set flags.
#[lsm(hook = "inode_file_setattr")]
pub fn inode_file_setattr(ctx: LsmContext) -> i32 {
    files::set_flags(&ctx)
}

/// A descriptor that another process sent.
#[lsm(hook = "file_receive")]
pub fn file_receive(ctx: LsmContext) -> i32 {
    match network::receive(&ctx) {
        Some(decided) => decided,
        None => files::receive(&ctx),
    }
}

#[lsm(hook = "file_ioctl")]
pub fn file_ioctl(ctx: LsmContext) -> i32 {
    ioctl(&ctx)
}

#[lsm(hook = "file_ioctl_compat")]
pub fn file_ioctl_compat(ctx: LsmContext) -> i32 {
    ioctl(&ctx)
}

#[lsm(hook = "file_fcntl")]
pub fn file_fcntl(ctx: LsmContext) -> i32 {
    match scope::process::set_owner(&ctx) {
        0 => files::fcntl(&ctx),
        refused => refused,
    }
}

#[inline(always)]
fn ioctl(ctx: &LsmContext) -> i32 {
    match scope::process::set_owner_by_ioctl(ctx) {
        0 => files::ioctl(ctx),
        refused => refused,
    }
}

#[lsm(hook = "path_notify")]
pub fn path_notify(ctx: LsmContext) -> i32 {
    files::watch(&ctx)
}

// The network wall.

#[cgroup_sock_addr(connect4)]
pub fn connect4(ctx: SockAddrContext) -> i32 {
    network::connect4(&ctx)
}

#[cgroup_sock_addr(connect6)]
pub fn connect6(ctx: SockAddrContext) -> i32 {
    network::connect6(&ctx)
}

#[cgroup_sock_addr(sendmsg4)]
pub fn sendmsg4(ctx: SockAddrContext) -> i32 {
    network::send4(&ctx)
}

#[cgroup_sock_addr(sendmsg6)]
pub fn sendmsg6(ctx: SockAddrContext) -> i32 {
    network::send6(&ctx)
}

/// Where an answer comes from, as the socket asked. Never refused.
#[cgroup_sock_addr(recvmsg4)]
pub fn recvmsg4(ctx: SockAddrContext) -> i32 {
    network::restore4(&ctx);
    1
}

#[cgroup_sock_addr(recvmsg6)]
pub fn recvmsg6(ctx: SockAddrContext) -> i32 {
    network::restore6(&ctx);
    1
}

#[cgroup_sock_addr(getpeername4)]
pub fn getpeername4(ctx: SockAddrContext) -> i32 {
    network::restore4(&ctx);
    1
}

#[cgroup_sock_addr(getpeername6)]
pub fn getpeername6(ctx: SockAddrContext) -> i32 {
    network::restore6(&ctx);
    1
}

#[sock_ops]
pub fn sock_state(ctx: SockOpsContext) -> u32 {
    network::state(&ctx);
    1
}

#[cgroup_sock(sock_release)]
pub fn sock_release(ctx: SockContext) -> i32 {
    network::release(&ctx);
    1
}

#[cgroup_sock_addr(bind4)]
pub fn bind4(ctx: SockAddrContext) -> i32 {
    network::bind4(&ctx)
}

#[cgroup_sock_addr(bind6)]
pub fn bind6(ctx: SockAddrContext) -> i32 {
    network::bind6(&ctx)
}

#[cgroup_skb(egress)]
pub fn egress(ctx: SkBuffContext) -> i32 {
    network::egress(&ctx)
}

#[cgroup_skb(ingress)]
pub fn ingress(ctx: SkBuffContext) -> i32 {
    network::ingress(&ctx)
}

#[lsm(hook = "socket_create")]
pub fn socket_create(ctx: LsmContext) -> i32 {
    network::create(&ctx)
}

#[lsm(hook = "socket_connect")]
pub fn socket_connect(ctx: LsmContext) -> i32 {
    network::connect(&ctx)
}

#[lsm(hook = "socket_bind")]
pub fn socket_bind(ctx: LsmContext) -> i32 {
    network::bind(&ctx)
}

#[lsm(hook = "socket_listen")]
pub fn socket_listen(ctx: LsmContext) -> i32 {
    network::listen(&ctx)
}

#[lsm(hook = "unix_stream_connect")]
pub fn unix_stream_connect(ctx: LsmContext) -> i32 {
    network::stream(&ctx)
}

#[lsm(hook = "unix_may_send")]
pub fn unix_may_send(ctx: LsmContext) -> i32 {
    network::datagram(&ctx)
}

// The scope wall.

#[lsm(hook = "task_alloc")]
pub fn task_alloc(ctx: LsmContext) -> i32 {
    scope::alloc(&ctx)
}

#[lsm(hook = "task_kill")]
pub fn task_kill(ctx: LsmContext) -> i32 {
    scope::process::signal(&ctx)
}

#[lsm(hook = "ptrace_access_check")]
pub fn ptrace_access_check(ctx: LsmContext) -> i32 {
    scope::process::inspect(&ctx)
}

#[lsm(hook = "ptrace_traceme")]
pub fn ptrace_traceme(ctx: LsmContext) -> i32 {
    scope::process::other(&ctx, Operation::Ptrace)
}

#[lsm(hook = "task_setnice")]
pub fn task_setnice(ctx: LsmContext) -> i32 {
    scope::process::other(&ctx, Operation::Priority)
}

#[lsm(hook = "task_setioprio")]
pub fn task_setioprio(ctx: LsmContext) -> i32 {
    scope::process::other(&ctx, Operation::Priority)
}

#[lsm(hook = "task_setscheduler")]
pub fn task_setscheduler(ctx: LsmContext) -> i32 {
    scope::process::other(&ctx, Operation::Schedule)
}

#[lsm(hook = "task_setrlimit")]
pub fn task_setrlimit(ctx: LsmContext) -> i32 {
    scope::process::other(&ctx, Operation::Limit)
}

#[lsm(hook = "capable")]
pub fn capable(ctx: LsmContext) -> i32 {
    scope::privilege::capability(&ctx)
}

#[lsm(hook = "userns_create")]
pub fn userns_create(ctx: LsmContext) -> i32 {
    scope::kernel::user_namespace(&ctx)
}

#[lsm(hook = "inode_init_security_anon")]
pub fn inode_init_security_anon(ctx: LsmContext) -> i32 {
    scope::kernel::anonymous_inode(&ctx)
}

#[lsm(hook = "key_alloc")]
pub fn key_alloc(ctx: LsmContext) -> i32 {
    scope::kernel::key(&ctx)
}

#[lsm(hook = "key_permission")]
pub fn key_permission(ctx: LsmContext) -> i32 {
    scope::kernel::key(&ctx)
}

#[lsm(hook = "uring_allowed")]
pub fn uring_allowed(_: LsmContext) -> i32 {
    scope::kernel::facility(Facility::IoUring)
}

#[lsm(hook = "uring_override_creds")]
pub fn uring_override_creds(_: LsmContext) -> i32 {
    scope::kernel::facility(Facility::IoUring)
}

#[lsm(hook = "uring_sqpoll")]
pub fn uring_sqpoll(_: LsmContext) -> i32 {
    scope::kernel::facility(Facility::IoUring)
}

#[lsm(hook = "uring_cmd")]
pub fn uring_cmd(_: LsmContext) -> i32 {
    scope::kernel::facility(Facility::IoUring)
}

#[lsm(hook = "bpf")]
pub fn bpf(_: LsmContext) -> i32 {
    scope::kernel::facility(Facility::Bpf)
}

#[lsm(hook = "perf_event_open")]
pub fn perf_event_open(_: LsmContext) -> i32 {
    scope::kernel::facility(Facility::Perf)
}

#[lsm(hook = "syslog")]
pub fn syslog(_: LsmContext) -> i32 {
    scope::kernel::facility(Facility::KernelLog)
}

#[lsm(hook = "kernel_module_request")]
pub fn kernel_module_request(_: LsmContext) -> i32 {
    scope::kernel::facility(Facility::KernelModule)
}

#[lsm(hook = "quotactl")]
pub fn quotactl(_: LsmContext) -> i32 {
    scope::kernel::facility(Facility::Quota)
}

#[lsm(hook = "sb_mount")]
pub fn sb_mount(ctx: LsmContext) -> i32 {
    scope::mount::on_second_path(&ctx)
}

#[lsm(hook = "move_mount")]
pub fn move_mount(ctx: LsmContext) -> i32 {
    scope::mount::on_second_path(&ctx)
}

#[lsm(hook = "sb_pivotroot")]
pub fn sb_pivotroot(ctx: LsmContext) -> i32 {
    scope::mount::on_second_path(&ctx)
}

#[lsm(hook = "sb_kern_mount")]
pub fn sb_kern_mount(ctx: LsmContext) -> i32 {
    scope::mount::file_system(&ctx)
}

#[lsm(hook = "sb_remount")]
pub fn sb_remount(ctx: LsmContext) -> i32 {
    scope::mount::file_system(&ctx)
}

#[lsm(hook = "sb_umount")]
pub fn sb_umount(ctx: LsmContext) -> i32 {
    scope::mount::unmount(&ctx)
}

#[lsm(hook = "path_chroot")]
pub fn path_chroot(ctx: LsmContext) -> i32 {
    scope::mount::chroot(&ctx)
}

#[lsm(hook = "shm_alloc_security")]
pub fn shm_alloc_security(ctx: LsmContext) -> i32 {
    scope::ipc::made(&ctx)
}

#[lsm(hook = "shm_free_security")]
pub fn shm_free_security(ctx: LsmContext) -> i32 {
    scope::ipc::freed(&ctx)
}

#[lsm(hook = "sem_alloc_security")]
pub fn sem_alloc_security(ctx: LsmContext) -> i32 {
    scope::ipc::made(&ctx)
}

#[lsm(hook = "sem_free_security")]
pub fn sem_free_security(ctx: LsmContext) -> i32 {
    scope::ipc::freed(&ctx)
}

#[lsm(hook = "msg_queue_alloc_security")]
pub fn msg_queue_alloc_security(ctx: LsmContext) -> i32 {
    scope::ipc::made(&ctx)
}

#[lsm(hook = "msg_queue_free_security")]
pub fn msg_queue_free_security(ctx: LsmContext) -> i32 {
    scope::ipc::freed(&ctx)
}

#[lsm(hook = "ipc_permission")]
pub fn ipc_permission(ctx: LsmContext) -> i32 {
    scope::ipc::used(&ctx)
}

#[lsm(hook = "shm_shmctl")]
pub fn shm_shmctl(ctx: LsmContext) -> i32 {
    scope::ipc::used(&ctx)
}

#[lsm(hook = "sem_semctl")]
pub fn sem_semctl(ctx: LsmContext) -> i32 {
    scope::ipc::used(&ctx)
}

#[lsm(hook = "msg_queue_msgctl")]
pub fn msg_queue_msgctl(ctx: LsmContext) -> i32 {
    scope::ipc::used(&ctx)
}

// What the daemon asks a kernel with.

/// Lets everything through: for asking whether this kernel takes LSM programs.
#[lsm(hook = "inode_readlink")]
pub fn probe_lsm(_: LsmContext) -> i32 {
    0
}

/// The same for cgroup programs.
#[cgroup_sock(sock_create)]
pub fn probe_cgroup(_: SockContext) -> i32 {
    1
}

/// Bounds checks that could fail would not pass the verifier.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// The kernel lends its helpers to GPL-compatible programs alone.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
