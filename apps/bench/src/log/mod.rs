//! `squall-bench log`: appends to a durable group's logs, beside the speed of their disk.

mod plain;
mod rounds;
mod scratch;

use std::{path::PathBuf, time::Duration};

use clap::{Args, value_parser};
use squall_command::{CommandError, stop_on_signals};
use squall_sst::ring::MAX_BYTES;

pub(super) use self::{rounds::Rounds, scratch::Scratch};
use super::{
    job::{Calls, DEFAULT_BULK_RESERVE, Job, Senders, Spinning},
    places::{NodePlaces, PlaceArgs, WorkerNode},
    report::FigureReport,
    values,
};

const HELP: &str = "\
Examples:
  squall-bench log
  squall-bench log --writers 1,100,1000,3000 --dir /mnt/disk
  squall-bench log --nodes 5 --size 100 --seconds 5 --rounds 5 --json

Every node is a process of its own, with its log in a directory of its own, all on one disk. Each writer has one append
under way and begins the next when that one is answered, which is when all nodes have it on disk; a node's writers are
tasks of one thread, and its ring has room for twice their appends (1 MiB at least).

In each round, when the nodes have ended, as many threads as there were nodes write to that disk what is called plain:
batches of the mean size that the nodes' had, to files that have their space, each with one fdatasync.

What the figures mean (medians of the rounds):
  appends/s   appends that were answered, at all nodes together
  MB/s        appends/s times the size
  p50 p99     from the append until its writer had the answer
  fsyncs/s    batches that were written and synced, by all nodes together
  batch       how many records one has in the mean, and its size on disk
  log MB/s    what all nodes together wrote to their logs
  disk MB/s   what the plain writers wrote
  share       log MB/s divided by disk MB/s: the median of the rounds' shares";

/// Measures appends to durable logs, each answered once it is on the disks of all nodes, beside the disk itself.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct LogArgs {
    #[command(flatten)]
    places: PlaceArgs,
    /// The number of nodes; a list gives a row each
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "3")]
    #[arg(value_parser = value_parser!(u32).range(1..=64))]
    nodes: Vec<u32>,
    /// An append's size; a list gives a row each
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = "1KiB")]
    #[arg(value_parser = squall_units::size_in(1..=256 << 10))]
    size: Vec<usize>,
    /// The number of appends under way at a time, at all nodes together; a list gives a row each
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "500")]
    #[arg(value_parser = value_parser!(u32).range(1..=65_536))]
    writers: Vec<u32>,
    #[command(flatten)]
    disk: DiskArgs,
    /// The time to measure in each round, after half a second of warm-up
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = values::span)]
    seconds: Duration,
    /// The waiting policy of a node with nothing to do
    #[arg(long, value_enum, default_value = "auto")]
    spin: Spinning,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

/// Options for the directory of the logs, and for the number of comparisons with its disk.
#[derive(Clone, Debug, Args)]
pub(crate) struct DiskArgs {
    /// The directory of the logs, in a new one that is removed after the run; it decides which disk is measured
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// The number of measurements, each of the nodes and then of the disk
    #[arg(long, value_name = "N", default_value = "3", value_parser = value_parser!(u32).range(1..=1000))]
    rounds: u32,
}

impl DiskArgs {
    /// The rounds to measure, on that disk.
    pub(super) fn rounds(&self, span: Duration) -> Result<Rounds, CommandError> {
        let stop = stop_on_signals()?;
        let scratch = Scratch::new(&self.dir)?;
        Ok(Rounds { scratch, stop, count: self.rounds, span })
    }
}

impl LogArgs {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        self.places.check(self.nodes.iter().copied().max().unwrap_or_default()).map_err(CommandError::Usage)?;
        let rounds = self.disk.rounds(self.seconds)?;
        let mut report = FigureReport::new(self.json);
        for &nodes in &self.nodes {
            for &size in &self.size {
                for &writers in &self.writers {
                    let jobs = |places: &NodePlaces| self.jobs(nodes, size, writers, places);
                    report.log(&rounds.run("log", &self.places, nodes, jobs)?)?;
                }
            }
        }
        Ok(())
    }

    /// A job for each node.
    fn jobs(&self, nodes: u32, size: usize, writers: u32, places: &NodePlaces) -> Vec<Job> {
        let job = |worker: WorkerNode| Job {
            calls: Some(appends(share(writers, nodes, worker.node))),
            worker,
            senders: Senders::All,
            size_bytes: size,
            ring_bytes: ring_bytes(share(writers, nodes, 0), size),
            bulk_threshold: self.places.fabric.default_bulk_threshold(),
            bulk_reserve: DEFAULT_BULK_RESERVE,
            window: 1,
            rate: None,
            spin: self.spin,
            storage: None,
        };
        places.workers(nodes).map(job).collect()
    }
}

/// The ring size that holds twice a node's appends, so that none waits for room. At least a configuration's default.
fn ring_bytes(writers: u32, size: usize) -> usize {
    let record_bytes = (size + 32).next_multiple_of(16);
    (2 * writers as usize * record_bytes).next_power_of_two().clamp(1 << 20, MAX_BYTES)
}

/// The number of a node's writers, out of `writers` at all nodes.
pub(super) fn share(writers: u32, nodes: u32, node: u32) -> u32 {
    writers / nodes + u32::from(node < writers % nodes)
}

/// A thread that keeps so many appends under way.
pub(super) fn appends(in_flight: u32) -> Calls {
    Calls { callers: u32::from(in_flight > 0), in_flight, reads_percent: 0, read_lease_ms: 0 }
}
