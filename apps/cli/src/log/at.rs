//! `squall log at`.

use clap::Args;
use squall::{Consistency, Hlc};
use squall_command::CommandError;

use super::{
    reach::ReachArgs,
    show::{FormArgs, Shown},
    shown, time,
};

const HELP: &str = "\
Example:
  squall log at --time 2026-11-22T12:00:00Z --config log.toml";

/// Prints the record that was the last at a time.
///
/// A record's time is that of its submission, by the clock of the member that took it, or just behind the record before
/// where that is later.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(super) struct AtArgs {
    #[command(flatten)]
    reach: ReachArgs,
    /// The time, as 2026-11-22T12:00:00Z or in seconds since 1970
    #[arg(long, value_name = "DATE", value_parser = time::parse)]
    time: Hlc,
    #[command(flatten)]
    form: FormArgs,
}

impl AtArgs {
    pub(super) fn run(self) -> Result<(), CommandError> {
        let mut log = self.reach.log()?;
        let at = log.version_at(Consistency::Linearizable, self.time).map_err(|error| self.reach.failed(error))?;
        let (records, _) = log.last(1, Some(at.version)).map_err(|error| self.reach.failed(error))?;
        let Some(record) = records.first() else {
            let time = time::show(self.time);
            return Err(CommandError::Failed(format!("all records are later than {time}")));
        };
        shown(Shown::new(self.form).records([record]))
    }
}
