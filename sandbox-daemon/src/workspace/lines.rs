//! Texts, line by line.

use std::{
    fs::File,
    io::{self, Read as _, Write},
};

use imara_diff::{
    Algorithm, Diff, InternedInput,
    sources::{ByteLines, byte_lines},
};

use super::{Change, FileType, Watch, Workspace, WorkspaceError, tree::bytes};

/// Larger files are not compared by lines.
pub(super) const MAX_TEXT: u64 = 16 << 20;

/// Lines around a change.
const CONTEXT: u32 = 3;

/// How much of a file is others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lines {
    /// It is no text, or too large to be compared by lines.
    pub binary: bool,
    /// Lines that are new.
    pub added: u64,
    /// Lines that are gone.
    pub deleted: u64,
}

/// One side of a change.
pub(super) enum Side {
    /// There is nothing that a patch could carry.
    None,
    /// A text, or where a link leads.
    Text(Vec<u8>),
    /// A file that was read whole and is no text.
    Bytes(Vec<u8>),
    /// A large file.
    Large(File, u64),
    /// It cannot be read.
    Unreadable,
}

impl Side {
    pub(super) fn is_text(&self) -> bool {
        matches!(self, Self::None | Self::Text(_))
    }

    pub(super) fn text(&self) -> &[u8] {
        match self {
            Self::Text(text) => text,
            _ => b"",
        }
    }
}

/// Both sides of a change, opened as the user and read after.
pub(super) fn sides(
    workspace: &Workspace<'_>,
    change: &Change,
) -> Result<(Side, Side), WorkspaceError> {
    let old_path = change.old_path.as_ref().unwrap_or(&change.path);
    let (old, new) = workspace.as_user(|| {
        let open = |tree: super::tree::Tree<'_>, path, file_type| match file_type {
            Some(FileType::Regular) => match tree.open(path) {
                Ok(file) => Opened::File(file),
                Err(_) => Opened::Unreadable,
            },
            Some(FileType::Link) => match tree.link(path) {
                Ok(target) => Opened::Link(target.into_encoded_bytes()),
                Err(_) => Opened::Unreadable,
            },
            _ => Opened::None,
        };
        (
            open(workspace.lower(), old_path, change.old_type()),
            open(workspace.merged(), &change.path, change.new_type()),
        )
    })?;
    Ok((old.read(), new.read()))
}

enum Opened {
    None,
    File(File),
    Link(Vec<u8>),
    Unreadable,
}

impl Opened {
    fn read(self) -> Side {
        match self {
            Self::None => Side::None,
            Self::Link(target) => Side::Text(target),
            Self::Unreadable => Side::Unreadable,
            Self::File(file) => read(file).unwrap_or(Side::Unreadable),
        }
    }
}

fn read(file: File) -> io::Result<Side> {
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Ok(Side::Unreadable);
    }
    if meta.len() > MAX_TEXT {
        return Ok(Side::Large(file, meta.len()));
    }
    let mut contents = Vec::new();
    (&file).take(MAX_TEXT + 1).read_to_end(&mut contents)?;
    let length = contents.len() as u64;
    Ok(if length > MAX_TEXT {
        Side::Large(file, length)
    } else if memchr::memchr(0, &contents).is_some() {
        Side::Bytes(contents)
    } else {
        Side::Text(contents)
    })
}

/// Counts the lines of a change.
pub(super) fn count(
    workspace: &Workspace<'_>,
    change: &Change,
    watch: &mut Watch<'_>,
) -> Result<Lines, WorkspaceError> {
    watch.file()?;
    if !change.contents {
        return Ok(Lines::default());
    }
    let (old, new) = sides(workspace, change)?;
    if !old.is_text() || !new.is_text() {
        return Ok(Lines {
            binary: true,
            ..Lines::default()
        });
    }
    let (_, diff) = compare(old.text(), new.text());
    Ok(Lines {
        binary: false,
        added: diff.count_additions().into(),
        deleted: diff.count_removals().into(),
    })
}

fn compare<'a>(old: &'a [u8], new: &'a [u8]) -> (InternedInput<&'a [u8]>, Diff) {
    let lines = |text: &'a [u8]| -> ByteLines<'a> { byte_lines(text) };
    let input = InternedInput::new(lines(old), lines(new));
    let mut diff = Diff::compute(Algorithm::Histogram, &input);
    diff.postprocess_lines(&input);
    (input, diff)
}

