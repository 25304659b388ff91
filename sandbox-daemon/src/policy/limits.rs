//! Time and resources that a sandbox may take.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use super::diagnostic::{Fault, Report};
use super::quantity::{self, show_size, show_time};
use super::table::{Amount, Table};

/// What a sandbox, or one exec in it, may take; none: no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Limits {
    /// Wall clock of each exec.
    pub timeout: Option<Duration>,
    /// Wall clock of the sandbox, from its creation.
    pub sandbox_timeout: Option<Duration>,
    /// Bytes of memory, of all execs together.
    pub memory: Option<u64>,
    /// Thousandths of a CPU, of all execs together.
    pub cpu_millis: Option<u32>,
    /// Processes and threads, of all execs together.
    pub pids: Option<u32>,
    /// Bytes that an ephemeral workspace may take.
    pub disk: Option<u64>,
    /// Bytes of output that are relayed, of each exec.
    pub output: Option<u64>,
}

const KEYS: [&str; 7] = [
    "timeout",
    "sandbox_timeout",
    "memory",
    "cpus",
    "pids",
    "disk",
    "output",
];

/// Below this not even a shell starts.
const LEAST_MEMORY: u64 = 6 << 20;
/// What the overlay itself needs.
const LEAST_DISK: u64 = 1 << 20;
/// The API has 64 bits, TOML one less.
const MOST_BYTES: u64 = i64::MAX as u64;
const LEAST_TIME: Duration = Duration::from_millis(1);
const MOST_TIME: Duration = Duration::from_hours(30 * 24);
/// The kernel's least: a millisecond of each tenth of a second.
const LEAST_CPU: u32 = 10;
const MOST_CPU: u32 = 4096 * 1000;
/// The kernel's `PID_MAX_LIMIT`.
const MOST_PIDS: u32 = 1 << 22;

impl Limits {
    /// These, each that is missing from `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            timeout: self.timeout.or(other.timeout),
            sandbox_timeout: self.sandbox_timeout.or(other.sandbox_timeout),
            memory: self.memory.or(other.memory),
            cpu_millis: self.cpu_millis.or(other.cpu_millis),
            pids: self.pids.or(other.pids),
            disk: self.disk.or(other.disk),
            output: self.output.or(other.output),
        }
    }

    /// The first that no sandbox can have, and what is wrong with it.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        fn at<T>(
            key: &'static str,
            value: Option<T>,
            within: impl Fn(T) -> Result<T, Fault>,
        ) -> Result<(), (&'static str, String)> {
            let Some(Err(fault)) = value.map(within) else {
                return Ok(());
            };
            Err((key, said(fault)))
        }
        at("limits.timeout", self.timeout, a_time)?;
        at("limits.sandbox_timeout", self.sandbox_timeout, a_time)?;
        at("limits.memory", self.memory, a_memory)?;
        at("limits.cpu_millis", self.cpu_millis, a_share)?;
        at("limits.pids", self.pids, a_count)?;
        at("limits.disk", self.disk, a_disk)?;
        at("limits.output", self.output, an_output)
    }

    /// A timeout as it is written in a policy and on a command line.
    pub fn parse_timeout(text: &str) -> Result<Duration, String> {
        quantity::time(text).and_then(a_time).map_err(said)
    }

    /// Memory, likewise.
    pub fn parse_memory(text: &str) -> Result<u64, String> {
        quantity::size(text).and_then(a_memory).map_err(said)
    }

    /// A number of processors in thousandths, likewise.
    pub fn parse_cpus(text: &str) -> Result<u32, String> {
        let cpus = text.trim().parse::<f64>();
        let cpus = cpus.map_err(|_| Fault::new(format!("`{text}` is not a number"), CPUS));
        cpus.and_then(share).map_err(said)
    }

    /// A number of processes, likewise.
    pub fn parse_pids(text: &str) -> Result<u32, String> {
        let pids = text.trim().parse::<i64>();
        let pids = pids.map_err(|_| Fault::new(format!("`{text}` is not a number"), PIDS));
        pids.and_then(count).map_err(said)
    }

    /// What an ephemeral workspace may take, likewise.
    pub fn parse_disk(text: &str) -> Result<u64, String> {
        quantity::size(text).and_then(a_disk).map_err(said)
    }

    /// What may be relayed, likewise.
    pub fn parse_output(text: &str) -> Result<u64, String> {
        quantity::size(text).and_then(an_output).map_err(said)
    }

    /// A time for people: `1 h 30 min`.
    pub fn show_time(time: Duration) -> String {
        show_time(time)
    }

    /// A size for people: `512 MiB`.
    pub fn show_size(bytes: u64) -> String {
        show_size(bytes)
    }
}

const CPUS: &str = "as in `1.5` for one and a half";
const PIDS: &str = "as in `256`";

