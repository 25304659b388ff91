//! The entries of a document's tables: places, addresses, hosts, variables.

use std::sync::Arc;

use super::MAX_RULES;
use super::diagnostic::{Fault, Report, Span};
use super::document::{EnvTable, FileEntry, NetworkTable, Segment};
use super::environment::VariablePattern;
use super::model::{Access, Listen, NetworkMode, Scope};
use super::pattern::{Base, Pattern};
use super::sets::{self, Sets, variable_fault};
use super::table::{Item, Table, unknown_word};

const FILES: [&str; 3] = ["read", "write", "deny"];
const NETWORK: [&str; 6] = ["mode", "allow", "deny", "direct", "unix", "listen"];
const ENV: [&str; 2] = ["pass", "set"];
const SOFTENINGS: [&str; 1] = ["userns"];

pub(super) fn read_files(table: Table<'_>, sets: &Sets, report: &mut Report<'_>) -> Vec<FileEntry> {
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

pub(super) fn read_network(table: Table<'_>, report: &mut Report<'_>) -> NetworkTable {
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
    let listen = table.string("listen", report);
    let listen_span = listen.as_ref().map(|listen| listen.span.clone());
    let listen = match listen {
        None => Listen::default(),
        Some(listen) => match listen.text.as_str() {
            "none" => Listen::None,
            "loopback" => Listen::Loopback,
            "any" => Listen::Any,
            _ => {
                unknown_word("listen", &listen, &["none", "loopback", "any"], report);
                Listen::None
            }
        },
    };
    NetworkTable {
        mode,
        mode_span,
        direct: read_each(table, "direct", super::hosts::direct, report),
        allow: read_each(table, "allow", super::hosts::host, report),
        deny: read_each(table, "deny", super::hosts::host, report),
        unix: read_unix(table, report),
        listen,
        listen_span,
    }
}

pub(super) fn read_each<T>(
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

pub(super) fn read_devices(table: Table<'_>, report: &mut Report<'_>) -> Vec<(Pattern, Item)> {
    table.expect_keys(&["allow"], |_| None, report);
    let mut devices = Vec::new();
    for item in table.strings("allow", report) {
        let parsed = if item.text.starts_with("/dev/") {
            Pattern::parse(&item.text)
        } else {
            Err(Fault::new(
                "a device is named by its path below `/dev`",
                "such as `/dev/kvm`",
            ))
        };
        match parsed {
            Ok(pattern) if pattern.name.is_none() => devices.push((pattern, item)),
            Ok(_) => {
                let fault = Fault::new("`**/` is for files", "name the device's path");
                report.fault(&item.span, &item.text, &fault);
            }
            Err(fault) => report.fault(&item.span, &item.text, &fault),
        }
    }
    devices
}

/// What is softer is warned of where it is asked for: whoever reads the policy
/// later sees the name alone.
pub(super) fn read_scope(table: Table<'_>, report: &mut Report<'_>) -> Scope {
    table.expect_keys(&["allow"], |_| None, report);
    let mut scope = Scope::default();
    for item in table.strings("allow", report) {
        match item.text.as_str() {
            "userns" => {
                scope.user_namespaces = true;
                let message = "`userns` opens parts of the kernel that only root reaches otherwise";
                let hint = "leave it out unless browsers or rootless builds need it; mounts stay \
                            refused, the kernel's bugs are nearer";
                report.warning(item.span, message, Some(hint));
            }
            _ => unknown_word("allow", &item, &SOFTENINGS, report),
        }
    }
    scope
}

pub(super) fn read_env(table: Option<Table<'_>>, sets: &Sets, report: &mut Report<'_>) -> EnvTable {
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
