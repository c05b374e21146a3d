//! `squall-bench papers rdmc`: the experiments of the RDMC papers, with the real engine on simulated machines.
//!
//! An experiment is a module with a function from [`ExperimentRun`] to [`ExperimentOutcome`]: add it to
//! [`Name`] and to [`Name::run`].

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
mod slow_link;
mod windows;

use clap::{Args, ValueEnum};
use squall::sim::bulk::BulkError;
use squall_command::CommandError;

use super::{
    experiment::{ExperimentOptions, ExperimentRun},
    outcome::{self, ExperimentOutcome},
};

/// Repeats an experiment of the RDMC papers on a simulated machine, and says whether its finding holds.
///
/// The engine is the real one; the network and the time that software takes are simulated. The figures are therefore
/// those of a model of the machine, not of the machine. A finding that does not hold is printed, and is no error.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  squall-bench papers rdmc fig4 --svg fig4.svg
  squall-bench papers rdmc all --quick

Figures, tables and sections are those of RDMC: A Reliable RDMA Multicast for Large Objects, DSN 2018.")]
pub(super) struct Rdmc {
    /// The experiment
    #[arg(value_enum)]
    experiment: Name,
    #[command(flatten)]
    options: ExperimentOptions,
}

/// The names of the experiments, each of which is a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Name {
    /// Algorithms by group size: 8 MB and 256 MB on Fractus
    Fig4,
    /// Bandwidth by block size, for groups of 4 on Fractus
    Fig6,
    /// 256 MB to up to 512 nodes on Sierra
    Fig8,
    /// A storage system's replicas: 455 groups, objects of all sizes, on Fractus
    Fig9,
    /// Overlapping groups with the same members, on Fractus and Apt
    Fig10,
    /// The cost of one slow link (§4.5)
    SlowLink,
    /// The cost of one delay of one node (§4.5)
    Delay,
    /// The shares of the network that a hundred overlapping groups get
    Fairness,
    /// Racks with oversubscribed uplinks: the pipeline against the hybrid, on Apt
    Hybrid,
    /// The cost to a pipeline of members that may be ahead of the step that they are in
    Windows,
    /// The time that is saved by handing a transfer to the NIC (§5.2.3, Figure 12)
    Offload,
    /// Every one of these
    All,
}

impl Name {
    fn run(self, run: ExperimentRun) -> Result<ExperimentOutcome, BulkError> {
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
        self.options.run(self.experiment, Name::All, |name, run| name.run(run))
    }
}
