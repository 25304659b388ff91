//! What the client knows about itself: read once, passed as values.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs, io,
    path::{Component, Path, PathBuf},
    process,
};

use super::error::CliError;
use crate::{
    cgroup::{Membership, Slice},
    sys::start_time,
};

/// The calling process, as far as a request needs it.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    /// Its environment.
    pub(super) env: Vec<(OsString, OsString)>,
    /// Where it is; for relative paths.
    pub(super) cwd: PathBuf,
    /// Its file creation mask.
    pub(super) umask: u32,
    /// The signals that it ignores, as /proc/PID/status has them.
    pub(super) ignored_signals: u64,
    /// Field 22 of its /proc/PID/stat.
    pub(super) start_time: u64,
    /// The sandbox that it is in itself.
    pub(super) sandbox: Option<String>,
}

impl Caller {
    /// Reads it from the process and /proc.
    pub(super) fn current() -> Result<Self, CliError> {
        let read = |path: &str, operation| {
            fs::read(path).map_err(|source| CliError::Io { operation, source })
        };
        let invalid = |operation| CliError::Io {
            operation,
            source: io::Error::from(io::ErrorKind::InvalidData),
        };
        let status = read("/proc/self/status", "read /proc/self/status")?;
        let cgroup = read("/proc/self/cgroup", "read /proc/self/cgroup")?;
        Ok(Self {
            env: env::vars_os().collect(),
            cwd: env::current_dir().map_err(|source| CliError::Io {
                operation: "find the current directory",
                source,
            })?,
            umask: field(&status, b"Umask:", 8)
                .and_then(|mask| u32::try_from(mask).ok())
                .ok_or_else(|| invalid("read the umask"))?,
            ignored_signals: field(&status, b"SigIgn:", 16)
                .ok_or_else(|| invalid("read the ignored signals"))?,
            start_time: start_time(process::id()).map_err(|source| CliError::Io {
                operation: "read /proc/self/stat",
                source,
            })?,
            sandbox: sandbox(&String::from_utf8_lossy(&cgroup)),
        })
    }

    /// The value of one of its variables.
    pub(super) fn var(&self, name: &OsStr) -> Option<&OsStr> {
        let found = self.env.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_os_str())
    }

    /// An existing directory, by its real path.
    pub(super) fn directory(&self, what: &'static str, path: &Path) -> Result<String, CliError> {
        let error = |source| CliError::Path {
            what,
            path: path.to_owned(),
            source,
        };
        let real = fs::canonicalize(self.cwd.join(path)).map_err(error)?;
        if !real.is_dir() {
            return Err(error(io::ErrorKind::NotADirectory.into()));
        }
        utf8(what, real)
    }

    /// An absolute path that need not exist. Symbolic links stay as they are,
    /// except where a `..` makes them matter.
    pub(super) fn absolute(&self, what: &'static str, path: &Path) -> Result<String, CliError> {
        let joined = self.cwd.join(path);
        let has_parent = joined
            .components()
            .any(|component| component == Component::ParentDir);
        if has_parent {
            let real = fs::canonicalize(&joined).map_err(|source| CliError::Path {
                what,
                path: path.to_owned(),
                source,
            })?;
            return utf8(what, real);
        }
        // Drops `.` and doubled slashes.
        utf8(what, joined.components().collect())
    }
}

fn utf8(what: &'static str, path: PathBuf) -> Result<String, CliError> {
    path.into_os_string()
        .into_string()
        .map_err(|path| CliError::NotUtf8 {
            what,
            path: path.into(),
        })
}

/// A number of a /proc/PID/status.
fn field(status: &[u8], name: &[u8], radix: u32) -> Option<u64> {
    let value = status
        .split(|byte| *byte == b'\n')
        .find_map(|line| line.strip_prefix(name))?;
    u64::from_str_radix(std::str::from_utf8(value).ok()?.trim(), radix).ok()
}

/// The sandbox that a /proc/PID/cgroup shows. Of a slice with another name
/// the daemon knows, and says the same.
fn sandbox(cgroup: &str) -> Option<String> {
    let slice = Path::new("/").join(Slice::NAME);
    Membership::parse(cgroup, &slice)
        .map(|membership| membership.sandbox)
        .filter(|sandbox| !sandbox.is_empty())
}

#[cfg(test)]
mod tests {
    use super::{super::error::WORKSPACE, *};

    fn caller(cwd: &Path) -> Caller {
        Caller {
            env: vec![("TERM".into(), "xterm".into())],
            cwd: cwd.to_owned(),
            umask: 0o22,
            ignored_signals: 0,
            start_time: 1,
            sandbox: None,
        }
    }

    #[test]
    fn it_can_read_itself() {
        let caller = Caller::current().unwrap();
        assert!(caller.umask <= 0o777 && caller.start_time > 0);
        assert!(caller.cwd.is_absolute());
    }

    #[test]
    fn only_the_cgroup_says_whether_it_is_inside() {
        let inside = "0::/sandboxd.slice/0sbx/exec1\n";
        assert_eq!(sandbox(inside).as_deref(), Some("0sbx"));
        assert_eq!(sandbox("0::/user.slice/session-1.scope\n"), None);
        assert_eq!(sandbox("0::/sandboxd.slice\n"), None);
    }

    #[test]
    fn relative_paths_are_the_callers() {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().canonicalize().unwrap();
        let caller = caller(&base);
        let inside = |path: &str| base.join(path).to_str().unwrap().to_owned();
        let absolute = |path: &str| caller.absolute("the path", Path::new(path));
        assert_eq!(absolute("./missing/").unwrap(), inside("missing"));
        assert_eq!(absolute("/etc//ssl").unwrap(), "/etc/ssl");
        assert!(absolute("../missing/..").is_err());

        fs::create_dir(base.join("real")).unwrap();
        std::os::unix::fs::symlink("real", base.join("link")).unwrap();
        assert_eq!(absolute("link/../real").unwrap(), inside("real"));
        let workspace = |path: &str| caller.directory(WORKSPACE, Path::new(path));
        assert_eq!(workspace("link").unwrap(), inside("real"));
        assert!(workspace("missing").is_err());
    }
}
