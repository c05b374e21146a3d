//! `squall suspect`: a node takes a member for failed.

use clap::Args;
use squall::NodeId;
use squall_command::{CommandError, say};

use crate::target::TargetArgs;

const HELP: &str = "\
Examples:
  squall suspect 3 --config squall.toml
  squall suspect 3 --cluster bank --node 1

For a member that does harm and does not fail: one that is so slow that all wait for it, say. The node that is asked
takes it for failed from now on, and the group drops it, if at least half of the members are left and the nodes that
decide agree. If it still runs, it notices, forgets what it has, and joins again with the state of the others.";

/// Lets a node take a member for failed, so that the group goes on without it.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct SuspectArgs {
    /// The member that is to be dropped
    #[arg(value_name = "MEMBER")]
    member: u32,
    #[command(flatten)]
    target: TargetArgs,
}

impl SuspectArgs {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        let mut client = self.target.connect()?;
        client.suspect(NodeId(self.member)).map_err(CommandError::failed)?;
        say(format_args!("{} suspects {}", client.node(), NodeId(self.member)));
        Ok(())
    }
}
