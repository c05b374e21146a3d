//! `squall log repair`.

use std::path::PathBuf;

use clap::Args;
use squall_command::{CommandError, say};
use squall_ordered::log::{self, Files, Repaired};

const HELP: &str = "\
Example, with the nodes ended:
  squall log repair audit/1/logs/log --from audit/2/logs/log --from copy-of-3

Each damaged record is replaced by one that any of the other logs has, if it fits between its neighbours; and records
that are missing at the log's end are appended, as far as another log has them. The other logs may be damaged, too: they
are only looked at. What was right stays as it is, so a repair that was interrupted is begun again.

The exit code is 1 if anything is left damaged or missing.";

/// Replaces damaged records of a log by those of other members' logs, while its node does not run.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(super) struct RepairArgs {
    /// The log's directory
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Another member's log, or a copy of one
    #[arg(long, value_name = "DIR", required = true)]
    from: Vec<PathBuf>,
}

impl RepairArgs {
    pub(super) fn run(self) -> Result<(), CommandError> {
        let failed = |why: String| CommandError::Failed(why);
        let look = |path: &PathBuf| match Files::look(path) {
            Ok((files, false)) => Ok(files),
            Ok((_, true)) => Err(failed(format!("{}: a node runs on it: end that first", path.display()))),
            Err(error) => Err(failed(error.to_string())),
        };
        let others = self.from.iter().map(look).collect::<Result<Vec<_>, _>>()?;
        let files = super::open(&self.directory)?;
        let shown = self.directory.display();
        let repaired = log::repair(files, others, &mut fastrand::Rng::new());
        let repaired = repaired.map_err(|error| failed(format!("{shown}: {error}")))?;
        let Repaired { replaced, appended, left, missing, doubtful } = repaired;
        say(format_args!("{shown}: {replaced} damages were replaced, and {appended} records were appended"));
        let mut left: Vec<String> = left.iter().map(ToString::to_string).collect();
        left.extend(missing.map(|missing| missing.to_string()));
        if left.is_empty() && doubtful {
            left.push(format!("{shown}: its end was damaged, and nothing given shows how it went on"));
        }
        if left.is_empty() {
            return Ok(());
        }
        Err(failed(format!(
            "{}\nsquall: none of the logs given has it: give another one, or go on without it (`squall log cut --help`)",
            left.join("\nsquall: ")
        )))
    }
}
