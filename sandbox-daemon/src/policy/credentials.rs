//! `[[credential]]`: which secret goes to which host, in which place of which
//! requests. A policy names secrets and never holds one.

mod git;
mod words;

use std::collections::HashMap;

use sandbox_proxy::credential::{self, GitRule, PORT, Scheme};
use sandbox_proxy::rule::{HostPattern, HostRule};

use super::MAX_CREDENTIALS;
use super::diagnostic::{Fault, Report, Span};
use super::document::{CredentialTables, EnvTable, NetworkTable};
use super::entries::read_each;
use super::hosts::{self, covers};
use super::model::{Credential, NetworkMode};
use super::own;
use super::table::{Item, Table, unknown_word};

const KEYS: [&str; 12] = [
    "name",
    "secret",
    "hosts",
    "scheme",
    "username",
    "header",
    "query",
    "methods",
    "paths",
    "env",
    "intercept",
    "git",
];
/// What an entry has with `intercept = false`.
const UNTOUCHED: [&str; 3] = ["name", "hosts", "intercept"];
const SCHEMES: [&str; 4] = ["bearer", "basic", "header", "query"];
/// What forges take as the user of a token.
const USERNAME: &str = "x-access-token";

pub(super) fn read(
    root: Table<'_>,
    network: &NetworkTable,
    env: &EnvTable,
    report: &mut Report<'_>,
) -> CredentialTables {
    let mut reader = Reader {
        env,
        names: HashMap::new(),
        secrets: HashMap::new(),
        added: Vec::new(),
        untouched: Vec::new(),
    };
    let entries = root.tables("credential", report);
    if let Some((_, first)) = entries.first()
        && network.mode != NetworkMode::Proxy
    {
        let span = network.mode_span.as_ref().unwrap_or(first).clone();
        let message = "credentials need `mode = \"proxy\"` in `[network]`";
        report.error(span, message, Some("it is the proxy that adds them"));
    }
    if let Some((_, span)) = entries.get(MAX_CREDENTIALS) {
        let hint = format!("at most {MAX_CREDENTIALS}");
        report.error(
            span.clone(),
            "the policy has too many credentials",
            Some(&hint),
        );
        return CredentialTables::default();
    }
    for (mut table, span) in entries {
        table.name = "[credential]";
        reader.entry(table, &span, report);
    }
    if !report.has_errors() {
        reader.warn(network, report);
    }
    let rule = |(rule, _): (HostRule, Span)| rule;
    CredentialTables {
        added: reader.added.into_iter().map(|(it, _)| it).collect(),
        untouched: reader.untouched.into_iter().map(rule).collect(),
    }
}

struct Reader<'e> {
    env: &'e EnvTable,
    /// Where each name is.
    names: HashMap<String, Span>,
    /// The secret of each variable.
    secrets: HashMap<String, String>,
    /// With where each of its hosts is.
    added: Vec<(Credential, Vec<Span>)>,
    untouched: Vec<(HostRule, Span)>,
}

