//! A patch for a terminal: coloured, and with nothing in it that a terminal would
//! act on.

use std::{fmt::Write as _, io};

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};

use crate::escape::printable;

/// Paints a patch that comes in pieces, line by line.
pub(super) struct Paint {
    colour: bool,
    /// Whether the lines are a file's.
    in_hunk: bool,
    rest: Vec<u8>,
}

const BOLD: Style = Style::new().bold();
const RANGE: Style = AnsiColor::Cyan.on_default();
const GONE: Style = AnsiColor::Red.on_default();
const NEW: Style = AnsiColor::Green.on_default();

impl Paint {
    pub(super) fn new() -> Self {
        Self::with(AutoStream::choice(&io::stdout()) != ColorChoice::Never)
    }

    fn with(colour: bool) -> Self {
        Self {
            colour,
            in_hunk: false,
            rest: Vec::new(),
        }
    }

    /// The lines that are complete.
    pub(super) fn lines(&mut self, bytes: &[u8]) -> String {
        self.rest.extend_from_slice(bytes);
        let Some(end) = memchr::memrchr(b'\n', &self.rest) else {
            return String::new();
        };
        let rest = self.rest.split_off(end + 1);
        let lines = std::mem::replace(&mut self.rest, rest);
        let mut painted = String::with_capacity(lines.len() * 2);
        for line in lines[..end].split(|byte| *byte == b'\n') {
            self.line(line, &mut painted);
        }
        painted
    }

    /// What is left at the end.
    pub(super) fn end(mut self) -> String {
        if self.rest.is_empty() {
            return String::new();
        }
        self.lines(b"\n")
    }

    fn line(&mut self, line: &[u8], painted: &mut String) {
        let style = match line.first() {
            _ if line.starts_with(b"diff --git ") => {
                self.in_hunk = false;
                BOLD
            }
            Some(b'@') => {
                self.in_hunk = true;
                RANGE
            }
            _ if !self.in_hunk => BOLD,
            Some(b'-') => GONE,
            Some(b'+') => NEW,
            _ => Style::new(),
        };
        let text = shown(line);
        // Writing to a string cannot fail.
        let _ = if self.colour {
            writeln!(painted, "{style}{text}{style:#}")
        } else {
            writeln!(painted, "{text}")
        };
    }
}

/// A line of a file: with its tabs and backslashes as they are.
fn shown(line: &[u8]) -> String {
    let mut text = String::with_capacity(line.len());
    for chunk in line.utf8_chunks() {
        for (index, part) in chunk.valid().split('\t').enumerate() {
            if index > 0 {
                text.push('\t');
            }
            text += &printable(part);
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_comes_in_pieces_and_leaves_in_colours() {
        let mut paint = Paint::with(true);
        let mut text = paint.lines(b"diff --git a/x b/x\n--- a/x\n@@ -1 +1 @@\n-a\n+");
        text += &paint.lines(b"b\n c\n--- d\n");
        text += &paint.end();
        let (bold, cyan, red, green, plain) =
            ("\x1b[1m", "\x1b[36m", "\x1b[31m", "\x1b[32m", "\x1b[0m");
        assert_eq!(
            text,
            format!(
                "{bold}diff --git a/x b/x{plain}\n{bold}--- a/x{plain}\n{cyan}@@ -1 +1 @@{plain}\n\
                 {red}-a{plain}\n{green}+b{plain}\n c\n{red}--- d{plain}\n"
            )
        );
    }

    #[test]
    fn what_a_terminal_would_act_on_is_written_out() {
        let mut paint = Paint::with(false);
        let text = paint.lines(b"@@ @@\n+\ta\\n\x1b]0;evil\x07\xff\r\n");
        assert_eq!(text, "@@ @@\n+\ta\\n\\u{1b}]0;evil\\u{7}\\xff\\r\n");
    }
}
