//! How many lines of which files are others, as git shows it.

use std::fmt::Write as _;

use super::{Change, Kind, shown};
use crate::escape::printable;

/// Columns of the whole, and of its bars at most.
const WIDTH: usize = 80;
const NAMES: usize = 50;

/// Gathers changes.
#[derive(Default)]
pub(super) struct Stat(Vec<Row>);

struct Row {
    name: String,
    added: u64,
    deleted: u64,
    /// Sizes before and after of what is no text.
    binary: Option<(u64, u64)>,
}

impl Stat {
    pub(super) fn add(&mut self, change: &Change) {
        let name = if change.kind() == Kind::Renamed {
            format!(
                "{} => {}",
                printable(&change.old_path_display),
                shown(change)
            )
        } else {
            shown(change)
        };
        self.0.push(Row {
            name,
            added: change.added_lines,
            deleted: change.deleted_lines,
            binary: change.binary.then_some((change.old_size, change.size)),
        });
    }

    pub(super) fn render(&self) -> String {
        if self.0.is_empty() {
            return String::new();
        }
        let length = |name: &str| name.chars().count();
        let width = self.0.iter().map(|row| length(&row.name)).max();
        let width = width.unwrap_or(0).min(NAMES);
        let most = self.0.iter().map(|row| row.added + row.deleted).max();
        let most = most.unwrap_or(0);
        let digits = most.to_string().len();
        let room = WIDTH.saturating_sub(width + digits + 5).max(10) as u64;
        let scaled = |lines: u64| {
            let bar = if most > room && lines > 0 {
                (u128::from(lines) * u128::from(room) / u128::from(most)).max(1)
            } else {
                lines.into()
            };
            usize::try_from(bar).unwrap_or(0)
        };
        let mut text = String::new();
        let (mut added, mut deleted) = (0, 0);
        for row in &self.0 {
            added += row.added;
            deleted += row.deleted;
            let mut name = row.name.clone();
            if length(&name) > width {
                let skipped = length(&name) + 3 - width;
                name = format!("...{}", name.chars().skip(skipped).collect::<String>());
            }
            let what = match row.binary {
                Some((before, after)) => format!("Bin {before} -> {after} bytes"),
                None => format!(
                    "{:>digits$} {}{}",
                    row.added + row.deleted,
                    "+".repeat(scaled(row.added)),
                    "-".repeat(scaled(row.deleted))
                ),
            };
            let _ = writeln!(text, " {name:width$} | {}", what.trim_end());
        }
        text + &summary(self.0.len(), added, deleted)
    }
}

fn summary(files: usize, added: u64, deleted: u64) -> String {
    let plural = |count: u64| if count == 1 { "" } else { "s" };
    // Writing to a string cannot fail.
    let mut text = format!(" {files} file{} changed", plural(files as u64));
    if added > 0 || deleted == 0 {
        let _ = write!(text, ", {added} insertion{}(+)", plural(added));
    }
    if deleted > 0 || added == 0 {
        let _ = write!(text, ", {deleted} deletion{}(-)", plural(deleted));
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(path: &str, added_lines: u64, deleted_lines: u64) -> Change {
        Change {
            path_display: path.into(),
            mode: 0o100_644,
            added_lines,
            deleted_lines,
            ..Change::default()
        }
    }

    #[test]
    fn it_looks_as_gits() {
        let mut stat = Stat::default();
        stat.add(&change("src/main.rs", 3, 1));
        stat.add(&change("README.md", 12, 0));
        let mut binary = change("logo", 0, 0);
        (binary.binary, binary.old_size, binary.size) = (true, 3, 40);
        stat.add(&binary);
        assert_eq!(
            stat.render(),
            " src/main.rs |  4 +++-\n README.md   | 12 ++++++++++++\n \
             logo        | Bin 3 -> 40 bytes\n \
             3 files changed, 15 insertions(+), 1 deletion(-)\n"
        );
    }

    #[test]
    fn long_bars_and_names_are_cut() {
        let mut stat = Stat::default();
        stat.add(&change(&"n".repeat(90), 5000, 1));
        let text = stat.render();
        let line = text.lines().next().unwrap();
        assert!(line.starts_with(" ...nnn") && line.len() <= 90, "{line}");
        assert!(line.ends_with("+-"), "{line}");
    }
}
