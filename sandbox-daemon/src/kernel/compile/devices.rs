//! Devices that a policy opens, and terminals.

use std::{
    fs,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
};

use nix::sys::stat;
use sandbox_common::{Identity, Key, Value, bits, kind};

use super::{Compiler, inode, narrow};
use crate::{
    policy::Policy,
    sys::{Mount, OWN_MOUNT},
};

impl Compiler<'_> {
    /// Devices by number, and the pseudo-terminals that are the sandbox's own.
    pub(super) fn devices(&mut self, policy: &Policy, mounts: &[Mount]) {
        // One that is not there has no number; a block device is never opened.
        let opened = policy.devices.iter().filter_map(|device| {
            let node = fs::metadata(&device.path).ok()?;
            let number = node.rdev();
            let number = u32::try_from(stat::major(number) << 20 | stat::minor(number)).ok()?;
            node.file_type()
                .is_char_device()
                .then_some((kind::DEVICE, number))
        });
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
        for (kind, dev) in opened.chain(own) {
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
    }
}