impl Reader<'_> {
    fn entry(&mut self, table: Table<'_>, span: &Span, report: &mut Report<'_>) {
        table.expect_keys(&KEYS, belongs, report);
        let name = self.name(table, span, report);
        let hosts = read_hosts(table, span, report);
        if let Some((false, _)) = table.boolean("intercept", report) {
            for key in KEYS.iter().filter(|key| !UNTOUCHED.contains(key)) {
                if let Some(span) = table.key_span(key) {
                    let message = format!("`{key}` needs to see the request");
                    let hint = "remove it, or `intercept = false`";
                    report.error(span, &message, Some(hint));
                }
            }
            self.untouched.extend(hosts);
            return;
        }
        for (rule, span) in &hosts {
            check_recipients(rule, span, report);
        }
        let secret = match table.string("secret", report) {
            Some(secret) => check(&secret, report, words::name),
            None => name.clone(),
        };
        let env = table
            .string("env", report)
            .map(|env| self.variable(&env, &secret, report));
        let git = read_git(table, report);
        let (hosts, spans) = hosts.into_iter().unzip();
        let rule = credential::Credential {
            name,
            secret,
            hosts,
            scheme: read_scheme(table, git.is_some(), report),
            methods: read_list(table, "methods", words::method, report),
            paths: read_list(table, "paths", words::path, report),
            dummy: None,
            git,
        };
        self.added.push((Credential { rule, env }, spans));
    }

    fn name(&mut self, table: Table<'_>, span: &Span, report: &mut Report<'_>) -> String {
        let Some(item) = table.string("name", report) else {
            if table.key_span("name").is_none() {
                let hint = "events call it so; without `secret` it is the secret's name too";
                report.error(span.clone(), "a credential has no `name`", Some(hint));
            }
            return String::new();
        };
        let name = check(&item, report, words::name);
        if self.names.insert(name.clone(), item.span.clone()).is_some() {
            let message = format!("another credential is called `{name}`");
            let hint = "give each its own name; they may share a `secret`";
            report.error(item.span, &message, Some(hint));
        }
        name
    }

    /// The variable that has the dummy: it must not lead programs anywhere, and
    /// has one value.
    fn variable(&mut self, item: &Item, secret: &str, report: &mut Report<'_>) -> String {
        let name = check(item, report, words::variable);
        let error = |message: &str, hint: &str, report: &mut Report<'_>| {
            report.error(item.span.clone(), message, Some(hint));
        };
        if own::is_variable(&name) {
            let hint = "name the one that the program reads the secret from";
            error(&format!("`{name}` is sandboxd's own"), hint, report);
        } else if self.env.refuse.iter().any(|it| it.matches(name.as_bytes())) {
            let message = format!("`{name}` can make programs run other code and is never let in");
            let hint = "name the one that the program reads the secret from";
            error(&message, hint, report);
        } else if self.env.set.contains_key(&name) {
            let message = format!("`{name}` has a value in `[env] set`");
            let hint = "remove it there: the variable has what stands for the secret";
            error(&message, hint, report);
        }
        let of = self
            .secrets
            .entry(name.clone())
            .or_insert_with(|| secret.to_owned());
        if of != secret {
            let message = format!("`{name}` stands for the secret `{of}` already");
            let hint = "a variable stands for one secret: name the same one, or another variable";
            error(&message, hint, report);
        }
        name
    }

    /// What does not do what it seems to.
    fn warn(&self, network: &NetworkTable, report: &mut Report<'_>) {
        let added = self
            .added
            .iter()
            .flat_map(|(it, spans)| it.rule.hosts.iter().zip(spans));
        for (rule, span) in added.clone() {
            if !is_reached(rule, network) {
                let hint = format!("let it through: `[network] allow = [\"{}\"]`", rule.label);
                let message = format!("no request gets to `{}`", rule.label);
                report.warning(span.clone(), &message, Some(&hint));
            } else if let Some((by, _)) = self.untouched.iter().find(|(by, _)| leaves(by, rule)) {
                let message = format!("the credential never goes to `{}`", rule.label);
                let hint = format!("`{}` has `intercept = false`: remove one", by.label);
                report.warning(span.clone(), &message, Some(&hint));
            }
        }
        for (rule, span) in &self.untouched {
            let meets = |other: &HostRule| leaves(rule, other) || leaves(other, rule);
            if !added.clone().any(|(other, _)| meets(other)) {
                let message = format!("no credential goes to `{}`", rule.label);
                let hint = "remove it: only hosts of credentials are intercepted";
                report.warning(span.clone(), &message, Some(hint));
            }
        }
    }
}

/// What a word is, or what is wrong with it; then as it is.
fn check(
    item: &Item,
    report: &mut Report<'_>,
    parse: impl Fn(&str) -> Result<String, Fault>,
) -> String {
    parse(&item.text).unwrap_or_else(|fault| {
        report.fault(&item.span, &item.text, &fault);
        item.text.clone()
    })
}

fn belongs(key: &str) -> Option<&'static str> {
    match key {
        "repositories" | "push" | "force" | "delete" => Some("`git = { ... }`"),
        "allow" | "deny" => Some("`[network]`"),
        "value" | "token" | "password" => {
            Some("no policy: `sandbox secret set NAME` stores it, `secret` names it")
        }
        _ => None,
    }
}

fn read_hosts(table: Table<'_>, span: &Span, report: &mut Report<'_>) -> Vec<(HostRule, Span)> {
    if table.key_span("hosts").is_none() {
        let hint = "say where it goes: `hosts = [\"api.example.com\"]`";
        report.error(span.clone(), "a credential has no `hosts`", Some(hint));
    }
    refuse_empty(table, "hosts", "name the hosts that it goes to", report);
    read_each(table, "hosts", hosts::host, report)
}