/// Lines of one hunk: half open, in both texts.
struct Hunk {
    old: std::ops::Range<u32>,
    new: std::ops::Range<u32>,
    changes: Vec<imara_diff::Hunk>,
}

/// Writes what differs as hunks of a unified diff.
pub(super) fn unified(old: &[u8], new: &[u8], to: &mut dyn Write) -> io::Result<()> {
    let (input, diff) = compare(old, new);
    let mut hunks: Vec<Hunk> = Vec::new();
    for change in diff.hunks() {
        let start = |at: u32| at.saturating_sub(CONTEXT);
        let old_end = (change.before.end + CONTEXT).min(len(&input.before));
        let new_end = (change.after.end + CONTEXT).min(len(&input.after));
        match hunks.last_mut() {
            Some(hunk) if start(change.before.start) <= hunk.old.end => {
                hunk.old.end = old_end;
                hunk.new.end = new_end;
                hunk.changes.push(change);
            }
            _ => hunks.push(Hunk {
                old: start(change.before.start)..old_end,
                new: start(change.after.start)..new_end,
                changes: vec![change],
            }),
        }
    }
    let old_line = |at: u32| input.interner[input.before[at as usize]];
    let new_line = |at: u32| input.interner[input.after[at as usize]];
    for hunk in hunks {
        writeln!(to, "@@ -{} +{} @@", range(&hunk.old), range(&hunk.new))?;
        let mut at = hunk.old.start;
        for change in hunk.changes {
            for same in at..change.before.start {
                line(b' ', old_line(same), to)?;
            }
            for gone in change.before.clone() {
                line(b'-', old_line(gone), to)?;
            }
            for added in change.after {
                line(b'+', new_line(added), to)?;
            }
            at = change.before.end;
        }
        for same in at..hunk.old.end {
            line(b' ', old_line(same), to)?;
        }
    }
    Ok(())
}

fn len(tokens: &[imara_diff::Token]) -> u32 {
    u32::try_from(tokens.len()).unwrap_or(u32::MAX)
}

/// `START,COUNT`; of no lines the one before them.
fn range(lines: &std::ops::Range<u32>) -> String {
    match lines.len() {
        0 => format!("{},0", lines.start),
        1 => format!("{}", lines.start + 1),
        count => format!("{},{count}", lines.start + 1),
    }
}

fn line(mark: u8, line: &[u8], to: &mut dyn Write) -> io::Result<()> {
    to.write_all(&[mark])?;
    to.write_all(line)?;
    if line.ends_with(b"\n") {
        return Ok(());
    }
    to.write_all(b"\n\\ No newline at end of file\n")
}

/// Whether git would take no such path into a patch: a part of a repository's own
/// directory.
pub(super) fn in_repository(path: &std::path::Path) -> Option<std::path::PathBuf> {
    let mut above = std::path::PathBuf::new();
    for name in path {
        above.push(name);
        let name = bytes(std::path::Path::new(name));
        if name.eq_ignore_ascii_case(b".git") || name.eq_ignore_ascii_case(b"git~1") {
            return Some(above);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn diff(old: &str, new: &str) -> String {
        let mut text = Vec::new();
        unified(old.as_bytes(), new.as_bytes(), &mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn hunks_look_as_they_do_everywhere() {
        let old = (1..=20).fold(String::new(), |text, line| text + &format!("{line}\n"));
        let new = old.replace("\n5\n", "\nfive\n").replace("18\n", "");
        assert_eq!(
            diff(&old, &new),
            "@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n\
             @@ -15,6 +15,5 @@\n 15\n 16\n 17\n-18\n 19\n 20\n"
        );
        assert_eq!(diff("", "a\nb\n"), "@@ -0,0 +1,2 @@\n+a\n+b\n");
        assert_eq!(diff("a\n", ""), "@@ -1 +0,0 @@\n-a\n");
    }

    #[test]
    fn a_missing_newline_at_the_end_is_said() {
        assert_eq!(
            diff("a\nb", "a\nb\n"),
            "@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+b\n"
        );
    }
}
