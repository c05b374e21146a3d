//! `squall-bench onepipe`: scatterings in one total order between real processes, by 1Pipe and by its rivals.

mod rank;

use std::{thread, time::Duration};

use clap::{Args, value_parser};
use squall_command::CommandError;

pub(crate) use self::rank::scatter;
use super::{
    cluster,
    job::{OnePipeJob, Scattered, ScatteringOrder},
    latency,
    places::{NodePlaces, PlaceArgs},
    printing::Printing,
    report::{OnePipeRow, RowHead},
    values,
};

const HELP: &str = "\
Examples:
  squall-bench onepipe --mode be,sequencer
  squall-bench onepipe --mode be,r,sequencer,token,lamport --nodes 2,4,8 --json
  squall-bench onepipe --mode be,r --size 64,1024 --width 1,4
  squall-bench onepipe --fabric tcp --mode be

Every node is a process of its own, whose main thread sends and receives: it spins where there is a core for each node,
yields where there are fewer, and never sleeps. All modes send as many scatterings between two steps, if there is room,
over rings of one size. That is not as much buffer for all: 1Pipe, the token ring and Lamport's clocks have a ring from
each node to each other, the sequencer one of requests from each, and to each receiver one for the numbered messages of
all senders. Each scattering goes to as many nodes as it is wide, one after the other in turn; a node may be among its
own receivers. Every receiver checks that messages come in order.

What the figures mean:
  scatterings/s
            as fast as there is room, all nodes together: messages that were delivered per second, divided by the width
  p50 p99   latency at --rate, before that: from the moment at which a scattering was to be sent until one of its
            receivers has it, over all of them. The schedule does not wait, so that a stall is charged to all that it
            held up. Where little is sent, best effort's is that of its beacons, each 10 us; reliable barriers are told
            as soon as all is acknowledged
  cpu us    processor time of all nodes together for one scattering, as fast as there is room

The lines before the table say what the machine itself can do; hold the figures against them.";

/// Measures scatterings that all nodes deliver in one total order: 1Pipe, a sequencer, a token ring, Lamport's clocks.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct OnePipeArgs {
    #[command(flatten)]
    places: PlaceArgs,
    /// The protocol that orders them; a list gives a row each
    #[arg(long, value_enum, value_delimiter = ',', default_value = "be")]
    mode: Vec<ScatteringOrder>,
    /// The number of nodes; a list gives a row each
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "4")]
    #[arg(value_parser = value_parser!(u32).range(1..=MAX_NODES))]
    nodes: Vec<u32>,
    /// A message's size; a list gives a row each
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = "64")]
    #[arg(value_parser = squall_units::size_in(8..=1 << 20))]
    size: Vec<usize>,
    /// The number of nodes that each scattering goes to; a list gives a row each [default: 4, or all if there are
    /// fewer]
    #[arg(long, value_name = "W", value_delimiter = ',')]
    #[arg(value_parser = value_parser!(u32).range(1..=MAX_NODES))]
    width: Vec<u32>,
    /// Scatterings per second of each node while latency is measured
    #[arg(long, value_name = "R", default_value = "10000")]
    rate: f64,
    /// The time to measure latency, after half a second of warm-up, and then throughput, after a quarter
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = values::span)]
    seconds: Duration,
    /// The ring from each node to each other, a power of two (a group's default is 256 KiB)
    #[arg(long, value_name = "SIZE", default_value = "512KiB", value_parser = values::ring(1 << 10..=1 << 30))]
    ring_bytes: usize,
    #[command(flatten)]
    printing: Printing,
}

const MAX_NODES: i64 = 64;

/// The header of each record in a ring, in bytes.
const RECORD_HEADER: usize = 16;

/// The default of --width, where there are as many nodes.
const WIDTH: u32 = 4;

/// The case of one row.
#[derive(Clone, Copy, Debug)]
struct Case {
    order: ScatteringOrder,
    nodes: u32,
    size_bytes: usize,
    width: u32,
}

