//! Arguments of the verbs about sandboxes and commands that outlive a call.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{ArgAction, Args};

use super::{Output, SandboxArgs, When};
use crate::policy::Limits;

/// How a command is run, in whichever sandbox.
#[derive(Debug, Args)]
pub struct CommandArgs {
    /// Set a variable whatever the policy says; without `=VALUE`, pass the
    /// caller's. Repeatable.
    #[arg(short, long = "env", value_name = "NAME[=VALUE]")]
    pub env: Vec<OsString>,

    /// Whether to list refusals on stderr when the command ends; `auto`: if
    /// stderr is a terminal.
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = When::Auto)]
    pub denials: When,

    /// Write each event as a line of JSON to this file descriptor.
    #[arg(
        long,
        value_name = "FD",
        value_parser = clap::value_parser!(i32).range(0..),
        conflicts_with = "detach"
    )]
    pub json: Option<i32>,

    /// Say which sandbox and policy it is, and which variables were withheld.
    #[arg(short, long, action = ArgAction::SetTrue)]
    pub verbose: bool,

    /// Whether it is left running.
    #[command(flatten)]
    pub left: DetachArgs,

    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// A command that outlives the client.
#[derive(Debug, Args)]
pub struct DetachArgs {
    /// Print the id of the exec and leave it running.
    #[arg(short, long, help_heading = DETACHED)]
    pub detach: bool,

    /// Give it a terminal, for `sandbox attach`.
    #[arg(short, long, requires = "detach", help_heading = DETACHED)]
    pub tty: bool,

    /// Keep its stdin open, for `sandbox attach`; with `--tty` it always is.
    #[arg(short, long, requires = "detach", help_heading = DETACHED)]
    pub interactive: bool,
}

const DETACHED: &str = "Detached";

/// Of a sandbox that outlives its commands.
#[derive(Debug, Default, Args)]
pub struct LastingArgs {
    /// What to call it, instead of its id.
    #[arg(long, value_name = "NAME", help_heading = LASTING)]
    pub name: Option<String>,

    /// Remove it when nothing has run in it for so long, as in `30m` [default: 1h].
    #[arg(
        long,
        value_name = "TIME",
        value_parser = Limits::parse_timeout,
        help_heading = LASTING
    )]
    pub idle_timeout: Option<Duration>,
}

const LASTING: &str = "Sandbox that stays";

/// `sandbox create`.
#[derive(Debug, Args)]
#[command(after_help = "\
Prints the id of the sandbox, which `exec` and `rm` take. It is removed when
nothing has run in it for an hour, or for as long as `--idle-timeout` says.

Examples:
  id=$(sandbox create --policy ./agent.toml)
  sandbox exec \"$id\" -- npm ci
  sandbox exec \"$id\" -- npm test
  sandbox rm \"$id\"
  sandbox create --name web --idle-timeout 8h -w ~/src/app")]
pub struct CreateArgs {
    /// What may be done in it.
    #[command(flatten)]
    pub sandbox: SandboxArgs,

    /// How long it stays.
    #[command(flatten)]
    pub lasting: LastingArgs,

    /// How to print it: its id, or all of it.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text)]
    pub output: Output,
}

/// `sandbox exec`.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit status:
  as that of `sandbox run`

Examples:
  sandbox exec web -- npm test
  sandbox exec web -w src/api -- make
  sandbox exec -d web -- npm run dev       then `sandbox logs -f` and `attach`")]
pub struct ExecArgs {
    /// Where to start it [default: the current directory if it is in the
    /// sandbox's workspace, otherwise the workspace].
    #[arg(short, long, value_name = "DIR")]
    pub workdir: Option<PathBuf>,

    /// End it after so long, as in `90s` or `10m`; in place of the sandbox's own.
    #[arg(long, value_name = "TIME", value_parser = Limits::parse_timeout)]
    pub timeout: Option<Duration>,

    /// The sandbox: its id, the beginning of it, or its name.
    #[arg(value_name = "SANDBOX")]
    pub sandbox: String,

    /// What to run and how.
    #[command(flatten)]
    pub how: CommandArgs,
}

/// `sandbox rm`.
#[derive(Debug, Args)]
#[command(after_help = "\
What runs in them is killed, and what was not written to the real workspace, or
exported, is gone.

Examples:
  sandbox rm web
  sandbox rm --all                         end everything that `sandbox ps` lists")]
pub struct RmArgs {
    /// Sandboxes: ids, their beginnings, or names; or an exec that is the only one
    /// of its sandbox.
    #[arg(value_name = "SANDBOX", required_unless_present = "all")]
    pub ids: Vec<String>,

    /// All that `sandbox ps` lists; for root, everybody's.
    #[arg(long, conflicts_with = "ids")]
    pub all: bool,
}

/// `sandbox attach`.
#[derive(Debug, Args)]
#[command(after_help = "\
At a terminal, Ctrl-P Ctrl-Q leaves a command that has one, and it goes on. One
that has none gets lines, the end of input (Ctrl-D) and interrupts (Ctrl-C); with
`--no-stdin`, Ctrl-C only ends this client. So do SIGTERM and SIGHUP always.

Exit status:
  that of the command, as that of `sandbox run`; 0 if it was left

Examples:
  sandbox run -dt -- bash                  prints an id
  sandbox attach ID
  sandbox attach --no-stdin --history ID")]
pub struct AttachArgs {
    /// The exec, or a sandbox with one: an id, the beginning of it, or a name.
    #[arg(value_name = "EXEC|SANDBOX")]
    pub id: String,

    /// Only watch.
    #[arg(long)]
    pub no_stdin: bool,

    /// First show what it has written already.
    #[arg(long)]
    pub history: bool,
}

/// `sandbox logs`.
#[derive(Debug, Args)]
#[command(after_help = "\
What the command wrote to its stderr goes to stderr. The newest 64 MiB are kept,
until its sandbox is removed or the daemon ends.

Examples:
  sandbox logs ID
  sandbox logs --follow --tail 20 ID")]
pub struct LogsArgs {
    /// The exec, or a sandbox with one: an id, the beginning of it, or a name.
    #[arg(value_name = "EXEC|SANDBOX")]
    pub id: String,

    /// Go on with what it writes from now on, until it ends.
    #[arg(short, long)]
    pub follow: bool,

    /// Begin each line with the time at which it was written.
    #[arg(short, long)]
    pub timestamps: bool,

    /// Only the last so many lines, and what follows.
    #[arg(short = 'n', long, value_name = "LINES")]
    pub tail: Option<usize>,
}

/// `sandbox wait`.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit status:
  that of the command, as that of `sandbox run`")]
pub struct WaitArgs {
    /// The exec, or a sandbox with one: an id, the beginning of it, or a name.
    #[arg(value_name = "EXEC|SANDBOX")]
    pub id: String,
}
