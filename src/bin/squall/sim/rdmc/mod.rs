//! `squall sim rdmc`: the experiments of the RDMC papers, with the real engine on simulated machines.
//!
//! An experiment is a module with a function from [`Run`] to [`Outcome`]: add it to [`Name`] and to [`Name::run`].

mod delay;
mod fairness;
mod fig10;
mod fig4;
mod fig6;
mod fig8;
mod fig9;
mod hybrid;
mod machine;
mod offload;
mod outcome;
mod slow_link;
mod windows;

use std::{
    ffi::OsString,
    io::{self, Write},
    path::{Path, PathBuf},
    time::Instant,
};

use clap::{Args, ValueEnum};
use squall::sim::bulk::BulkError;

use self::outcome::Outcome;
use crate::{CommandError, plot};

/// Repeat an experiment of the RDMC papers on a simulated machine, and say whether its finding holds.
///
/// The engine is the real one; the network and the time that software takes are simulated, so the figures are those of a
/// model of the machine, not of the machine. A finding that does not hold is said, and is no error.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  squall sim rdmc fig4 --svg fig4.svg\n  squall sim rdmc all --quick\n\nFigures, tables and \
    sections are those of RDMC: A Reliable RDMA Multicast for Large Objects, DSN 2018."
)]
pub(super) struct Rdmc {
    /// Which experiment.
    #[arg(value_enum)]
    experiment: Name,
    /// What all that is random follows from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Draw the figures into this file; with `all`, into one for each experiment, named after it.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print one JSON object per line: the rows of the table, then the findings.
    #[arg(long)]
    json: bool,
    /// Less of everything, in a few seconds.
    #[arg(long)]
    quick: bool,
}

/// Each is a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Name {
    /// Algorithms by group size: 8 MB and 256 MB on Fractus.
    Fig4,
    /// Bandwidth by block size, for groups of 4 on Fractus.
    Fig6,
    /// 256 MB to up to 512 nodes on Sierra.
    Fig8,
    /// A storage system's replicas: 455 groups, objects of all sizes, on Fractus.
    Fig9,
    /// Overlapping groups with the same members, on Fractus and Apt.
    Fig10,
    /// What one slow link costs (§4.5).
    SlowLink,
    /// What one delay of one node costs (§4.5).
    Delay,
    /// How a hundred overlapping groups share the network.
    Fairness,
    /// Racks with oversubscribed uplinks: the pipeline against the hybrid, on Apt.
    Hybrid,
    /// What it costs a pipeline when its members may be ahead of the step that they are in.
    Windows,
    /// What it saves to hand a transfer to the NIC (§5.2.3, Figure 12).
    Offload,
    /// Every one of these.
    All,
}

/// How an experiment is to be run.
#[derive(Clone, Copy, Debug)]
struct Run {
    seed: u64,
    quick: bool,
}

impl Run {
    /// One of two sizes.
    fn size<T>(self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}

impl Name {
    const EACH: [Name; 11] = [
        Name::Fig4,
        Name::Fig6,
        Name::Fig8,
        Name::Fig9,
        Name::Fig10,
        Name::SlowLink,
        Name::Delay,
        Name::Fairness,
        Name::Hybrid,
        Name::Windows,
        Name::Offload,
    ];

    /// As the command line spells it.
    fn spelt(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    fn run(self, run: Run) -> Result<Outcome, BulkError> {
        match self {
            Name::Fig4 => fig4::run(run),
            Name::Fig6 => fig6::run(run),
            Name::Fig8 => fig8::run(run),
            Name::Fig9 => fig9::run(run),
            Name::Fig10 => fig10::run(run),
            Name::SlowLink => slow_link::run(run),
            Name::Delay => delay::run(run),
            Name::Fairness => fairness::run(run),
            Name::Hybrid => hybrid::run(run),
            Name::Windows => windows::run(run),
            Name::Offload => offload::run(run),
            Name::All => unreachable!("it stands for the others"),
        }
    }
}

impl Rdmc {
    pub(super) fn run(self) -> Result<(), CommandError> {
        let run = Run { seed: self.seed, quick: self.quick };
        let all = self.experiment == Name::All;
        let names = if all { Name::EACH.to_vec() } else { vec![self.experiment] };
        for name in names {
            let spelt = name.spelt();
            let began = Instant::now();
            let outcome = name.run(run).map_err(|error| CommandError::Failed(format!("{spelt}: {error}")))?;
            let text = if self.json {
                outcome.json(&spelt)
            } else {
                format!("{}{:.1} s\n\n", outcome.text(&spelt), began.elapsed().as_secs_f64())
            };
            let mut out = io::stdout().lock();
            let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
            written.map_err(|error| CommandError::Failed(format!("the output could not be written: {error}")))?;
            if let Some(path) = &self.svg {
                let path = if all { beside(path, &spelt) } else { path.clone() };
                plot::write(&path, &plot::draw(&outcome.title, &outcome.charts))?;
            }
        }
        Ok(())
    }
}

/// The name of one of several files: out.svg becomes out-fig4.svg.
fn beside(path: &Path, name: &str) -> PathBuf {
    let mut file = path.file_stem().map(OsString::from).unwrap_or_default();
    file.push(format!("-{name}."));
    file.push(path.extension().unwrap_or("svg".as_ref()));
    path.with_file_name(file)
}
