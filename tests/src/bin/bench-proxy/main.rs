//! `cargo xtask bench proxy`: what the way out of a sandbox costs, beside squid,
//! tinyproxy and no proxy at all, all on the same path to the same server.
//! Prints a measurement a line.

mod contestant;
mod load;
mod memory;
mod origin;
mod place;
mod secure;

use std::{
    path::{Path, PathBuf},
    thread::sleep,
    time::Duration,
};

use anyhow::{Context as _, Result};
use clap::Parser;
use serde_json::json;

use self::{
    contestant::{Contestant, Kind, Way},
    place::Place,
};

#[derive(Parser)]
enum Arguments {
    /// Measure, with `sandbox` and `sandbox-proxy` of this directory
    Measure {
        programs: PathBuf,
        /// Rows with this in their name; all without
        #[arg(long, default_value = "")]
        rows: String,
    },
    /// Be the server, over TLS with these files
    Serve { files: PathBuf },
    /// Be a client
    Load(load::Arguments),
}

/// Something that is measured again and again.
struct Row {
    /// A name for each number that a client prints.
    names: &'static [&'static str],
    unit: &'static str,
    /// The client's.
    words: &'static [&'static str],
    /// Of the sandbox; the others have but one.
    way: Way,
    /// What a number is divided by.
    scale: f64,
}

const fn row(
    names: &'static [&'static str],
    unit: &'static str,
    words: &'static [&'static str],
) -> Row {
    Row {
        names,
        unit,
        words,
        way: Way::Explicit,
        scale: 1.0,
    }
}

const ROWS: [Row; 10] = [
    Row {
        scale: 1e9,
        ..row(&["one tunnel"], "GB/s", &["stream"])
    },
    Row {
        scale: 1e9,
        ..row(&["64 tunnels"], "GB/s", &["stream", "--connections", "64"])
    },
    Row {
        scale: 1e9,
        way: Way::Transparent,
        ..row(&["one transparent connection"], "GB/s", &["stream"])
    },
    row(
        &["requests on 64 connections"],
        "requests/s",
        &["requests", "--connections", "64"],
    ),
    row(
        &["request, median", "request, 99th percentile"],
        "µs",
        &["request-latency"],
    ),
    row(
        &[
            "message in a tunnel, median",
            "message in a tunnel, 99th percentile",
        ],
        "µs",
        &["message-latency"],
    ),
    row(
        &[
            "new tunnel and a message, median",
            "new tunnel and a message, 99th percentile",
        ],
        "µs",
        &["tunnel-latency"],
    ),
    Row {
        way: Way::Secure,
        ..row(
            &[
                "intercepted request, median",
                "intercepted request, 99th percentile",
            ],
            "µs",
            &["request-latency"],
        )
    },
    Row {
        way: Way::Secure,
        ..row(
            &["intercepted requests on 64 connections"],
            "requests/s",
            &["requests", "--connections", "64"],
        )
    },
    Row {
        way: Way::Secure,
        ..row(&[CLONE], "s", &["clone"])
    },
];

/// For which there has to be a repository.
const CLONE: &str = "intercepted clone of 200 MB";

/// Of a proxy with nothing to do, and of each connection while nothing happens.
const NOTHING: &str = "memory with nothing to do";
const MEMORY: [(&str, &str); 2] = [
    ("memory of an idle tunnel", "hold-tunnels"),
    ("memory of an idle connection", "hold-requests"),
];

/// The machine does other things too: the median of several is what counts.
const ROUNDS: usize = 5;

/// Connections on which nothing happens.
const IDLE: u32 = 2000;

/// What a proxy still does after its start, and after a burst.
const SETTLE: Duration = Duration::from_millis(500);

fn main() -> Result<()> {
    match Arguments::parse() {
        Arguments::Measure { programs, rows } => measure(&programs, &rows),
        Arguments::Serve { files } => origin::serve(&files),
        Arguments::Load(arguments) => load::main(arguments),
    }
}

fn measure(programs: &Path, wanted: &str) -> Result<()> {
    let place = Place::make()?;
    let names = [NOTHING].into_iter().chain(MEMORY.map(|(row, _)| row));
    if names.into_iter().any(|name| name.contains(wanted)) {
        memory_of_all(&place, programs)?;
    }
    let rows: Vec<_> = ROWS
        .iter()
        .filter(|row| row.names.iter().any(|name| name.contains(wanted)))
        .collect();
    if rows.iter().any(|row| row.names == [CLONE]) {
        secure::repository(place.files())?;
    }
    let contestants = Kind::ALL
        .into_iter()
        .filter(|kind| rows.iter().any(|row| kind.has(row.way)))
        .map(|kind| Contestant::start(kind, &place, programs))
        .collect::<Result<Vec<_>>>()?;
    // Values by row, contestant and round.
    let mut values = vec![vec![Vec::new(); contestants.len()]; rows.len()];
    for _ in 0..ROUNDS {
        for (row, values) in rows.iter().zip(&mut values) {
            for (contestant, values) in contestants.iter().zip(values) {
                if contestant.kind.has(row.way) {
                    let measured = contestant.load(row.way, row.words);
                    values.push(measured.with_context(|| {
                        format!("{} through {}", row.names[0], contestant.kind.name())
                    })?);
                }
            }
        }
    }
    for (row, values) in rows.iter().zip(values) {
        for (contestant, values) in contestants.iter().zip(values) {
            for (place, name) in row.names.iter().enumerate() {
                let mut values: Vec<f64> = values
                    .iter()
                    .filter_map(|of_round| of_round.get(place).copied())
                    .collect();
                values.sort_by(f64::total_cmp);
                if let Some(median) = values.get(values.len() / 2) {
                    report(name, contestant.kind, median / row.scale, row.unit);
                }
            }
        }
    }
    Ok(())
}

fn memory_of_all(place: &Place, programs: &Path) -> Result<()> {
    // None has done anything before: what was used once is not given back.
    for kind in Kind::PROXIES {
        for (row, what) in MEMORY {
            let contestant = Contestant::start(kind, place, programs)?;
            let warm = contestant.load(Way::Explicit, &["requests", "--seconds", "0.1"]);
            warm.with_context(|| kind.name())?;
            sleep(SETTLE);
            let before = contestant.memory()?;
            let count = IDLE.to_string();
            let mut held = contestant.held(&[what, "--connections", &count])?;
            sleep(SETTLE);
            let each = (contestant.memory()? - before) / f64::from(IDLE);
            held.end()?;
            if what == "hold-tunnels" {
                report(NOTHING, kind, before / 1024.0, "MiB");
            }
            // tinyproxy ends a connection with each answer.
            if (kind, what) != (Kind::Tinyproxy, "hold-requests") {
                report(row, kind, each, "KiB");
            }
        }
    }
    Ok(())
}

fn report(row: &str, kind: Kind, value: f64, unit: &str) {
    println!(
        "{}",
        json!({ "row": row, "case": kind.name(), "value": value, "unit": unit })
    );
}
