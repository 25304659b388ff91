//! A policy document: parsed, checked against the sets, and not yet expanded
//! for a user and a workspace.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::diagnostic::{Diagnostics, Fault, Report, Source, Span, nearest};
use super::environment::VariablePattern;
use super::model::{Access, Direct, HostRule, Mode, NetworkMode};
use super::pattern::{Base, Pattern};
use super::sets::{self, Sets, variable_fault};
use super::table::{self, Item, Table, listed};
use super::{MAX_RULES, warnings};

/// A policy as its author wrote it. [`Document::resolve`] makes a
/// [`Policy`](super::Policy) of it.
#[derive(Debug, Clone)]
pub struct Document {
    pub(super) source: Source,
    pub(super) name: String,
    pub(super) mode: Mode,
    pub(super) files: Vec<FileEntry>,
    pub(super) network: NetworkTable,
    pub(super) env: EnvTable,
    pub(super) warnings: Diagnostics,
}

/// One place of `[files]`; a set's places are one entry each.
#[derive(Debug, Clone)]
pub(super) struct FileEntry {
    pub(super) pattern: Arc<Pattern>,
    pub(super) access: Access,
    pub(super) label: String,
    pub(super) from_set: bool,
    pub(super) entry: Item,
}

#[derive(Debug, Clone, Default)]
pub(super) struct NetworkTable {
    pub(super) mode: NetworkMode,
    pub(super) mode_span: Option<Span>,
    pub(super) direct: Vec<(Direct, Span)>,
    pub(super) allow: Vec<(HostRule, Span)>,
    pub(super) deny: Vec<(HostRule, Span)>,
    pub(super) unix: Vec<(Pattern, Item)>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct EnvTable {
    pub(super) pass: Vec<(VariablePattern, Span)>,
    pub(super) refuse: Vec<VariablePattern>,
    pub(super) set: BTreeMap<String, (Vec<Segment>, Span)>,
}

/// A piece of a value in `[env] set`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Segment {
    Text(String),
    Place(Base),
}

const TOP_LEVEL: [&str; 10] = [
    "version",
    "name",
    "description",
    "mode",
    "files",
    "network",
    "scope",
    "limits",
    "workspace",
    "env",
];
const FILES: [&str; 3] = ["read", "write", "deny"];
const NETWORK: [&str; 6] = ["mode", "allow", "deny", "direct", "unix", "listen"];
const ENV: [&str; 2] = ["pass", "set"];
const SOFTENINGS: [&str; 1] = ["userns"];
const MAX_NAME: usize = 64;

impl Document {
    /// Reads and checks a policy. Everything that is wrong with it is
    /// reported, warnings along with the errors.
    pub fn parse(source: &Source, sets: &Sets) -> Result<Self, Diagnostics> {
        let mut report = Report::new(source);
        let toml = table::parse(&mut report);
        let document = toml.as_ref().and_then(|toml| {
            let root = Table::new("", toml);
            sets::version(root, &mut report).then(|| read(root, sets, &mut report))
        });
        match document {
            Some(mut document) if !report.has_errors() => {
                warnings::find(&document, sets, &mut report);
                document.warnings = report.finish();
                Ok(document)
            }
            _ => Err(report.finish()),
        }
    }

    /// Its `name`, or the name of its file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Enforce or observe.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// What is as good as no boundary, or does not do what it seems to.
    pub fn warnings(&self) -> &Diagnostics {
        &self.warnings
    }
}

fn read(root: Table<'_>, sets: &Sets, report: &mut Report<'_>) -> Document {
    let mut known = TOP_LEVEL.to_vec();
    known.push("credential");
    root.expect_keys(&known, belongs, report);
    refuse_unsupported(root, report);
    let document = Document {
        source: report.source().clone(),
        name: read_name(root, report),
        mode: read_mode(root, report),
        files: root
            .table("files", report)
            .map_or_else(Vec::new, |it| read_files(it, sets, report)),
        network: root
            .table("network", report)
            .map(|it| read_network(it, report))
            .unwrap_or_default(),
        env: read_env(root.table("env", report), sets, report),
        warnings: Diagnostics::default(),
    };
    // Only text: checked, and of no consequence.
    let _ = root.string("description", report);
    if let Some(scope) = root.table("scope", report) {
        read_scope(scope, report);
    }
    document
}

