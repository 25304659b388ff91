//! What a policy comes to for one user and workspace: paths expanded, sets
//! unfolded, each place named once.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use sandbox_proxy::{credential, rule::HostRule};

use serde::{Deserialize, Serialize};

use super::Limits;
use super::digest;
use super::environment::Environment;

/// Whether refusals are carried out or only reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// What the policy does not allow fails.
    #[default]
    Enforce,
    /// It is let through, and its event says `observed`.
    Observe,
}

/// What becomes of what a sandbox writes to its workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum WorkspaceMode {
    /// It is written.
    #[default]
    Direct,
    /// It dies with the sandbox, unless it is applied or exported.
    Ephemeral,
}

/// What may be done with a place and, unless a nearer rule says otherwise,
/// with everything below it.
///
/// Ordered by precedence at the same place: the greater wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// Reading; below a writable place, read-only.
    Read,
    /// Reading and writing.
    Write,
    /// Nothing: it does not exist.
    Deny,
}

impl Access {
    /// The word that a policy uses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Deny => "deny",
        }
    }
}

/// The names that a `**/` rule matches. Regular files only.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NamePattern {
    /// `**/.env`.
    Exact(Vec<u8>),
    /// `**/*.pem`, as `.pem`: what follows the last dot of a name, with the
    /// dot. A name that is nothing else matches too.
    Suffix(Vec<u8>),
}

impl NamePattern {
    /// Whether a file of this name is meant.
    pub fn matches(&self, name: &[u8]) -> bool {
        match self {
            Self::Exact(exact) => name == exact.as_slice(),
            Self::Suffix(suffix) => name.ends_with(suffix),
        }
    }
}

/// What a file rule is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// A file, or a directory and what is below it. Absolute, without `.`,
    /// `..` and doubled slashes.
    Path(PathBuf),
    /// Every regular file of that name, in `scope` or anywhere.
    Name {
        /// The directory below which the rule holds.
        scope: Option<PathBuf>,
        /// The names.
        pattern: NamePattern,
    },
}

impl Place {
    /// Whether it is a rule for names, and for this path's.
    pub fn names(&self, path: &Path) -> bool {
        let Self::Name { scope, pattern } = self else {
            return false;
        };
        let within = scope.as_ref().is_none_or(|scope| path.starts_with(scope));
        let name = path.file_name().unwrap_or_default();
        within && pattern.matches(name.as_encoded_bytes())
    }
}

/// One line about files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileRule {
    /// What it is about.
    pub place: Place,
    /// What may be done.
    pub access: Access,
    /// What events call it: the name of the set it came from, without `@`, or
    /// the entry as the policy has it.
    pub label: String,
}

/// What becomes of connections in general.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NetworkMode {
    /// Nothing but the `direct` addresses.
    #[default]
    None,
    /// The proxy, which lets the `allow` hosts through, and `direct`.
    Proxy,
    /// No network wall.
    Unrestricted,
}

impl NetworkMode {
    /// The word that a policy uses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Proxy => "proxy",
            Self::Unrestricted => "unrestricted",
        }
    }
}

/// Who may connect to what listens inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Listen {
    /// Nothing listens, and no port is taken.
    None,
    /// This machine, over loopback.
    #[default]
    Loopback,
    /// Everybody, over TCP.
    Any,
}

impl Listen {
    /// The word that a policy uses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Loopback => "loopback",
            Self::Any => "any",
        }
    }
}

/// An address that may be reached without the proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Direct {
    /// Never a mapped IPv4 address, and never unspecified.
    pub address: IpAddr,
    /// All ports without one.
    pub port: Option<u16>,
    /// The entry as the policy has it.
    pub label: String,
}

/// What may be reached.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Network {
    /// What holds where no rule does; also the label of such a refusal.
    pub mode: NetworkMode,
    /// Reached without the proxy.
    pub direct: Vec<Direct>,
    /// Let through by the proxy.
    pub allow: Vec<HostRule>,
    /// Refused by the proxy, whatever `allow` says.
    pub deny: Vec<HostRule>,
    /// Unix sockets outside the sandbox that may be connected to.
    pub unix: Vec<PathBuf>,
    /// Who may connect to what listens inside.
    pub listen: Listen,
}

/// What is let through beyond the sandbox's own processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scope {
    /// User namespaces, and what their owner may do in them; no mounts.
    pub user_namespaces: bool,
}

/// A character device that may be opened, beside those that every sandbox may.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Where its node lies.
    pub path: PathBuf,
    /// The entry as the policy has it.
    pub label: String,
}

/// A secret that is added to requests on their way out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credential {
    /// Which secret, where to and where in a request. It has no dummy: each sandbox
    /// gets its own.
    pub rule: credential::Credential,
    /// The variable inside that has the dummy; none: the secret goes to every
    /// request that is covered. Credentials of one variable are of one secret.
    pub env: Option<String>,
}

/// A resolved policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Its `name`, or the file's.
    pub name: String,
    /// SHA-256 of everything below, in hexadecimal.
    pub digest: String,
    /// Enforce or observe.
    pub mode: Mode,
    /// One rule a place, in the order of the document. A rule's id is its
    /// index plus one.
    pub files: Vec<FileRule>,
    /// The network wall.
    pub network: Network,
    /// The scope wall.
    pub scope: Scope,
    /// Devices; what may be done with them `files` says.
    pub devices: Vec<Device>,
    /// Secrets that are added outside; with [`NetworkMode::Proxy`] alone.
    pub credentials: Vec<Credential>,
    /// Hosts whose connections are never looked into, whatever `credentials` says;
    /// no port: 443.
    pub untouched: Vec<HostRule>,
    /// The environment of what is started.
    pub env: Environment,
    /// The directory that is worked in: others may have filled it, so what
    /// symbolic links in it lead to is not what the rules mean.
    pub workspace: Option<PathBuf>,
    /// What becomes of what is written there.
    pub workspace_mode: WorkspaceMode,
    /// Time and resources.
    pub limits: Limits,
}

