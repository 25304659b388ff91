//! A workspace whose changes die with the sandbox: an overlay over it, in the
//! sandbox's own mount namespace. Its upper layer is a tmpfs that is attached
//! nowhere, so nothing of it outlives the namespace, whatever ends the daemon.

use std::{
    fs, io,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::fs::{MetadataExt as _, PermissionsExt as _, chown},
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use nix::{
    fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2},
    mount::{MntFlags, MsFlags, mount, umount2},
    sys::statvfs::{FsFlags, fstatvfs},
    time::{ClockId, clock_gettime},
};

use super::{Account, LaunchError, as_user};
use crate::sys::{self, OWN_MOUNT};

/// A workspace to lay an overlay over.
#[derive(Debug, Clone)]
pub struct Ephemeral {
    /// Without symbolic links.
    pub workspace: PathBuf,
    /// Bytes that changes may take; none: half of the host's memory, the
    /// kernel's own bound for a tmpfs.
    pub disk: Option<u64>,
}

/// What an ephemeral workspace is made of. Whoever holds these holds the layers,
/// also when the namespace has ended.
#[derive(Debug)]
pub struct Layers {
    /// The workspace as the sandbox sees it: the root of the overlay.
    pub merged: OwnedFd,
    /// Only what the sandbox made, in overlayfs's own format.
    pub upper: OwnedFd,
    /// The real workspace, opened as its user.
    pub lower: Arc<OwnedFd>,
    /// When the overlay was laid over it, by the clock of file times.
    pub since: SystemTime,
}

/// Who may do what in the workspace's root beside what its permissions say, and in
/// what is made there.
const ACLS: [&str; 2] = ["system.posix_acl_access", "system.posix_acl_default"];

/// `lower` and what is below is only read. Renamed directories keep their
/// contents where they are, files are copied whole, numbers of files are those of
/// one file system where that is possible.
const OPTIONS: &str = "redirect_dir=on,metacopy=off,index=off,xino=on";

/// Roughly what a file takes of the kernel's memory beside its contents.
const INODE: u64 = 1024;
/// For overlayfs, and for what a small workspace has at least.
const SPARE_INODES: u64 = 1024;

/// Lays an overlay over a workspace, in the mount namespace of the calling thread.
pub(super) fn lay(account: &Account, ephemeral: &Ephemeral) -> Result<Layers, LaunchError> {
    let workspace = &ephemeral.workspace;
    nothing_mounted_below(workspace)?;
    let lower = as_user(account, || directory(workspace))
        .and_then(|lower| lower)
        .map_err(|source| LaunchError::Workspace {
            path: workspace.clone(),
            user: account.name.clone(),
            source,
        })?;
    lay_over(ephemeral, lower).map_err(|(step, source)| LaunchError::Overlay {
        path: workspace.clone(),
        step,
        source,
    })
}

/// The step that failed, and why.
type Failed = (&'static str, io::Error);

fn lay_over(ephemeral: &Ephemeral, lower: OwnedFd) -> Result<Layers, Failed> {
    let workspace = ephemeral.workspace.as_path();
    let failed = |step| move |error: io::Error| (step, error);
    let (upper, work) = room(workspace, ephemeral.disk).map_err(failed("mount a tmpfs"))?;
    like(&lower, &upper).map_err(failed("make its upper directory"))?;
    // No path is resolved again, and none has to be escaped.
    let options = format!(
        "lowerdir={},upperdir={},workdir={},{OPTIONS}",
        reference(&lower),
        reference(&upper),
        reference(&work)
    );
    // Before: what changes from now on may not be what the sandbox saw.
    let now = clock_gettime(ClockId::CLOCK_REALTIME_COARSE)
        .map_err(io::Error::from)
        .map_err(failed("read the clock"))?;
    mount(
        Some(OWN_MOUNT),
        workspace,
        Some("overlay"),
        flags(&lower).map_err(failed("read its flags"))?,
        Some(options.as_str()),
    )
    .map_err(io::Error::from)
    .map_err(failed("mount the overlay"))?;
    let merged = uncover(workspace).map_err(failed("take the tmpfs from its place"))?;
    Ok(Layers {
        merged,
        upper,
        lower: Arc::new(lower),
        since: SystemTime::UNIX_EPOCH + std::time::Duration::from(now),
    })
}

/// An overlay shows nothing of what is mounted below its lower directory.
fn nothing_mounted_below(workspace: &Path) -> Result<(), LaunchError> {
    let text = fs::read("/proc/thread-self/mountinfo").map_err(LaunchError::Mounts)?;
    let mounts = sys::parse_mountinfo(&text)
        .map_err(|error| LaunchError::Mounts(io::Error::other(error)))?;
    let below = mounts
        .into_iter()
        .map(|mount| mount.point)
        .find(|point| point.starts_with(workspace) && point != workspace);
    match below {
        Some(point) => Err(LaunchError::MountedBelow {
            path: workspace.to_owned(),
            point,
        }),
        None => Ok(()),
    }
}

/// A tmpfs over the workspace, which is the one place that surely exists; its
/// directories for the upper layer and for overlayfs itself.
fn room(workspace: &Path, disk: Option<u64>) -> io::Result<(OwnedFd, OwnedFd)> {
    // Empty files take no blocks: so many as there is room for.
    let inodes = |bytes: u64| bytes / INODE + SPARE_INODES;
    let size = disk.map_or_else(String::new, |bytes| {
        format!(",size={bytes},nr_inodes={}", inodes(bytes))
    });
    mount(
        Some(OWN_MOUNT),
        workspace,
        Some("tmpfs"),
        MsFlags::MS_NOSUID | MsFlags::MS_NODEV,
        Some(format!("mode=0700{size}").as_str()),
    )?;
    let place = |name: &str| {
        let path = workspace.join(name);
        fs::create_dir(&path)?;
        directory(&path)
    };
    Ok((place("upper")?, place("work")?))
}

/// The overlay's root is what its upper directory is.
fn like(lower: &OwnedFd, upper: &OwnedFd) -> io::Result<()> {
    let (lower, upper) = (reference(lower), reference(upper));
    let real = fs::metadata(&lower)?;
    chown(&upper, Some(real.uid()), Some(real.gid()))?;
    fs::set_permissions(&upper, fs::Permissions::from_mode(real.mode() & 0o7777))?;
    for name in ACLS {
        match xattr::get_deref(&lower, name) {
            Ok(Some(acl)) => xattr::set_deref(&upper, name, &acl)?,
            Ok(None) => {}
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// What cannot be executed in the real workspace cannot be here either.
fn flags(lower: &OwnedFd) -> io::Result<MsFlags> {
    let always = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    let real = fstatvfs(lower)?.flags();
    Ok(if real.contains(FsFlags::ST_NOEXEC) {
        always | MsFlags::MS_NOEXEC
    } else {
        always
    })
}

/// Leaves of the two mounts that lie over the workspace the upper one, the
/// overlay; its root.
fn uncover(workspace: &Path) -> io::Result<OwnedFd> {
    let overlay = sys::clone_tree(directory(workspace)?)?;
    for _ in ["the overlay", "the tmpfs"] {
        umount2(workspace, MntFlags::MNT_DETACH)?;
    }
    sys::attach_tree(&overlay, workspace)?;
    directory(workspace)
}

fn directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    // What became a link since it was looked up is refused.
    let how = OpenHow::new()
        .flags(flags)
        .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
    Ok(openat2(AT_FDCWD, path, how)?)
}

/// A path that means what a descriptor of this process means.
fn reference(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}
