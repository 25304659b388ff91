//! Changes as a patch, in the form of git.

use std::{
    collections::HashSet,
    io::{self, Write},
    path::{Path, PathBuf},
};

use bytes::{Bytes, BytesMut};

use super::{
    Change, FileType, Kind, LeftOut, Meta, Watch, Workspace, WorkspaceError,
    binary::Blob,
    halt::Halt,
    lines::{self, Side},
    quote::quoted,
};

/// A part of an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Bytes of the patch.
    Patch(Bytes),
    /// What it does not carry.
    LeftOut(LeftOut),
}

/// Pieces are about so large.
const PIECE: usize = 64 << 10;

/// git reads a file of a patch into memory; larger ones it may not.
const MAX_FILE: u64 = 4 << 30;

/// How many digits of an id are shown where they are not needed.
const SHORT: usize = 7;

type Put<'p> = dyn FnMut(Piece) -> Result<(), WorkspaceError> + 'p;

pub(super) fn write(
    workspace: &Workspace<'_>,
    changes: &[Change],
    binary: bool,
    watch: &mut Watch<'_>,
    put: &mut Put<'_>,
) -> Result<(), WorkspaceError> {
    let filled = filled(changes);
    let mut repositories = HashSet::new();
    let mut patch = Patch {
        workspace,
        binary,
        watch,
        pieces: Pieces {
            buffer: BytesMut::new(),
            put,
            ended: None,
        },
    };
    for change in changes {
        patch.watch.file()?;
        if let Some(repository) = lines::in_repository(&change.path) {
            if repositories.insert(repository.clone()) {
                let reason = "is a repository's own, which git takes from no patch";
                patch.pieces.left_out(&repository, reason)?;
            }
            continue;
        }
        let from_repository = change.old_path.as_deref().and_then(lines::in_repository);
        if from_repository.is_some() {
            let made = Change {
                kind: Kind::Added,
                old: None,
                old_path: None,
                contents: true,
                ..change.clone()
            };
            patch.change(&made, &filled)?;
        } else {
            patch.change(change, &filled)?;
        }
    }
    patch.pieces.send()
}

/// Directories that a patch makes or removes with what is in them.
fn filled(changes: &[Change]) -> HashSet<&Path> {
    let carried = changes.iter().filter(|change| {
        change.unknown.is_none()
            && (change.involves(FileType::Regular) || change.involves(FileType::Link))
    });
    let paths = carried.flat_map(|change| [Some(&change.path), change.old_path.as_ref()]);
    let mut filled = HashSet::new();
    for path in paths.flatten() {
        for above in path.ancestors().skip(1) {
            if !filled.insert(above) {
                break;
            }
        }
    }
    filled
}

struct Patch<'p, 'a, 'w> {
    workspace: &'p Workspace<'a>,
    binary: bool,
    watch: &'p mut Watch<'w>,
    pieces: Pieces<'p>,
}

