//! `squall-bench ordered`: atomic multicast between real processes of this host.

use std::time::Duration;

use clap::{Args, ValueEnum, value_parser};
use squall_command::CommandError;
use squall_sst::ring::{MAX_BYTES, MIN_BYTES};

use super::{
    cluster,
    job::{Job, Senders, Spinning, WorkerMeasurements},
    latency,
    log::{DiskArgs, appends},
    places::{NodePlaces, PlaceArgs},
    printing::Printing,
    report::{FigureReport, OrderedRow, RowHead},
    values,
};

const HELP: &str = "\
Examples:
  squall-bench ordered --nodes 3 --size 100
  squall-bench ordered --nodes 2,3 --size 1,100,1024 --seconds 5 --json
  squall-bench ordered --nodes 3 --senders one --rate 1000
  squall-bench ordered --delivery durable --dir /mnt/disk
  squall-bench ordered --fabric tcp --tls
  squall-bench ordered --fabric verbs --device mlx5_0             over RDMA, if it was built with the feature `verbs`
  squall-bench ordered --fabric tcp --addresses host{host} --wrap 'ip netns exec host{host}'
                                                                  each node in a network namespace

Every node is a process of its own, with an ordinary thread that submits messages. The sender writes every byte of each
message, and every receiver reads its first and its last word.

What the figures mean:
  msgs/s    messages that the group delivered per second, each counted once however many nodes delivered it (at the
            median node; turns given up by nodes with nothing to say don't count)
  MB/s      msgs/s times the size: what reached each node
  p50 p99 p99.9
            latency: from submission until the sender itself has delivered the message, which is when all nodes have
            received it. As fast as possible, most of it is time spent waiting behind the window's other messages. With
            --rate the schedule does not wait for answers, and latency counts from the moment at which the message
            was to be sent, so that a stall is charged to all messages that it held up (no coordinated omission)
  late      with --rate: how late the sending thread itself was, because the host woke it late or the window was full;
            part of the latency
  cpu s     processor time of all nodes together, while wall s passed

The lines before the table say what the machine itself can do; hold the figures against them.

With --delivery durable a message is answered once all nodes have it on disk: so many of each sender are under way as
the window lets through, and the figures are those of `squall-bench log`, whose --help explains them.";

/// Measures atomic multicast: each message is delivered by every node, in one order, once all have received it.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct OrderedArgs {
    #[command(flatten)]
    places: PlaceArgs,
    /// The number of nodes; a list gives a row each
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "3")]
    #[arg(value_parser = value_parser!(u32).range(1..=64))]
    nodes: Vec<u32>,
    /// The nodes that send
    #[arg(long, value_enum, default_value = "all")]
    senders: Senders,
    /// A message's size; a list gives a row each
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = "100", value_parser = values::size)]
    size: Vec<usize>,
    /// The time to measure, after half a second of warm-up
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = values::span)]
    seconds: Duration,
    /// The condition on which a message is answered
    #[arg(long, value_enum, default_value = "ordered")]
    delivery: Delivery,
    #[command(flatten, next_help_heading = "With --delivery durable")]
    disk: DiskArgs,
    /// Messages per second of each sender [default: as many as the window lets through]
    #[arg(long, value_name = "R")]
    rate: Option<f64>,
    /// The most messages of one sender under way; it waits beyond [default: 1024, at most half of its ring or reserve]
    #[arg(long, value_name = "W")]
    window: Option<usize>,
    /// The waiting policy of a node with nothing to do
    #[arg(long, value_enum, default_value = "auto")]
    spin: Spinning,
    /// The size of each sender's ring, a power of two
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = values::ring(MIN_BYTES..=MAX_BYTES))]
    ring_bytes: usize,
    /// The size beyond which messages travel as bulk messages (at most a quarter of the ring) [default: 256KiB; 10KiB
    /// with --fabric verbs]
    #[arg(long, value_name = "SIZE", value_parser = values::reserve)]
    bulk_threshold: Option<usize>,
    /// The memory that each node reserves for each sender's bulk messages: the size of the largest message
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = values::reserve)]
    bulk_reserve: usize,
    #[command(flatten)]
    printing: Printing,
}

/// The condition on which a message is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Delivery {
    /// All nodes have received it
    Ordered,
    /// All nodes have it on disk
    Durable,
}

