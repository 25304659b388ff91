//! Where links may be the sandbox's own, or of whoever filled the workspace:
//! the workspace, and what may be written.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
};

use super::Ruled;
use crate::{
    kernel::tree::{End, Found, Link},
    policy::{Access, Policy},
};

/// These places.
pub(super) struct Doubtful(HashSet<PathBuf>);

impl Doubtful {
    pub(super) fn new(policy: &Policy, found: &[Ruled<'_>]) -> Self {
        let mut places = Self(policy.workspace.iter().cloned().collect());
        let writable: Vec<(&Found, &PathBuf)> = found
            .iter()
            .filter(|place| place.access == Access::Write)
            .filter_map(|place| match &place.found.end {
                End::Existing(file) => Some((&place.found, &file.last()?.path)),
                End::Missing { .. } => None,
            })
            .collect();
        let direct = writable.iter().filter(|(found, _)| found.links.is_empty());
        places.0.extend(direct.map(|(_, path)| (*path).clone()));
        let trusted: Vec<PathBuf> = writable
            .iter()
            .filter(|(found, _)| !places.lead_to(found))
            .map(|(_, path)| (*path).clone())
            .collect();
        places.0.extend(trusted);
        places
    }

    /// Whether a link on the way to what was found lies in one of them.
    pub(super) fn lead_to(&self, found: &Found) -> bool {
        let mut links = found.links.iter().filter_map(Link::path);
        links.any(|link| self.hold(link))
    }

    fn hold(&self, path: &Path) -> bool {
        path.ancestors().any(|above| self.0.contains(above))
    }
}
