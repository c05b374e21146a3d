//! `squall rdmc`: views of the multicast's schedules.

mod drawing;
mod moves;
mod plan;
mod table;

use clap::{Args, Subcommand};
use squall_command::CommandError;

/// Shows the schedules of RDMC, the multicast of large messages.
#[derive(Debug, Args)]
pub(crate) struct RdmcCommand {
    #[command(subcommand)]
    what: RdmcAction,
}

#[derive(Debug, Subcommand)]
enum RdmcAction {
    Plan(plan::PlanArgs),
}

impl RdmcCommand {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        match self.what {
            RdmcAction::Plan(plan) => plan.run(),
        }
    }
}
