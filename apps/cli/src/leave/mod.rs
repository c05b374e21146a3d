//! `squall leave`: a node leaves its group.

use std::time::Duration;

use clap::Args;
use squall_command::{CommandError, say};

use crate::target::TargetArgs;

/// A node needs a moment to leave.
const SHORTEST: Duration = Duration::from_secs(1);

const HELP: &str = "\
Examples:
  squall leave --config squall.toml
  squall leave --cluster bank --node 3

The others go on without a pause for a timeout. What the node's callers have submitted is delivered before it leaves, or
refused so that they can submit it elsewhere. The command returns when it has left. Its process is not ended, unless the
program ends with its node.";

/// Lets a node leave its group, and waits until it has.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct LeaveArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// The time to wait; a number alone is in seconds
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = squall_units::seconds)]
    timeout: Duration,
}

impl LeaveArgs {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        let mut client = self.target.connect()?;
        client.leave(self.timeout.max(SHORTEST)).map_err(CommandError::failed)?;
        say(format_args!("{} has left", client.node()));
        Ok(())
    }
}
