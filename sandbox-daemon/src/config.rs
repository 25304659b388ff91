//! `/etc/sandboxd/config.toml`: everything optional, unknown keys are errors.

use std::{
    io,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use crate::cgroup::Slice;

/// Where the daemon looks unless told otherwise. It need not exist.
pub const DEFAULT_PATH: &str = "/etc/sandboxd/config.toml";

/// Largest file that is read.
const MAX_BYTES: u64 = 1 << 20;

/// The settings of the daemon.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The Unix socket of the API. Its directory also holds the lock and what
    /// has to survive a restart of the daemon.
    pub socket: PathBuf,
    /// Name of the cgroup below which all sandboxes live.
    pub slice: String,
    /// Where named policies are looked for, in this order.
    pub policy_directories: Vec<PathBuf>,
    /// Files of named sets, beside those that are built in.
    pub set_files: Vec<PathBuf>,
    /// Below it, `${cache}` of every user and workspace.
    pub cache_directory: PathBuf,
    /// What outlasts the machine's end: secrets.
    pub state_directory: PathBuf,
    /// Denials that are kept for `WatchEvents`.
    pub event_buffer: usize,
    /// Refusals of one exec that are told each at once; more are counted.
    pub event_burst: u64,
    /// Refusals of one exec that are told in a second, after a burst.
    pub event_rate: u64,
    /// The way out.
    pub proxy: ProxySettings,
    /// What one user may have at a time.
    pub quotas: Quotas,
}

/// The proxy, which is the only way out of a sandbox.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct ProxySettings {
    /// Its program; a name alone: beside the daemon's own, or in
    /// `/usr/lib/sandboxd`.
    pub program: PathBuf,
    /// Who it runs as. Without such an account: user and group 64127.
    pub user: String,
    /// Name servers.
    pub resolv_conf: PathBuf,
    /// Names that need no server.
    pub hosts: PathBuf,
    /// Files of certificates, PEM, that are believed beside the system's: by
    /// programs inside, and where credentials are added.
    pub roots: Vec<PathBuf>,
}

/// What one user may have at a time. Root is bound by them too.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct Quotas {
    /// Sandboxes.
    pub sandboxes: u32,
    /// Running execs.
    pub execs: u32,
    /// Open `Run`, `Enroll` and `WatchEvents` calls.
    pub streams: u32,
    /// Connections to the socket.
    pub connections: u32,
    /// Mebibytes of output of detached execs that are kept.
    pub log_mebibytes: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            socket: "/run/sandboxd/sandboxd.sock".into(),
            slice: Slice::NAME.into(),
            policy_directories: vec![
                "/etc/sandboxd/policies".into(),
                "/usr/lib/sandboxd/policies".into(),
            ],
            set_files: vec!["/etc/sandboxd/sets.toml".into()],
            cache_directory: "/var/cache/sandboxd".into(),
            state_directory: "/var/lib/sandboxd".into(),
            event_buffer: 65_536,
            event_burst: 4096,
            event_rate: 512,
            proxy: ProxySettings::default(),
            quotas: Quotas::default(),
        }
    }
}

impl Default for ProxySettings {
    fn default() -> Self {
        Self {
            program: "sandbox-proxy".into(),
            user: "sandbox-proxy".into(),
            resolv_conf: "/etc/resolv.conf".into(),
            hosts: "/etc/hosts".into(),
            roots: vec![],
        }
    }
}

impl Default for Quotas {
    fn default() -> Self {
        Self {
            sandboxes: 256,
            execs: 1024,
            streams: 1024,
            connections: 2048,
            log_mebibytes: 1024,
        }
    }
}

impl Quotas {
    /// Bytes of output of detached execs that are kept.
    #[must_use]
    pub fn log_bytes(&self) -> u64 {
        u64::from(self.log_mebibytes) << 20
    }
}

/// Why the settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read `{path}`")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is larger than any sensible one.
    #[error("`{path}` is larger than {MAX_BYTES} bytes")]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// It is not TOML, or has a key or value that does not belong there.
    #[error("`{path}` is wrong")]
    Parse {
        /// The file.
        path: PathBuf,
        /// With line, column and caret.
        source: Box<toml::de::Error>,
    },
    /// A value is out of its range.
    #[error("`{path}`: `{key}` {problem}")]
    Value {
        /// The file.
        path: PathBuf,
        /// Which.
        key: &'static str,
        /// What is wrong.
        problem: &'static str,
    },
}

