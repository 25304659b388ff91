//! Limits on the command line, and what is said where one was reached.

use std::{fmt::Write as _, time::Duration};

use clap::Args;

use super::error::Exit;
use crate::{
    policy::Limits,
    proto::{self, exited::Reason},
};

/// What a sandbox may take; each in place of the policy's.
#[derive(Debug, Clone, Default, Args)]
pub struct LimitArgs {
    /// End the command after so long, as in `90s` or `10m`: SIGTERM, and ten
    /// seconds later SIGKILL.
    #[arg(long, value_name = "TIME", value_parser = Limits::parse_timeout, help_heading = HEADING)]
    pub timeout: Option<Duration>,

    /// End all that runs in the sandbox so long after it was made, and remove it.
    #[arg(long, value_name = "TIME", value_parser = Limits::parse_timeout, help_heading = HEADING)]
    pub sandbox_timeout: Option<Duration>,

    /// Memory of all that runs in it, without swap, as in `512m` or `2GiB`.
    #[arg(short, long, value_name = "SIZE", value_parser = Limits::parse_memory, help_heading = HEADING)]
    pub memory: Option<u64>,

    /// Processors of all that runs in it, as in `1.5`.
    #[arg(long, value_name = "NUMBER", value_parser = Limits::parse_cpus, help_heading = HEADING)]
    pub cpus: Option<u32>,

    /// Processes and threads of all that runs in it.
    #[arg(long, value_name = "NUMBER", value_parser = Limits::parse_pids, help_heading = HEADING)]
    pub pids_limit: Option<u32>,

    /// What an ephemeral workspace may take.
    #[arg(long, value_name = "SIZE", value_parser = Limits::parse_disk, help_heading = HEADING)]
    pub disk: Option<u64>,

    /// End the command once it writes more than this to its standard streams.
    #[arg(long, value_name = "SIZE", value_parser = Limits::parse_output, help_heading = HEADING)]
    pub output_limit: Option<u64>,
}

const HEADING: &str = "Limits";

/// As timeout(1) has it.
const TIMED_OUT: u8 = 124;
/// As for SIGKILL, which is how it ends.
const KILLED: u8 = 128 + 9;

impl LimitArgs {
    /// As a request has them; none: the policy's alone.
    pub(super) fn proto(&self) -> Option<proto::Limits> {
        let time = |time: Option<Duration>| time.and_then(|it| it.try_into().ok());
        let limits = proto::Limits {
            timeout: time(self.timeout),
            sandbox_timeout: time(self.sandbox_timeout),
            memory: self.memory.unwrap_or_default(),
            cpu_millis: self.cpus.unwrap_or_default(),
            pids: self.pids_limit.unwrap_or_default(),
            disk: self.disk.unwrap_or_default(),
            output: self.output_limit.unwrap_or_default(),
        };
        (limits != proto::Limits::default()).then_some(limits)
    }
}

/// The status of what a limit ended; none: it has its own.
pub(super) fn status(reason: Reason) -> Option<Exit> {
    match reason {
        Reason::Timeout | Reason::SandboxTimeout => Some(Exit::Command(TIMED_OUT)),
        Reason::Memory | Reason::MachineMemory | Reason::Output => Some(Exit::Command(KILLED)),
        _ => None,
    }
}