/// The sets of what somebody outside runs later.
const RUN_LATER: [&str; 2] = ["repository", "workspace-config"];

impl Policy {
    /// Puts a policy together and computes its digest.
    pub fn new(
        name: String,
        mode: Mode,
        files: Vec<FileRule>,
        network: Network,
        env: Environment,
    ) -> Self {
        let mut policy = Self {
            name,
            digest: String::new(),
            mode,
            files,
            network,
            scope: Scope::default(),
            devices: Vec::new(),
            credentials: Vec::new(),
            untouched: Vec::new(),
            env,
            workspace: None,
            workspace_mode: WorkspaceMode::default(),
            limits: Limits::default(),
        };
        policy.digest = digest::of(&policy);
        policy
    }

    /// The same for a workspace whose changes die with the sandbox: what is
    /// read-only because somebody outside runs it later may be written, and is
    /// left out when changes are applied.
    #[must_use]
    pub fn ephemeral(mut self) -> Self {
        let Some(workspace) = &self.workspace else {
            return self;
        };
        for rule in &mut self.files {
            if RUN_LATER.contains(&rule.label.as_str())
                && rule.access == Access::Read
                && matches!(&rule.place, Place::Path(path) if path.starts_with(workspace))
            {
                rule.access = Access::Write;
            }
        }
        self
    }

    /// The rule that decides about a path as it is written, links not followed: one
    /// for the path itself goes before those for names of regular files, and these
    /// before those for what is above. The kernel's walls decide by the file.
    pub fn decides(&self, path: &Path, regular: bool) -> Option<&FileRule> {
        let nearest = self.nearest(path);
        let exact = nearest.filter(|rule| matches!(&rule.place, Place::Path(it) if it == path));
        let by_name = || {
            let mut rules = self.files.iter();
            rules.find(|rule| regular && rule.place.names(path))
        };
        exact.or_else(by_name).or(nearest)
    }

    /// The same with a softer scope wall.
    #[must_use]
    pub fn with_scope(mut self, scope: Scope) -> Self {
        if scope == self.scope {
            return self;
        }
        self.scope = scope;
        self.digest = digest::of(&self);
        self
    }

    /// The same with devices.
    #[must_use]
    pub fn with_devices(mut self, devices: Vec<Device>) -> Self {
        if devices == self.devices {
            return self;
        }
        self.devices = devices;
        self.digest = digest::of(&self);
        self
    }

    /// The same with credentials, and with hosts that are left untouched.
    #[must_use]
    pub fn with_credentials(
        mut self,
        credentials: Vec<Credential>,
        untouched: Vec<HostRule>,
    ) -> Self {
        if credentials == self.credentials && untouched == self.untouched {
            return self;
        }
        self.credentials = credentials;
        self.untouched = untouched;
        self.digest = digest::of(&self);
        self
    }

    /// The same with a workspace of this mode, and with limits.
    #[must_use]
    pub fn with_bounds(mut self, workspace_mode: WorkspaceMode, limits: Limits) -> Self {
        if (workspace_mode, limits) == (self.workspace_mode, self.limits) {
            return self;
        }
        self.workspace_mode = workspace_mode;
        self.limits = limits;
        self.digest = digest::of(&self);
        self
    }

    /// The rule that decides about a path, by names alone: symbolic links,
    /// mounts and name rules are the kernel's business.
    pub fn nearest(&self, path: &Path) -> Option<&FileRule> {
        path.ancestors().find_map(|ancestor| {
            self.files
                .iter()
                .find(|rule| matches!(&rule.place, Place::Path(place) if place == ancestor))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_goes_before_what_is_above_and_a_path_before_its_name() {
        let rule = |place, access| FileRule {
            place,
            access,
            label: String::new(),
        };
        let named = Place::Name {
            scope: None,
            pattern: NamePattern::Exact(b".env".to_vec()),
        };
        let policy = Policy::new(
            "test".into(),
            Mode::Enforce,
            vec![
                rule(named, Access::Deny),
                rule(Place::Path("/w".into()), Access::Write),
                rule(Place::Path("/w/open/.env".into()), Access::Write),
            ],
            Network::default(),
            Environment::default(),
        );
        let access = |path: &str, regular| {
            let rule = policy.decides(Path::new(path), regular);
            rule.map(|rule| rule.access)
        };
        assert_eq!(access("/w/.env", true), Some(Access::Deny));
        assert_eq!(access("/w/.env", false), Some(Access::Write));
        assert_eq!(access("/w/open/.env", true), Some(Access::Write));
        assert_eq!(access("/w/x", true), Some(Access::Write));
        assert_eq!(access("/etc/x", true), None);
    }

    #[test]
    fn the_nearest_rule_is_found_by_names() {
        let rule = |path: &str, access| FileRule {
            place: Place::Path(path.into()),
            access,
            label: path.into(),
        };
        let policy = Policy::new(
            "test".into(),
            Mode::Enforce,
            vec![
                rule("/", Access::Read),
                rule("/w", Access::Write),
                rule("/w/.git/config", Access::Read),
            ],
            Network::default(),
            Environment::default(),
        );
        let access = |path: &str| policy.nearest(Path::new(path)).map(|rule| rule.access);
        assert_eq!(access("/etc/passwd"), Some(Access::Read));
        assert_eq!(access("/w/src/main.rs"), Some(Access::Write));
        assert_eq!(access("/w/.git/config"), Some(Access::Read));
        assert_eq!(access("/w/.git/HEAD"), Some(Access::Write));
    }
}
