//! `squall-bench transactions`: the transactional store over 1Pipe, its speed, and a check of what its clients see.

mod check;
mod client;
mod groups;
mod member;

use std::time::Duration;

use clap::Args;
use squall::sim::LedgerCounts;
use squall_command::{CommandError, say};
use squall_fabric::Time;
use squall_units::TimeUnit;

pub(crate) use self::{groups::run_process, member::run as run_member};
use super::{
    cluster::{PATIENCE, RunError, WARM_UP, Workers},
    job::{Go, StoreCommand, StoreShape, Transacted, TransactionsJob, WorkerJob, WorkerReport},
    latency,
    places::NodePlaces,
    printing::Printing,
    report::TransactionsRow,
};

const HELP: &str = "\
Examples:
  squall-bench transactions                        three nodes, 16 transactions under way at each
  squall-bench transactions --nodes 4 --window 1   four nodes, each with one transaction at a time: the shortest
                                                   latencies
  squall-bench transactions --groups               transactions over the shards of a group, from two clients outside
  squall-bench transactions --check                the same with a check of everything, while one node is killed (-9),
                                                   or, if the seed is odd, stopped

Every node is a process of its own. It has copies of some shards, and a client that moves money between random accounts
of all shards and now and then reads all of them. Each such transaction is one reliable scattering of 1Pipe: its parts
are delivered to all replicas of all its shards at one logical time, so no node takes a lock or votes.

What the figures mean:
  transactions/s  those that were over per second, of all nodes together
  p50 p99         from the submission of a transaction until all its replicas have answered

--check looks whether

  - each reading of all accounts, at any time and node, finds the whole sum;
  - what all clients saw is strictly serializable: their transactions, carried out again one after the other in the
    order of their time stamps, give the same replies, and none is before one that had ended when it was submitted;
  - the nodes that are left have the same in all copies of a shard, and each has carried out all of its part of every
    transaction, at the same moment and with the same replies.

With --groups the transactions are those of a sharded group: two phases over its shards, whose replicas are replaced
when nodes fail. Two clients in processes of their own read and write three random accounts in each transaction. With
--check a node and a client are killed (-9) in the middle, the node comes back, and what all clients saw must be
strictly serializable.

A node that was only stopped goes on after the check, and has to learn that the others took it for failed. A transaction
that the lost node had not received is recalled: it did nothing anywhere, and its client tries again. The nodes' own
views decide which nodes have failed. With --replicas R, R - 1 nodes may fail, and fewer than half of all: when all
replicas of a shard fail, its accounts are lost, and nodes that are not more than half can decide nothing.";

/// Measures transactions over several shards, each a reliable scattering of 1Pipe; or checks that they are strictly
/// serializable.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct TransactionsArgs {
    #[command(flatten)]
    shape: StoreShape,
    /// The time to measure, after half a second of warm-up
    #[arg(long, value_name = "TIME", default_value = "3s")]
    #[arg(value_parser = squall_units::time_in(Duration::from_millis(10)..=Duration::from_secs(60), TimeUnit::Seconds))]
    seconds: Duration,
    /// Record what clients see, kill or stop a node in the middle, and check everything, instead of measuring
    #[arg(long, conflicts_with_all = ["bare", "json"])]
    check: bool,
    /// Transactions over the shards of a group, from outside, instead of 1Pipe
    #[arg(long)]
    groups: bool,
    /// The seed of the random choices; each check says its own
    #[arg(long)]
    seed: Option<u64>,
    #[command(flatten)]
    printing: Printing,
}