/// Reads `[limits]`.
pub(super) fn read(table: Table<'_>, report: &mut Report<'_>) -> Limits {
    table.expect_keys(&KEYS, |_| None, report);
    let time = |amount: &Amount| match amount {
        Amount::Text(text) => quantity::time(text).and_then(a_time),
        Amount::Integer(number) => Err(Fault::new(
            "a time has a unit",
            format!("write `\"{number}s\"` for seconds"),
        )),
        Amount::Fraction(number) => Err(Fault::new(
            "a time has a unit",
            format!("write `\"{number}s\"` for seconds"),
        )),
    };
    Limits {
        timeout: table.amount("timeout", "a time, as in `\"10m\"`", time, report),
        sandbox_timeout: table.amount("sandbox_timeout", "a time, as in `\"2h\"`", time, report),
        memory: size(table, "memory", a_memory, report),
        cpu_millis: table.amount(
            "cpus",
            "a number, as in `1.5`",
            |amount| match amount {
                #[expect(clippy::cast_precision_loss, reason = "what is lost is too much")]
                Amount::Integer(number) => share(*number as f64),
                Amount::Fraction(number) => share(*number),
                Amount::Text(text) => Err(unquoted("a number of processors", text)),
            },
            report,
        ),
        pids: table.amount(
            "pids",
            "a number, as in `256`",
            |amount| match amount {
                Amount::Integer(number) => count(*number),
                Amount::Fraction(_) => Err(Fault::new("there are no parts of processes", PIDS)),
                Amount::Text(text) => Err(unquoted("a number of processes", text)),
            },
            report,
        ),
        disk: size(table, "disk", a_disk, report),
        output: size(table, "output", an_output, report),
    }
}

fn size(
    table: Table<'_>,
    key: &'static str,
    within: impl Fn(u64) -> Result<u64, Fault>,
    report: &mut Report<'_>,
) -> Option<u64> {
    let read = |amount: &Amount| match amount {
        Amount::Text(text) => quantity::size(text).and_then(&within),
        Amount::Integer(number) => match u64::try_from(*number) {
            Ok(number) => within(number),
            Err(_) => Err(Fault::new("a size is not negative", NO_LIMIT)),
        },
        Amount::Fraction(number) => Err(Fault::new(
            "there are no parts of bytes",
            format!("with a unit it is a string, as in `\"{number}GiB\"`"),
        )),
    };
    table.amount(key, "a size, as in `\"512MiB\"`", read, report)
}

fn unquoted(what: &str, text: &str) -> Fault {
    let number = text.trim().parse::<f64>();
    let hint = match number {
        Ok(_) => format!("write {}, without quotes", text.trim()),
        Err(_) => "as in `4`, without quotes".to_owned(),
    };
    Fault::new(format!("{what} is no string"), hint)
}

const NO_LIMIT: &str = "leave the line out for no limit";

fn a_time(time: Duration) -> Result<Duration, Fault> {
    if time.is_zero() {
        return Err(Fault::new("no time at all is no time to run", NO_LIMIT));
    }
    between(time, LEAST_TIME, MOST_TIME, show_time)
}

fn a_memory(bytes: u64) -> Result<u64, Fault> {
    sized(bytes, LEAST_MEMORY)
}

fn a_disk(bytes: u64) -> Result<u64, Fault> {
    sized(bytes, LEAST_DISK)
}

fn an_output(bytes: u64) -> Result<u64, Fault> {
    sized(bytes, 1)
}

fn sized(bytes: u64, least: u64) -> Result<u64, Fault> {
    if bytes == 0 {
        return Err(Fault::new("nothing at all is too little", NO_LIMIT));
    }
    between(bytes, least, MOST_BYTES, show_size)
}

fn share(cpus: f64) -> Result<u32, Fault> {
    if !cpus.is_finite() {
        return Err(Fault::new("this is not a number of processors", CPUS));
    }
    if cpus <= 0.0 {
        let message = "a number of processors is more than 0";
        return Err(Fault::new(message, NO_LIMIT));
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is positive, and what is too large stays too large"
    )]
    let millis = (cpus * 1000.0).round() as u32;
    a_share(millis)
}

fn a_share(millis: u32) -> Result<u32, Fault> {
    let show = |millis: u32| format!("{}", f64::from(millis) / 1000.0);
    between(millis, LEAST_CPU, MOST_CPU, show)
}

fn count(pids: i64) -> Result<u32, Fault> {
    match u32::try_from(pids) {
        Ok(0) | Err(_) if pids <= 0 => {
            let message = "a command is one process at least";
            Err(Fault::new(message, NO_LIMIT))
        }
        pids => a_count(pids.unwrap_or(u32::MAX)),
    }
}

fn a_count(pids: u32) -> Result<u32, Fault> {
    between(pids, 1, MOST_PIDS, |pids| pids.to_string())
}

fn between<T: PartialOrd + Copy, S: fmt::Display>(
    value: T,
    least: T,
    most: T,
    show: impl Fn(T) -> S,
) -> Result<T, Fault> {
    if value < least {
        let hint = format!("at least {}", show(least));
        return Err(Fault::new("this is too little to run anything", hint));
    }
    if value > most {
        return Err(Fault::new(
            "this is too much",
            format!("at most {}", show(most)),
        ));
    }
    Ok(value)
}

fn said(fault: Fault) -> String {
    match fault.hint {
        Some(hint) => format!("{}: {hint}", fault.message),
        None => fault.message,
    }
}
