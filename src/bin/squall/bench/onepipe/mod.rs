//! `squall bench onepipe`: scatterings in one total order between real processes, by 1Pipe and by its rivals.

mod job;
mod rank;

use std::time::Duration;

use clap::{Args, value_parser};
use hdrhistogram::Histogram;

pub(crate) use self::{
    job::{OnePipeJob, Order, Scattered},
    rank::{PAUSE_NANOS, scatter},
};
use super::{
    cluster, latency,
    places::{PlaceArgs, Places, fresh_cluster},
    report::{OnePipeRow, Report},
    yardsticks,
};
use crate::CommandError;

const HELP: &str = "\
Examples:
  squall bench onepipe --mode be,sequencer
  squall bench onepipe --mode be,r,sequencer,token,lamport --nodes 2,4,8 --json
  squall bench onepipe --mode be,r --size 64,1024 --width 1,4
  squall bench onepipe --fabric tcp --mode be

Every node is a process of its own, whose main thread sends and receives: it spins where there is a core for each node, yields
where there are fewer, and never sleeps. All modes send as many scatterings between two steps, if there is room, over rings of
one size. Each scattering goes to as many nodes as it is wide, one after the other in turn; a node may be among its own
receivers. Every receiver checks that messages come in order.

What the figures mean:
  scatterings/s
            as fast as there is room, all nodes together: messages that were delivered per second, divided by the width
  p50 p99   latency at --rate, before that: from the moment at which a scattering was to be sent until one of its receivers has
            it, over all of them. The schedule does not wait, so that a stall is charged to all that it held up
  cpu us    processor time of all nodes together for one scattering, as fast as there is room

The lines before the table say what the machine itself can do; hold the figures against them.";

/// Measures scatterings that all nodes deliver in one total order: 1Pipe, a sequencer, a token ring, Lamport's clocks.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct OnePipeArgs {
    #[command(flatten)]
    places: PlaceArgs,
    /// What orders them; a list gives a row each
    #[arg(long, value_enum, value_delimiter = ',', default_value = "be")]
    mode: Vec<Order>,
    /// How many nodes; a list gives a row each
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "4")]
    #[arg(value_parser = value_parser!(u32).range(1..=MAX_NODES))]
    nodes: Vec<u32>,
    /// A message's size in bytes; a list gives a row each
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_value = "64")]
    #[arg(value_parser = value_parser!(u32).range(8..=1_048_576))]
    size: Vec<u32>,
    /// How many nodes each scattering goes to; a list gives a row each [default: 4, or all if there are fewer]
    #[arg(long, value_name = "W", value_delimiter = ',')]
    #[arg(value_parser = value_parser!(u32).range(1..=MAX_NODES))]
    width: Vec<u32>,
    /// Scatterings per second of each node while latency is measured
    #[arg(long, value_name = "R", default_value = "10000")]
    rate: f64,
    /// How long each of both is measured, after half a second of warm-up
    #[arg(long, value_name = "S", default_value = "2")]
    seconds: f64,
    /// The ring from each node to each other, in bytes, a power of two
    #[arg(long, value_name = "BYTES", default_value = "262144")]
    ring_bytes: usize,
    /// Leave out what the machine itself can do, for many short runs
    #[arg(long)]
    bare: bool,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

/// The most nodes.
const MAX_NODES: i64 = 64;

/// Where nothing is said.
const WIDTH: u32 = 4;

/// One row.
#[derive(Clone, Copy, Debug)]
struct Case {
    order: Order,
    nodes: u32,
    size_bytes: usize,
    width: u32,
}