impl OrderedArgs {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        self.check().map_err(CommandError::Usage)?;
        if self.delivery == Delivery::Durable {
            return self.run_durable(&mut FigureReport::new(self.printing.json));
        }
        let mut report = self.printing.begin()?;
        for &nodes in &self.nodes {
            for &size in &self.size {
                let places = self.places.find(nodes)?;
                let jobs = self.jobs(nodes, size, &places);
                let outcomes = cluster::run(&jobs, &places, self.seconds)?;
                let row = row(&jobs[0], &outcomes);
                warn_of_overload(&row);
                report.ordered(&row)?;
            }
        }
        Ok(())
    }

    fn run_durable(&self, report: &mut FigureReport) -> Result<(), CommandError> {
        let rounds = self.disk.rounds(self.seconds)?;
        for &nodes in &self.nodes {
            for &size in &self.size {
                let jobs = |places: &NodePlaces| {
                    let mut jobs = self.jobs(nodes, size, places);
                    for job in &mut jobs {
                        job.calls = Some(appends(if job.sends() { job.window as u32 } else { 0 }));
                    }
                    jobs
                };
                report.log(&rounds.run("ordered", &self.places, nodes, jobs)?)?;
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        self.places.check(self.nodes.iter().copied().max().unwrap_or_default())?;
        let ring = self.ring_bytes;
        for &size in &self.size {
            if size > self.bulk_reserve && (size > ring / 4 || self.bulk_reserve > 0) {
                return Err(format!(
                    "--size {size} does not fit: give a larger --bulk-reserve than {}",
                    self.bulk_reserve
                ));
            }
        }
        if let Some(rate) = self.rate
            && !(rate > 0.0 && rate <= 1e8)
        {
            return Err(format!("--rate {rate} is not possible: give more than 0, at most 100000000 per second"));
        }
        if self.delivery == Delivery::Durable && self.rate.is_some() {
            return Err("--rate is for --delivery ordered: durable messages are sent as the window lets through".into());
        }
        match self.window {
            Some(0) => Err("--window 0 lets nothing through: give at least 1".into()),
            Some(window) if window > MAX_WINDOW => {
                Err(format!("--window {window} is too large: give at most {MAX_WINDOW}"))
            }
            _ => Ok(()),
        }
    }

    /// A job for each node.
    fn jobs(&self, nodes: u32, size: usize, places: &NodePlaces) -> Vec<Job> {
        let job = |worker| Job {
            worker,
            senders: self.senders,
            size_bytes: size,
            ring_bytes: self.ring_bytes,
            bulk_threshold: self.bulk_threshold(),
            bulk_reserve: self.bulk_reserve,
            window: self.window.unwrap_or_else(|| self.default_window(size)),
            rate: self.rate,
            spin: self.spin,
            calls: None,
            storage: None,
        };
        places.workers(nodes).map(job).collect()
    }

    fn bulk_threshold(&self) -> usize {
        self.bulk_threshold.unwrap_or(self.places.fabric.default_bulk_threshold())
    }

    /// The default window: at most half of what the ring or the reserve holds, so that the sender finds room when it is
    /// woken.
    fn default_window(&self, size: usize) -> usize {
        let most = if size > self.bulk_threshold() && self.bulk_reserve > 0 {
            self.bulk_reserve / 2 / size
        } else {
            self.ring_bytes / 2 / (size + 8).next_multiple_of(16)
        };
        DEFAULT_WINDOW.min(most).max(1)
    }
}

/// The bound of the memory that a worker takes for its window.
const MAX_WINDOW: usize = 1 << 20;

/// More messages under way than this bring little more throughput, and every one of them adds to the latency of all.
const DEFAULT_WINDOW: usize = 1024;

/// Combines what the nodes measured.
fn row(job: &Job, outcomes: &[WorkerMeasurements]) -> OrderedRow {
    let latencies = latency::merged(outcomes.iter().map(|outcome| &outcome.latencies));
    let lateness = latency::merged(outcomes.iter().map(|outcome| &outcome.lateness));
    let mut rates: Vec<f64> = outcomes.iter().map(|outcome| outcome.delivered as f64 / outcome.wall_seconds).collect();
    rates.sort_by(f64::total_cmp);
    let messages_per_second = rates[rates.len() / 2];
    OrderedRow {
        head: RowHead::of("ordered", job),
        senders: job.senders,
        size_bytes: job.size_bytes,
        ring_bytes: job.ring_bytes,
        window: job.window,
        rate: job.rate,
        spin: job.spin,
        messages_per_second,
        bytes_per_second: messages_per_second * job.size_bytes as f64,
        latency_p50_us: latency::micros(&latencies, 0.5),
        latency_p99_us: latency::micros(&latencies, 0.99),
        latency_p999_us: latency::micros(&latencies, 0.999),
        lateness_p50_us: latency::micros(&lateness, 0.5),
        lateness_p99_us: latency::micros(&lateness, 0.99),
        cpu_seconds: outcomes.iter().map(|outcome| outcome.cpu_seconds).sum(),
        wall_seconds: outcomes.iter().map(|outcome| outcome.wall_seconds).fold(0.0, f64::max),
    }
}

/// Warns of a schedule that the nodes can't keep. Latencies then only show how long its queue grew in the time.
fn warn_of_overload(row: &OrderedRow) {
    let senders = f64::from(row.senders.of(row.head.nodes));
    if let Some(asked) = row.rate.map(|rate| rate * senders)
        && row.messages_per_second < 0.9 * asked
    {
        tracing::warn!(
            "only {:.0} of {asked:.0} messages per second were delivered, so latencies grow all the time: lower --rate",
            row.messages_per_second
        );
    }
}
