//! Makes an attacker's bytes fit for a terminal, a log or a message.

use std::fmt::Write as _;

/// The bytes with everything that a terminal would act on, that is invisible
/// or that is not UTF-8 written out: `\x1b`, `\u{202e}`. A backslash doubles,
/// so that the result says exactly which bytes there were.
#[must_use]
pub fn display(bytes: &[u8]) -> String {
    let mut shown = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => shown.push_str("\\\\"),
                c if c.is_control() && c.is_ascii() => push_byte(&mut shown, c as u8),
                c if deceives(c) => {
                    // Writing to a string cannot fail.
                    let _ = write!(shown, "\\u{{{:x}}}", c as u32);
                }
                c => shown.push(c),
            }
        }
        for &byte in chunk.invalid() {
            push_byte(&mut shown, byte);
        }
    }
    shown
}

/// Text that is whole, or was escaped before, with what deceives written out.
/// A backslash stays one.
#[must_use]
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if deceives(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

fn push_byte(shown: &mut String, byte: u8) {
    // Writing to a string cannot fail.
    let _ = write!(shown, "\\x{byte:02x}");
}

/// Control characters, and what reorders, joins or hides text.
fn deceives(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{180e}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_escaped_before_is_not_escaped_again() {
        let once = display(b"a\x1b\\b\xff");
        assert_eq!(printable(&once), once);
        assert_eq!(printable("a\x1b\u{202e}\n"), "a\\u{1b}\\u{202e}\\n");
    }

    #[test]
    fn ordinary_names_stay_as_they_are() {
        for name in [
            "/home/dev/.ssh/id_ed25519",
            "/srv/größe 日本.txt",
            "e\u{301}",
        ] {
            assert_eq!(display(name.as_bytes()), name);
        }
    }

    #[test]
    fn what_a_terminal_acts_on_is_written_out() {
        assert_eq!(display(b"a\x1b[31mb\n\x7f"), "a\\x1b[31mb\\x0a\\x7f");
        assert_eq!(display("\u{9b}31m".as_bytes()), "\\u{9b}31m");
        assert_eq!(display("x\u{202e}txt.exe".as_bytes()), "x\\u{202e}txt.exe");
        assert_eq!(
            display("a\u{200b}b\u{feff}".as_bytes()),
            "a\\u{200b}b\\u{feff}"
        );
    }

    #[test]
    fn bytes_that_are_not_utf8_are_written_out() {
        assert_eq!(display(b"caf\xe9/\xff\xfe"), "caf\\xe9/\\xff\\xfe");
    }

    #[test]
    fn two_names_never_look_the_same() {
        assert_ne!(display(b"\\x1b"), display(b"\x1b"));
        assert_ne!(display(b"\\u{202e}"), display("\u{202e}".as_bytes()));
    }
}
