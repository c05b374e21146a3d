//! `squall log read`.

use std::{
    ops::ControlFlow,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use squall::{
    Consistency,
    log_service::{LogClient, LogError, LogRecord},
};
use squall_command::CommandError;
use squall_ordered::log::{self, Files, Log, OfflineError};

use super::{
    part::LogPart,
    reach::ReachArgs,
    show::{FormArgs, Shown},
};

const HELP: &str = "\
Examples:
  squall log read --config log.toml --from 500 --limit 10    of a group that runs
  squall log read audit/1/logs/log                           what can be read of one node's log as it lies on its disk

Where one member is named (--node 2), only that one answers, or the command fails. Unless --stale is given, it has the
others confirm that it shows the latest. Where several are named, or a configuration is, any member may answer.

With a directory no member is asked, and nothing is changed. What is damaged or missing from --from to --to is named,
and what follows is read all the same; the exit code is 1 then. Records are among them that may never have been
acknowledged. A command that a client sent twice is there twice, under two versions; members apply it once.";

/// Prints records by version: all that had been acknowledged when it began, or a part of them.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(super) struct ReadArgs {
    /// A log in this directory, instead of that of members that run
    #[arg(value_name = "DIR", conflicts_with_all = ["config", "cluster", "stale"])]
    directory: Option<PathBuf>,
    #[command(flatten)]
    reach: ReachArgs,
    /// The first version [default: the first that there is]
    #[arg(long, value_name = "VERSION")]
    from: Option<u64>,
    /// The last version [default: the last that there is]
    #[arg(long, value_name = "VERSION")]
    to: Option<u64>,
    /// The most records
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
            return Err(CommandError::Usage(format!("--from {from} lies behind --to {to}: exchange the two")));
        }
        match &self.directory {
            Some(directory) => self.print_directory(directory, from, to),
            None => self.print(&mut self.reach.log()?, from, to),
        }
    }

    /// Prints all that can be read, and names the rest.
    fn print_directory(&self, directory: &Path, from: u64, to: u64) -> Result<(), CommandError> {
        let (files, is_live) = Files::look(directory).map_err(CommandError::failed)?;
        let (mut left, mut written) = (self.limit.unwrap_or(u64::MAX), Ok(()));
        let mut shown = Shown::new(self.form);
        let failed = |error: OfflineError| CommandError::Failed(format!("{}: {error}", directory.display()));
        let looked = Log::look(files.clone(), is_live).map_err(|error| failed(error.into()))?.log;
        let mut part = LogPart::new(from..=to, looked.begin().version);
        let read = log::read(files, is_live, |item| {
            let record = part.take(item).and_then(|record| LogRecord::of_log(&record, looked.skips()));
            if let Some(record) = record.filter(|_| left > 0 && written.is_ok()) {
                left -= 1;
                written = shown.record(&record);
            }
            if part.is_over() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        if let Err(error) = written.and_then(|()| shown.records([])) {
            return super::shown(Err(error));
        }
        read.map_err(failed)?;
        part.end();
        match part.unreadable {
            0 => Ok(()),
            places => Err(CommandError::Failed(format!("{places} places of the log can't be read"))),
        }
    }

    fn print(&self, log: &mut LogClient, from: u64, to: u64) -> Result<(), CommandError> {
        let consistency = if self.stale { Consistency::Local } else { Consistency::Linearizable };
        let first = match log.read(consistency, from..=to) {
            Err(LogError::Trimmed { first }) if self.from.is_none() => {
                eprintln!("squall: the records before version {first} were trimmed");
                log.read(consistency, first..=to)
            }
            page => page,
        };
        let mut page = first.map_err(|error| self.reach.failed(error))?;
        let end = to.min(page.globally_persisted);
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
            page = log.follow(page.next..=end, Duration::from_secs(1)).map_err(|error| self.reach.failed(error))?;
        }
    }
}
