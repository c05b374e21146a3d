//! `squall log serve`.

use std::{path::PathBuf, sync::atomic::Ordering, thread, time::Duration};

use clap::Args;
use squall::{Mode, Node, log_service::RecordLog};
use squall_command::{CommandError, note_hangups, say, stop_on_signals};

use crate::target::{load, name};

/// The interval at which it checks whether it is to end.
const ATTENTIVE: Duration = Duration::from_millis(100);

const HELP: &str = "\
Example:
  squall log serve --config log.toml --id 1

It runs until Ctrl-C or SIGTERM, or until its disk fails. The others go on without it if most of the members are left,
and it gets what it lacks when it is started again. After all were stopped, start all: the log goes on where it was.

The configuration needs, besides what every node needs,
  storage = \"DIRECTORY\"        # {id} in it is the node's number
  [groups.log]
  mode = \"durable\"";

/// Runs a node that serves a log of records: one of the members that a configuration names.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(super) struct ServeArgs {
    /// The cluster's configuration
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The node to run, of a configuration that all nodes share
    #[arg(long, value_name = "N")]
    id: Option<u32>,
    /// The durable group
    #[arg(long, value_name = "NAME", value_parser = name, default_value = "log")]
    group: String,
}

impl ServeArgs {
    pub(super) fn run(self) -> Result<(), CommandError> {
        let (stop, hangup) = (stop_on_signals()?, note_hangups()?);
        let config = load(&self.config, self.id).map_err(CommandError::usage)?;
        let (group, id) = (&self.group, config.id());
        if config.group(group).mode != Mode::Durable {
            let file = self.config.display();
            return Err(CommandError::Usage(format!(
                "{file} has no durable group {group:?}: add\n  [groups.{group}]\n  mode = \"durable\"\nand a `storage` at its beginning"
            )));
        }
        let mut node = Node::builder(config.clone());
        node.serve(group, RecordLog::default(), RecordLog::options(&config, group));
        let (cluster, members) = (config.cluster(), config.members().len());
        eprintln!("squall: {id} of cluster {cluster:?} waits for the others of its {members} members");
        // Until there is a node, a signal ends the process.
        let starting = thread::spawn(move || node.start());
        while !starting.is_finished() {
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            thread::sleep(ATTENTIVE);
        }
        let started = starting.join().map_err(|_| CommandError::Failed(format!("{id} panicked")))?;
        let node = started.map_err(|error| CommandError::Failed(format!("{id} did not start: {error}")))?;
        // Scripts wait for this line.
        say(format_args!("{id} serves the log {group:?} of cluster {cluster:?}; Ctrl-C stops it"));
        while !stop.load(Ordering::Relaxed) {
            if hangup.swap(false, Ordering::Relaxed)
                && let Err(error) = node.reload_keys()
            {
                eprintln!("squall: {error}");
            }
            if let Some(reason) = node.end_reason() {
                return Err(CommandError::Failed(format!("{id} has ended: {reason}")));
            }
            thread::sleep(ATTENTIVE);
        }
        node.shutdown();
        eprintln!("squall: {id} stopped");
        Ok(())
    }
}
