//! `squall log tail`.

use std::{sync::atomic::Ordering, time::Duration};

use clap::Args;
use squall::log_service::{LogClient, LogError};
use squall_command::{CommandError, stop_on_signals};

use super::{
    reach::ReachArgs,
    show::{FormArgs, Shown},
};

/// The time within which Ctrl-C is noticed, about.
const ATTENTIVE: Duration = Duration::from_millis(500);

const HELP: &str = "\
Examples:
  squall log tail --config log.toml -n 100
  squall log tail -f --config log.toml --json | jq .version";

/// Prints the last records, and with -f those that come, as soon as they are acknowledged, until Ctrl-C.
///
/// When the member that it talks to fails, it goes on at another one, with the next record. While no member can be
/// reached, it tries again. Where one member is named, it goes to no other.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(super) struct TailArgs {
    #[command(flatten)]
    reach: ReachArgs,
    /// The number of records
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    lines: usize,
    /// Go on with what comes
    #[arg(short, long)]
    follow: bool,
    #[command(flatten)]
    form: FormArgs,
}

impl TailArgs {
    pub(super) fn run(self) -> Result<(), CommandError> {
        let stop = stop_on_signals()?;
        let mut log = self.reach.log()?;
        let mut shown = Shown::new(self.form);
        let (records, mut next) = log.last(self.lines, None).map_err(|error| self.reach.failed(error))?;
        if let Err(error) = shown.records(&records) {
            return super::shown(Err(error));
        }
        log.set_timeout(ATTENTIVE);
        let mut is_waiting = false;
        while self.follow && !stop.load(Ordering::Relaxed) {
            let page = match log.follow(next.., ATTENTIVE) {
                Ok(page) => page,
                Err(error) => {
                    next = await_better(&mut log, error, next, &mut is_waiting)?;
                    continue;
                }
            };
            if std::mem::take(&mut is_waiting) {
                eprintln!("squall: goes on with version {next}{}", at(&log));
            }
            if let Err(error) = shown.records(&page.records) {
                return super::shown(Err(error));
            }
            next = page.next;
        }
        Ok(())
    }
}

/// Prints the trouble once, and returns the version to go on with, if waiting may help.
fn await_better(log: &mut LogClient, error: LogError, next: u64, is_waiting: &mut bool) -> Result<u64, CommandError> {
    match error {
        LogError::Unreachable { trouble, .. } => {
            if !std::mem::replace(is_waiting, true) {
                eprintln!("squall: waits until a member answers; {trouble}");
            }
            Ok(next)
        }
        LogError::Trimmed { first } if first > next => {
            eprintln!("squall: versions {next} to {} were trimmed before they were shown{}", first - 1, at(log));
            Ok(first)
        }
        error => Err(CommandError::failed(error)),
    }
}

fn at(log: &LogClient) -> String {
    log.member().map_or(String::new(), |node| format!(", at {node}"))
}