impl Config {
    /// Reads `path`, or the default path where it exists.
    pub fn load(path: Option<&Path>) -> Result<Self, ConfigError> {
        let (path, required) = match path {
            Some(path) => (path, true),
            None => (Path::new(DEFAULT_PATH), false),
        };
        let read = |source| ConfigError::Read {
            path: path.into(),
            source,
        };
        match std::fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && !required => {
                return Ok(Self::default());
            }
            Err(error) => return Err(read(error)),
            Ok(metadata) if metadata.len() > MAX_BYTES => {
                return Err(ConfigError::TooLarge { path: path.into() });
            }
            Ok(_) => {}
        }
        Self::parse(path, &std::fs::read_to_string(path).map_err(read)?)
    }

    fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let config: Self = toml::from_str(text).map_err(|source| ConfigError::Parse {
            path: path.into(),
            source: source.into(),
        })?;
        let wrong = |key, problem| {
            Err(ConfigError::Value {
                path: path.into(),
                key,
                problem,
            })
        };
        if !config.socket.is_absolute() || config.socket.file_name().is_none() {
            return wrong("socket", "must be an absolute path");
        }
        let absolute = |paths: &[PathBuf]| paths.iter().all(|path| path.is_absolute());
        if !absolute(&config.policy_directories) {
            return wrong("policy_directories", "must be absolute paths");
        }
        if !absolute(&config.set_files) {
            return wrong("set_files", "must be absolute paths");
        }
        if !config.cache_directory.is_absolute() {
            return wrong("cache_directory", "must be an absolute path");
        }
        let state = &config.state_directory;
        if !state.is_absolute() || state.parent().is_none() {
            return wrong("state_directory", "must be an absolute path, and not `/`");
        }
        let proxy = &config.proxy;
        if proxy.program.file_name().is_none()
            || proxy.program.is_relative() && proxy.program.components().count() != 1
        {
            return wrong("proxy.program", "must be a name or an absolute path");
        }
        if !absolute(&[proxy.resolv_conf.clone(), proxy.hosts.clone()]) || !absolute(&proxy.roots) {
            return wrong("proxy", "must have absolute paths");
        }
        let slice = &config.slice;
        if slice.is_empty() || slice.starts_with('.') || slice.contains('/') {
            return wrong("slice", "must be a name without slashes");
        }
        if !(1..=16_777_216).contains(&config.event_buffer) {
            return wrong("event_buffer", "must be 1 to 16777216");
        }
        if !(1..=1_000_000).contains(&config.event_burst) {
            return wrong("event_burst", "must be 1 to 1000000");
        }
        if !(1..=1_000_000).contains(&config.event_rate) {
            return wrong("event_rate", "must be 1 to 1000000");
        }
        Ok(config)
    }

    /// Where the socket, the lock and the state are.
    pub fn runtime_directory(&self) -> &Path {
        self.socket.parent().unwrap_or(Path::new("/"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::Chain;

    fn parse(text: &str) -> Result<Config, ConfigError> {
        Config::parse(Path::new("config.toml"), text)
    }

    #[test]
    fn an_empty_file_is_the_default() {
        assert_eq!(parse("").unwrap(), Config::default());
    }

    #[test]
    fn the_documented_defaults_are_the_defaults() {
        let documentation = include_str!("../../docs/operations.md");
        let (_, block) = documentation.split_once("```toml\n").unwrap();
        let (block, _) = block.split_once("```").unwrap();
        assert_eq!(parse(block).unwrap(), Config::default());
        let keys = block.lines().filter(|line| line.contains(" = ")).count();
        assert_eq!(keys, 19, "a key is missing");
    }

    #[test]
    fn one_key_leaves_the_others_alone() {
        let config = parse("[quotas]\nexecs = 3\n").unwrap();
        assert_eq!(config.quotas.execs, 3);
        assert_eq!(config.quotas.streams, Quotas::default().streams);
    }

    #[test]
    fn an_unknown_key_is_an_error_with_its_position() {
        let error = parse("\n[quotas]\nexec = 3\n").unwrap_err();
        let message = Chain::of(&error).message;
        assert!(message.contains("line 3, column 1"), "{message}");
        assert!(
            message.contains("`exec`") && message.contains("`execs`"),
            "{message}"
        );
    }

    #[test]
    fn values_out_of_range_are_named() {
        for (text, key) in [
            ("socket = \"sock\"", "`socket`"),
            ("slice = \"a/b\"", "`slice`"),
            ("event_buffer = 0", "`event_buffer`"),
            ("policy_directories = [\"p\"]", "`policy_directories`"),
            ("state_directory = \"lib\"", "`state_directory`"),
            ("state_directory = \"/\"", "`state_directory`"),
        ] {
            let message = parse(text).unwrap_err().to_string();
            assert!(message.contains(key), "{message}");
        }
    }

    #[test]
    fn a_file_that_was_named_must_exist() {
        let error = Config::load(Some(Path::new("/nonexistent/config.toml"))).unwrap_err();
        assert!(matches!(error, ConfigError::Read { .. }));
    }
}
