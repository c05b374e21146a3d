//! `squall-bench papers onepipe`: Figures 8, 9 and 10 of the 1Pipe paper, on a simulation of its testbed.

//!
//! Each finding's claim says whether the compared figures are computed, or are an input. Inputs follow from constants
//! that were taken from the paper, or were chosen to agree with it.

mod fig10;
mod fig8;
mod fig9;
mod model;

use self::model::{Profile, ScenarioError};
use clap::{Args, ValueEnum};
use squall_command::{CommandError, plot::Line};

use super::{
    experiment::{ExperimentOptions, ExperimentRun, on_all_cores},
    outcome::{self, ExperimentOutcome},
};

/// Repeats an experiment of the 1Pipe paper on a simulation of its testbed, and says whether its findings hold.
///
/// It is a model of the protocols' event flow, on 32 servers in a fat tree of 100 Gb/s with beacons each 3 µs. It is
/// not the engine that the rest of the system runs: only in the model do data and barriers pass the same links and
/// switches. The assumptions where the paper gives no figure are printed with each experiment. A finding that does not
/// hold is printed, and is no error.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  squall-bench papers onepipe fig9 --svg fig9.svg
  squall-bench papers onepipe all --quick

Figures and sections are those of 1Pipe: Scalable Total Order Communication in Data Center Networks, SIGCOMM 2021.")]
pub(super) struct OnePipe {
    /// The experiment
    #[arg(value_enum, default_value_t = Name::All)]
    experiment: Name,
    #[command(flatten)]
    options: ExperimentOptions,
}

/// The names of the experiments, each of which is a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Name {
    /// Throughput and latency of total order broadcasts, by the number of processes: 1Pipe, sequencers, token, Lamport
    Fig8,
    /// Latency of idle 1Pipe by the number of processes, and by the loss of packets
    Fig9,
    /// The time that reliable 1Pipe takes to recover, by what fails
    Fig10,
    /// Every one of these
    All,
}

impl Name {
    fn run(self, run: ExperimentRun) -> Result<ExperimentOutcome, ScenarioError> {
        match self {
            Name::Fig8 => fig8::run(run),
            Name::Fig9 => fig9::run(run),
            Name::Fig10 => fig10::run(run),
            Name::All => unreachable!("it stands for the others"),
        }
    }
}

impl OnePipe {
    pub(super) fn run(self) -> Result<(), CommandError> {
        self.options.run(self.experiment, Name::All, |name, run| name.run(run))
    }
}

/// The seed of one of an experiment's runs.
fn seed(run: ExperimentRun, index: u64) -> u64 {
    run.seed.wrapping_mul(1_000_003).wrapping_add(index)
}

/// One line of a chart.
fn line<'a, P: 'a>(name: &str, points: impl Iterator<Item = &'a P>, place: impl Fn(&P) -> (f64, f64)) -> Line {
    Line::new(name, points.map(place))
}

/// The testbed, in words.
fn testbed() -> String {
    let Profile { beacon_ns, host_hop_ns, switch_hop_ns, .. } = Profile::TESTBED;
    format!(
        "32 servers, 4 racks in 2 pods, 100 Gb/s, beacons each {} µs, {} µs from host to switch and {} µs from switch to switch \
         (so that round trips take 2 to 10 µs), parallel links between two switches as one of their joint rate. Clocks are 0.3 µs apart \
         in the mean and 1.0 µs at the 95th percentile (that §7.1's skew is the difference of two clocks is assumed).",
        beacon_ns / 1000,
        host_hop_ns as f64 / 1e3,
        switch_hop_ns / 1000
    )
}
