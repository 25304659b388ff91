//! The calling *thread's* credentials. glibc's wrappers change those of every
//! thread of the process, so these are the raw calls.

use std::io;

use super::check;

/// The capability sets of a thread, a bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// What is checked.
    pub effective: u64,
    /// What may be made effective.
    pub permitted: u64,
    /// What survives an exec of a file that asks for it.
    pub inheritable: u64,
}

/// User, group, supplementary groups and capabilities of a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    uid: u32,
    gid: u32,
    fs_uid: u32,
    fs_gid: u32,
    groups: Vec<u32>,
    capabilities: Capabilities,
}

#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapabilityWord {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

const CAPABILITY_VERSION_3: u32 = 0x2008_0522;
/// Leaves an id as it is.
const KEEP: u32 = u32::MAX;

impl Capabilities {
    /// None at all.
    pub const NONE: Self = Self {
        effective: 0,
        permitted: 0,
        inheritable: 0,
    };

    /// The calling thread's.
    pub fn get() -> io::Result<Self> {
        let mut header = CapabilityHeader {
            version: CAPABILITY_VERSION_3,
            pid: 0,
        };
        let mut words = [CapabilityWord::default(); 2];
        // SAFETY: version 3 reads one header and writes two words; both outlive
        // the call.
        check(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, words.as_mut_ptr()) })?;
        let join = |get: fn(&CapabilityWord) -> u32| {
            u64::from(get(&words[0])) | u64::from(get(&words[1])) << 32
        };
        Ok(Self {
            effective: join(|word| word.effective),
            permitted: join(|word| word.permitted),
            inheritable: join(|word| word.inheritable),
        })
    }

    /// Makes these the calling thread's. Async-signal-safe.
    pub fn set(self) -> io::Result<()> {
        let header = CapabilityHeader {
            version: CAPABILITY_VERSION_3,
            pid: 0,
        };
        #[expect(clippy::cast_possible_truncation, reason = "each word is one half")]
        let word = |shift: u32| CapabilityWord {
            effective: (self.effective >> shift) as u32,
            permitted: (self.permitted >> shift) as u32,
            inheritable: (self.inheritable >> shift) as u32,
        };
        let words = [word(0), word(32)];
        // SAFETY: version 3 reads one header and two words; both outlive the
        // call.
        check(unsafe { libc::syscall(libc::SYS_capset, &raw const header, words.as_ptr()) })
            .map(drop)
    }
}

impl Credentials {
    /// The calling thread's.
    pub fn current() -> io::Result<Self> {
        Ok(Self {
            uid: nix::unistd::geteuid().as_raw(),
            gid: nix::unistd::getegid().as_raw(),
            fs_uid: set_fs_id(libc::SYS_setfsuid, KEEP)?,
            fs_gid: set_fs_id(libc::SYS_setfsgid, KEEP)?,
            groups: groups()?,
            capabilities: Capabilities::get()?,
        })
    }

    /// Makes file accesses of the calling thread those of a user: its fsuid,
    /// fsgid, groups, and no capabilities.
    pub fn act_on_files_as(uid: u32, gid: u32, groups: &[u32]) -> io::Result<()> {
        set_groups(groups)?;
        switch_fs_id(libc::SYS_setfsgid, gid)?;
        switch_fs_id(libc::SYS_setfsuid, uid)?;
        let kept = Capabilities::get()?;
        Capabilities {
            effective: 0,
            ..kept
        }
        .set()
    }

    /// Gives the calling thread a user's *effective* ids and groups, so that a
    /// child can make them its real and saved ids without any capability. The
    /// real and saved ids stay: else the user could signal this thread. Files
    /// are still accessed as before.
    pub fn lend(uid: u32, gid: u32, groups: &[u32]) -> io::Result<()> {
        let fs_uid = set_fs_id(libc::SYS_setfsuid, KEEP)?;
        set_groups(groups)?;
        set_ids(libc::SYS_setresgid, [KEEP, gid, KEEP])?;
        set_ids(libc::SYS_setresuid, [KEEP, uid, KEEP])?;
        switch_fs_id(libc::SYS_setfsuid, fs_uid)
    }

