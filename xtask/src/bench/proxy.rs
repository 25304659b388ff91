//! The way out beside others, natively and in one run.

use std::{fs, path::Path, process::Stdio};

use anyhow::{Context as _, Result, bail};

use super::{Measurement, columns, distinct, parse};
use crate::{
    binaries::{self, Binaries},
    host,
};

/// The program of the end-to-end tests that measures. It prints one
/// `{row, case, value, unit}` a line.
const PROGRAM: &str = "bench-proxy";

const DIRECT: &str = "direct";
const OWN: &str = "sandbox-proxy";

/// At least this much of what a direct connection carries.
const SHARE: f64 = 0.7;

/// What the rows are called in which TLS ends at the proxy.
const INTERCEPTED: &str = "intercepted ";

/// Less than this added to a request, in µs, where TLS ends at the proxy.
const ADDED: f64 = 1000.0;

/// At most this many times as long as over a direct connection.
const TIMES: f64 = 1.3;

/// Less than this, in MiB, with nothing to do.
const IDLE: f64 = 20.0;

/// Measures on this machine, what has `rows` in its name.
pub(super) fn measurements(rows: &str) -> Result<Vec<Measurement>> {
    for peer in ["/usr/sbin/squid", "/usr/bin/tinyproxy"] {
        if !Path::new(peer).exists() {
            bail!(
                "there is no `{peer}` to compare with\n\nhint: run \
                 `apt-get install --no-install-recommends squid tinyproxy` and \
                 `systemctl disable --now squid tinyproxy`, whose services it does not need"
            );
        }
    }
    let binaries = Binaries::build(true)?;
    let program = binaries::guest_program(PROGRAM, true)?;
    let programs = binaries.sandbox.parent().context("no directory")?;
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    eprintln!("bench: four minutes; load before: {}", load.trim_end());
    let output = host::as_root(&program)
        .arg("measure")
        .arg(programs)
        .args(["--rows", rows])
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        bail!("`{PROGRAM}` failed with {}", output.status);
    }
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    parse(kernel.trim_end(), &output.stdout)
}

/// A column for each way, and one for the goals.
pub(super) fn table(measurements: &[Measurement]) -> String {
    let cases = [DIRECT, "squid", "tinyproxy", OWN];
    let mut lines = vec![["", ""].map(str::to_owned).to_vec()];
    lines[0].extend(cases.map(str::to_owned));
    lines[0].push("goal".into());
    lines.push(vec!["---".to_owned(); lines[0].len()]);
    for row in distinct(measurements.iter().map(|line| line.row.as_str())) {
        let cells: Vec<_> = measurements.iter().filter(|line| line.row == row).collect();
        let of = |case| cells.iter().find(|cell| cell.case == case).copied();
        let unit = cells.first().map_or("", |cell| cell.unit.as_str());
        let mut line = vec![row.to_owned(), unit.to_owned()];
        for case in cases {
            line.push(of(case).map_or_else(String::new, |cell| shown(of(DIRECT), cell)));
        }
        line.push(of(OWN).map_or_else(String::new, |own| goal(own, &cells)));
        lines.push(line);
    }
    columns(&lines)
}

/// A value, and what it is beside a direct connection's.
fn shown(direct: Option<&Measurement>, cell: &Measurement) -> String {
    let value = match cell.value {
        value if value < 10.0 => format!("{value:.2}"),
        value if value < 1000.0 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    };
    match direct {
        Some(direct) if direct.case != cell.case => {
            if more_is_better(&cell.unit) {
                format!("{value} ({:.0} %)", cell.value / direct.value * 100.0)
            } else if cell.unit == "s" {
                format!("{value} ({:.2} times)", cell.value / direct.value)
            } else {
                format!("{value} ({:+.0})", cell.value - direct.value)
            }
        }
        _ => value,
    }
}

