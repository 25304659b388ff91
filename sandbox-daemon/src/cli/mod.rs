//! The client: the command line as requests, and answers as people or
//! programs read them.

pub mod args;
pub mod attach;
mod caller;
pub mod changes;
mod denials;
pub mod doctor;
pub mod enroll;
mod error;
pub mod events;
mod host;
mod json;
pub mod kill;
pub mod lasting;
mod limits;
pub mod logs;
pub mod network;
pub mod policy;
mod prompt;
pub mod ps;
mod request;
pub mod run;
pub mod secret;
mod signals;
mod stdio;
mod target;
mod terminal;
pub mod version;
pub mod wait;

use std::{
    ffi::OsString,
    io::{self, Write as _},
};

use clap::{CommandFactory as _, Parser as _, error::ErrorKind};

pub use self::{
    error::{CliError, Exit},
    host::Host,
};

/// Reads the command line. Help goes to stdout; for wrong arguments it says
/// so on stderr and gives the exit status, which `run` and its like have to keep
/// apart from their command's.
pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<args::Cli, Exit> {
    let words: Vec<OsString> = words.into_iter().collect();
    // To know all commands takes longer than all else before the call. What is
    // wrong with this one is said by whoever knows all.
    if words.get(1).is_some_and(|word| word == "run")
        && let Ok(args::Line { host, command }) = args::Line::try_parse_from(&words)
    {
        let args::RunOnly::Run(run) = command;
        let command = args::Command::Run(run);
        return Ok(args::Cli { host, command });
    }
    args::Cli::try_parse_from(&words).map_err(|error| {
        let _ = error.print();
        match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Exit::Success,
            _ if has_commands_status(&words) => Exit::Sandbox,
            _ => Exit::Usage,
        }
    })
}

fn has_commands_status(words: &[OsString]) -> bool {
    args::Cli::command()
        .ignore_errors(true)
        .try_get_matches_from(words)
        .is_ok_and(|matches| {
            let verb = matches.subcommand_name().unwrap_or_default();
            ["run", "exec", "attach", "wait"].contains(&verb)
        })
}

/// Writes to stderr; where that is closed there is nobody to tell.
pub fn tell(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Writes data to stdout. False: the reader has seen enough, which is no
/// error.
fn print(text: &str) -> Result<bool, CliError> {
    let mut stdout = io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(source) => Err(CliError::Io {
            operation: "write to stdout",
            source,
        }),
    }
}

/// Runs a verb that needs the daemon.
fn block_on<T>(verb: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| CliError::Io {
            operation: "start the client's runtime",
            source,
        })?
        .block_on(verb)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_end_at_the_command() {
        for words in [
            &["sandbox", "run", "npm", "test", "--json", "-v"][..],
            &["sandbox", "run", "--", "npm", "test", "--json", "-v"],
        ] {
            let cli = parse(words.iter().map(OsString::from)).unwrap();
            let args::Command::Run(run) = cli.command else {
                panic!("not run");
            };
            assert_eq!(run.how.command, ["npm", "test", "--json", "-v"]);
            assert!(run.how.json.is_none() && !run.how.verbose);
        }
    }

    #[test]
    fn the_parser_of_run_alone_reads_what_the_whole_one_does() {
        let understood = |line: &str| {
            let words: Vec<_> = line.split(' ').collect();
            let alone = args::Line::<args::RunOnly>::try_parse_from(&words);
            let whole = args::Cli::try_parse_from(&words).map(|cli| match cli.command {
                args::Command::Run(run) => format!("{:?} {run:?}", cli.host),
                other => panic!("{other:?}"),
            });
            let Ok(args::Line { host, command }) = alone else {
                // Then the whole one says why.
                assert!(whole.is_err(), "{line}");
                return false;
            };
            let args::RunOnly::Run(run) = command;
            assert_eq!(format!("{host:?} {run:?}"), whole.unwrap(), "{line}");
            true
        };
        for line in [
            "sandbox run true",
            "sandbox run -- true",
            "sandbox run help",
            "sandbox run create x",
            "sandbox run --host unix:///run/other.sock --policy strict -w /srv --ephemeral -d -- a -b",
            "sandbox run --timeout 5s -m 64M --cpus 2 --pids-limit 9 -e A=b -t -i --keep --name n a",
        ] {
            assert!(understood(line), "{line}");
        }
        for line in [
            "sandbox run",
            "sandbox run --no-such true",
            "sandbox run -h",
        ] {
            assert!(!understood(line), "{line}");
        }
    }
}
