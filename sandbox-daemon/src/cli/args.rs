//! The command line, as clap sees it.

mod changes;
mod jobs;

use std::{ffi::OsString, path::PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};

pub use self::{
    changes::{ApplyArgs, ChangesArgs, DiffArgs, ExportArgs},
    jobs::{
        AttachArgs, CommandArgs, CreateArgs, DetachArgs, ExecArgs, LastingArgs, LogsArgs, RmArgs,
        WaitArgs,
    },
};
use super::{host::Host, limits::LimitArgs};

/// Draw a boundary around what AI agents run.
#[derive(Debug, Parser)]
#[command(
    name = "sandbox",
    version,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "\
Examples:
  sandbox run -- npm test                  run a command with the policy `default`
  sandbox run --policy strict -- make      ... with another one
  sandbox run -d -- npm run dev            leave it running; see `logs` and `attach`
  sandbox events --follow                  watch what is refused
  sandbox doctor                           see whether this host can enforce it"
)]
pub struct Line<C: Subcommand> {
    /// Where the daemon listens.
    #[arg(
        long,
        global = true,
        env = "SANDBOX_HOST",
        value_name = "URI",
        default_value_t = Host::default(),
        hide_default_value = false,
    )]
    pub host: Host,

    /// What to do.
    #[command(subcommand)]
    pub command: C,
}

/// With any of the verbs.
pub type Cli = Line<Command>;

/// The one command that is started again and again.
#[derive(Debug, Subcommand)]
pub(super) enum RunOnly {
    Run(RunArgs),
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a command in a sandbox of its own.
    Run(RunArgs),
    /// Make a sandbox to run commands in.
    Create(CreateArgs),
    /// Run a command in a sandbox that is there.
    Exec(ExecArgs),
    /// Remove sandboxes with all that runs in them.
    Rm(RmArgs),
    /// Connect to a command that was detached.
    Attach(AttachArgs),
    /// Show what a detached command has written.
    Logs(LogsArgs),
    /// Wait for the end of a detached command.
    Wait(WaitArgs),
    /// Show what an ephemeral sandbox changed in its workspace.
    Diff(DiffArgs),
    /// Write what it changed to a file that `git apply` takes.
    Export(ExportArgs),
    /// Write what it changed to the real workspace.
    Apply(ApplyArgs),
    /// Move a running process and its descendants into a sandbox.
    Enroll(EnrollArgs),
    /// Show what was refused, and where credentials went.
    Events(EventsArgs),
    /// List sandboxes and what runs in them.
    Ps(PsArgs),
    /// Show what went out of a sandbox through the proxy.
    Network(NetworkArgs),
    /// Kill an exec, or a sandbox with everything in it.
    Kill(KillArgs),
    /// Check and show policies.
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Keep secrets that policies name and sandboxes never see.
    #[command(subcommand)]
    Secret(SecretCommand),
    /// Check whether this host can enforce policies.
    Doctor(DoctorArgs),
    /// Show the versions of client and daemon.
    Version(VersionArgs),
}

impl Command {
    /// Whether its exit status is that of a command in a sandbox.
    pub fn has_commands_status(&self) -> bool {
        matches!(
            self,
            Self::Run(_) | Self::Exec(_) | Self::Attach(_) | Self::Wait(_)
        )
    }
}

/// The policy and the workspace of a new sandbox.
#[derive(Debug, Clone, Default, Args)]
pub struct SandboxArgs {
    /// Name of an installed policy, or a file (with a `/`, or ending in
    /// `.toml`).
    #[arg(short, long, value_name = "NAME|FILE")]
    pub policy: Option<OsString>,

    /// Directory that the command works on [default: the current directory].
    #[arg(short, long, value_name = "DIR")]
    pub workspace: Option<PathBuf>,

    /// Let changes of the workspace die with the sandbox.
    #[arg(long)]
    pub ephemeral: bool,

    /// Also let it read PATH. Repeatable.
    #[arg(long, value_name = "PATH")]
    pub ro: Vec<PathBuf>,

    /// Also let it read and write PATH. Repeatable.
    #[arg(long, value_name = "PATH")]
    pub rw: Vec<PathBuf>,

    /// What it may take.
    #[command(flatten)]
    pub limits: LimitArgs,
}

/// `sandbox run`.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit status:
  that of the command; 128+N if signal N ended it
  124  a timeout was reached
  137  a limit on memory or output was reached, the machine ran out of memory,
       or SIGKILL ended it
  125  the sandbox itself failed: no daemon, bad policy, bad options
  126  the command is not executable
  127  the command was not found

Examples:
  sandbox run npm test
  sandbox run --policy ./agent.toml -w ~/src/app -- python3 -m pytest
  sandbox run --ro /srv/models -e SEED=7 -- ./train.sh
  sandbox run --timeout 10m -m 2GiB --pids-limit 256 -- make test
  sandbox run --json 3 -- make 3>denials.jsonl
  sandbox run --keep --name web -- npm ci     and then `sandbox exec web -- ...`
  id=$(sandbox run -d -- npm run dev)         and then `logs`, `attach`, `wait`,
                                              `rm` with that id")]
pub struct RunArgs {
    /// What it may do.
    #[command(flatten)]
    pub sandbox: SandboxArgs,

    /// How long its sandbox stays, with `--keep` or `--detach`.
    #[command(flatten)]
    pub lasting: LastingArgs,

    /// Leave the sandbox for `sandbox exec` when the command has ended.
    #[arg(long, conflicts_with = "detach", help_heading = "Sandbox that stays")]
    pub keep: bool,

    /// What to run and how.
    #[command(flatten)]
    pub how: CommandArgs,
}

/// When to list refusals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum When {
    /// If stderr is a terminal.
    Auto,
    /// In every case.
    Always,
    /// Not at all.
    Never,
}