/// What is said at the end, a line each: why it ended that did not end by itself,
/// and what it was refused that it may not have understood.
pub(super) fn conclusion(
    reason: Reason,
    limits: Option<proto::Limits>,
    usage: Option<proto::Usage>,
) -> String {
    let limits = limits.unwrap_or_default();
    let usage = usage.unwrap_or_default();
    let peak = usage.peak_memory.map_or_else(String::new, |peak| {
        format!(" (peak {})", Limits::show_size(peak))
    });
    let time = |time: Option<prost_types::Duration>, name: &str| match time
        .and_then(|it| Duration::try_from(it).ok())
    {
        Some(time) => format!("{name} of {} reached", Limits::show_time(time)),
        None => "its time was up".to_owned(),
    };
    let cause = match reason {
        Reason::Unspecified | Reason::Exited => None,
        Reason::Killed => Some("on request, through the daemon".to_owned()),
        Reason::Daemon => Some("the daemon stopped".to_owned()),
        Reason::Timeout => Some(time(limits.timeout, "timeout")),
        Reason::SandboxTimeout => Some(time(limits.sandbox_timeout, "sandbox timeout")),
        Reason::Memory => Some(format!(
            "memory limit {} reached{peak}",
            Limits::show_size(limits.memory)
        )),
        Reason::MachineMemory => Some(format!("the machine ran out of memory{peak}")),
        Reason::Output => Some(format!(
            "output limit {} reached",
            Limits::show_size(limits.output)
        )),
    };
    let mut text = cause.map_or_else(String::new, |cause| format!("sandbox: killed: {cause}\n"));
    if usage.refused_forks > 0 {
        let processes = match usage.refused_forks {
            1 => "1 process was".to_owned(),
            count => format!("{count} processes were"),
        };
        let limit = match limits.pids {
            0 => "a limit of the machine's".to_owned(),
            limit => format!("the limit of {limit} (pids)"),
        };
        let _ = writeln!(
            text,
            "sandbox: {processes} not started: {limit} was reached"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::{super::args, *};

    fn limits(words: &[&str]) -> Result<LimitArgs, String> {
        let words = ["sandbox", "run"].iter().chain(words).chain(&["true"]);
        match args::Cli::try_parse_from(words) {
            Ok(cli) => match cli.command {
                args::Command::Run(args) => Ok(args.sandbox.limits),
                other => panic!("{other:?}"),
            },
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn flags_are_limits_of_the_request() {
        let words = "--timeout 10m --sandbox-timeout 2h -m 512m --cpus 1.5 --pids-limit 64 \
                     --disk 1GiB --output-limit 10MB";
        let words: Vec<&str> = words.split_whitespace().collect();
        let duration = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
        assert_eq!(
            limits(&words).unwrap().proto(),
            Some(proto::Limits {
                timeout: duration(600),
                sandbox_timeout: duration(7200),
                memory: 512 << 20,
                cpu_millis: 1500,
                pids: 64,
                disk: 1 << 30,
                output: 10_000_000,
            })
        );
        assert_eq!(limits(&[]).unwrap().proto(), None);
    }

    #[test]
    fn what_a_policy_refuses_the_flags_refuse_too() {
        for (words, says) in [
            (
                ["--timeout", "10"],
                "a time has a unit: write `10s` for seconds",
            ),
            (["--timeout", "0s"], "no time at all"),
            (["-m", "5"], "at least 6 MiB"),
            (["-m", "5XB"], "unknown unit `XB` of a size"),
            (["--cpus", "0"], "more than 0"),
            (["--cpus", "two"], "`two` is not a number"),
            (["--pids-limit", "0"], "one process at least"),
            (["--disk", "1"], "at least 1 MiB"),
            (["--output-limit", "none"], "`none` is not a size"),
        ] {
            let error = limits(&words).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }

    fn ended(reason: Reason, limits: proto::Limits, usage: proto::Usage) -> String {
        conclusion(reason, Some(limits), Some(usage))
    }

    #[test]
    fn each_end_is_one_line() {
        let duration = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
        let limits = proto::Limits {
            timeout: duration(10),
            sandbox_timeout: duration(5400),
            memory: 512 << 20,
            output: 10 << 20,
            pids: 64,
            ..proto::Limits::default()
        };
        let usage = proto::Usage {
            peak_memory: Some(512 << 20),
            ..proto::Usage::default()
        };
        for (reason, line) in [
            (Reason::Exited, ""),
            (Reason::Timeout, "timeout of 10 s reached"),
            (
                Reason::SandboxTimeout,
                "sandbox timeout of 1 h 30 min reached",
            ),
            (
                Reason::Memory,
                "memory limit 512 MiB reached (peak 512 MiB)",
            ),
            (
                Reason::MachineMemory,
                "the machine ran out of memory (peak 512 MiB)",
            ),
            (Reason::Output, "output limit 10 MiB reached"),
            (Reason::Killed, "on request, through the daemon"),
        ] {
            let expected = match line {
                "" => String::new(),
                line => format!("sandbox: killed: {line}\n"),
            };
            assert_eq!(ended(reason, limits, usage), expected);
        }
        // The caller's own deadline.
        let none = proto::Limits::default();
        assert_eq!(
            ended(Reason::Timeout, none, proto::Usage::default()),
            "sandbox: killed: its time was up\n"
        );
    }

    #[test]
    fn refused_processes_are_explained() {
        let limits = proto::Limits {
            pids: 64,
            ..proto::Limits::default()
        };
        let refused = |refused_forks| proto::Usage {
            refused_forks,
            ..proto::Usage::default()
        };
        assert_eq!(
            ended(Reason::Exited, limits, refused(12)),
            "sandbox: 12 processes were not started: the limit of 64 (pids) was reached\n"
        );
        assert_eq!(
            ended(Reason::Exited, limits, refused(1)),
            "sandbox: 1 process was not started: the limit of 64 (pids) was reached\n"
        );
        // That of all sandboxes, before Linux 6.11.
        assert_eq!(
            ended(Reason::Exited, proto::Limits::default(), refused(2)),
            "sandbox: 2 processes were not started: a limit of the machine's was reached\n"
        );
    }
}
