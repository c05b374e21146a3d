//! `squall log skip`.

use std::{path::PathBuf, time::SystemTime};

use clap::Args;
use squall_command::{CommandError, say};
use squall_ordered::log::{self, Hlc};

const HELP: &str = "\
Example, with all nodes ended:
  squall log skip audit/1/logs/log --version 6001 --reason \"overflows; ticket 17\"
  squall log skip audit/2/logs/log --version 6001 --reason \"overflows; ticket 17\"
  squall log skip audit/3/logs/log --version 6001 --reason \"overflows; ticket 17\"

A node that ends with a panic names the version. Say so of each member's log that has it; one that ends before needs
nothing: its node learns of it with the command, as does a node with an empty directory. The record stays in the log,
and readers see it marked. The client that submitted it is told that no member applies it. A node whose log says
otherwise than those of most members is refused, and its log stays as it is.

It can't be taken back. To apply the command after all, start a program that does not panic with it, instead of this.";

/// Lets a group go on without applying a command that its service panics with, while its nodes don't run.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(super) struct SkipArgs {
    /// The log's directory
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// The command's version
    #[arg(long, value_name = "VERSION")]
    version: u64,
    /// The reason, for later readers of the log
    #[arg(long, value_name = "TEXT")]
    reason: String,
}

impl SkipArgs {
    pub(super) fn run(self) -> Result<(), CommandError> {
        let shown = self.directory.display();
        let files = super::open(&self.directory)?;
        let now = Hlc::from(SystemTime::now());
        let skip = log::skip(files, self.version, now, &self.reason, &mut fastrand::Rng::new());
        let skip = skip.map_err(|error| CommandError::Failed(format!("{shown}: {error}")))?;
        say(format_args!("{shown}: version {} ({}) is applied no more", skip.version, skip.position));
        say("do the same with the logs of the other members that have it, before any of them is started");
        Ok(())
    }
}
