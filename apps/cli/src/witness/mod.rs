//! `squall witness`: a process that votes on views, and nothing else.

use std::{path::PathBuf, sync::atomic::Ordering, time::Duration};

use clap::Args;
use squall::Witness;
use squall_command::{CommandError, note_hangups, say, stop_on_signals};

use crate::target::load;

const HELP: &str = "\
Example:
  squall witness --config squall.toml --id 3

in a cluster whose configuration has, at all nodes,
  members = [1, 2]
  witnesses = [3]

Two members alone can't go on without each other: neither knows whether the other is gone, or it is itself cut off. With
a witness, two of the three can. It needs next to nothing, and no state; let it run where neither member does. It runs
until it is ended.";

/// Runs a node that votes on views and has no part in any group.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct WitnessArgs {
    /// The cluster's configuration, which lists the node in `witnesses`
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The node to run, of a configuration that all nodes share
    #[arg(long, value_name = "N")]
    id: Option<u32>,
}

impl WitnessArgs {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        let (stop, hangup) = (stop_on_signals()?, note_hangups()?);
        let config = load(&self.config, self.id).map_err(CommandError::usage)?;
        let witness = Witness::start(&config).map_err(CommandError::failed)?;
        say(format_args!("{} is a witness of cluster {:?}", witness.id(), config.cluster()));
        while !stop.load(Ordering::Relaxed) {
            if hangup.swap(false, Ordering::Relaxed)
                && let Err(error) = witness.reload_keys()
            {
                eprintln!("squall: {error}");
            }
            if let Some(why) = witness.wait_failed(Duration::from_millis(200)) {
                return Err(CommandError::Failed(why));
            }
        }
        Ok(())
    }
}
