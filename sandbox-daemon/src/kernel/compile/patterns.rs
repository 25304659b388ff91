//! Names of files wherever they lie: `**/.env`, `**/*.pem`.

use std::path::Path;

use sandbox_common::{Identity, Key, bits, folds, kind, name_hash, suffix_hash};

use super::{Compiler, FOLDING, Hash, inode, narrow, rights};
use crate::{
    kernel::{KernelError, tree::End},
    policy::{NamePattern, Place, Policy},
};

impl Compiler<'_> {
    /// The rules that have a name in the place of a path. A walk asks them where
    /// it ends.
    pub(super) fn patterns(&mut self, policy: &Policy) -> Result<(), KernelError> {
        let mut found = Vec::new();
        for (rule, id) in policy.files.iter().zip(1..) {
            let Place::Name { scope, pattern } = &rule.place else {
                continue;
            };
            let scope = match scope {
                None => None,
                Some(scope) => {
                    let end = self.tree.find(scope)?.end;
                    let file = match &end {
                        End::Existing(file) => file.last(),
                        End::Missing { .. } => None,
                    };
                    // One that does not exist holds nothing yet.
                    let Some(directory) = file.filter(|node| node.is_directory()) else {
                        continue;
                    };
                    let (path, identity) = (directory.path.clone(), directory.identity);
                    // Walks end there, so that they have one scope at most.
                    let key = inode(identity);
                    let value = self.entries.get(&key);
                    if value.is_none_or(|value| value.bits & bits::RULED == 0) {
                        let (rights, id) = self.nearest(&path);
                        self.rule(identity, rights, id);
                    }
                    self.directories.insert((path.clone(), identity));
                    Some(path)
                }
            };
            found.push((scope, pattern, rights(rule.access), id));
        }
        let mut everywhere = 0;
        for (scope, pattern, rights, id) in found {
            let (flag, kind, name, hash): (_, _, _, Hash) = match pattern {
                NamePattern::Exact(name) => (bits::PATTERNS, kind::PATTERN, name, name_hash),
                NamePattern::Suffix(name) => (bits::SUFFIXES, kind::SUFFIX, name, suffix_hash),
            };
            let key = |magic| Key {
                kind,
                extra: self.hash(name, hash, magic),
                ..Key::default()
            };
            let (plain, folded) = (key(0), key(FOLDING));
            if let Some(scope) = scope {
                self.scoped(&scope, [plain, folded], rights, id);
            } else {
                everywhere |= flag;
                for key in [plain, folded] {
                    narrow(self.entries.entry(key).or_default(), rights, id);
                }
            }
        }
        for (key, value) in &mut self.entries {
            let ends_walks = matches!(key.kind, kind::INODE | kind::NAME);
            if ends_walks && value.bits & bits::RULED != 0 {
                value.bits |= everywhere;
            }
        }
        Ok(())
    }

    /// A pattern of a directory is repeated at all directories below it at which
    /// a walk may end.
    fn scoped(&mut self, scope: &Path, [plain, folded]: [Key; 2], rights: u32, id: u32) {
        let below: Vec<Identity> = self
            .directories
            .range((scope.to_owned(), Identity::default())..)
            .take_while(|(path, _)| path.starts_with(scope))
            .map(|(_, identity)| *identity)
            .collect();
        for Identity {
            dev, ino, magic, ..
        } in below.iter().copied()
        {
            let key = if folds(magic) { folded } else { plain };
            let key = Key { dev, ino, ..key };
            narrow(self.entries.entry(key).or_default(), rights, id);
        }
        for identity in below {
            self.mark(identity, bits::SCOPE, 0);
        }
    }
}