/// Where a key belongs that stands in a wrong table.
fn belongs(key: &str) -> Option<&'static str> {
    match key {
        "read" | "write" => Some("`[files]`"),
        "allow" | "direct" | "unix" | "listen" => Some("`[network]`"),
        "deny" => Some("`[files]` or `[network]`"),
        "pass" | "set" => Some("`[env]`"),
        _ => None,
    }
}

/// What the format knows and this version does not do yet. A policy that asks
/// for it would get less than it says.
fn refuse_unsupported(root: Table<'_>, report: &mut Report<'_>) {
    let hint = "remove it: nothing would be done about it";
    for table in ["limits", "credential"] {
        if let Some(span) = root.key_span(table) {
            report.error(
                span,
                &format!("`{table}` is not supported by this version"),
                Some(hint),
            );
        }
    }
    let Some(workspace) = root.table("workspace", report) else {
        return;
    };
    workspace.expect_keys(&["mode"], |_| None, report);
    match workspace.string("mode", report) {
        Some(Item { text, span }) if text == "ephemeral" => {
            let message = "`mode = \"ephemeral\"` is not supported by this version";
            report.error(
                span,
                message,
                Some("without it the workspace is worked in directly"),
            );
        }
        Some(mode) if mode.text != "direct" => {
            unknown_word("mode", &mode, &["direct", "ephemeral"], report);
        }
        _ => {}
    }
}

fn read_name(root: Table<'_>, report: &mut Report<'_>) -> String {
    let valid = |name: &str| {
        (1..=MAX_NAME).contains(&name.len())
            && name
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
    };
    match root.string("name", report) {
        Some(name) if valid(&name.text) => name.text,
        Some(name) => {
            let hint = format!("at most {MAX_NAME} letters, digits, `-`, `_` and `.`");
            report.error(name.span, "not a name for a policy", Some(&hint));
            name.text
        }
        None => Path::new(&report.source().display_name)
            .file_stem()
            .and_then(|stem| stem.to_str())
            .filter(|stem| valid(stem))
            .unwrap_or("unnamed")
            .to_owned(),
    }
}

fn read_mode(root: Table<'_>, report: &mut Report<'_>) -> Mode {
    match root.string("mode", report) {
        Some(Item { text, .. }) if text == "enforce" => Mode::Enforce,
        Some(Item { text, .. }) if text == "observe" => Mode::Observe,
        Some(mode) => {
            unknown_word("mode", &mode, &["enforce", "observe"], report);
            Mode::Enforce
        }
        None => Mode::Enforce,
    }
}

fn read_files(table: Table<'_>, sets: &Sets, report: &mut Report<'_>) -> Vec<FileEntry> {
    table.expect_keys(&FILES, |_| None, report);
    let mut files = Vec::new();
    for (key, access) in [
        ("read", Access::Read),
        ("write", Access::Write),
        ("deny", Access::Deny),
    ] {
        for entry in table.strings(key, report) {
            match read_place(&entry, access, sets) {
                Ok(found) => files.extend(found),
                Err(fault) => report.fault(&entry.span, &entry.text, &fault),
            }
            if files.len() > MAX_RULES {
                let message = "the policy has too many rules";
                let hint = format!("at most {MAX_RULES}, the places of sets included");
                report.error(entry.span, message, Some(&hint));
                return files;
            }
            if !entry.text.starts_with('@')
                && let Some(at) = Pattern::literal_brackets(&entry.text)
            {
                let fault = Fault::new(
                    format!("`{}` is taken literally, brackets and all", entry.text),
                    "paths take no patterns: list each place",
                );
                report.caution(&entry.span, &entry.text, &fault.at(at));
            }
        }
    }
    files
}

