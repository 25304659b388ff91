//! `[limits]` and `[workspace]`: what is read, and what is refused.

use std::time::Duration;

use super::super::{Limits, WorkspaceMode};
use super::{good, messages, parse, resolve};

#[test]
fn limits_are_read_in_the_units_that_people_use() {
    let text = r#"
version = 1
[limits]
timeout = "10m"
sandbox_timeout = "2h 30m"
memory = "512m"
cpus = 1.5
pids = 256
disk = 1_048_576
output = "10MB"
[workspace]
mode = "ephemeral"
"#;
    let policy = resolve(&good(text));
    assert_eq!(
        policy.limits,
        Limits {
            timeout: Some(Duration::from_mins(10)),
            sandbox_timeout: Some(Duration::from_mins(150)),
            memory: Some(512 << 20),
            cpu_millis: Some(1500),
            pids: Some(256),
            disk: Some(1 << 20),
            output: Some(10_000_000),
        }
    );
    assert_eq!(policy.workspace_mode, WorkspaceMode::Ephemeral);
    let plain = resolve(&good("version = 1\n[workspace]\nmode = \"direct\"\n"));
    assert_eq!(plain.workspace_mode, WorkspaceMode::Direct);
    assert_eq!(plain.limits, Limits::default());
    assert_ne!(plain.digest, policy.digest);
}

/// A line of `[limits]`, what is wrong with it, and what to do about it.
const WRONG: &[(&str, &str, &str)] = &[
    (
        "timeout = \"0s\"",
        "no time at all is no time to run",
        "leave the line out for no limit",
    ),
    (
        "timeout = \"-1s\"",
        "a time is not negative",
        "as in `90s`, `10m` or `1h 30m`",
    ),
    (
        "timeout = 60",
        "a time has a unit",
        "write `\"60s\"` for seconds",
    ),
    (
        "timeout = \"5 ticks\"",
        "unknown unit `ticks` of a time",
        "known are `ms`, `s`, `m`, `h` and `d`",
    ),
    ("timeout = \"10M\"", "this is too much", "at most 30 d"),
    (
        "timeout = [1]",
        "`timeout` takes a time, as in `\"10m\"`, and this is a list",
        "",
    ),
    (
        "memory = \"512MeB\"",
        "unknown unit `MeB` of a size",
        "did you mean `MiB`?",
    ),
    (
        "memory = \"lots\"",
        "`lots` is not a size",
        "as in `512MiB`, `2GB` or `512m`",
    ),
    (
        "memory = \"64KiB\"",
        "this is too little to run anything",
        "at least 6 MiB",
    ),
    (
        "memory = 0",
        "nothing at all is too little",
        "leave the line out for no limit",
    ),
    (
        "memory = -5",
        "a size is not negative",
        "leave the line out for no limit",
    ),
    (
        "memory = 1.5",
        "there are no parts of bytes",
        "with a unit it is a string, as in `\"1.5GiB\"`",
    ),
    (
        "memory = \"99999999TiB\"",
        "this is too much",
        "at most 8388608 TiB",
    ),
    (
        "cpus = 0",
        "a number of processors is more than 0",
        "leave the line out for no limit",
    ),
    (
        "cpus = 0.001",
        "this is too little to run anything",
        "at least 0.01",
    ),
    ("cpus = 5000", "this is too much", "at most 4096"),
    (
        "cpus = nan",
        "this is not a number of processors",
        "as in `1.5` for one and a half",
    ),
    (
        "cpus = \"2\"",
        "a number of processors is no string",
        "write 2, without quotes",
    ),
    (
        "pids = 0",
        "a command is one process at least",
        "leave the line out for no limit",
    ),
    (
        "pids = -1",
        "a command is one process at least",
        "leave the line out for no limit",
    ),
    ("pids = 9999999", "this is too much", "at most 4194304"),
    (
        "pids = 0x1_0000_0000_0000_0000",
        "this is too much",
        "at most 4194304",
    ),
    (
        "pids = 1.5",
        "there are no parts of processes",
        "as in `256`",
    ),
    (
        "disk = \"4KiB\"",
        "this is too little to run anything",
        "at least 1 MiB",
    ),
    (
        "output = \"0\"",
        "nothing at all is too little",
        "leave the line out for no limit",
    ),
    (
        "memroy = 1",
        "unknown key `memroy` in `[limits]`",
        "did you mean `memory`?",
    ),
];

#[test]
fn a_limit_that_cannot_be_is_refused_with_the_remedy() {
    for &(line, message, hint) in WRONG {
        let found = parse(&format!("version = 1\n[limits]\n{line}\n")).unwrap_err();
        let first = &found.0[0];
        assert_eq!(found.0.len(), 1, "{found}");
        assert_eq!((first.message.as_str(), first.line), (message, 3), "{line}");
        assert_eq!(first.hint.as_deref().unwrap_or_default(), hint, "{line}");
    }
    let found = parse("version = 1\n[limits]\nmemory = \"512MeB\"\n").unwrap_err();
    assert_eq!(
        found.to_string(),
        "\
error: unknown unit `MeB` of a size
 --> p.toml:3:14
  |
3 | memory = \"512MeB\"
  |              ^^^
  |
  = hint: did you mean `MiB`?"
    );
    assert_eq!(
        messages("version = 1\n[workspace]\nmode = \"copy\"\n"),
        ["unknown mode `copy`"]
    );
    let found = parse("version = 1\ntimeout = \"1s\"\n").unwrap_err();
    assert_eq!(
        found.0[0].hint.as_deref(),
        Some("`timeout` belongs in `[limits]`")
    );
}

#[test]
fn a_policy_without_limits_is_no_warning() {
    let limited = "version = 1\n[limits]\npids = 5\n";
    let without = good("version = 1\n").warnings().0.len();
    assert_eq!(good(limited).warnings().0.len(), without);
}
