//! What holds rules in their places when something comes or goes: the
//! directories above a place are ruled themselves, and their names are guarded,
//! so that what is put in the place of one is hidden until it was looked at.

use std::{
    collections::{BTreeSet, HashMap},
    ffi::OsString,
    path::Path,
};

use sandbox_common::bits;

use super::{Compiler, Ruled, inode, rights};
use crate::{
    kernel::{
        Watch,
        tree::{Chain, End, Node},
    },
    policy::Access,
};

/// The rules that make something below a writable place read-only where not
/// even the directories are there: who makes them owns what is in them.
pub(super) fn own(places: &[Ruled<'_>]) -> BTreeSet<u32> {
    let missing = places.iter().filter(|place| {
        matches!(&place.found.end, End::Missing { last: false, parents, .. }
            if parents.last().is_some_and(|node| node.is_directory()))
    });
    let ruled: HashMap<&Path, Access> = places
        .iter()
        .map(|place| (place.path, place.access))
        .collect();
    let writable = |place: &&Ruled<'_>| {
        let mut above = place.path.ancestors().skip(1);
        above.find_map(|path| ruled.get(path)) == Some(&Access::Write)
    };
    missing
        .filter(|place| place.access == Access::Read)
        .filter(writable)
        .map(|place| place.id)
        .collect()
}

impl Compiler<'_> {
    /// Holds the directories, and the links, that lead to places with less
    /// rights than they have themselves; and says what to watch.
    pub(super) fn anchors(&mut self, places: &[Ruled<'_>]) {
        let mut anchors = Vec::new();
        for place in places {
            let (chain, existing) = match &place.found.end {
                End::Existing(chain) => (&chain[..chain.len() - 1], chain.last()),
                End::Missing { parents, .. } => (parents.as_slice(), None),
            };
            for link in &place.found.links {
                self.anchor(&mut anchors, &link.chain, link.chain.len(), place);
            }
            self.anchor(&mut anchors, chain, chain.len(), place);
            match (&place.found.end, existing, chain.last()) {
                (End::Missing { name, .. }, _, Some(parent)) => {
                    self.watch(parent, name.clone(), false);
                }
                // What may not be written, others may replace.
                (_, Some(file), Some(parent)) if place.access != Access::Write => {
                    self.watch_node(parent, file);
                }
                _ => {}
            }
        }
        // All were decided by what was ruled before.
        for anchor in anchors {
            let [.., parent, node] = anchor.chain.as_slice() else {
                continue;
            };
            // Neither moved nor removed, links included.
            self.mark(node.identity, bits::ANCESTOR, anchor.id);
            let key = inode(node.identity);
            let ruled = self.entries.get(&key);
            if ruled.is_none_or(|value| value.bits & bits::RULED == 0) {
                self.rule(node.identity, anchor.allowed.0, anchor.allowed.1);
                if node.is_directory() {
                    self.directories.insert((node.path.clone(), node.identity));
                }
            }
            if let Some(name) = node.path.file_name() {
                let (parent, name) = (parent.clone(), name.to_owned());
                self.guard(&parent, &name, anchor.kept, anchor.id);
            }
            self.watch_node(parent, node);
        }
    }

    /// Anchors for what leads to a place with less rights.
    fn anchor(
        &self,
        anchors: &mut Vec<Anchor>,
        chain: &[std::rc::Rc<Node>],
        length: usize,
        place: &Ruled<'_>,
    ) {
        // Nobody but the administrator replaces a directory of the root's.
        for end in 3..=length {
            let chain = &chain[..end];
            let allowed = self.allowed(chain);
            let kept = allowed.0 & rights(place.access);
            if kept != allowed.0 {
                anchors.push(Anchor {
                    chain: chain.to_vec(),
                    allowed,
                    kept,
                    id: place.id,
                });
            }
        }
    }

    pub(super) fn watch_node(&mut self, parent: &Node, node: &Node) {
        if let Some(name) = node.path.file_name() {
            self.watch(parent, name.to_owned(), true);
        }
    }

    pub(super) fn watch(&mut self, parent: &Node, name: OsString, there: bool) {
        if !parent.is_directory() {
            return;
        }
        let watch = self.watched.entry(parent.path.clone());
        watch
            .or_insert_with(|| Watch {
                file: parent.file.clone(),
                path: parent.path.clone(),
                names: Vec::new(),
            })
            .names
            .push((name, there));
    }
}

struct Anchor {
    chain: Chain,
    /// Its rights, and the rule that gives them.
    allowed: (u32, u32),
    /// What is left of them for whatever is put there.
    kept: u32,
    id: u32,
}