fn read_place(entry: &Item, access: Access, sets: &Sets) -> Result<Vec<FileEntry>, Fault> {
    let names_only_denied = |pattern: &Arc<Pattern>| {
        if pattern.name.is_some() && access != Access::Deny {
            let hint = "name the place itself: a full path goes before a `**/` rule";
            return Err(Fault::new("`**/` is for `deny` alone", hint));
        }
        Ok(())
    };
    let made = |pattern: &Arc<Pattern>, label: &str, from_set| FileEntry {
        pattern: Arc::clone(pattern),
        access,
        label: label.to_owned(),
        from_set,
        entry: entry.clone(),
    };
    let Some(set) = entry.text.strip_prefix('@') else {
        let pattern = Arc::new(Pattern::parse(&entry.text)?);
        names_only_denied(&pattern)?;
        if access == Access::Write
            && pattern.base == Base::Workspace
            && pattern.components == [".sandbox.toml"]
        {
            let hint = "it says what the sandbox may do: change it outside";
            return Err(Fault::new(
                "`.sandbox.toml` is read-only inside, always",
                hint,
            ));
        }
        return Ok(vec![made(&pattern, &entry.text, false)]);
    };
    let places = sets.places(set)?;
    places.iter().try_for_each(names_only_denied)?;
    Ok(places
        .iter()
        .map(|pattern| made(pattern, set, true))
        .collect())
}

fn read_network(table: Table<'_>, report: &mut Report<'_>) -> NetworkTable {
    table.expect_keys(&NETWORK, |_| None, report);
    let mode = table.string("mode", report);
    let mode_span = mode.as_ref().map(|mode| mode.span.clone());
    let mode = match mode {
        None => NetworkMode::None,
        Some(mode) => match mode.text.as_str() {
            "none" => NetworkMode::None,
            "proxy" => NetworkMode::Proxy,
            "unrestricted" => NetworkMode::Unrestricted,
            _ => {
                unknown_word("mode", &mode, &["none", "proxy", "unrestricted"], report);
                NetworkMode::None
            }
        },
    };
    if let Some(span) = table.key_span("listen") {
        let hint = "remove it: nothing would be done about it";
        report.error(
            span,
            "`listen` is not supported by this version",
            Some(hint),
        );
    }
    NetworkTable {
        mode,
        mode_span,
        direct: read_each(table, "direct", super::hosts::direct, report),
        allow: read_each(table, "allow", super::hosts::host, report),
        deny: read_each(table, "deny", super::hosts::host, report),
        unix: read_unix(table, report),
    }
}

fn read_each<T>(
    table: Table<'_>,
    key: &str,
    parse: impl Fn(&str) -> Result<T, Fault>,
    report: &mut Report<'_>,
) -> Vec<(T, Span)> {
    let mut parsed = Vec::new();
    let items = table.strings(key, report);
    if items.len() > MAX_RULES {
        let span = table.key_span(key).unwrap_or_default();
        let message = format!("`{key}` has {} entries, which are too many", items.len());
        report.error(span, &message, Some(&format!("at most {MAX_RULES}")));
        return parsed;
    }
    for item in items {
        match parse(&item.text) {
            Ok(value) => parsed.push((value, item.span)),
            Err(fault) => report.fault(&item.span, &item.text, &fault),
        }
    }
    parsed
}

fn read_unix(table: Table<'_>, report: &mut Report<'_>) -> Vec<(Pattern, Item)> {
    let mut sockets = Vec::new();
    for item in table.strings("unix", report) {
        let parsed = match item.text.strip_prefix('@') {
            Some(_) => Err(Fault::new(
                "`unix` takes paths; neither sets nor abstract sockets",
                "name the socket's path, such as `/run/postgresql/.s.PGSQL.5432`",
            )),
            None => Pattern::parse(&item.text),
        };
        match parsed {
            Ok(pattern) if pattern.name.is_none() => sockets.push((pattern, item)),
            Ok(_) => {
                let fault = Fault::new("`**/` is for files", "name the socket's path");
                report.fault(&item.span, &item.text, &fault);
            }
            Err(fault) => report.fault(&item.span, &item.text, &fault),
        }
    }
    sockets
}

