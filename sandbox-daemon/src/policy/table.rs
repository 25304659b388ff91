//! Reading TOML tables with every mistake reported where it stands.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::MAX_POLICY_BYTES;
use super::diagnostic::{Fault, Report, Source, Span, nearest};

/// A string of the document and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) text: String,
    pub(super) span: Span,
}

/// A value that is an amount of something.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Amount {
    Text(String),
    Integer(i64),
    Fraction(f64),
}

/// A table of the document.
#[derive(Debug, Clone, Copy)]
pub(super) struct Table<'t> {
    /// As its header has it; empty for the document itself.
    pub(super) name: &'t str,
    table: &'t DeTable<'t>,
}

/// Parses a document's TOML. Mistakes of syntax are all reported.
pub(super) fn parse<'s>(report: &mut Report<'s>) -> Option<DeTable<'s>> {
    let Source { text, .. } = report.source();
    if text.len() > MAX_POLICY_BYTES {
        report.file_error(
            &format!("the file has {} bytes, which is too large", text.len()),
            Some(&format!("at most {MAX_POLICY_BYTES} bytes")),
        );
        return None;
    }
    let (document, mistakes) = DeTable::parse_recoverable(text);
    for mistake in &mistakes {
        let span = mistake.span().unwrap_or(0..0);
        report.error(span, &format!("not TOML: {}", mistake.message()), None);
    }
    mistakes.is_empty().then(|| document.into_inner())
}

impl<'t> Table<'t> {
    pub(super) fn new(name: &'t str, table: &'t DeTable<'t>) -> Self {
        Self { name, table }
    }

    /// Every key, with where it stands.
    pub(super) fn keys(&self) -> impl Iterator<Item = (&'t str, Span)> {
        self.table
            .iter()
            .map(|(key, _)| (key.get_ref().as_ref(), key.span()))
    }

    /// Where a key stands.
    pub(super) fn key_span(&self, key: &str) -> Option<Span> {
        self.keys()
            .find(|(name, _)| *name == key)
            .map(|(_, span)| span)
    }

    /// Reports keys that are none of `known`. `elsewhere` says where a key
    /// belongs that is known in another table.
    pub(super) fn expect_keys(
        &self,
        known: &[&str],
        elsewhere: impl Fn(&str) -> Option<&'static str>,
        report: &mut Report<'_>,
    ) {
        for (key, span) in self.keys().filter(|(key, _)| !known.contains(key)) {
            let hint = match (elsewhere(key), nearest(key, known.iter().copied())) {
                (Some(table), _) => format!("`{key}` belongs in {table}"),
                (None, Some(known)) => format!("did you mean `{known}`?"),
                (None, None) => format!("known are {}", listed(known)),
            };
            let place = if self.name.is_empty() {
                String::new()
            } else {
                format!(" in `[{}]`", self.name)
            };
            report.error(span, &format!("unknown key `{key}`{place}"), Some(&hint));
        }
    }

    /// A key's value as a string.
    pub(super) fn string(&self, key: &str, report: &mut Report<'_>) -> Option<Item> {
        let value = self.value(key)?;
        let item = item(value);
        if item.is_none() {
            mismatch(key, "a string", value, None, report);
        }
        item
    }

    /// A key's value as an integer.
    pub(super) fn integer(&self, key: &str, report: &mut Report<'_>) -> Option<(i64, Span)> {
        let value = self.value(key)?;
        let number = value
            .get_ref()
            .as_integer()
            .and_then(|number| i64::from_str_radix(number.as_str(), number.radix()).ok());
        if number.is_none() {
            mismatch(key, "a number", value, None, report);
        }
        Some((number?, value.span()))
    }

    /// A key's value as an amount, read by `read`; `expected` says what of.
    pub(super) fn amount<T>(
        &self,
        key: &str,
        expected: &str,
        read: impl Fn(&Amount) -> Result<T, Fault>,
        report: &mut Report<'_>,
    ) -> Option<T> {
        let value = self.value(key)?;
        let amount = match value.get_ref() {
            DeValue::String(text) => Amount::Text(text.to_string()),
            DeValue::Integer(number) => {
                // What does not fit is too much for anything.
                let number = i64::from_str_radix(number.as_str(), number.radix());
                Amount::Integer(number.unwrap_or(i64::MAX))
            }
            DeValue::Float(number) => Amount::Fraction(number.as_str().parse().unwrap_or(f64::NAN)),
            _ => {
                mismatch(key, expected, value, None, report);
                return None;
            }
        };
        let text = match &amount {
            Amount::Text(text) => text.as_str(),
            Amount::Integer(_) | Amount::Fraction(_) => "",
        };
        read(&amount)
            .inspect_err(|fault| report.fault(&value.span(), text, fault))
            .ok()
    }

