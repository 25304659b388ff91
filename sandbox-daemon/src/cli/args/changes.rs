//! Arguments of the verbs about what an ephemeral sandbox changed.

use std::{ffi::OsString, path::PathBuf};

use clap::Args;

use super::Output;

/// Which changes.
#[derive(Debug, Args)]
pub struct ChangesArgs {
    /// A sandbox with an ephemeral workspace.
    #[arg(value_name = "SANDBOX")]
    pub sandbox: String,

    /// Only these, with what is below them; from the current directory if that is
    /// in the workspace, else from the workspace [default: all].
    #[arg(value_name = "PATH")]
    pub paths: Vec<OsString>,
}

/// `sandbox diff`.
#[derive(Debug, Args)]
#[command(after_help = "\
Letters: A added, M modified, D deleted, R renamed, T another type of file.
What is inside `.git` is shown by `-o json` alone, as a line of JSON per change.

Examples:
  sandbox diff SANDBOX
  sandbox diff SANDBOX --stat
  sandbox diff SANDBOX --name-status src tests")]
pub struct DiffArgs {
    /// Which changes.
    #[command(flatten)]
    pub changes: ChangesArgs,

    /// Show how many lines of each file are others.
    #[arg(long, group = "form")]
    pub stat: bool,

    /// Show paths alone.
    #[arg(long, group = "form")]
    pub name_only: bool,

    /// Show paths and what happened there.
    #[arg(long, group = "form")]
    pub name_status: bool,

    /// How to print them.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text)]
    #[arg(conflicts_with = "form")]
    pub output: Output,
}

/// `sandbox export`.
#[derive(Debug, Args)]
#[command(after_help = "\
What a patch cannot carry is listed on stderr: empty directories, permissions other
than whether a file is a program, what is inside `.git`.

Examples:
  sandbox export SANDBOX --patch fix.patch && git apply fix.patch
  sandbox export SANDBOX --patch - src | git apply --index")]
pub struct ExportArgs {
    /// Which changes.
    #[command(flatten)]
    pub changes: ChangesArgs,

    /// Where to; `-` is stdout.
    #[arg(long, value_name = "FILE")]
    pub patch: PathBuf,

    /// Also over a file that is there.
    #[arg(short, long)]
    pub force: bool,
}

/// `sandbox apply`.
#[derive(Debug, Args)]
#[command(after_help = "\
All is checked before anything is written. What was made or changed in the real
workspace since the sandbox began is a conflict, which refuses the whole with exit
status 1. Never applied, and listed on stderr: what the policy makes read-only or
denies, what git runs in a repository, devices, set-user-ID bits.

Examples:
  sandbox apply SANDBOX --dry-run
  sandbox apply SANDBOX src/main.rs tests
  sandbox apply SANDBOX --force notes.md")]
pub struct ApplyArgs {
    /// Which changes.
    #[command(flatten)]
    pub changes: ChangesArgs,

    /// Also over what changed in the real workspace meanwhile.
    #[arg(short, long)]
    pub force: bool,

    /// Only say what would be done.
    #[arg(short = 'n', long)]
    pub dry_run: bool,

    /// Also symbolic links that lead out of the workspace.
    #[arg(long)]
    pub outside_links: bool,
}
