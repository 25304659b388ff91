//! Policies: TOML documents that say what may be read, written and reached.
//!
//! A [`Document`] is parsed against the named [`Sets`], then resolved for one
//! user and workspace into a [`Policy`]. Nothing here touches the file system
//! or the kernel.

mod credentials;
mod diagnostic;
mod digest;
mod document;
mod entries;
mod environment;
mod hosts;
mod limits;
mod model;
mod own;
mod pattern;
mod quantity;
mod resolve;
mod sets;
mod table;
mod warnings;

#[cfg(test)]
mod tests;

pub use diagnostic::{Diagnostic, Diagnostics, Severity, Source};
pub use document::Document;
pub use environment::{Environment, Selected, VariablePattern};
pub use limits::Limits;
pub use model::{
    Access, Credential, Device, Direct, FileRule, Listen, Mode, NamePattern, Network, NetworkMode,
    Place, Policy, Scope, WorkspaceMode,
};
pub use own::LABEL as OWN;
pub use pattern::Expansion;
pub use resolve::Additions;
pub use sandbox_proxy::rule::{HostPattern, HostRule};
pub use sets::Sets;

/// A policy or set file is at most this long.
pub const MAX_POLICY_BYTES: usize = 256 * 1024;
/// A policy has at most so many file rules, sets expanded.
pub const MAX_RULES: usize = 4096;
/// A policy has at most so many credentials.
pub const MAX_CREDENTIALS: usize = 256;
/// A path in a policy is at most this long, as the kernel's `PATH_MAX`.
pub const MAX_PATH_BYTES: usize = 4096;
/// The kernel side reads at most so much of a name.
pub const MAX_NAME_BYTES: usize = 255;
