//! `squall-bench papers`: the experiments of the papers, on simulated machines.

mod experiment;
mod onepipe;
mod outcome;
mod rdmc;

use clap::{Args, Subcommand};
use squall_command::CommandError;

/// Repeats the experiments of a paper on simulated machines, and says whether its findings hold.
#[derive(Debug, Args)]
pub(crate) struct PapersCommand {
    #[command(subcommand)]
    paper: Paper,
}

#[derive(Debug, Subcommand)]
enum Paper {
    Rdmc(rdmc::Rdmc),
    Onepipe(onepipe::OnePipe),
}

impl PapersCommand {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        match self.paper {
            Paper::Rdmc(rdmc) => rdmc.run(),
            Paper::Onepipe(onepipe) => onepipe.run(),
        }
    }
}
