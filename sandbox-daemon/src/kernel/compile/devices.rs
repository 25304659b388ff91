//! Devices that a policy opens, and terminals.

use nix::sys::stat::{SFlag, fstat, major, minor};
use sandbox_common::{Identity, Key, Value, bits, kind};

use super::{Compiler, Doubtful, inode, narrow};
use crate::{
    kernel::{
        KernelError,
        tree::{End, Node},
    },
    policy::Policy,
    sys::{Mount, OWN_MOUNT},
};

impl Compiler<'_> {
    /// Devices by number, and the pseudo-terminals that are the sandbox's own.
    pub(super) fn devices(
        &mut self,
        policy: &Policy,
        mounts: &[Mount],
        doubtful: &Doubtful,
    ) -> Result<(), KernelError> {
        let mut opened = Vec::new();
        for device in &policy.devices {
            let found = self.tree.find(&device.path)?;
            // What a link of the sandbox's own leads to is not what the policy means.
            if doubtful.lead_to(&found) {
                continue;
            }
            if let End::Existing(chain) = &found.end {
                let number = chain.last().and_then(|node| number(node));
                opened.extend(number.map(|number| (kind::DEVICE, number)));
            }
        }
        let own = mounts.iter().filter_map(|mount| {
            let own = mount.fs_type == "devpts" && mount.source == OWN_MOUNT;
            own.then_some((kind::TERMINALS, mount.dev))
        });
        // The host's lie hidden below, and are what enrolled processes have. Of
        // devpts the root is number 1.
        let hosts = mounts
            .iter()
            .filter(|mount| mount.fs_type == "devpts" && mount.source != OWN_MOUNT);
        for mount in hosts {
            let (rights, id) = self.nearest(&mount.point);
            let root = Identity {
                dev: mount.dev,
                ino: 1,
                ..Identity::default()
            };
            let value = self.entries.entry(inode(root)).or_default();
            narrow(value, rights, id);
        }
        for (kind, dev) in opened.into_iter().chain(own) {
            let value = Value {
                bits: bits::RULED,
                ..Value::default()
            };
            let key = Key {
                kind,
                dev,
                ..Key::ZERO
            };
            self.entries.insert(key, value);
        }
        Ok(())
    }
}

/// The number of a character device; a block device is never opened.
fn number(node: &Node) -> Option<u32> {
    if node.kind != SFlag::S_IFCHR {
        return None;
    }
    let device = fstat(&*node.file).ok()?.st_rdev;
    u32::try_from(major(device) << 20 | minor(device)).ok()
}