impl Patch<'_, '_, '_> {
    fn change(&mut self, change: &Change, filled: &HashSet<&Path>) -> Result<(), WorkspaceError> {
        for reason in left_out(change, filled) {
            self.pieces.left_out(&change.path, &reason)?;
        }
        if change.unknown.is_some() {
            return Ok(());
        }
        let (old, new) = (git_mode(change.old.as_ref()), git_mode(change.new.as_ref()));
        // Without a place in a patch on either side, or the same there.
        if old.is_none() && new.is_none() || old == new && !change.contents && !renamed(change) {
            return Ok(());
        }
        if change.kind == Kind::TypeChanged && old.is_some() && new.is_some() {
            let gone = Change {
                kind: Kind::Deleted,
                new: None,
                ..change.clone()
            };
            let made = Change {
                kind: Kind::Added,
                old: None,
                ..change.clone()
            };
            self.file(&gone)?;
            return self.file(&made);
        }
        self.file(change)
    }

    /// A change of a file or link.
    fn file(&mut self, change: &Change) -> Result<(), WorkspaceError> {
        let sides = lines::sides(self.workspace, change)?;
        if matches!(sides.0, Side::Unreadable) || matches!(sides.1, Side::Unreadable) {
            let reason = "cannot be read by the sandbox's user";
            return self.pieces.left_out(&change.path, reason);
        }
        let large = [&sides.0, &sides.1]
            .into_iter()
            .any(|side| matches!(side, Side::Large(_, length) if *length > MAX_FILE));
        if large && self.binary {
            let reason = "is too large for a patch";
            return self.pieces.left_out(&change.path, reason);
        }
        let written = self.write(change, &sides);
        match written {
            Ok(()) => Ok(()),
            Err(Halt::Ended(error)) => Err(error),
            // Pieces that could not be sent, or a file that is not what it was.
            Err(Halt::Io(source)) => {
                Err(self
                    .pieces
                    .ended
                    .take()
                    .unwrap_or_else(|| WorkspaceError::Unsettled {
                        path: change.path.clone(),
                        source,
                    }))
            }
        }
    }

    fn write(&mut self, change: &Change, sides: &(Side, Side)) -> Result<(), Halt> {
        let old_path = change.old_path.as_ref().unwrap_or(&change.path);
        let (old_mode, new_mode) = (git_mode(change.old.as_ref()), git_mode(change.new.as_ref()));
        let (a, b) = (quoted("a/", old_path), quoted("b/", &change.path));
        self.line(&[b"diff --git ", &a, b" ", &b])?;
        let same_mode = match (old_mode, new_mode) {
            (None, Some(mode)) => {
                writeln!(self.pieces, "new file mode {mode}")?;
                None
            }
            (Some(mode), None) => {
                writeln!(self.pieces, "deleted file mode {mode}")?;
                None
            }
            (Some(old), Some(new)) if old != new => {
                writeln!(self.pieces, "old mode {old}")?;
                writeln!(self.pieces, "new mode {new}")?;
                None
            }
            (same, _) => same,
        };
        if renamed(change) {
            writeln!(self.pieces, "similarity index 100%")?;
            self.line(&[b"rename from ", &quoted("", old_path)])?;
            self.line(&[b"rename to ", &quoted("", &change.path)])?;
            return Ok(());
        }
        if !change.contents {
            return Ok(());
        }
        let text = sides.0.is_text() && sides.1.is_text();
        let (old, new) = (blob(&sides.0), blob(&sides.1));
        let full = self.binary && !text;
        if full || text || small(&sides.0) && small(&sides.1) {
            let mut ids = (old.id(self.watch)?, new.id(self.watch)?);
            if !full {
                ids.0.truncate(SHORT);
                ids.1.truncate(SHORT);
            }
            write!(self.pieces, "index {}..{}", ids.0, ids.1)?;
            if let Some(mode) = same_mode {
                write!(self.pieces, " {mode}")?;
            }
            writeln!(self.pieces)?;
        }
        let (a, b) = (
            old_mode.map_or(b"/dev/null".to_vec(), |_| a),
            new_mode.map_or(b"/dev/null".to_vec(), |_| b),
        );
        if text {
            if sides.0.text().is_empty() && sides.1.text().is_empty() {
                return Ok(());
            }
            self.line(&[b"--- ", &a, tab(&a)])?;
            self.line(&[b"+++ ", &b, tab(&b)])?;
            lines::unified(sides.0.text(), sides.1.text(), &mut self.pieces)?;
        } else if self.binary {
            writeln!(self.pieces, "GIT binary patch")?;
            let before = [&sides.0, &sides.1].map(state);
            new.literal(self.watch, &mut self.pieces)?;
            old.literal(self.watch, &mut self.pieces)?;
            if [&sides.0, &sides.1].map(state) != before {
                return Err(io::Error::other("it changed").into());
            }
        } else {
            self.line(&[b"Binary files ", &a, b" and ", &b, b" differ"])?;
        }
        Ok(())
    }

    fn line(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        for part in parts {
            self.pieces.write_all(part)?;
        }
        self.pieces.write_all(b"\n")
    }
}