/// Which goals are met: no worse than the better of the others, a share of what
/// a direct connection carries or not much longer than it, and memory with nothing
/// to do. None: there are none.
fn goal(own: &Measurement, cells: &[&Measurement]) -> String {
    let more = more_is_better(&own.unit);
    let mut goals = Vec::new();
    let others = cells
        .iter()
        .filter(|it| ![DIRECT, OWN].contains(&it.case.as_str()));
    let best = others
        .map(|cell| cell.value)
        .reduce(if more { f64::max } else { f64::min });
    if let Some(best) = best {
        let met = if more {
            own.value >= best
        } else {
            own.value <= best
        };
        goals.push(("the better of the others".to_owned(), met));
    }
    if let Some(direct) = cells.iter().find(|cell| cell.case == DIRECT) {
        if own.unit == "GB/s" {
            let met = own.value >= direct.value * SHARE;
            goals.push((format!("{:.0} % of direct", SHARE * 100.0), met));
        }
        if own.unit == "s" {
            let met = own.value <= direct.value * TIMES;
            goals.push((format!("{TIMES} times as long as direct"), met));
        }
        if own.unit == "µs" && own.row.starts_with(INTERCEPTED) {
            let met = own.value < direct.value + ADDED;
            goals.push((format!("{ADDED} µs more than direct"), met));
        }
    }
    if own.unit == "MiB" {
        goals.push((format!("{IDLE:.0} MiB"), own.value < IDLE));
    }
    let missed: Vec<_> = goals
        .iter()
        .filter(|(_, met)| !met)
        .map(|(goal, _)| goal.as_str())
        .collect();
    match missed[..] {
        [] if goals.is_empty() => String::new(),
        [] => "met".into(),
        _ => format!("missed: {}", missed.join(", ")),
    }
}

fn more_is_better(unit: &str) -> bool {
    ["GB/s", "requests/s"].contains(&unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_that_is_missed_is_named() {
        let lines = r#"{"row":"one tunnel","case":"direct","value":2.0,"unit":"GB/s"}
{"row":"one tunnel","case":"squid","value":1.0,"unit":"GB/s"}
{"row":"one tunnel","case":"sandbox-proxy","value":1.3,"unit":"GB/s"}
{"row":"request","case":"squid","value":30.0,"unit":"µs"}
{"row":"request","case":"tinyproxy","value":20.0,"unit":"µs"}
{"row":"request","case":"sandbox-proxy","value":25.0,"unit":"µs"}
{"row":"intercepted request","case":"direct","value":20.0,"unit":"µs"}
{"row":"intercepted request","case":"sandbox-proxy","value":1025.0,"unit":"µs"}
{"row":"intercepted requests","case":"direct","value":20.0,"unit":"requests/s"}
{"row":"intercepted requests","case":"sandbox-proxy","value":10.0,"unit":"requests/s"}
{"row":"clone","case":"direct","value":2.0,"unit":"s"}
{"row":"clone","case":"sandbox-proxy","value":2.5,"unit":"s"}
{"row":"slow clone","case":"direct","value":2.0,"unit":"s"}
{"row":"slow clone","case":"sandbox-proxy","value":2.7,"unit":"s"}
{"row":"idle","case":"squid","value":30.0,"unit":"MiB"}
{"row":"idle","case":"sandbox-proxy","value":19.0,"unit":"MiB"}"#;
        let table = table(&parse("6.1", lines.as_bytes()).unwrap());
        let goals: Vec<_> = table
            .lines()
            .skip(2)
            .map(|line| line.rsplit('|').nth(1).unwrap().trim())
            .collect();
        assert_eq!(
            goals,
            [
                "missed: 70 % of direct",
                "missed: the better of the others",
                "missed: 1000 µs more than direct",
                "",
                "met",
                "missed: 1.3 times as long as direct",
                "met"
            ]
        );
        assert!(table.contains("2.70 (1.35 times)"), "{table}");
        assert!(table.contains("1.30 (65 %)"), "{table}");
    }
}
