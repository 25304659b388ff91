//! Regular files that are elsewhere with the same contents and permissions.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    path::Path,
};

use super::{Change, FileType, Kind, Meta, Watch, Workspace, WorkspaceError, contents, tree::Tree};

/// What has to agree before contents are looked at.
type Shape = (u64, u32);

/// Among so many files of the same contents, the one of the same name is looked for.
const NAMES: usize = 64;

/// Turns what was deleted and added with the same contents into renames. Runs as
/// the sandbox's user.
pub(super) fn pair(
    workspace: &Workspace<'_>,
    mut changes: Vec<Change>,
    watch: &mut Watch<'_>,
) -> Result<Vec<Change>, WorkspaceError> {
    let shapes = |kind| {
        let of_kind = changes.iter().filter(move |it| it.kind == kind);
        of_kind.filter_map(shape).collect::<HashSet<Shape>>()
    };
    let (added, deleted) = (shapes(Kind::Added), shapes(Kind::Deleted));
    let mut sources: HashMap<(Shape, [u8; 32]), VecDeque<usize>> = HashMap::new();
    for (index, change) in changes.iter().enumerate() {
        if let Some(shape) = shape(change).filter(|it| added.contains(it))
            && change.kind == Kind::Deleted
            && let Some(digest) = digest(workspace.lower(), change, watch)?
        {
            sources.entry((shape, digest)).or_default().push_back(index);
        }
    }
    let mut taken = HashSet::new();
    for index in 0..changes.len() {
        let change = &changes[index];
        let Some(shape) = shape(change).filter(|it| deleted.contains(it)) else {
            continue;
        };
        if change.kind != Kind::Added || sources.is_empty() {
            continue;
        }
        let Some(digest) = digest(workspace.merged(), change, watch)? else {
            continue;
        };
        let Some(candidates) = sources.get_mut(&(shape, digest)) else {
            continue;
        };
        let name = |path: &Path| path.file_name().map(ToOwned::to_owned);
        let of_that_name = candidates
            .iter()
            .take(NAMES)
            .position(|source| name(&changes[*source].path) == name(&change.path));
        let Some(source) = candidates.remove(of_that_name.unwrap_or(0)) else {
            continue;
        };
        taken.insert(source);
        let (path, old) = (changes[source].path.clone(), changes[source].old);
        let change = &mut changes[index];
        change.kind = Kind::Renamed;
        change.old_path = Some(path);
        change.old = old;
        change.contents = false;
    }
    let mut index = 0;
    changes.retain(|_| {
        index += 1;
        !taken.contains(&(index - 1))
    });
    Ok(changes)
}

/// Of a regular file that has contents which may be looked at.
fn shape(change: &Change) -> Option<Shape> {
    let side: Option<&Meta> = match change.kind {
        Kind::Added => change.new.as_ref(),
        Kind::Deleted => change.old.as_ref(),
        _ => None,
    };
    side.filter(|meta| meta.is(FileType::Regular) && meta.size > 0 && change.unknown.is_none())
        .map(|meta| (meta.size, meta.permissions()))
}

fn digest(
    tree: Tree<'_>,
    change: &Change,
    watch: &mut Watch<'_>,
) -> Result<Option<[u8; 32]>, WorkspaceError> {
    let Some((size, _)) = shape(change) else {
        return Ok(None);
    };
    match tree.open(&change.path) {
        Ok(file) => Ok(contents::digest(&file, size, watch)?.ok()),
        Err(_) => Ok(None),
    }
}