    /// Makes lent ids the calling thread's own, for good. Async-signal-safe.
    pub fn take(uid: u32, gid: u32) -> io::Result<()> {
        set_ids(libc::SYS_setresgid, [gid; 3])?;
        set_ids(libc::SYS_setresuid, [uid; 3])?;
        Capabilities::NONE.set()
    }

    /// Undoes [`Self::act_on_files_as`] or [`Self::lend`].
    pub fn restore(&self) -> io::Result<()> {
        // Effective capabilities come first, the others need them.
        set_ids(libc::SYS_setresuid, [KEEP, self.uid, KEEP])?;
        self.capabilities.set()?;
        set_ids(libc::SYS_setresgid, [KEEP, self.gid, KEEP])?;
        set_groups(&self.groups)?;
        switch_fs_id(libc::SYS_setfsgid, self.fs_gid)?;
        switch_fs_id(libc::SYS_setfsuid, self.fs_uid)?;
        // Changing the fsuid away from 0 and back touches them once more.
        self.capabilities.set()?;
        if Self::current()? == *self {
            Ok(())
        } else {
            Err(io::Error::other(
                "the thread's credentials are not as before",
            ))
        }
    }
}

/// Empties the calling thread's bounding set: no exec can give a capability.
pub fn bounding_set_drop_all() -> io::Result<()> {
    let unused: libc::c_ulong = 0;
    for capability in 0..64 as libc::c_ulong {
        // SAFETY: plain integers.
        let result =
            unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, unused, unused, unused) };
        let result = check(result.into());
        match result {
            Ok(_) => {}
            // Past the kernel's last capability.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && capability > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Empties the calling thread's ambient set.
pub fn clear_ambient_capabilities() -> io::Result<()> {
    // SAFETY: plain integers.
    check(
        unsafe {
            libc::prctl(
                libc::PR_CAP_AMBIENT,
                libc::PR_CAP_AMBIENT_CLEAR_ALL,
                0,
                0,
                0,
            )
        }
        .into(),
    )
    .map(drop)
}

/// Sets `no_new_privs` on the calling thread, for good.
pub fn no_new_privileges() -> io::Result<()> {
    let (yes, unused): (libc::c_ulong, libc::c_ulong) = (1, 0);
    // SAFETY: plain integers.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, yes, unused, unused, unused) }.into())
        .map(drop)
}

fn set_ids(call: libc::c_long, ids: [u32; 3]) -> io::Result<()> {
    // SAFETY: plain integers.
    check(unsafe { libc::syscall(call, ids[0], ids[1], ids[2]) }).map(drop)
}

/// Sets a file system id and returns the one before; `KEEP` is refused by the
/// kernel, which is how it is read.
fn set_fs_id(call: libc::c_long, id: u32) -> io::Result<u32> {
    // SAFETY: plain integers.
    let before = unsafe { libc::syscall(call, id) };
    u32::try_from(before).map_err(io::Error::other)
}

/// The call itself does not report a refusal.
fn switch_fs_id(call: libc::c_long, id: u32) -> io::Result<()> {
    set_fs_id(call, id)?;
    if set_fs_id(call, KEEP)? == id {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(libc::EPERM))
    }
}

fn set_groups(groups: &[u32]) -> io::Result<()> {
    // SAFETY: the kernel reads `groups.len()` ids, which outlive the call.
    check(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) }).map(drop)
}

fn groups() -> io::Result<Vec<u32>> {
    // getgroups has no per-process wrapper trouble: it only reads.
    let groups = nix::unistd::getgroups()?;
    Ok(groups.into_iter().map(nix::unistd::Gid::as_raw).collect())
}
