//! What is wrong with a policy, and where: file, line, column, caret, remedy.

use std::fmt;
use std::ops::Range;

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};

use crate::escape::printable;

/// A document's text and what to call it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// What diagnostics call it, usually the path of the file.
    pub display_name: String,
    /// TOML.
    pub text: String,
}

impl Source {
    /// A document's text under a name.
    pub fn new(display_name: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            display_name: display_name.into(),
            text: text.into(),
        }
    }
}

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The policy is not used.
    Error,
    /// It is used, and does less or more than its author may think.
    Warning,
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// Error or warning.
    pub severity: Severity,
    /// The display name of the document.
    pub file: String,
    /// From 1; 0 where the whole file is meant.
    pub line: u32,
    /// From 1, in characters; 0 where the whole file is meant.
    pub column: u32,
    /// One sentence, without a final full stop.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
    /// All of it for a terminal, with the line and a caret, without colour and
    /// without a final newline.
    pub rendered: String,
}

/// All that is wrong with a document, in the order of its lines.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Diagnostics(pub Vec<Diagnostic>);

impl Diagnostics {
    /// Whether nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each in turn.
    pub fn iter(&self) -> impl Iterator<Item = &Diagnostic> {
        self.0.iter()
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, diagnostic) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n\n")?;
            }
            f.write_str(&diagnostic.rendered)?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostics {}

impl IntoIterator for Diagnostics {
    type Item = Diagnostic;
    type IntoIter = std::vec::IntoIter<Diagnostic>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// A byte range of a document.
pub(super) type Span = Range<usize>;

/// Something wrong with one entry, before its place in the document is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    /// Which bytes of the entry, if not all.
    pub(super) part: Option<Span>,
    pub(super) message: String,
    pub(super) hint: Option<String>,
}

impl Fault {
    pub(super) fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            part: None,
            message: message.into(),
            hint: Some(hint.into()),
        }
    }

    pub(super) fn at(mut self, part: Span) -> Self {
        self.part = Some(part);
        self
    }
}

/// Collects what is wrong with one document.
#[derive(Debug)]
pub(super) struct Report<'a> {
    source: &'a Source,
    found: Vec<(usize, Diagnostic)>,
    omitted: usize,
}

/// So many are shown; a file that is no policy at all has one in every line.
const MAX_SHOWN: usize = 50;

impl<'a> Report<'a> {
    pub(super) fn new(source: &'a Source) -> Self {
        Self {
            source,
            found: Vec::new(),
            omitted: 0,
        }
    }

    pub(super) fn source(&self) -> &'a Source {
        self.source
    }

    pub(super) fn error(&mut self, span: Span, message: &str, hint: Option<&str>) {
        self.push(Severity::Error, Some(span), message, hint);
    }

    pub(super) fn warning(&mut self, span: Span, message: &str, hint: Option<&str>) {
        self.push(Severity::Warning, Some(span), message, hint);
    }

    /// An error of the document as a whole.
    pub(super) fn file_error(&mut self, message: &str, hint: Option<&str>) {
        self.push(Severity::Error, None, message, hint);
    }

    /// An error of the entry at `span`, pointing at the faulty part of it
    /// where the TOML has the entry's bytes as they are.
    pub(super) fn fault(&mut self, span: &Span, entry: &str, fault: &Fault) {
        let span = self.narrow(span, entry, fault.part.as_ref());
        self.error(span, &fault.message, fault.hint.as_deref());
    }

    /// A warning about the entry at `span`.
    pub(super) fn caution(&mut self, span: &Span, entry: &str, fault: &Fault) {
        let span = self.narrow(span, entry, fault.part.as_ref());
        self.warning(span, &fault.message, fault.hint.as_deref());
    }

    pub(super) fn has_errors(&self) -> bool {
        self.found
            .iter()
            .any(|(_, it)| it.severity == Severity::Error)
    }

    /// What was found, by position.
    pub(super) fn finish(mut self) -> Diagnostics {
        if let omitted @ 1.. = std::mem::take(&mut self.omitted) {
            self.found.truncate(MAX_SHOWN - 1);
            self.file_error(&format!("and {} more", omitted + 1), None);
            // The last, wherever it is said to be.
            if let Some((position, _)) = self.found.last_mut() {
                *position = usize::MAX;
            }
        }
        self.found.sort_by_key(|(position, _)| *position);
        Diagnostics(
            self.found
                .into_iter()
                .map(|(_, diagnostic)| diagnostic)
                .collect(),
        )
    }

    fn narrow(&self, span: &Span, entry: &str, part: Option<&Span>) -> Span {
        let Some(part) = part else {
            return span.clone();
        };
        let start = span.start + 1;
        let literal = self.source.text.get(start..start + entry.len()) == Some(entry);
        if literal && span.len() == entry.len() + 2 {
            start + part.start..start + part.end
        } else {
            span.clone()
        }
    }

    fn push(&mut self, severity: Severity, span: Option<Span>, message: &str, hint: Option<&str>) {
        if self.found.len() >= MAX_SHOWN {
            self.omitted += usize::from(severity == Severity::Error);
            return;
        }
        let file = printable(&self.source.display_name);
        let message = printable(message);
        let hint = hint.map(printable);
        let (line, column) = span
            .as_ref()
            .map_or((0, 0), |span| self.position(span.start));
        let rendered = self.render(severity, &file, span.as_ref(), &message, hint.as_deref());
        let position = span.map_or(0, |span| span.start);
        let diagnostic = Diagnostic {
            severity,
            file,
            line,
            column,
            message,
            hint,
            rendered,
        };
        if !self.found.iter().any(|(_, it)| *it == diagnostic) {
            self.found.push((position, diagnostic));
        }
    }

    fn position(&self, offset: usize) -> (u32, u32) {
        let text = &self.source.text;
        let before = &text[..text.floor_char_boundary(offset.min(text.len()))];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = before.matches('\n').count() + 1;
        let column = before[line_start..].chars().count() + 1;
        (
            u32::try_from(line).unwrap_or(u32::MAX),
            u32::try_from(column).unwrap_or(u32::MAX),
        )
    }

    fn render(
        &self,
        severity: Severity,
        file: &str,
        span: Option<&Span>,
        message: &str,
        hint: Option<&str>,
    ) -> String {
        let Some(span) = span else {
            let word = match severity {
                Severity::Error => "error",
                Severity::Warning => "warning",
            };
            let hint = hint
                .map(|hint| format!("\n  = hint: {hint}"))
                .unwrap_or_default();
            return format!("{word}: {file}: {message}{hint}");
        };
        let level = match severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let mut group = level.primary_title(message).element(
            Snippet::source(self.source.text.as_str())
                .path(file)
                .annotation(AnnotationKind::Primary.span(self.visible(span))),
        );
        if let Some(hint) = hint {
            group = group.element(Level::HELP.with_name(Some("hint")).message(hint));
        }
        Renderer::plain().render(&[group])
    }

    /// A span that can be drawn: in bounds, and on one line.
    fn visible(&self, span: &Span) -> Span {
        let text = &self.source.text;
        let start = text.floor_char_boundary(span.start.min(text.len()));
        let end = text.ceil_char_boundary(span.end.clamp(start, text.len()));
        let line_end = text[start..end]
            .find('\n')
            .map_or(end, |newline| start + newline);
        start..line_end
    }
}