impl OnePipeArgs {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        self.check().map_err(CommandError::Usage)?;
        let mut report = self.printing.begin()?;
        for case in self.cases() {
            let places = self.places.find(case.nodes)?;
            let jobs = self.jobs(&places, case);
            let scattered = cluster::run_onepipe(&jobs, &places)?;
            let row = self.row(&jobs[0], &scattered);
            report.onepipe(&row)?;
            doubts(&row).iter().for_each(|doubt| eprintln!("squall: {doubt}"));
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        self.places.check(self.nodes.iter().copied().max().unwrap_or_default())?;
        if !(self.rate > 0.0 && self.rate <= 1e7) {
            return Err(format!("--rate {} is not possible: give more than 0, at most 10000000 per second", self.rate));
        }
        let least = self.nodes.iter().copied().min().unwrap_or_default();
        if let Some(width) = self.width.iter().find(|&&width| width > least) {
            return Err(format!("--width {width} is more than --nodes {least}: a node receives a scattering once"));
        }
        self.check_longest()
    }

    /// Checks that the longest record fits: a record may take a quarter of a ring.
    fn check_longest(&self) -> Result<(), String> {
        let most = |list: &[u32]| list.iter().copied().max().unwrap_or_default();
        let widest = if self.width.is_empty() { WIDTH.min(most(&self.nodes)) } else { most(&self.width) };
        let (size, width) = (self.size.iter().copied().max().unwrap_or_default(), widest as usize);
        let is_whole = self.mode.contains(&ScatteringOrder::Sequencer);
        let payload = if is_whole { 8 + width * (8 + size) } else { size };
        let needed = (4 * (payload + RECORD_HEADER)).next_power_of_two();
        if needed <= self.ring_bytes {
            return Ok(());
        }
        let what = if is_whole {
            format!("a sequencer gets a scattering of {width} messages of {size} bytes as a whole")
        } else {
            format!("a message of {size} bytes is one record")
        };
        Err(format!("{what}, and a record takes a quarter of a ring at most: give --ring-bytes {needed} or more"))
    }

    fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for &nodes in &self.nodes {
            let widths = if self.width.is_empty() { &[WIDTH.min(nodes)][..] } else { &self.width };
            for &size in &self.size {
                for &width in widths {
                    let case = |&order| Case { order, nodes, size_bytes: size, width };
                    cases.extend(self.mode.iter().map(case));
                }
            }
        }
        cases
    }

    /// A job for each node.
    fn jobs(&self, places: &NodePlaces, case: Case) -> Vec<OnePipeJob> {
        let job = |worker| OnePipeJob {
            worker,
            order: case.order,
            size_bytes: case.size_bytes,
            width: case.width as usize,
            ring_bytes: self.ring_bytes,
            rate: self.rate,
            phase_nanos: self.seconds.as_nanos() as u64,
        };
        places.workers(case.nodes).map(job).collect()
    }

    /// Combines what the nodes measured.
    fn row(&self, job: &OnePipeJob, scattered: &[Scattered]) -> OnePipeRow {
        let latencies = latency::merged(scattered.iter().map(|of_node| &of_node.latencies));
        let sum = |of: fn(&Scattered) -> f64| scattered.iter().map(of).sum::<f64>();
        let width = job.width as f64;
        let done = sum(|of_node| of_node.delivered as f64) / width;
        OnePipeRow {
            head: RowHead::of("onepipe", job),
            mode: job.order,
            size_bytes: job.size_bytes,
            width: job.width,
            ring_bytes: job.ring_bytes,
            rate: job.rate,
            scatterings_per_second: sum(|of_node| of_node.delivered as f64 / of_node.wall_seconds) / width,
            latency_p50_us: latency::micros(&latencies, 0.5),
            latency_p99_us: latency::micros(&latencies, 0.99),
            missed: scattered.iter().map(|of_node| of_node.missed).sum(),
            busy_cores: sum(|of_node| of_node.cpu_seconds / of_node.wall_seconds),
            cpu_microseconds: (done > 0.0).then(|| sum(|of_node| of_node.cpu_seconds) * 1e6 / done),
        }
    }
}

/// Reasons for which a row's figures may not be what they seem.
fn doubts(row: &OnePipeRow) -> Vec<String> {
    let mut doubts = Vec::new();
    let OnePipeRow { missed, rate, busy_cores, .. } = row;
    if *missed > 0 {
        doubts.push(format!(
            "{missed} scatterings were not sent in time, and latencies are not of them: --rate {rate} is more than this mode can do"
        ));
    }
    let cores = thread::available_parallelism().map_or(1, usize::from).min(row.head.nodes as usize) as f64;
    // Nodes never sleep.
    if *busy_cores < 0.9 * cores {
        doubts.push(format!(
            "the nodes had {busy_cores:.2} of {cores} cores while throughput was measured: something else used this machine"
        ));
    }
    doubts
}
