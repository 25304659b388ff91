//! Overlays show files of other places, their layers: what is denied there is
//! denied in the overlay, too. (What overlayfs itself does to its layers is let
//! through, see `sandbox-ebpf/src/files/overlay.rs`.)

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use sandbox_common::{bits, builtin};

use super::{Compiler, End, KernelError, Ruled};
use crate::{policy::Access, sys::Mount};

impl Compiler<'_> {
    /// What an overlay loses for its layers: all, where one is denied, or cannot
    /// be found. The host's root is where its layers are not seen any more.
    pub(super) fn layers(&mut self, mount: &Mount) -> Result<Option<(u32, u32)>, KernelError> {
        if mount.point == Path::new("/") {
            return Ok(None);
        }
        for layer in mount.layers() {
            if !layer.is_absolute() {
                return Ok(Some((0, builtin::UNKNOWN_FILESYSTEM)));
            }
            let (rights, id) = match self.tree.find(&layer)?.end {
                End::Existing(chain) => self.allowed(&chain),
                End::Missing { .. } => self.nearest(&layer),
            };
            if rights & bits::READ == 0 && id != builtin::NONE {
                return Ok(Some((0, id)));
            }
        }
        Ok(None)
    }

    /// Denies in overlays what is denied in their layers.
    pub(super) fn overlays(
        &mut self,
        mounts: &[Mount],
        places: &[Ruled<'_>],
    ) -> Result<(), KernelError> {
        let denied: BTreeSet<(PathBuf, u32)> = places
            .iter()
            .filter(|place| place.access == Access::Deny)
            .filter_map(|place| Some((place.real()?, place.id)))
            .collect();
        for mount in mounts {
            for layer in mount.layers() {
                let layer = match self.tree.find(&layer)?.end {
                    End::Existing(chain) => chain.last().map(|node| node.path.clone()),
                    End::Missing { .. } => None,
                };
                let Some(layer) = layer else { continue };
                let below = denied.range((layer.clone(), 0)..);
                for (path, id) in below.take_while(|(path, _)| path.starts_with(&layer)) {
                    if let Ok(below) = path.strip_prefix(&layer)
                        && !below.as_os_str().is_empty()
                    {
                        let seen = self.tree.find(&mount.point.join(below))?;
                        self.give(&seen, Access::Deny, *id);
                    }
                }
            }
        }
        Ok(())
    }
}

impl Ruled<'_> {
    /// Where the place is, without symbolic links.
    pub(super) fn real(&self) -> Option<PathBuf> {
        match &self.found.end {
            End::Existing(chain) => chain.last().map(|node| node.path.clone()),
            End::Missing { parents, name, .. } => Some(parents.last()?.path.join(name)),
        }
    }
}
