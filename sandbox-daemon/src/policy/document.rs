//! A policy document: parsed, checked against the sets, and not yet expanded
//! for a user and a workspace.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use sandbox_proxy::rule::HostRule;

use super::credentials;
use super::diagnostic::{Diagnostics, Report, Source, Span};
use super::entries::{read_devices, read_env, read_files, read_network, read_scope};
use super::environment::VariablePattern;
use super::limits::{self, Limits};
use super::model::{Access, Credential, Direct, Listen, Mode, NetworkMode, Scope, WorkspaceMode};
use super::pattern::{Base, Pattern};
use super::sets::{self, Sets};
use super::table::{self, Item, Table, unknown_word};
use super::warnings;

/// A policy as its author wrote it. [`Document::resolve`] makes a
/// [`Policy`](super::Policy) of it.
#[derive(Debug, Clone)]
pub struct Document {
    pub(super) source: Source,
    pub(super) name: String,
    pub(super) mode: Mode,
    pub(super) files: Vec<FileEntry>,
    pub(super) network: NetworkTable,
    pub(super) scope: Scope,
    pub(super) devices: Vec<(Pattern, Item)>,
    pub(super) credentials: CredentialTables,
    pub(super) env: EnvTable,
    pub(super) limits: Limits,
    pub(super) workspace_mode: WorkspaceMode,
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
    pub(super) listen: Listen,
    pub(super) listen_span: Option<Span>,
}

/// What `[[credential]]` comes to.
#[derive(Debug, Clone, Default)]
pub(super) struct CredentialTables {
    pub(super) added: Vec<Credential>,
    pub(super) untouched: Vec<HostRule>,
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

const TOP_LEVEL: [&str; 12] = [
    "version",
    "name",
    "description",
    "mode",
    "files",
    "network",
    "devices",
    "scope",
    "limits",
    "workspace",
    "env",
    "credential",
];
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
    root.expect_keys(&TOP_LEVEL, belongs, report);
    let network = root
        .table("network", report)
        .map(|it| read_network(it, report))
        .unwrap_or_default();
    let env = read_env(root.table("env", report), sets, report);
    let document = Document {
        source: report.source().clone(),
        name: read_name(root, report),
        mode: read_mode(root, report),
        files: root
            .table("files", report)
            .map_or_else(Vec::new, |it| read_files(it, sets, report)),
        scope: root
            .table("scope", report)
            .map(|it| read_scope(it, report))
            .unwrap_or_default(),
        devices: root
            .table("devices", report)
            .map_or_else(Vec::new, |it| read_devices(it, report)),
        credentials: credentials::read(root, &network, &env, report),
        network,
        env,
        limits: root
            .table("limits", report)
            .map(|it| limits::read(it, report))
            .unwrap_or_default(),
        workspace_mode: read_workspace_mode(root, report),
        warnings: Diagnostics::default(),
    };
    // Only text: checked, and of no consequence.
    let _ = root.string("description", report);
    document
}

/// Where a key belongs that stands in a wrong table.
fn belongs(key: &str) -> Option<&'static str> {
    match key {
        "read" | "write" => Some("`[files]`"),
        "allow" | "direct" | "unix" | "listen" => Some("`[network]`"),
        "deny" => Some("`[files]` or `[network]`"),
        "pass" | "set" => Some("`[env]`"),
        "timeout" | "sandbox_timeout" | "memory" | "cpus" | "pids" | "disk" | "output" => {
            Some("`[limits]`")
        }
        "hosts" | "scheme" | "secret" | "git" | "intercept" => Some("`[[credential]]`"),
        _ => None,
    }
}

fn read_workspace_mode(root: Table<'_>, report: &mut Report<'_>) -> WorkspaceMode {
    let Some(workspace) = root.table("workspace", report) else {
        return WorkspaceMode::default();
    };
    workspace.expect_keys(&["mode"], |_| None, report);
    match workspace.string("mode", report) {
        Some(Item { text, .. }) if text == "ephemeral" => WorkspaceMode::Ephemeral,
        Some(mode) if mode.text != "direct" => {
            unknown_word("mode", &mode, &["direct", "ephemeral"], report);
            WorkspaceMode::default()
        }
        _ => WorkspaceMode::default(),
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
