//! What may be reached without the proxy: addresses and Unix sockets.

use std::{net::IpAddr, path::Path};

use sandbox_common::{Key, Value, bits, builtin, kind};

use super::{Compiler, Doubtful};
use crate::{
    kernel::{KernelError, tree::End},
    policy::Access,
};

impl Compiler<'_> {
    /// An address; port 0: any.
    pub(super) fn direct(&mut self, address: IpAddr, port: u16) {
        let key = match address {
            IpAddr::V4(address) => Key {
                kind: kind::NET4,
                dev: u32::from_ne_bytes(address.octets()),
                ino: u64::from(port),
                extra: 0,
            },
            IpAddr::V6(address) => {
                let [ino, extra] = [0, 8].map(|at| {
                    let half: [u8; 8] = std::array::from_fn(|index| address.octets()[at + index]);
                    u64::from_ne_bytes(half)
                });
                Key {
                    kind: kind::NET6,
                    dev: u32::from(port),
                    ino,
                    extra,
                }
            }
        };
        self.entries.insert(
            key,
            Value {
                bits: bits::RULED,
                ..Value::default()
            },
        );
    }

    /// A Unix socket that may be connected to: its name in its directory, which
    /// a service that starts anew takes again. One that a link of the sandbox's
    /// own leads to is not what the policy means.
    pub(super) fn unix(&mut self, path: &Path, doubtful: &Doubtful) -> Result<(), KernelError> {
        let found = self.tree.find(path)?;
        let trusted = !doubtful.lead_to(&found);
        let (parents, name) = match &found.end {
            End::Existing(chain) => match chain.split_last() {
                Some((socket, parents)) => (parents, socket.path.file_name()),
                None => return Ok(()),
            },
            End::Missing {
                parents,
                name,
                last: true,
            } => (parents.as_slice(), Some(name.as_os_str())),
            End::Missing { parents, name, .. } => {
                // Not yet.
                if let Some(parent) = parents.last() {
                    self.watch(parent, name.clone(), false);
                }
                return Ok(());
            }
        };
        let Some(parent) = parents.last() else {
            return Ok(());
        };
        // A service's directory may come anew as well.
        if let [.., above, parent] = parents {
            self.watch_node(above, parent);
        }
        if let (Some(name), true) = (name, trusted && parent.is_directory()) {
            let key = Key {
                kind: kind::UNIX,
                ..self.name(parent, name)
            };
            let value = Value {
                bits: bits::RULED,
                ..Value::default()
            };
            self.entries.insert(key, value);
        }
        Ok(())
    }

    /// The name of such a socket, where the sandbox may write, is not the
    /// sandbox's to give: another service's socket, moved there, would be what
    /// the policy names.
    pub(super) fn keep_unix(&mut self, path: &Path) -> Result<(), KernelError> {
        let found = self.tree.find(path)?;
        match &found.end {
            End::Existing(chain) => {
                if let Some((socket, parents)) = chain.split_last()
                    && let Some(name) = socket.path.file_name()
                {
                    self.take_name(parents, name, Access::Read, builtin::UNIX);
                }
            }
            End::Missing { parents, name, .. } => {
                self.take_name(parents, name, Access::Read, builtin::UNIX);
            }
        }
        Ok(())
    }
}
