//! What `policy check` warns of: lines that are as good as no boundary, and
//! lines that do not do what they seem to.

use std::collections::HashMap;
use std::sync::Arc;

use super::diagnostic::Report;
use super::document::{Document, FileEntry};
use super::hosts;
use super::model::{Access, NetworkMode};
use super::pattern::{Base, Pattern};
use super::sets::{RUN_LATER, Sets};

/// Sockets whose owners start processes or use secrets for whoever asks, by
/// the end of their path.
const POWERFUL_SOCKETS: [(&str, &str); 19] = [
    (
        "/docker.sock",
        "Docker starts containers as root on this machine",
    ),
    (
        "/cri-dockerd.sock",
        "Docker starts containers as root on this machine",
    ),
    (
        "/podman.sock",
        "Podman starts containers outside the sandbox",
    ),
    (
        "/containerd.sock",
        "containerd starts containers as root on this machine",
    ),
    (
        "/crio.sock",
        "CRI-O starts containers as root on this machine",
    ),
    (
        "/buildkitd.sock",
        "BuildKit runs build steps outside the sandbox",
    ),
    (
        "/libvirt-sock",
        "libvirt starts machines with any disk of this one",
    ),
    (
        "/lxd/unix.socket",
        "LXD starts containers as root on this machine",
    ),
    (
        "/incus/unix.socket",
        "Incus starts containers as root on this machine",
    ),
    ("/snapd.socket", "snapd installs software as root"),
    (
        "/system_bus_socket",
        "D-Bus reaches every service of this machine",
    ),
    ("/bus", "D-Bus starts programs outside the sandbox"),
    (
        "/systemd/private",
        "systemd starts programs outside the sandbox",
    ),
    (
        "/S.gpg-agent",
        "the agent signs and decrypts with the user's keys",
    ),
    ("/S.gpg-agent.ssh", "the agent logs in with the user's keys"),
    (
        "/ssh-agent.socket",
        "the agent logs in with the user's keys",
    ),
    ("/gcr/ssh", "the agent logs in with the user's keys"),
    (
        "/keyring/control",
        "the keyring hands out the user's passwords",
    ),
    ("/sandboxd.sock", "a sandbox may not call sandboxd"),
];

pub(super) fn find(document: &Document, sets: &Sets, report: &mut Report<'_>) {
    if !document
        .files
        .iter()
        .any(|entry| entry.access != Access::Deny)
    {
        let span = 0..0;
        let hint = "a command needs at least its program and libraries: `read = [\"@system\"]`";
        report.warning(
            span,
            "nothing can be read, so nothing can be started",
            Some(hint),
        );
    }
    same_place_twice(&document.files, report);
    wide_writes(&document.files, report);
    for set in RUN_LATER {
        writable_startup(
            &document.files,
            set,
            sets.places(set).unwrap_or_default(),
            report,
        );
    }
    network(document, report);
    sockets(document, report);
    for (_, span) in document
        .env
        .pass
        .iter()
        .filter(|(pattern, _)| pattern.covers_all())
    {
        let hint = "list what is needed: `pass = [\"@basics\", \"@toolchain\"]`";
        let message = "`*` lets every variable in, and tokens with them";
        report.warning(span.clone(), message, Some(hint));
    }
}

/// A place that two lines name: only one of them counts.
fn same_place_twice(files: &[FileEntry], report: &mut Report<'_>) {
    let mut strongest: HashMap<&Pattern, &FileEntry> = HashMap::new();
    for entry in files {
        let place = strongest.entry(&entry.pattern).or_insert(entry);
        if entry.access > place.access {
            *place = entry;
        }
    }
    for entry in files.iter().filter(|entry| !entry.from_set) {
        let other = strongest[entry.pattern.as_ref()];
        let shown = &entry.entry.text;
        if other.access > entry.access {
            let rule = if other.from_set {
                format!("`@{}`", other.label)
            } else {
                "another line".to_owned()
            };
            let message = format!(
                "`{shown}` has no effect in `{}`: {rule} in `{}` names the same place",
                entry.access.as_str(),
                other.access.as_str()
            );
            let hint = "at the same place `deny` goes before `write`, and `write` before `read`";
            report.warning(entry.entry.span.clone(), &message, Some(hint));
        } else if !std::ptr::eq(other, entry) && !other.from_set {
            let message = format!("`{shown}` is listed twice in `{}`", entry.access.as_str());
            report.warning(entry.entry.span.clone(), &message, Some("once is enough"));
        }
    }
}

