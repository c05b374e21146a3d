//! The `squall` command.
//!
//! It makes keys for a cluster, checks machines, shows the status of a running cluster and gives it orders. It also
//! runs benchmarks, copies files to many nodes, serves replicated logs, simulates clusters, and draws multicast
//! schedules.

mod bench;
mod cp;
mod doctor;
mod keys;
mod leave;
mod log;
mod plot;
mod rdmc;
mod recover;
mod signals;
mod sim;
mod status;
mod suspect;
mod target;
mod witness;

use std::{
    fmt::Display,
    io::{self, Write},
    process::ExitCode,
};

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// Group communication in the line of Derecho: replicated services at the speed of the network.
#[derive(Debug, Parser)]
#[command(
    name = "squall",
    version,
    after_help = "RUST_LOG sets what is logged to standard error, for example \
    RUST_LOG=squall=debug. The exit code is 0, 1 if the work failed, 2 if the arguments make no sense, \
    3 if `log verify` found nothing wrong and could not check all."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// One module for each.
#[derive(Debug, Subcommand)]
enum Command {
    Bench(bench::BenchCommand),
    Cp(cp::CpCommand),
    Doctor(doctor::DoctorArgs),
    Keys(keys::KeysCommand),
    Leave(leave::LeaveArgs),
    Log(log::LogCommand),
    Rdmc(rdmc::RdmcCommand),
    Recover(recover::RecoverArgs),
    Sim(sim::SimCommand),
    Status(status::StatusArgs),
    Suspect(suspect::SuspectArgs),
    Witness(witness::WitnessArgs),
}

/// The reason for which the command did not do what was asked: one sentence, with its remedy.
#[derive(Debug, thiserror::Error)]
enum CommandError {
    /// The arguments make no sense together, and no other attempt could mend that.
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    Failed(String),
    /// Nothing wrong was found, but not everything could be checked.
    #[error("{0}")]
    Unchecked(String),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Without an output the error can't be shown.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let quiet = match &cli.command {
        // A scenario is made of what a node would warn of.
        Command::Sim(_) => "error",
        Command::Bench(bench) if bench.is_worker() => "error",
        Command::Bench(_) | Command::Cp(_) | Command::Doctor(_) | Command::Keys(_) | Command::Rdmc(_) => "warn",
        Command::Leave(_)
        | Command::Log(_)
        | Command::Recover(_)
        | Command::Status(_)
        | Command::Suspect(_)
        | Command::Witness(_) => "warn",
    };
    // The view log itself reports what matters of Raft's messages.
    let quiet = format!("{quiet},openraft=off");
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(quiet));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).init();
    let done = match cli.command {
        Command::Bench(bench) => bench.run(),
        Command::Rdmc(rdmc) => rdmc.run(),
        Command::Cp(cp) => cp.run(),
        Command::Doctor(doctor) => doctor.run(),
        Command::Keys(keys) => keys.run(),
        Command::Sim(sim) => sim.run(),
        Command::Leave(leave) => leave.run(),
        Command::Log(log) => log.run(),
        Command::Recover(recover) => recover.run(),
        Command::Status(status) => status.run(),
        Command::Suspect(suspect) => suspect.run(),
        Command::Witness(witness) => witness.run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("squall: {error}");
            ExitCode::from(match error {
                CommandError::Usage(_) => 2,
                CommandError::Failed(_) => 1,
                CommandError::Unchecked(_) => 3,
            })
        }
    }
}

/// Prints a line for the user. Without an output it is lost.
fn say(line: impl Display) {
    let _ = writeln!(io::stdout().lock(), "{line}");
}
