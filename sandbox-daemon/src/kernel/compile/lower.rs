//! The real workspace below an ephemeral one. The policy's paths lead to the
//! overlay that lies over it; by another way, a bind mount of the host's, say, the
//! real files can be seen, too. There they are the same places, and nothing of
//! them may be written.

use std::{
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
};

use sandbox_common::bits;

use super::{Compiler, End, KernelError, Ruled, rights};
use crate::{
    kernel::tree::Found,
    policy::Access,
    sys::{Mount, OWN_MOUNT},
};

/// A workspace with an overlay over it.
#[derive(Clone)]
pub struct Lower {
    /// Where the overlay lies.
    pub workspace: PathBuf,
    /// What is below it, `O_PATH`.
    pub directory: Arc<OwnedFd>,
}

impl Compiler<'_> {
    pub(super) fn lower(
        &mut self,
        lower: &Lower,
        mounts: &[Mount],
        places: &[Ruled<'_>],
    ) -> Result<(), KernelError> {
        let workspace = lower.workspace.as_path();
        let mut tree = self.tree.instead(workspace, lower.directory.clone());
        let aliases = Aliases::of(workspace, mounts);
        for place in places {
            let real = place.real();
            let alias = real.as_deref().and_then(|real| aliases.inside(real));
            if let Some(alias) = &alias {
                self.aliased(place, alias)?;
            }
            let within = [Some(place.path.to_owned()), real, alias];
            for path in within.into_iter().flatten() {
                if path == workspace || !path.starts_with(workspace) {
                    continue;
                }
                let found = tree.find(&path)?;
                // What a link leads to is ruled where the policy says so.
                if found.links.is_empty() || place.access == Access::Deny {
                    self.give(&found, place.access.min_read(), place.id);
                }
            }
        }
        let (allowed, id) = match self.tree.find(workspace)?.end {
            End::Existing(overlay) => self.allowed(&overlay),
            End::Missing { .. } => self.nearest(workspace),
        };
        for mount in mounts.iter().filter(|mount| aliases.show(mount)) {
            self.only_read(&mount.point, id)?;
        }
        if let End::Existing(real) = tree.find(workspace)?.end {
            self.file(&real, allowed & bits::READ, id);
        }
        self.below = Some(tree);
        Ok(())
    }

    /// A rule for a place of the real workspace that is seen elsewhere: what it
    /// denies is denied in the overlay, and what it allows is never to write.
    fn aliased(&mut self, place: &Ruled<'_>, inside: &Path) -> Result<(), KernelError> {
        match place.access {
            Access::Deny => {
                let seen: Found = self.tree.find(inside)?;
                self.give(&seen, Access::Deny, place.id);
            }
            Access::Write => self.only_read(place.path, place.id)?,
            Access::Read => {}
        }
        Ok(())
    }

    fn only_read(&mut self, path: &Path, id: u32) -> Result<(), KernelError> {
        if let End::Existing(chain) = self.tree.find(path)?.end
            && let Some(file) = chain.last()
        {
            self.rule(file.identity, rights(Access::Read), id);
        }
        Ok(())
    }
}

/// Where else what is below a workspace can be seen.
struct Aliases<'m> {
    mounts: &'m [Mount],
    workspace: &'m Path,
    /// The file system of the workspace, and where in it that is.
    real: Option<(u32, PathBuf)>,
}

impl<'m> Aliases<'m> {
    fn of(workspace: &'m Path, mounts: &'m [Mount]) -> Self {
        let real = on(workspace, mounts).map(|mount| (mount.dev, place(mount, workspace)));
        Self {
            mounts,
            workspace,
            real,
        }
    }

    /// The path in the workspace that names the same file as a path elsewhere.
    fn inside(&self, path: &Path) -> Option<PathBuf> {
        let (dev, real) = self.real.as_ref()?;
        if path.starts_with(self.workspace) {
            return None;
        }
        let mount = on(path, self.mounts).filter(|mount| mount.dev == *dev)?;
        let place = place(mount, path);
        Some(self.workspace.join(place.strip_prefix(real).ok()?))
    }

    /// Whether a mount shows the workspace, or a part of it.
    fn show(&self, mount: &Mount) -> bool {
        let real = self.real.as_ref();
        real.is_some_and(|(dev, real)| {
            mount.dev == *dev && mount.root.starts_with(real) && mount.point != self.workspace
        })
    }
}

/// The mount that a path is on, overlays of the daemon's left aside.
fn on<'m>(path: &Path, mounts: &'m [Mount]) -> Option<&'m Mount> {
    mounts
        .iter()
        .filter(|mount| mount.covers(path) && !is_ours(mount))
        // Of those at one place the last one lies over the others.
        .max_by_key(|mount| mount.point.components().count())
}

fn is_ours(mount: &Mount) -> bool {
    mount.fs_type == "overlay" && mount.source == OWN_MOUNT
}

/// Where in its file system a path is.
fn place(mount: &Mount, path: &Path) -> PathBuf {
    let below = path.strip_prefix(&mount.point).unwrap_or(Path::new(""));
    mount.root.join(below)
}

impl Access {
    /// The same without writing.
    fn min_read(self) -> Self {
        match self {
            Self::Write => Self::Read,
            other => other,
        }
    }
}