impl TransactionsArgs {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        self.usable().map_err(CommandError::Usage)?;
        let (places, seed) = (NodePlaces::on_this_host(), self.seed.unwrap_or_else(|| fastrand::u64(..)));
        let (shape, record) = (&self.shape, self.check);
        let job = |node| TransactionsJob { cluster: places.cluster.clone(), node, shape: shape.clone(), seed, record };
        let jobs: Vec<_> = (0..shape.nodes).map(job).collect();
        let lasts = self.seconds;
        if self.groups {
            return self.run_groups(seed);
        }
        if self.check {
            let checked = check::run(&jobs, lasts);
            say(checked.map_err(|error| {
                CommandError::Failed(format!("{error} (--seed {seed} makes the same random choices)"))
            })?);
            return Ok(());
        }
        let mut report = self.printing.begin()?;
        let transacted = transacted(&mut start(&jobs, lasts)?, lasts)?;
        report.transactions(&self.row_of(transacted.iter().map(|of_node| &of_node.latencies), "transactions"))?;
        sums(&transacted).map(drop).map_err(CommandError::Failed)
    }

    /// Runs or checks transactions over the shards of a group.
    fn run_groups(&self, seed: u64) -> Result<(), CommandError> {
        let mut report = if self.check { None } else { Some(self.printing.begin()?) };
        let run = groups::run(&self.shape, seed, self.seconds, self.check);
        let failed = |error| CommandError::Failed(format!("{error} (--seed {seed} makes the same random choices)"));
        let (carried, counts) = run.map_err(failed)?;
        let Some(report) = &mut report else {
            let LedgerCounts { applied, untold, refused } = counts;
            let unknown: u64 = carried.iter().map(|carried| carried.unknown).sum();
            say(format!(
                "{applied} transactions took effect, strictly serializable, while a node and a client were killed (-9) and the \
                 node came back; {untold} of whose end no client was told did too, {refused} did not; {unknown} results were \
                 unknown; seed {seed}"
            ));
            return Ok(());
        };
        if let Some(trouble) = carried.iter().find_map(|carried| carried.trouble.as_ref()) {
            return Err(CommandError::Failed(format!("nothing failed, and a result is unknown: {trouble}")));
        }
        report.transactions(&self.row_of(carried.iter().map(|carried| &carried.latencies), "transactions-groups"))
    }

    fn usable(&self) -> Result<(), String> {
        if self.check && self.shape.replicas < 2 {
            return Err("--check takes a node out, whose shards would be lost: give --replicas 2 or more".to_owned());
        }
        if self.check && self.shape.nodes < 3 {
            return Err(format!(
                "--check takes a node out, and the nodes left of {} can't decide that it has failed, since they are not more than \
                 half: give --nodes 3 or more",
                self.shape.nodes
            ));
        }
        self.shape.placement().map(drop)
    }

    /// Combines what the processes measured.
    fn row_of<'a>(&self, parts: impl Iterator<Item = &'a Vec<(u64, u64)>>, bench: &'static str) -> TransactionsRow {
        let latencies = latency::merged(parts);
        TransactionsRow {
            bench,
            shape: StoreShape { shards: Some(self.shape.shards()), ..self.shape.clone() },
            transactions_per_second: latencies.len() as f64 / self.seconds.as_secs_f64(),
            latency_p50_us: latency::micros(&latencies, 0.5),
            latency_p99_us: latency::micros(&latencies, 0.99),
        }
    }
}

/// Starts the nodes, and lets them submit transactions for this time, after the warm-up.
fn start(jobs: &[TransactionsJob], lasts: Duration) -> Result<Workers, RunError> {
    let mut workers = Workers::start(jobs.iter().cloned().map(WorkerJob::Transactions), &NodePlaces::on_this_host())?;
    workers.until_all(PATIENCE, |said| matches!(said, WorkerReport::Ready).then_some(()))?;
    let from = Time::boot_clock() + WARM_UP;
    workers.tell(&StoreCommand::Begin(Go { from: from.as_nanos(), until: (from + lasts).as_nanos() }));
    Ok(workers)
}

/// Waits until the transactions of all nodes are over.
fn transacted(workers: &mut Workers, lasts: Duration) -> Result<Vec<Transacted>, RunError> {
    workers.results(WARM_UP + lasts + PATIENCE)
}

/// The number of readings of all accounts. It is an error if one found another sum.
fn sums(transacted: &[Transacted]) -> Result<u64, String> {
    let sum = |of: fn(&Transacted) -> u64| transacted.iter().map(of).sum::<u64>();
    let (read_all, wrong) = (sum(|of_node| of_node.read_all), sum(|of_node| of_node.wrong_sums));
    if wrong > 0 {
        return Err(format!("{wrong} of {read_all} readings of all accounts found another sum: this is a bug"));
    }
    Ok(read_all)
}
