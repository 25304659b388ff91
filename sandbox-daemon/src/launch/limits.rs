//! Resource limits: a command gets its caller's, as if run directly, and not
//! those that the daemon raised for itself.

use std::{array, io};

use libc::rlimit64;

/// All resource limits of a process.
#[derive(Debug, Clone)]
pub struct Limits {
    limits: [rlimit64; RESOURCES],
}

/// `RLIM_NLIMITS`, in Linux since 2.6.25.
const RESOURCES: usize = 16;
/// What init gives to processes: programs that use select(2) cannot have more
/// without asking.
const OPEN_FILES: u64 = 1024;

impl Limits {
    /// Those of a process; 0 is the caller.
    pub fn of_process(pid: u32) -> io::Result<Self> {
        let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
        let mut limits = [rlimit64 {
            rlim_cur: 0,
            rlim_max: 0,
        }; RESOURCES];
        for (resource, limit) in (0..).zip(&mut limits) {
            // SAFETY: nothing is set, and `limit` outlives the call.
            let result = unsafe { libc::prlimit64(pid, resource, std::ptr::null(), limit) };
            if result < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(Self { limits })
    }

    /// The daemon's own, but for the number of open files.
    pub fn for_nobody() -> io::Result<Self> {
        let mut own = Self::of_process(0)?;
        let files = &mut own.limits[libc::RLIMIT_NOFILE as usize];
        files.rlim_cur = OPEN_FILES.min(files.rlim_max);
        Ok(own)
    }

    /// The same, no higher than `ceiling`: raising a hard limit takes a
    /// capability that a child inside has not.
    #[must_use]
    pub fn at_most(&self, ceiling: &Self) -> Self {
        Self {
            limits: array::from_fn(|index| {
                let hard = self.limits[index]
                    .rlim_max
                    .min(ceiling.limits[index].rlim_max);
                rlimit64 {
                    rlim_cur: self.limits[index].rlim_cur.min(hard),
                    rlim_max: hard,
                }
            }),
        }
    }

    /// Makes them the calling process's. Async-signal-safe.
    pub(super) fn apply(&self) -> io::Result<()> {
        for (resource, limit) in (0..).zip(&self.limits) {
            // SAFETY: `limit` outlives the call and nothing is read back.
            let result = unsafe { libc::prlimit64(0, resource, limit, std::ptr::null_mut()) };
            if result < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: usize = libc::RLIMIT_NOFILE as usize;

    #[test]
    fn nobodys_limit_on_open_files_is_the_usual_one() {
        let limits = Limits::for_nobody().unwrap();
        assert!(limits.limits[FILES].rlim_cur <= OPEN_FILES);
    }

    #[test]
    fn a_ceiling_lowers_hard_and_soft() {
        let mut high = Limits::of_process(0).unwrap();
        let mut low = high.clone();
        high.limits[FILES] = rlimit64 {
            rlim_cur: 500,
            rlim_max: 1000,
        };
        low.limits[FILES] = rlimit64 {
            rlim_cur: 10,
            rlim_max: 100,
        };
        let both = high.at_most(&low);
        assert_eq!(both.limits[FILES].rlim_cur, 100);
        assert_eq!(both.limits[FILES].rlim_max, 100);
        let other = low.at_most(&high);
        assert_eq!(other.limits[FILES].rlim_cur, 10);
        assert_eq!(other.limits[FILES].rlim_max, 100);
    }
}