/// `sandbox enroll`.
#[derive(Debug, Args)]
#[command(after_help = "\
Without `--stay` the enrolment is this command's: when it ends, what was
enrolled is killed.

Examples:
  sandbox enroll 4211
  sandbox enroll --policy strict --stay $(pidof -s mcp-server)")]
pub struct EnrollArgs {
    /// The process; its descendants come along.
    #[arg(value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub pid: u32,

    /// What it may do from now on.
    #[command(flatten)]
    pub sandbox: SandboxArgs,

    /// Accept sockets, directories and writable files that it holds open.
    #[arg(long)]
    pub allow_inherited: bool,

    /// Return at once and leave it enrolled.
    #[arg(long)]
    pub stay: bool,
}

/// `sandbox events`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sandbox events
  sandbox events --follow --sandbox SANDBOX -o json")]
pub struct EventsArgs {
    /// Go on with what happens from now on.
    #[arg(short, long)]
    pub follow: bool,

    /// Only those of this sandbox.
    #[arg(long, value_name = "SANDBOX")]
    pub sandbox: Option<String>,

    /// How to print them.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text)]
    pub output: Output,
}

/// How data is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// `sandbox ps`.
#[derive(Debug, Args)]
pub struct PsArgs {
    /// How to print them.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text)]
    pub output: Output,
}

/// `sandbox network`.
#[derive(Debug, Args)]
#[command(after_help = "\
The id is that of `sandbox ps`, or of a sandbox that has ended since the daemon
started. `-v` of `sandbox run` says it.")]
pub struct NetworkArgs {
    /// A sandbox.
    #[arg(value_name = "SANDBOX")]
    pub sandbox: String,

    /// How to print it.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text)]
    pub output: Output,
}

/// `sandbox kill`.
#[derive(Debug, Args)]
#[command(after_help = "\
Ids are those of `sandbox ps`, or their beginnings; a sandbox may be called by its
name. Killing a sandbox removes it.")]
pub struct KillArgs {
    /// An exec or a sandbox.
    #[arg(value_name = "EXEC|SANDBOX")]
    pub id: String,
}

/// `sandbox policy`.
#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// Check a policy file without a daemon.
    Check(PolicyCheckArgs),
    /// List the installed policies.
    List(PolicyListArgs),
    /// Print an installed policy.
    Show(PolicyShowArgs),
}

/// `sandbox policy check`.
#[derive(Debug, Args)]
#[command(after_help = "\
Errors and warnings go to stderr; the exit status is 1 if there are errors.

Examples:
  sandbox policy check ./agent.toml
  sandbox policy check --sets ./sets.toml -w ~/src/app ./agent.toml")]
pub struct PolicyCheckArgs {
    /// The policy.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// What `${workspace}` stands for [default: the current directory].
    #[arg(short, long, value_name = "DIR")]
    pub workspace: Option<PathBuf>,

    /// Named sets beside the shipped ones; repeatable [default: those of the
    /// daemon's settings].
    #[arg(long, value_name = "FILE")]
    pub sets: Vec<PathBuf>,
}

/// `sandbox policy list`.
#[derive(Debug, Args)]
pub struct PolicyListArgs {
    /// How to print them.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text)]
    pub output: Output,
}

/// `sandbox policy show`.
#[derive(Debug, Args)]
pub struct PolicyShowArgs {
    /// The policy's name.
    #[arg(value_name = "NAME")]
    pub name: String,
}

/// `sandbox secret`.
#[derive(Debug, Subcommand)]
pub enum SecretCommand {
    /// Set a secret, or give it another value.
    Set(SecretSetArgs),
    /// List the names of secrets; nothing shows their values.
    List(SecretListArgs),
    /// Remove secrets.
    Rm(SecretRmArgs),
}

/// `sandbox secret set`.
#[derive(Args)]
#[command(after_help = "\
The value is read from stdin, without a line break at its end; at a terminal it is
asked for and not shown. A new value holds for sandboxes that run already.

Examples:
  gh auth token | sandbox secret set github
  sandbox secret set npm --file ./npm-token
  sandbox secret set anthropic")]
pub struct SecretSetArgs {
    /// What policies call it: letters, digits, `-`, `_` and `.`.
    #[arg(value_name = "NAME")]
    pub name: String,

    /// Taken so that it can be refused without being repeated.
    #[arg(hide = true)]
    pub value: Vec<OsString>,

    /// Read the value from a file.
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,

    /// Whose it is, for root [default: the caller's].
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
}

impl std::fmt::Debug for SecretSetArgs {
    /// Without what may be a value.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SecretSetArgs").finish_non_exhaustive()
    }
}

/// `sandbox secret list`.
#[derive(Debug, Args)]
pub struct SecretListArgs {
    /// Whose, for root [default: the caller's].
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,

    /// How to print them.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text)]
    pub output: Output,
}

/// `sandbox secret rm`.
#[derive(Debug, Args)]
pub struct SecretRmArgs {
    /// Which.
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,

    /// Whose, for root [default: the caller's].
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
}

/// `sandbox doctor`.
#[derive(Debug, Args)]
#[command(after_help = "\
Loading the programs needs root: without it, those lines say `not checked`.
The exit status is 0 only if every requirement was checked and is met.

Examples:
  sudo sandbox doctor
  sudo sandbox doctor -o json")]
pub struct DoctorArgs {
    /// Leave the daemon out: only what it would find here.
    #[arg(long)]
    pub no_daemon: bool,

    /// How to print it.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text)]
    pub output: Output,
}

/// `sandbox version`.
#[derive(Debug, Args)]
pub struct VersionArgs {
    /// How to print them.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text)]
    pub output: Output,
}