    /// A key's value as true or false.
    pub(super) fn boolean(&self, key: &str, report: &mut Report<'_>) -> Option<(bool, Span)> {
        let value = self.value(key)?;
        let flag = value.get_ref().as_bool();
        if flag.is_none() {
            mismatch(key, "`true` or `false`", value, None, report);
        }
        Some((flag?, value.span()))
    }

    /// Whether a key's value is a list of nothing.
    pub(super) fn is_empty(&self, key: &str) -> bool {
        let list = self.value(key).and_then(|it| it.get_ref().as_array());
        list.is_some_and(|list| list.iter().next().is_none())
    }

    /// A key's value as a list of strings; empty without the key.
    pub(super) fn strings(&self, key: &str, report: &mut Report<'_>) -> Vec<Item> {
        let mut items = Vec::new();
        for value in self.list(key, "a list of strings", report) {
            match item(value) {
                Some(item) => items.push(item),
                None => mismatch(key, "strings", value, None, report),
            }
        }
        items
    }

    /// A key's value as a list of tables; empty without the key.
    pub(super) fn tables(&self, key: &'t str, report: &mut Report<'_>) -> Vec<(Self, Span)> {
        let mut tables = Vec::new();
        for value in self.list(key, "a list of tables", report) {
            match value.get_ref().as_table() {
                Some(table) => tables.push((Self::new(key, table), value.span())),
                None => mismatch(key, "tables", value, None, report),
            }
        }
        tables
    }

    /// The table of that name.
    pub(super) fn table(&self, key: &'t str, report: &mut Report<'_>) -> Option<Self> {
        let value = self.value(key)?;
        let table = value.get_ref().as_table();
        if table.is_none() {
            let hint = if self.name.is_empty() {
                format!("begin a line with `[{key}]`")
            } else {
                format!("write `{key} = {{ ... }}`")
            };
            mismatch(key, "a table", value, Some(&hint), report);
        }
        Some(Self::new(key, table?))
    }

    /// Every key with a string as its value.
    pub(super) fn string_entries(&self, report: &mut Report<'_>) -> Vec<(Item, Item)> {
        let mut entries = Vec::new();
        for (key, value) in self.table {
            let name = Item {
                text: key.get_ref().to_string(),
                span: key.span(),
            };
            if let Some(value) = item(value) {
                entries.push((name, value));
            } else {
                let hint = "put it in quotes";
                mismatch(&name.text, "a string", value, Some(hint), report);
            }
        }
        entries
    }

    fn value(&self, key: &str) -> Option<&'t Spanned<DeValue<'t>>> {
        self.table
            .iter()
            .find(|(name, _)| name.get_ref() == key)
            .map(|(_, value)| value)
    }

    fn list(
        &self,
        key: &str,
        expected: &str,
        report: &mut Report<'_>,
    ) -> Vec<&'t Spanned<DeValue<'t>>> {
        let value = self.value(key);
        let list = value.and_then(|value| value.get_ref().as_array());
        if let (Some(value), None) = (value, list) {
            let hint = match value.get_ref() {
                DeValue::String(text) => Some(format!("write `{key} = [\"{text}\"]`")),
                DeValue::Table(_) => Some(format!("begin each with `[[{key}]]`")),
                _ => None,
            };
            mismatch(key, expected, value, hint.as_deref(), report);
        }
        list.into_iter().flatten().collect()
    }
}

/// `a`, `b` and `c`, each in backticks.
pub(super) fn listed(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
        None => String::new(),
    }
}

/// Reports a word that is none of `known`.
pub(super) fn unknown_word(key: &str, item: &Item, known: &[&str], report: &mut Report<'_>) {
    let hint = match nearest(&item.text, known.iter().copied()) {
        Some(word) => format!("did you mean `{word}`?"),
        None => format!("known are {}", listed(known)),
    };
    report.error(
        item.span.clone(),
        &format!("unknown {key} `{}`", item.text),
        Some(&hint),
    );
}

fn item(value: &Spanned<DeValue<'_>>) -> Option<Item> {
    let text = value.get_ref().as_str()?;
    Some(Item {
        text: text.to_owned(),
        span: value.span(),
    })
}

fn mismatch(
    key: &str,
    expected: &str,
    value: &Spanned<DeValue<'_>>,
    hint: Option<&str>,
    report: &mut Report<'_>,
) {
    let found = match value.get_ref() {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a number",
        DeValue::Float(_) => "a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    };
    report.error(
        value.span(),
        &format!("`{key}` takes {expected}, and this is {found}"),
        hint,
    );
}
