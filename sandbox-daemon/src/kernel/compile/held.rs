//! Files that a policy is about and that have to stay in memory, because they
//! have their numbers for no longer: watched, which keeps a file there and lets
//! its file system be unmounted all the same.

use super::{Compiler, inode};
use crate::kernel::{Watch, tree::Tree};

/// Whose numbers are for good: ext2 to ext4, XFS, tmpfs, F2FS, ramfs.
pub(in crate::kernel) const STABLE: [u64; 5] =
    [0xef53, 0x5846_5342, 0x0102_1994, 0xf2f5_2010, 0x8584_58f6];

/// `BTRFS_SUPER_MAGIC`
pub(in crate::kernel) const BTRFS: u64 = 0x9123_683e;

/// `BTRFS_FIRST_FREE_OBJECTID`: the root of every subvolume.
const SUBVOLUME: u64 = 256;

impl Compiler<'_> {
    pub(super) fn held(&self) -> impl Iterator<Item = Watch> {
        self.tree
            .nodes()
            .chain(self.below.iter().flat_map(Tree::nodes))
            .filter(|node| {
                let identity = node.identity;
                match identity.magic {
                    // See `sandbox-ebpf/src/files/subvolume.rs`.
                    BTRFS => identity.ino == SUBVOLUME,
                    magic if STABLE.contains(&magic) => false,
                    _ => self.entries.contains_key(&inode(identity)),
                }
            })
            .map(|node| Watch {
                file: node.file.clone(),
                path: node.path.clone(),
                names: Vec::new(),
            })
    }
}