/// What of a change a patch does not carry.
fn left_out(change: &Change, filled: &HashSet<&Path>) -> Vec<String> {
    if let Some(why) = change.unknown {
        return vec![why.to_owned()];
    }
    let mut reasons = Vec::new();
    let directory = |meta: Option<Meta>| meta.is_some_and(|it| it.is(FileType::Directory));
    if change.involves(FileType::Special) {
        reasons.push("is a device, a pipe or a socket".to_owned());
    }
    if (directory(change.old) != directory(change.new)) && !filled.contains(&*change.path) {
        reasons.push("is an empty directory".to_owned());
    }
    if let Some(new) = change.new
        && !new.is(FileType::Link)
        && !new.is(FileType::Special)
        && !carried(change, &new)
    {
        reasons.push(format!("has the permissions {:04o}", new.permissions()));
    }
    if !change.xattrs.is_empty() {
        let names: Vec<_> = change
            .xattrs
            .iter()
            .map(|name| crate::escape::display(name.as_encoded_bytes()))
            .collect();
        reasons.push(format!(
            "has other extended attributes ({})",
            names.join(", ")
        ));
    }
    reasons
}

/// Whether a patch leads to these permissions, whatever the umask of who applies it.
fn carried(change: &Change, new: &Meta) -> bool {
    const USUAL: [u32; 6] = [0o644, 0o664, 0o666, 0o755, 0o775, 0o777];
    let same = change
        .old
        .is_some_and(|old| old.permissions() == new.permissions());
    let seen = git_mode(change.old.as_ref()) != git_mode(change.new.as_ref())
        || new.is(FileType::Directory) && change.old.is_none();
    same || seen && USUAL.contains(&new.permissions())
}

/// As git writes it: of permissions it knows only whether a file is a program. None
/// of what it has no place for.
fn git_mode(meta: Option<&Meta>) -> Option<&'static str> {
    let meta = meta?;
    match meta.file_type() {
        FileType::Regular if meta.mode & 0o100 == 0 => Some("100644"),
        FileType::Regular => Some("100755"),
        FileType::Link => Some("120000"),
        FileType::Directory | FileType::Special => None,
    }
}

fn renamed(change: &Change) -> bool {
    change.kind == Kind::Renamed
}

fn blob(side: &Side) -> Blob<'_> {
    match side {
        Side::Text(bytes) | Side::Bytes(bytes) => Blob::Bytes(bytes),
        Side::Large(file, length) => Blob::File(file, *length),
        Side::None | Side::Unreadable => Blob::None,
    }
}

fn small(side: &Side) -> bool {
    !matches!(side, Side::Large(..))
}

/// What changes when a large file is written to.
fn state(side: &Side) -> Option<(u64, (i64, i64))> {
    let Side::Large(file, _) = side else {
        return None;
    };
    let meta = Meta::of(file).ok()?;
    Some((meta.size, meta.modified))
}

/// Ends a name with spaces in it.
fn tab(name: &[u8]) -> &'static [u8] {
    if name.contains(&b' ') { b"\t" } else { b"" }
}

/// Gathers what is written into pieces.
struct Pieces<'p> {
    buffer: BytesMut,
    put: &'p mut Put<'p>,
    ended: Option<WorkspaceError>,
}

impl Pieces<'_> {
    fn left_out(&mut self, path: &Path, reason: &str) -> Result<(), WorkspaceError> {
        (self.put)(Piece::LeftOut(LeftOut {
            path: PathBuf::from(path),
            reason: reason.to_owned(),
        }))
    }

    fn send(&mut self) -> Result<(), WorkspaceError> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        (self.put)(Piece::Patch(self.buffer.split().freeze()))
    }
}

impl Write for Pieces<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(PIECE);
        self.buffer.extend_from_slice(&bytes[..taken]);
        if self.buffer.len() >= PIECE
            && let Err(error) = self.send()
        {
            self.ended = Some(error);
            return Err(io::Error::other("it cannot be sent"));
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
