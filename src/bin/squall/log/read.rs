//! `squall log read`.

use std::time::Duration;

use clap::Args;
use squall::{
    Freshness,
    log_service::{LogClient, LogError},
};

use super::{
    failed,
    reach::ReachArgs,
    show::{FormArgs, Shown},
};
use crate::CommandError;

/// Prints records by version: all that had been acknowledged to anybody when it began, or a part of them.
#[derive(Debug, Args)]
pub(super) struct ReadArgs {
    #[command(flatten)]
    reach: ReachArgs,
    /// The first version [default: the first that there is]
    #[arg(long, value_name = "VERSION")]
    from: Option<u64>,
    /// The last version [default: the last that there is]
    #[arg(long, value_name = "VERSION")]
    to: Option<u64>,
    /// At most so many records
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Print what a member has, though it may be cut off and behind the others
    #[arg(long)]
    stale: bool,
    #[command(flatten)]
    form: FormArgs,
}

impl ReadArgs {
    pub(super) fn run(self) -> Result<(), CommandError> {
        let (from, to) = (self.from.unwrap_or(1), self.to.unwrap_or(u64::MAX));
        if from > to {
            return Err(CommandError::Usage(format!("--from {from} lies behind --to {to}")));
        }
        self.print(&mut self.reach.log()?, from, to)
    }

    fn print(&self, log: &mut LogClient, from: u64, to: u64) -> Result<(), CommandError> {
        let freshness = if self.stale { Freshness::AsItIs } else { Freshness::Latest };
        let first = match log.read(freshness, from..=to) {
            Err(LogError::Trimmed { first }) if self.from.is_none() => {
                eprintln!("squall: the records before version {first} were trimmed");
                log.read(freshness, first..=to)
            }
            page => page,
        };
        let mut page = first.map_err(failed)?;
        let end = to.min(page.safe);
        let mut left = self.limit.unwrap_or(u64::MAX);
        let mut shown = Shown::new(self.form);
        loop {
            let few = page.records.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            left -= few as u64;
            if let Err(error) = shown.records(&page.records[..few]) {
                return super::shown(Err(error));
            }
            if page.next > end || left == 0 {
                return Ok(());
            }
            page = log.follow(page.next..=end, Duration::from_secs(1)).map_err(failed)?;
        }
    }
}
