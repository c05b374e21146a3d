//! The options of all benchmarks that print yardsticks before their figures.

use clap::Args;
use squall_command::CommandError;

use super::{report::FigureReport, yardsticks};

/// Options for the output of a benchmark, besides its figures.
#[derive(Debug, Args)]
pub(crate) struct Printing {
    /// Leave out what the machine itself can do, for many short runs
    #[arg(long)]
    bare: bool,
    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
}

impl Printing {
    /// Begins a report, with the yardsticks if they are wanted.
    pub(crate) fn begin(&self) -> Result<FigureReport, CommandError> {
        let mut report = FigureReport::new(self.json);
        if !self.bare {
            yardsticks::run(&mut report)?;
        }
        Ok(report)
    }
}
