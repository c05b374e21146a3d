//! `squall log cut`.

use std::path::PathBuf;

use clap::Args;
use squall_command::{CommandError, say};
use squall_ordered::log::{self, CutAt, CutOutcome};

const HELP: &str = "\
Examples, with the node ended:
  squall log cut audit/1/logs/log --before-damage                  its node gets the rest from another member
  squall log cut audit/1/logs/log --before-damage --accept-loss    no member has the rest
  squall log cut audit/1/logs/log --version 6000 --accept-loss     what follows version 6000 is to go, at all members

What goes is kept beside the log, in files whose names begin with aside-N. The log counts for nothing until its node has
got from another member what it may lack; where no member has it, the group waits. With --accept-loss the log counts as
it is: the group can go on with it, and what it lacks is lost, also to members that still have it and come back later.";

/// Ends a log before its damage, or at a version, while its node does not run.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(super) struct CutArgs {
    /// The log's directory
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// End it before the first damaged record, or where records are missing
    #[arg(long, required_unless_present = "version", conflicts_with = "version")]
    before_damage: bool,
    /// End it behind this version
    #[arg(long, value_name = "VERSION")]
    version: Option<u64>,
    /// Let the group go on without what the log then lacks
    #[arg(long)]
    accept_loss: bool,
}

impl CutArgs {
    pub(super) fn run(self) -> Result<(), CommandError> {
        let shown = self.directory.display();
        let at = self.version.map_or(CutAt::Damage, CutAt::Version);
        let files = super::open(&self.directory)?;
        let cut = log::cut(files, at, self.accept_loss, &mut fastrand::Rng::new());
        let (CutOutcome { end, aside }, missing) =
            cut.map_err(|error| CommandError::Failed(format!("{shown}: {error}")))?;
        say(format_args!("{shown}: it ends with version {} now", end.version));
        if let Some(aside) = aside {
            say(format_args!("{shown}: what it had behind is kept in its files {aside}.*"));
        }
        if let Some(missing) = missing {
            say(&missing);
        }
        if !self.accept_loss {
            say("its node gets the rest from another member; where none has it, --accept-loss goes on without");
        }
        Ok(())
    }
}
