//! A workspace whose changes die with the sandbox: an overlay over it, in the
//! sandbox's own mount namespace.

use std::{os::fd::OwnedFd, time::SystemTime};

/// What an ephemeral workspace is made of. Whoever holds these holds the layers,
/// also when the namespace has ended.
#[derive(Debug)]
pub struct Layers {
    /// The workspace as the sandbox sees it: the root of the overlay.
    pub merged: OwnedFd,
    /// Only what the sandbox made, in overlayfs's own format.
    pub upper: OwnedFd,
    /// The real workspace, opened as its user.
    pub lower: OwnedFd,
    /// When the overlay was laid over it.
    pub since: SystemTime,
}
