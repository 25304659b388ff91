//! The one tool a contributor needs: `cargo xtask setup` and `vm`.

mod binaries;
mod cache;
mod glibc;
mod host;
mod image;
mod kernel;
mod modules;
mod payload;
mod setup;
mod vm;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about,
    disable_help_subcommand = true
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Install what building and testing need
    Setup(setup::Arguments),
    /// Run a command, or a shell, in a virtual machine with sandboxd up
    Vm(vm::Arguments),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Setup(arguments) => setup::main(&arguments),
        Command::Vm(arguments) => vm::main(arguments),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::FAILURE
    })
}