impl OnePipeArgs {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        self.check().map_err(CommandError::Usage)?;
        let mut report = Report::new(self.json);
        if !self.bare {
            yardsticks::run(&mut report)?;
        }
        for case in self.cases() {
            let cluster = fresh_cluster();
            let places = self.places.find(&cluster, case.nodes).map_err(CommandError::Failed)?;
            let jobs = self.jobs(&cluster, &places, case);
            let scattered =
                cluster::run_onepipe(&jobs, &places).map_err(|error| CommandError::Failed(error.to_string()))?;
            report.onepipe(&self.row(&jobs[0], &scattered))?;
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        self.places.check(self.nodes.iter().copied().max().unwrap_or_default())?;
        if !(self.seconds > 0.0 && self.seconds <= 3600.0) {
            return Err(format!("--seconds {} is not possible: give more than 0, at most 3600", self.seconds));
        }
        if !(self.rate > 0.0 && self.rate <= 1e7) {
            return Err(format!("--rate {} is not possible: give more than 0, at most 10000000 per second", self.rate));
        }
        let least = self.nodes.iter().copied().min().unwrap_or_default();
        if let Some(width) = self.width.iter().find(|&&width| width > least) {
            return Err(format!("--width {width} is more than --nodes {least}: a node receives a scattering once"));
        }
        if !self.ring_bytes.is_power_of_two() || !(1 << 10..=1 << 30).contains(&self.ring_bytes) {
            let ring = self.ring_bytes;
            return Err(format!("--ring-bytes {ring} is not possible: give a power of two from 1024 to 1073741824"));
        }
        // A sequencer gets a scattering as a whole.
        let (size, width) = (self.size.iter().copied().max(), self.width.iter().copied().max());
        let most = (size.unwrap_or_default() as usize + 16) * width.unwrap_or(WIDTH) as usize + 32;
        if most > self.ring_bytes / 4 {
            let ring = self.ring_bytes;
            return Err(format!("a scattering of {most} bytes is too long for --ring-bytes {ring}: give larger rings"));
        }
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for &nodes in &self.nodes {
            let widths = if self.width.is_empty() { &[WIDTH.min(nodes)][..] } else { &self.width };
            for &size in &self.size {
                for &width in widths {
                    let case = |&order| Case { order, nodes, size_bytes: size as usize, width };
                    cases.extend(self.mode.iter().map(case));
                }
            }
        }
        cases
    }

    /// A job for each node.
    fn jobs(&self, cluster: &str, places: &Places, case: Case) -> Vec<OnePipeJob> {
        let job = |node| OnePipeJob {
            cluster: cluster.to_owned(),
            node,
            nodes: case.nodes,
            order: case.order,
            size_bytes: case.size_bytes,
            width: case.width as usize,
            ring_bytes: self.ring_bytes,
            rate: self.rate,
            phase_nanos: Duration::from_secs_f64(self.seconds).as_nanos() as u64,
            place: places.place.clone(),
        };
        (0..case.nodes).map(job).collect()
    }

    /// Puts together what the nodes measured.
    fn row(&self, job: &OnePipeJob, scattered: &[Scattered]) -> OnePipeRow {
        let latencies = latency::merged(scattered.iter().map(|of_node| &of_node.latencies));
        let sum = |of: fn(&Scattered) -> f64| scattered.iter().map(of).sum::<f64>();
        let width = job.width as f64;
        let done = sum(|of_node| of_node.delivered as f64) / width;
        let micros = |quantile| {
            (!latencies.is_empty()).then(|| Histogram::value_at_quantile(&latencies, quantile) as f64 / 1000.0)
        };
        OnePipeRow {
            bench: "onepipe",
            mode: job.order,
            fabric: self.places.fabric,
            tls: self.places.tls,
            nodes: job.nodes,
            size_bytes: job.size_bytes,
            width: job.width,
            ring_bytes: job.ring_bytes,
            rate: job.rate,
            scatterings_per_second: sum(|of_node| of_node.delivered as f64 / of_node.wall_seconds) / width,
            latency_p50_us: micros(0.5),
            latency_p99_us: micros(0.99),
            cpu_microseconds: (done > 0.0).then(|| sum(|of_node| of_node.cpu_seconds) * 1e6 / done),
        }
    }
}
