//! `squall bench`: what this machine and the group on it can do.

mod bulk;
mod caller;
mod calls;
mod cluster;
mod collectives;
mod copies;
mod failover;
mod job;
mod latency;
mod load;
mod log;
mod onepipe;
mod ordered;
mod places;
mod report;
mod tally;
mod worker;
mod yardsticks;

use clap::{Args, Subcommand};

use self::report::Report;
use crate::CommandError;

/// Measures what this machine can do, and what groups on it can do.
#[derive(Debug, Args)]
pub(crate) struct BenchCommand {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    Ordered(ordered::OrderedArgs),
    Bulk(bulk::BulkArgs),
    Collectives(collectives::CollectivesArgs),
    #[command(name = "onepipe")]
    OnePipe(onepipe::OnePipeArgs),
    Calls(calls::CallsArgs),
    Log(log::LogArgs),
    Failover(failover::FailoverArgs),
    Yardsticks(YardsticksArgs),
    #[command(hide = true)]
    Worker(worker::WorkerArgs),
}

/// Measures what this machine itself can do: copying memory to one place and to three, one core telling another, one
/// thread waking another.
#[derive(Debug, Args)]
struct YardsticksArgs {
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

impl BenchCommand {
    /// Whether this is one node of a benchmark, whose output only its parent reads.
    pub(crate) fn is_worker(&self) -> bool {
        matches!(self.bench, Bench::Worker(_))
    }

    pub(crate) fn run(self) -> Result<(), CommandError> {
        match self.bench {
            Bench::Ordered(args) => args.run(),
            Bench::Bulk(args) => args.run(),
            Bench::Collectives(args) => args.run(),
            Bench::OnePipe(args) => args.run(),
            Bench::Calls(args) => args.run(),
            Bench::Log(args) => args.run(),
            Bench::Failover(args) => args.run(),
            Bench::Yardsticks(args) => yardsticks::run(&mut Report::new(args.json)),
            Bench::Worker(args) => args.run(),
        }
    }
}