fn read_scope(table: Table<'_>, report: &mut Report<'_>) {
    table.expect_keys(&["allow"], |_| None, report);
    for item in table.strings("allow", report) {
        if SOFTENINGS.contains(&item.text.as_str()) {
            let message = format!("`{}` has no effect in this version", item.text);
            report.warning(
                item.span,
                &message,
                Some("there is nothing yet that it would soften"),
            );
        } else {
            unknown_word("allow", &item, &SOFTENINGS, report);
        }
    }
}

fn read_env(table: Option<Table<'_>>, sets: &Sets, report: &mut Report<'_>) -> EnvTable {
    let mut env = EnvTable::default();
    match sets.variables(sets::INJECTION) {
        Ok(refuse) => env.refuse = refuse.to_vec(),
        Err(_) => report.file_error(
            "the sets name no variables that are never let in",
            Some("`sets.toml` needs a set `injection`"),
        ),
    }
    let Some(table) = table else { return env };
    table.expect_keys(&ENV, |_| None, report);
    for item in table.strings("pass", report) {
        match read_variables(&item.text, &env.refuse, sets) {
            Ok(variables) => {
                env.pass
                    .extend(variables.into_iter().map(|it| (it, item.span.clone())));
            }
            Err(fault) => report.fault(&item.span, &item.text, &fault),
        }
    }
    if let Some(set) = table.table("set", report) {
        for (name, value) in set.string_entries(report) {
            let valid = VariablePattern::parse(&name.text).is_some_and(|it| it.exact().is_some());
            if !valid {
                report.fault(&name.span, &name.text, &variable_fault(&name.text));
            }
            match segments(&value.text) {
                Ok(segments) => _ = env.set.insert(name.text, (segments, value.span)),
                Err(fault) => report.fault(&value.span, &value.text, &fault),
            }
        }
    }
    env
}

fn read_variables(
    entry: &str,
    refuse: &[VariablePattern],
    sets: &Sets,
) -> Result<Vec<VariablePattern>, Fault> {
    let never = |name: &str| {
        let hint = "if the policy needs it, it can give it a value itself: `[env] set`";
        Fault::new(
            format!("`{name}` can make programs run other code and is never let in"),
            hint,
        )
    };
    if let Some(set) = entry.strip_prefix('@') {
        if set == sets::INJECTION {
            return Err(never(entry));
        }
        return sets.variables(set).map(<[VariablePattern]>::to_vec);
    }
    let pattern = VariablePattern::parse(entry).ok_or_else(|| variable_fault(entry))?;
    if refuse.iter().any(|it| it.covers(&pattern)) {
        return Err(never(entry));
    }
    Ok(vec![pattern])
}

/// A value with its placeholders.
fn segments(value: &str) -> Result<Vec<Segment>, Fault> {
    if let Some(at) = value.find('\0') {
        return Err(Fault::new("a value cannot hold a NUL byte", "remove it").at(at..at + 1));
    }
    let mut segments = Vec::new();
    let mut rest = value;
    while let Some(start) = rest.find("${") {
        let offset = value.len() - rest.len() + start;
        let Some(end) = rest[start..].find('}') else {
            let hint = "close it with `}`";
            return Err(Fault::new("`${` is not closed", hint).at(offset..offset + 2));
        };
        let name = &rest[start + 2..start + end];
        let base = Base::named(name).map_err(|fault| fault.at(offset..offset + end + 1))?;
        if start > 0 {
            segments.push(Segment::Text(rest[..start].to_owned()));
        }
        segments.push(Segment::Place(base));
        rest = &rest[start + end + 1..];
    }
    if !rest.is_empty() {
        segments.push(Segment::Text(rest.to_owned()));
    }
    Ok(segments)
}

fn unknown_word(key: &str, item: &Item, known: &[&str], report: &mut Report<'_>) {
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
