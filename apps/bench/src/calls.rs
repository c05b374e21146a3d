//! `squall-bench calls`: callers that wait for their answers.

use std::time::Duration;

use clap::{Args, value_parser};
use squall_command::CommandError;
use squall_units::TimeUnit;

use super::{
    cluster,
    job::{Calls, DEFAULT_BULK_RESERVE, Job, Senders, Spinning, WorkerMeasurements},
    latency,
    places::{NodePlaces, PlaceArgs},
    printing::Printing,
    report::{CallsRow, RowHead},
    values,
};

const HELP: &str = "\
Examples:
  squall-bench calls --nodes 3 --callers 1,4,16
  squall-bench calls --nodes 3 --in-flight 1,16,64            as an async task does, or a client that pipelines
  squall-bench calls --nodes 3 --reads 100 --read-lease-ms 15,0    reads by lease, and by asking all members

Every node is a process of its own. Its callers are ordinary threads; each keeps so many calls under way and waits for
the oldest. A call is a submit, answered once this node has applied the message, or a linearizable read of this node's
replica.

What the figures mean:
  calls/s   answers per second, at all nodes together
  p50 p99   from the call until its caller had the answer
  switches  how often a thread of any node gave up its core, for each call: 2 or 3 is a wake-up per message and thread
  cpu us    processor time of all nodes together, for each call";

/// Measures callers that wait: submits and linearizable reads.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct CallsArgs {
    #[command(flatten)]
    places: PlaceArgs,
    /// The number of nodes
    #[arg(long, value_name = "N", default_value = "3", value_parser = value_parser!(u32).range(1..=64))]
    nodes: u32,
    /// The number of threads that call at each node; a list gives a row each
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1")]
    #[arg(value_parser = value_parser!(u32).range(1..=1024))]
    callers: Vec<u32>,
    /// The number of calls that each thread keeps under way; a list gives a row each
    #[arg(long, value_name = "W", value_delimiter = ',', default_value = "1")]
    #[arg(value_parser = value_parser!(u32).range(1..=16384))]
    in_flight: Vec<u32>,
    /// The number of reads among a hundred calls; a list gives a row each
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_value = "0")]
    #[arg(value_parser = value_parser!(u32).range(0..=100))]
    reads: Vec<u32>,
    /// The time for which a node that all have vouched for reads alone; 0: each read asks all; a list gives a row each
    #[arg(long, value_name = "TIME", value_delimiter = ',', default_value = "15ms")]
    #[arg(value_parser = squall_units::whole_in(Duration::ZERO..=Duration::from_secs(1), TimeUnit::Milliseconds))]
    read_lease_ms: Vec<u64>,
    /// A message's size
    #[arg(long, value_name = "SIZE", default_value = "100", value_parser = squall_units::size_in(1..=256 << 10))]
    size: usize,
    /// The time to measure, after half a second of warm-up
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = values::span)]
    seconds: Duration,
    /// The waiting policy of a node with nothing to do
    #[arg(long, value_enum, default_value = "auto")]
    spin: Spinning,
    #[command(flatten)]
    printing: Printing,
}

/// The default of a configuration; no option of this benchmark changes it.
const RING_BYTES: usize = 1 << 20;

impl CallsArgs {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        self.places.check(self.nodes).map_err(CommandError::Usage)?;
        let mut report = self.printing.begin()?;
        for calls in self.all_calls() {
            let places = self.places.find(self.nodes)?;
            let jobs = self.jobs(calls, &places);
            let outcomes = cluster::run(&jobs, &places, self.seconds)?;
            report.calls(&row(&jobs[0], calls, &outcomes))?;
        }
        Ok(())
    }

    /// All combinations of the lists.
    fn all_calls(&self) -> Vec<Calls> {
        let mut all = Vec::new();
        for &callers in &self.callers {
            for &in_flight in &self.in_flight {
                for &reads_percent in &self.reads {
                    for &read_lease_ms in &self.read_lease_ms {
                        all.push(Calls { callers, in_flight, reads_percent, read_lease_ms });
                    }
                }
            }
        }
        all
    }

    /// A job for each node.
    fn jobs(&self, calls: Calls, places: &NodePlaces) -> Vec<Job> {
        let job = |worker| Job {
            worker,
            senders: Senders::All,
            size_bytes: self.size,
            ring_bytes: RING_BYTES,
            bulk_threshold: self.places.fabric.default_bulk_threshold(),
            bulk_reserve: DEFAULT_BULK_RESERVE,
            window: 1,
            rate: None,
            spin: self.spin,
            calls: Some(calls),
            storage: None,
        };
        places.workers(self.nodes).map(job).collect()
    }
}

/// Combines what the nodes measured.
fn row(job: &Job, calls: Calls, outcomes: &[WorkerMeasurements]) -> CallsRow {
    let latencies = latency::merged(outcomes.iter().map(|outcome| &outcome.latencies));
    let sum = |of: fn(&WorkerMeasurements) -> f64| outcomes.iter().map(of).sum::<f64>();
    let answered = sum(|outcome| outcome.answered as f64);
    CallsRow {
        head: RowHead::of("calls", job),
        callers: calls.callers,
        in_flight: calls.in_flight,
        reads_percent: calls.reads_percent,
        read_lease_ms: calls.read_lease_ms,
        size_bytes: job.size_bytes,
        spin: job.spin,
        calls_per_second: sum(|outcome| outcome.answered as f64 / outcome.wall_seconds),
        latency_p50_us: latency::micros(&latencies, 0.5),
        latency_p99_us: latency::micros(&latencies, 0.99),
        switches_per_call: (answered > 0.0).then(|| sum(|outcome| outcome.switches as f64) / answered),
        cpu_us_per_call: (answered > 0.0).then(|| sum(|outcome| outcome.cpu_seconds) * 1e6 / answered),
    }
}
