//! `sandbox`: the client of `sandboxd`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use sandbox_daemon::{
    cli::{self, Exit, args::Command},
    sys::Wiping,
};

#[global_allocator]
static ALLOCATOR: Wiping = Wiping::later();

fn main() -> ExitCode {
    let exit = cli::parse(std::env::args_os()).map_or_else(
        |exit| exit,
        |cli| {
            let is_commands = cli.command.has_commands_status();
            let result = match &cli.command {
                Command::Run(args) => cli::run::run(args, &cli.host),
                Command::Create(args) => cli::lasting::create(args, &cli.host),
                Command::Exec(args) => cli::lasting::exec(args, &cli.host),
                Command::Rm(args) => cli::lasting::rm(args, &cli.host),
                Command::Attach(args) => cli::attach::attach(args, &cli.host),
                Command::Logs(args) => cli::logs::logs(args, &cli.host),
                Command::Wait(args) => cli::wait::wait(args, &cli.host),
                Command::Diff(args) => cli::changes::diff(args, &cli.host),
                Command::Export(args) => cli::changes::export(args, &cli.host),
                Command::Apply(args) => cli::changes::apply(args, &cli.host),
                Command::Enroll(args) => cli::enroll::enroll(args, &cli.host),
                Command::Events(args) => cli::events::events(args, &cli.host),
                Command::Ps(args) => cli::ps::ps(args, &cli.host),
                Command::Network(args) => cli::network::network(args, &cli.host),
                Command::Kill(args) => cli::kill::kill(args, &cli.host),
                Command::Policy(command) => cli::policy::policy(command),
                Command::Secret(command) => {
                    ALLOCATOR.begin();
                    cli::secret::secret(command, &cli.host)
                }
                Command::Doctor(args) => cli::doctor::doctor(args, &cli.host),
                Command::Version(args) => cli::version::version(args, &cli.host),
            };
            result.unwrap_or_else(|error| {
                cli::tell(&error.render());
                if is_commands {
                    error.run_exit()
                } else {
                    error.exit()
                }
            })
        },
    );
    ExitCode::from(Exit::code(exit))
}
