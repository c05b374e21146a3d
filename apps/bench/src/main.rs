//! The `squall-bench` command: what this machine, and groups on it, can do; the experiments of the papers; simulated
//! clusters.

mod bulk;
mod caller;
mod calls;
mod cluster;
mod collectives;
mod failover;
mod hostile;
mod job;
mod latency;
mod load;
mod log;
mod onepipe;
mod ordered;
mod papers;
mod parent;
mod places;
mod printing;
mod processor;
mod report;
mod shards;
mod sim;
mod tally;
mod transactions;
mod values;
mod worker;
mod yardsticks;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use squall_command::{CommandError, DescribeCommand};

use self::report::FigureReport;

/// Measures what this machine can do, and what groups on it can do; repeats the experiments of the papers; checks
/// simulated clusters.
#[derive(Debug, Parser)]
#[command(
    name = "squall-bench",
    version,
    after_help = "RUST_LOG sets what is logged to standard error, for example RUST_LOG=squall=debug. \
    The exit code is 0, 1 if the work failed, 2 if the arguments make no sense."
)]
struct Cli {
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
    Transactions(transactions::TransactionsArgs),
    Calls(calls::CallsArgs),
    Log(log::LogArgs),
    Failover(failover::FailoverArgs),
    Hostile(hostile::HostileArgs),
    Shards(shards::ShardsArgs),
    Yardsticks(YardsticksArgs),
    Papers(papers::PapersCommand),
    Sim(sim::SimCommand),
    #[command(flatten)]
    Describe(DescribeCommand),
    #[command(hide = true)]
    Worker(worker::WorkerArgs),
}

/// Measures what this machine itself can do: copying memory to one place and to three, one core telling another, one
/// thread waking another.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  squall-bench yardsticks --json")]
struct YardsticksArgs {
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

impl Bench {
    /// The level of what is logged, without `RUST_LOG`.
    fn level(&self) -> &'static str {
        match self {
            // Only its parent reads the output of one node of a benchmark; a scenario is made of what a node warns of.
            Bench::Worker(_) | Bench::Papers(_) | Bench::Sim(_) => "error",
            _ => "warn",
        }
    }

    fn run(self) -> Result<(), CommandError> {
        match self {
            Bench::Ordered(args) => args.run(),
            Bench::Bulk(args) => args.run(),
            Bench::Collectives(args) => args.run(),
            Bench::OnePipe(args) => args.run(),
            Bench::Transactions(args) => args.run(),
            Bench::Calls(args) => args.run(),
            Bench::Log(args) => args.run(),
            Bench::Failover(args) => args.run(),
            Bench::Hostile(args) => args.run(),
            Bench::Shards(args) => args.run(),
            Bench::Yardsticks(args) => yardsticks::run(&mut FigureReport::new(args.json)),
            Bench::Papers(papers) => papers.run(),
            Bench::Sim(sim) => sim.run(),
            Bench::Describe(describe) => describe.run(squall_command::command_of::<Cli>()),
            Bench::Worker(args) => args.run(),
        }
    }
}

fn main() -> ExitCode {
    squall_command::run("squall-bench", |cli: &Cli| cli.bench.level(), |cli| cli.bench.run())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use squall_command::{check::problems, command_of};

    use super::*;

    #[test]
    fn the_help_the_book_and_the_messages_name_what_there_is() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let crates = ["apps/bench"];
        let problems = problems(command_of::<Cli>(), &root, &crates, &["features"]);
        assert!(problems.is_empty(), "{problems:#?}");
    }
}