/// The known word that was probably meant.
pub(super) fn nearest<'w>(word: &str, known: impl IntoIterator<Item = &'w str>) -> Option<&'w str> {
    known
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(word, candidate), candidate))
        .filter(|(similarity, _)| *similarity > 0.8)
        .max_by(|one, two| one.0.total_cmp(&two.0))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_shows_line_column_caret_and_hint() {
        let source = Source::new("p.toml", "version = 1\n[files]\nreed = [\"/\"]\n");
        let mut report = Report::new(&source);
        report.error(
            20..24,
            "unknown key `reed` in `[files]`",
            Some("did you mean `read`?"),
        );
        let found = report.finish();
        assert_eq!((found.0[0].line, found.0[0].column), (3, 1));
        assert_eq!(
            found.to_string(),
            "\
error: unknown key `reed` in `[files]`
 --> p.toml:3:1
  |
3 | reed = [\"/\"]
  | ^^^^
  |
  = hint: did you mean `read`?"
        );
    }

    #[test]
    fn a_whole_file_is_named_without_a_position() {
        let source = Source::new("p.toml", "");
        let mut report = Report::new(&source);
        report.file_error("`version` is missing", Some("begin with `version = 1`"));
        let found = report.finish();
        assert_eq!((found.0[0].line, found.0[0].column), (0, 0));
        assert_eq!(
            found.to_string(),
            "error: p.toml: `version` is missing\n  = hint: begin with `version = 1`"
        );
    }

    #[test]
    fn what_could_fool_a_terminal_is_escaped() {
        let source = Source::new("\x1b[31mp", "x\u{202e}y = 1\n");
        let mut report = Report::new(&source);
        report.error(0..1, "bad \x1b[2J\u{202e}", None);
        let text = report.finish().to_string();
        assert!(
            !text.contains('\x1b') && !text.contains('\u{202e}'),
            "{text:?}"
        );
    }

    #[test]
    fn spans_outside_the_text_are_drawn_at_its_end() {
        let source = Source::new("p", "a = \"ä");
        let mut report = Report::new(&source);
        report.error(6..99, "x", None);
        report.error(99..100, "y", None);
        assert_eq!(report.finish().0.len(), 2);
    }

    #[test]
    fn a_likely_word_is_suggested_and_an_unlikely_one_is_not() {
        assert_eq!(nearest("reed", ["read", "write", "deny"]), Some("read"));
        assert_eq!(
            nearest("credential", ["credentials", "devices"]),
            Some("credentials")
        );
        assert_eq!(nearest("zzz", ["read", "write", "deny"]), None);
    }
}
