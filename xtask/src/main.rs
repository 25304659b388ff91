//! The one tool a contributor needs: `cargo xtask setup`, `vm`, `test`, `demo`,
//! `fuzz` and `bench`.

#![forbid(unsafe_code)]

mod bench;
mod binaries;
mod cache;
mod clients;
mod coverage;
mod demo;
mod fuzz;
mod glibc;
mod host;
mod image;
mod kernel;
mod modules;
mod outcome;
mod payload;
mod ports;
mod setup;
mod test;
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
    /// Check formatting and lints, and run every test
    Test(test::Arguments),
    /// Show a sandboxed run with real denials
    Demo(demo::Arguments),
    /// Feed what reads an attacker's bytes with ever other ones
    Fuzz(fuzz::Arguments),
    /// Measure
    Bench(bench::Arguments),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Setup(arguments) => setup::main(&arguments),
        Command::Vm(arguments) => vm::main(arguments),
        Command::Test(arguments) => test::main(&arguments),
        Command::Demo(arguments) => demo::main(&arguments),
        Command::Fuzz(arguments) => fuzz::main(&arguments),
        Command::Bench(arguments) => bench::main(&arguments),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::FAILURE
    })
}
