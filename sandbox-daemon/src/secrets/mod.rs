//! Secrets: kept for their users, read when the proxy is to add them to requests,
//! and told to nobody else.

mod files;
mod store;

use std::{io, path::PathBuf};

use sandbox_proxy::credential::MAX_NAME;

pub use store::{Listed, Secrets};

/// Secrets of one user.
pub const MAX_SECRETS: usize = 256;

/// Why a secret was not kept, found or removed.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The name. It is not repeated: who has given a value in its place does not
    /// want it in a log.
    #[error(
        "the name of a secret must be 1 to {MAX_NAME} letters, digits, `-`, `_` and `.`, and not begin with a `.`"
    )]
    Name,
    /// The value.
    #[error(
        "the value must be 1 to {max} bytes of visible ASCII, without a space at its ends and without line breaks",
        max = sandbox_proxy::credential::MAX_SECRET
    )]
    Value,
    /// There is none.
    #[error("user {uid} has no secret `{name}`")]
    NotFound {
        /// Whose.
        uid: u32,
        /// Which.
        name: String,
    },
    /// The user has as many as there may be.
    #[error("user {uid} has {MAX_SECRETS} secrets already, which is the limit")]
    Full {
        /// Whose.
        uid: u32,
    },
    /// Others than root can read it, or change it.
    #[error("`{}` {problem}: secrets there are not used", path.display())]
    Exposed {
        /// The directory or file.
        path: PathBuf,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A directory or file.
    #[error("cannot {what} `{}`", path.display())]
    Io {
        /// Which step.
        what: &'static str,
        /// The directory or file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl SecretError {
    /// What to do about it.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::Name => "the name is what a policy's `secret` says; the value comes apart",
            Self::Value => {
                "where the value is right, something was added to it, such as a byte order mark"
            }
            Self::NotFound { .. } => "see `sandbox secret list`",
            Self::Full { .. } => "remove some with `sandbox secret rm`",
            Self::Exposed { .. } => {
                "who could read them may have; replace the secrets where they are from, then \
                 give the place back to root: directories 0700, files 0600"
            }
            Self::Io { .. } => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_for_a_name_is_not_repeated() {
        assert!(!SecretError::Name.to_string().contains("hunter2"));
        assert!(SecretError::Value.to_string().contains("16384"));
    }
}
