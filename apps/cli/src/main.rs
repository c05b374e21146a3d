//! The `squall` command.
//!
//! It makes keys for a cluster, checks machines, shows the status of a running cluster and gives it orders. It also
//! copies files to many nodes, serves replicated logs, and draws multicast schedules.

mod cp;
mod doctor;
mod keys;
mod leave;
mod log;
mod protection;
mod rdmc;
mod recover;
mod status;
mod suspect;
mod target;
mod witness;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use squall_command::{CommandError, DescribeCommand};

/// Group communication in the line of Derecho: replicated services at the speed of the network.
#[derive(Debug, Parser)]
#[command(
    name = "squall",
    version,
    after_help = "RUST_LOG sets what is logged to standard error, for example \
    RUST_LOG=squall=debug. The exit code is 0, 1 if the work failed, 2 if the arguments make no sense, \
    3 if `log verify` found nothing wrong and could not check all, 4 and 5 if `status` finds a node that is degraded, \
    or can't go on."
)]
struct Cli {
    #[command(subcommand)]
    command: CliCommand,
}

/// One module for each.
#[derive(Debug, Subcommand)]
enum CliCommand {
    Cp(cp::CpCommand),
    Doctor(doctor::DoctorArgs),
    Keys(keys::KeysCommand),
    Leave(leave::LeaveArgs),
    Log(log::LogCommand),
    Rdmc(rdmc::RdmcCommand),
    Recover(recover::RecoverArgs),
    Status(status::StatusArgs),
    Suspect(suspect::SuspectArgs),
    Witness(witness::WitnessArgs),
    #[command(flatten)]
    Describe(DescribeCommand),
}

impl CliCommand {
    fn run(self) -> Result<(), CommandError> {
        match self {
            CliCommand::Cp(cp) => cp.run(),
            CliCommand::Doctor(doctor) => doctor.run(),
            CliCommand::Keys(keys) => keys.run(),
            CliCommand::Leave(leave) => leave.run(),
            CliCommand::Log(log) => log.run(),
            CliCommand::Rdmc(rdmc) => rdmc.run(),
            CliCommand::Recover(recover) => recover.run(),
            CliCommand::Status(status) => status.run(),
            CliCommand::Suspect(suspect) => suspect.run(),
            CliCommand::Witness(witness) => witness.run(),
            CliCommand::Describe(describe) => describe.run(squall_command::command_of::<Cli>()),
        }
    }
}

fn main() -> ExitCode {
    squall_command::run("squall", |_: &Cli| "warn", |cli| cli.command.run())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use squall_command::{check::problems, command_of};

    use super::*;

    #[test]
    fn the_help_the_book_and_the_messages_name_what_there_is() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let crates = [
            "apps/cli",
            "collectives",
            "copy",
            "fabric",
            "membership",
            "onepipe",
            "ordered",
            "rdmc",
            "runtime",
            "services",
            "src",
            "sst",
        ];
        let problems = problems(command_of::<Cli>(), &root, &crates, &["features", "get", "reg", "release"]);
        assert!(problems.is_empty(), "{problems:#?}");
    }
}