/// Whom a host pattern would give the secret to.
fn check_recipients(rule: &HostRule, span: &Span, report: &mut Report<'_>) {
    let label = &rule.label;
    if hosts::is_public(&rule.host) {
        let message = format!("`{label}` would give the secret to whoever registers a name");
        let hint = "name the hosts, or a domain of one owner";
        report.error(span.clone(), &message, Some(hint));
    } else if let HostPattern::Below(apex) = &rule.host {
        let message = format!("every host below `{}` is given the secret", apex.as_str());
        let hint = "name the hosts that need it";
        report.warning(span.clone(), &message, Some(hint));
    }
    if rule.port == Some(80) {
        let message = format!("`{label}` is a port without TLS, where no secret goes");
        report.warning(span.clone(), &message, Some("leave the port out for 443"));
    }
}

fn read_scheme(table: Table<'_>, git: bool, report: &mut Report<'_>) -> Scheme {
    let default = if git { "basic" } else { "bearer" };
    let written = table.string("scheme", report);
    let word = written.as_ref().map_or(default, |it| it.text.as_str());
    if let Some(item) = &written {
        if !SCHEMES.contains(&word) {
            unknown_word("scheme", item, &SCHEMES, report);
            return Scheme::Bearer;
        }
        if git && matches!(word, "header" | "query") {
            let message = format!("git sends no credential as `{word}`");
            let hint = "leave `scheme` out: `basic` is git's";
            report.error(item.span.clone(), &message, Some(hint));
        }
    }
    for (key, scheme) in [
        ("username", "basic"),
        ("header", "header"),
        ("query", "query"),
    ] {
        if word != scheme
            && let Some(span) = table.key_span(key)
        {
            let message = format!("`{key}` is for `scheme = \"{scheme}\"`");
            let hint = format!("write `scheme = \"{scheme}\"`, or remove it");
            report.error(span, &message, Some(&hint));
        }
    }
    let mut named = |key: &str, example: &str, parse: fn(&str) -> Result<String, Fault>| {
        if let (None, Some(item)) = (table.key_span(key), &written) {
            let message = format!("`scheme = \"{key}\"` needs `{key}`");
            let hint = format!("such as `{key} = \"{example}\"`");
            report.error(item.span.clone(), &message, Some(&hint));
        }
        let item = table.string(key, report);
        item.map_or_else(String::new, |item| check(&item, report, parse))
    };
    match word {
        "basic" if table.key_span("username").is_none() => Scheme::Basic {
            username: USERNAME.to_owned(),
        },
        "basic" => Scheme::Basic {
            username: named("username", USERNAME, words::username),
        },
        "header" => Scheme::Header {
            name: named("header", "x-api-key", words::header),
        },
        "query" => Scheme::Query {
            name: named("query", "api_key", words::query),
        },
        _ => Scheme::Bearer,
    }
}

fn read_git(table: Table<'_>, report: &mut Report<'_>) -> Option<GitRule> {
    let key = table.key_span("git")?;
    for other in ["methods", "paths"] {
        if let Some(span) = table.key_span(other) {
            let message = format!("`git` says which requests, and `{other}` does too");
            let hint = format!("remove `{other}`, or make two credentials of one `secret`");
            report.error(span, &message, Some(&hint));
        }
    }
    let mut git = table.table("git", report)?;
    git.name = "credential.git";
    Some(git::read(git, &key, report))
}

/// A list that is there to say less than all.
fn read_list(
    table: Table<'_>,
    key: &str,
    parse: fn(&str) -> Result<String, Fault>,
    report: &mut Report<'_>,
) -> Vec<String> {
    refuse_empty(table, key, "leave it out for all", report);
    let items = read_each(table, key, parse, report);
    items.into_iter().map(|(text, _)| text).collect()
}

fn refuse_empty(table: Table<'_>, key: &str, hint: &str, report: &mut Report<'_>) {
    if table.is_empty(key) {
        let span = table.key_span(key).unwrap_or_default();
        report.error(span, &format!("`{key}` is empty"), Some(hint));
    }
}

fn is_reached(rule: &HostRule, network: &NetworkTable) -> bool {
    let port = rule.port.unwrap_or(PORT);
    let mut allow = network.allow.iter().map(|(it, _)| it);
    let mut deny = network.deny.iter().map(|(it, _)| it);
    let meets = |one: &HostPattern, other: &HostPattern| covers(one, other) || covers(other, one);
    allow.any(|it| meets(&it.host, &rule.host) && it.ports().any(|at| at == port))
        && !deny.any(|it| covers(&it.host, &rule.host) && it.port.is_none_or(|at| at == port))
}

/// Whether all that the other rule of `hosts` is about, the first is about.
fn leaves(one: &HostRule, other: &HostRule) -> bool {
    one.port.unwrap_or(PORT) == other.port.unwrap_or(PORT) && covers(&one.host, &other.host)
}
