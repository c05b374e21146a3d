//! `squall recover`: the rest of a group goes on without the members that would have to agree.

use std::{
    io::{self, BufRead, IsTerminal, Write},
    time::{SystemTime, UNIX_EPOCH},
};

use clap::Args;
use squall::admin::{ShardReport, StatusReport};
use squall_command::{CommandError, say};

use crate::target::TargetArgs;

const HELP: &str = "\
Example:
  squall recover --force --config squall.toml --id 3 --reason \"hosts 1 and 2 burnt\"

For when most of the nodes that decide are lost FOR EVER, so that the rest can't go on. Everything else heals by itself:
a node that is only down, or cut off, comes back with what it has.

With --force, the node that is asked begins a new life of the group, of which it is the first member: with what it
holds, or with what its disk has if it was started again and waits for those that are lost. Other survivors that can't
go on either, and nodes that start again, join it by themselves and get its state; so force ONE of the survivors,
whichever was in the latest view (`squall status`). Of two that are forced at the same time only one goes on, and the
other one's operator is told. A survivor that knows of a later view holds what the new life lacks: it stays as it is,
and says so, until it is started again.

What only the lost ones had delivered is lost. A shard whose state the node does not hold starts EMPTY, or from where
the node's own log of it ends, even if another node holds it: the command names these shards before it asks, if the node
is a member, and when it is done. If most of the lost nodes still run, there are TWO groups from then on, with different
states, and nothing will unite them: end those processes first. The view log records the node, the time and the reason,
and `squall status` shows them.";

/// Lets a node go on alone when most of the members that decide are lost for ever.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct RecoverArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// Do it
    #[arg(long, required = true)]
    force: bool,
    /// The reason, for the record
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Don't ask whether this is meant
    #[arg(long)]
    yes: bool,
}

impl RecoverArgs {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        let mut client = self.target.connect()?;
        let node = client.node();
        eprintln!(
            "squall: {node} will go on without the missing nodes, and count on it that they never come back: end their \
             processes first. What only they have delivered is lost."
        );
        for shard in without_state(&client.status().map_err(CommandError::failed)?) {
            eprintln!("squall: {shard}, and it would start empty, or from an earlier place");
        }
        if !self.yes && !confirmed()? {
            return Err(CommandError::Failed("nothing was done".into()));
        }
        let emptied = client.recover(record(&self.reason)).map_err(CommandError::failed)?;
        say(format_args!("{node} goes on, the first member of a new life of the group: others join it"));
        for shard in emptied {
            say(format_args!("{shard}"));
        }
        Ok(())
    }
}

/// The shards whose state a node does not hold, in words.
fn without_state(status: &StatusReport) -> Vec<String> {
    let lacks = |shard: &&ShardReport| !shard.rows.iter().any(|row| row.node == status.node && row.complete);
    let words =
        |shard: &ShardReport| format!("{} does not hold shard {} of {:?}", status.node, shard.shard, shard.group);
    status.shards.iter().filter(lacks).map(words).collect()
}

/// Whether the operator confirms it at the terminal.
fn confirmed() -> Result<bool, CommandError> {
    if !io::stdin().is_terminal() {
        return Err(CommandError::Usage("there is no terminal to ask whether this is meant: give --yes".into()));
    }
    eprint!("squall: type `recover` to go on: ");
    let _ = io::stderr().flush();
    let mut line = String::new();
    let read = io::stdin().lock().read_line(&mut line);
    read.map_err(|error| CommandError::Failed(format!("the terminal could not be read: {error}")))?;
    Ok(line.trim() == "recover")
}

/// The record of the act: the user, the host, the time and the reason.
fn record(reason: &str) -> String {
    let user = std::env::var("USER").unwrap_or_else(|_| format!("user {}", rustix::process::geteuid().as_raw()));
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let now = time::OffsetDateTime::from_unix_timestamp(now.cast_signed()).unwrap_or(time::OffsetDateTime::UNIX_EPOCH);
    let (hour, minute, second) = now.to_hms();
    format!("{user} on {host}, {} {hour:02}:{minute:02}:{second:02} UTC: {reason}", now.date())
}
