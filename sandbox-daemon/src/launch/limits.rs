//! Resource limits: a command gets its caller's, as if run directly, and not
//! those that the daemon raised for itself.

use std::{
    array,
    fs::File,
    io::{self, Read as _},
};

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
    /// Those of a process, from `/proc/PID/limits`: prlimit(2) of another
    /// user's process takes `CAP_SYS_RESOURCE`.
    pub fn of_process(pid: u32) -> io::Result<Self> {
        // With room for all of it, one read is enough.
        let mut text = String::with_capacity(4096);
        File::open(format!("/proc/{pid}/limits"))?.read_to_string(&mut text)?;
        Self::parse(&text).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "not as proc(5) describes it")
        })
    }

    /// The calling process's own.
    pub fn own() -> io::Result<Self> {
        Self::of_process(std::process::id())
    }

    /// These, with the usual number of open files.
    pub(super) fn with_usual_files(mut self) -> Self {
        let files = &mut self.limits[libc::RLIMIT_NOFILE as usize];
        files.rlim_cur = OPEN_FILES.min(files.rlim_max);
        self
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

    /// A heading, then the limits in the order of their numbers: a name of 25
    /// columns, the soft one, the hard one.
    fn parse(text: &str) -> Option<Self> {
        let value = |word: &str| match word {
            "unlimited" => Some(libc::RLIM64_INFINITY),
            number => number.parse().ok(),
        };
        let limits = text
            .lines()
            .skip(1)
            .map(|line| {
                let mut words = line.get(25..)?.split_ascii_whitespace();
                Some(rlimit64 {
                    rlim_cur: value(words.next()?)?,
                    rlim_max: value(words.next()?)?,
                })
            })
            .collect::<Option<Vec<_>>>()?;
        Some(Self {
            limits: limits.try_into().ok()?,
        })
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
    fn the_usual_number_of_open_files_is_no_more_than_select_takes() {
        let limits = Limits::own().unwrap().with_usual_files();
        assert!(limits.limits[FILES].rlim_cur <= OPEN_FILES);
    }

    #[test]
    fn the_table_says_what_the_system_call_says() {
        let read = Limits::own().unwrap();
        for (resource, limit) in (0..).zip(&read.limits) {
            let mut asked = rlimit64 {
                rlim_cur: 0,
                rlim_max: 0,
            };
            // SAFETY: nothing is set, and `asked` outlives the call.
            let result = unsafe { libc::prlimit64(0, resource, std::ptr::null(), &raw mut asked) };
            assert_eq!(result, 0);
            assert_eq!(limit.rlim_cur, asked.rlim_cur, "{resource}");
            assert_eq!(limit.rlim_max, asked.rlim_max, "{resource}");
        }
    }

    #[test]
    fn a_ceiling_lowers_hard_and_soft() {
        let mut high = Limits::own().unwrap();
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