fn wide_writes(files: &[FileEntry], report: &mut Report<'_>) {
    for entry in files.iter().filter(|entry| entry.access == Access::Write) {
        let what = match (entry.pattern.base, entry.pattern.components.as_slice()) {
            (Base::Root, []) => "every file of the user's",
            (Base::Home, []) => "the whole home directory",
            (Base::Root, [one]) if matches!(one.as_str(), "home" | "root") => {
                "whole home directories"
            }
            _ => continue,
        };
        let message = format!("`{}` makes {what} writable", entry.entry.text);
        let hint = "name the directories that are needed";
        report.warning(entry.entry.span.clone(), &message, Some(hint));
    }
}

/// Lines that make a place writable whose content runs later, outside.
fn writable_startup(
    files: &[FileEntry],
    set: &str,
    places: &[Arc<Pattern>],
    report: &mut Report<'_>,
) {
    let mut found: Vec<(&FileEntry, &Pattern)> = Vec::new();
    let writes = || files.iter().filter(|entry| entry.access == Access::Write);
    for place in places {
        if !writes().any(|entry| depth_over(&entry.pattern, place).is_some()) {
            continue;
        }
        let nearest = files
            .iter()
            .filter_map(|entry| Some((depth_over(&entry.pattern, place)?, entry)))
            .max_by_key(|(depth, entry)| (*depth, entry.access));
        if let Some((_, entry)) = nearest
            && entry.access == Access::Write
            && !found
                .iter()
                .any(|(known, _)| known.entry.span == entry.entry.span)
        {
            found.push((entry, place));
        }
    }
    for (entry, place) in found {
        let message = format!(
            "`{}` makes `{place}` writable, which runs later outside the sandbox",
            entry.entry.text
        );
        let hint = format!("add `@{set}` to `read`, or name less");
        report.warning(entry.entry.span.clone(), &message, Some(&hint));
    }
}

/// How near a rule's place is above `place`, by names alone; the greater the
/// nearer.
fn depth_over(rule: &Pattern, place: &Pattern) -> Option<usize> {
    if rule.name.is_some() {
        return None;
    }
    let depth = rule.components.len();
    if rule.base == place.base {
        // Nearer than any rule about a directory above the base.
        let above = if rule.base == Base::Root { 0 } else { 2 };
        return place
            .components
            .starts_with(&rule.components)
            .then_some(depth + above);
    }
    let over_homes = match rule.components.as_slice() {
        [] => true,
        [one] => place.base == Base::Home && matches!(one.as_str(), "home" | "root"),
        _ => false,
    };
    (rule.base == Base::Root && over_homes).then_some(depth)
}

fn network(document: &Document, report: &mut Report<'_>) {
    let network = &document.network;
    let names = network.allow.iter().chain(&network.deny);
    if network.mode == NetworkMode::Unrestricted {
        let span = network.mode_span.clone().unwrap_or_default();
        let message = "`unrestricted` takes the network wall away";
        let hint = "what is read inside can be sent anywhere; use it where that is wanted";
        report.warning(span, message, Some(hint));
        for span in names
            .map(|(_, span)| span)
            .chain(network.direct.iter().map(|(_, span)| span))
            .chain(&network.listen_span)
        {
            let hint = "with `mode = \"unrestricted\"` everything is reached";
            report.warning(span.clone(), "this entry has no effect", Some(hint));
        }
        return;
    }
    let first = names.min_by_key(|(_, span)| span.start);
    match (network.mode, first) {
        (NetworkMode::None, Some((_, span))) => {
            let message = "no host is let through: the mode is `none`";
            let hint = "write `mode = \"proxy\"`";
            report.warning(span.clone(), message, Some(hint));
        }
        (NetworkMode::Proxy, _) if network.allow.is_empty() => {
            let span = network.mode_span.clone().unwrap_or_default();
            let message = "`proxy` lets no host through: nothing is in `allow`";
            let hint = "name hosts there, such as `allow = [\"example.com\"]`";
            report.warning(span, message, Some(hint));
        }
        _ => {}
    }
    for (rule, span) in network
        .allow
        .iter()
        .filter(|(rule, _)| hosts::is_public(&rule.host))
    {
        let message = format!(
            "`{}` lets through names that anybody can register",
            rule.label
        );
        report.warning(
            span.clone(),
            &message,
            Some("name the hosts, or a domain of one owner"),
        );
    }
    for (direct, span) in network
        .direct
        .iter()
        .filter(|(it, _)| hosts::is_metadata(it.address))
    {
        let message = format!("`{}` hands out a cloud machine's credentials", direct.label);
        report.warning(
            span.clone(),
            &message,
            Some("leave it out unless that is wanted"),
        );
    }
}

fn sockets(document: &Document, report: &mut Report<'_>) {
    let unix = &document.network.unix;
    for (pattern, item) in unix {
        let path = pattern.to_string();
        if let Some((_, why)) = POWERFUL_SOCKETS.iter().find(|(end, _)| path.ends_with(end)) {
            let message = format!("`{}` is a way out of the sandbox: {why}", item.text);
            report.warning(item.span.clone(), &message, Some("leave it out"));
        }
    }
}
