//! `squall-bench hostile`: what members bear of a hostile member, and of strangers.

mod member;
mod stranger;

use std::{
    thread,
    time::{Duration, Instant},
};

use clap::{Args, value_parser};
use squall_command::CommandError;
use squall_units::TimeUnit;

use super::{
    cluster::Workers,
    job::{Borne, Harm, HostileCommand, HostileJob, Role, WorkerJob, WorkerReport},
    latency::{merged, micros},
    places::{PlaceArgs, WorkerNode},
    report::{FigureReport, HostileRow, RowHead},
};

pub(crate) use member::run as run_process;

const HELP: &str = "\
Examples:
  squall-bench hostile --seconds 60
  squall-bench hostile --fabric tcp --tls --strangers 1 --harm lies --seconds 600
  squall-bench hostile --fabric tcp --tls --addresses 10.77.0.{host} --wrap \"tests/hosts/hosts run {host}\"

Every node is a process of its own, with one caller that submits a message of 100 bytes each millisecond. For the first
fifth of the time all keep the rules. Then the last node does harm, and comes back whenever it is dropped; strangers
connect to all nodes and send garbage, or nothing. Each stranger is a process with 16 threads.

What the figures mean, before and with the harm:
  p50, p99  latencies of the honest nodes' calls
  pause     the longest time for which a caller had no answer
  refused   calls that were refused, mostly since the node was dropped or is about to be
  starts    how often an honest node's part was over, and it was started again
  views     the number of views: each harmful act that costs a node its place brings some
  memory    the most that an honest process had in use

The command fails if an honest process ends.";

/// Measures what honest members and their callers bear of a hostile member and of strangers.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct HostileArgs {
    #[command(flatten)]
    places: PlaceArgs,
    /// The number of nodes, the hostile one included
    #[arg(long, value_name = "N", default_value = "4", value_parser = value_parser!(u32).range(4..=16))]
    nodes: u32,
    /// The number of strangers, with --fabric tcp
    #[arg(long, value_name = "N", default_value = "0", value_parser = value_parser!(u32).range(0..=16))]
    strangers: u32,
    /// The harm that the hostile node does
    #[arg(long, value_enum, default_value = "intrudes")]
    harm: Harm,
    /// The longest pause between two harmful acts
    #[arg(long, value_name = "TIME", default_value = "10s")]
    #[arg(value_parser = squall_units::whole_in(Duration::from_millis(1)..=Duration::from_secs(600), TimeUnit::Milliseconds))]
    pause_ms: u64,
    /// The length of the run, in seconds
    #[arg(long, value_name = "N", default_value = "30", value_parser = value_parser!(u32).range(5..=86_400))]
    seconds: u32,
    /// A member that is silent for so long is suspected; one whose process ends is noticed at once
    #[arg(long, value_name = "TIME", default_value = "1s")]
    #[arg(value_parser = squall_units::whole_in(Duration::from_millis(20)..=Duration::from_secs(60), TimeUnit::Milliseconds))]
    failure_timeout_ms: u64,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

/// The interval in which processes are asked, so that one that has ended is noticed.
const LOOK: Duration = Duration::from_secs(5);

impl HostileArgs {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        let processes = self.nodes + self.strangers;
        self.places.check(processes).map_err(CommandError::Usage)?;
        let places = self.places.find(processes)?;
        if self.strangers > 0 && places.place.is_none() {
            return Err(CommandError::Usage("strangers come over a network: give --fabric tcp too".into()));
        }
        let job = |(index, mut worker): (u32, WorkerNode)| {
            worker.nodes = self.nodes;
            worker.place = worker.place.map(|place| place.of_first(self.nodes));
            let role = match index {
                last if last + 1 == self.nodes => Role::Hostile,
                index if index >= self.nodes => Role::Stranger,
                _ => Role::Honest,
            };
            let (harm, pause_ms) = (self.harm, self.pause_ms);
            HostileJob { worker, role, harm, pause_ms, failure_timeout_ms: self.failure_timeout_ms }
        };
        let jobs: Vec<HostileJob> = (0..).zip(places.workers(processes)).map(job).collect();
        let mut workers = Workers::start(jobs.iter().cloned().map(WorkerJob::Hostile), &places)?;
        let patience = Duration::from_secs(60) + 10 * Duration::from_millis(self.failure_timeout_ms);
        workers.until_all(patience, |said| matches!(said, WorkerReport::Ready).then_some(()))?;
        let length = Duration::from_secs(self.seconds.into());
        let before = self.watch(&mut workers, length / 5, patience)?;
        workers.tell(&HostileCommand::Begin);
        let with = self.watch(&mut workers, length - length / 5, patience)?;
        let row = |phase, borne: &[Borne]| self.row(&jobs[0], phase, borne);
        let mut report = FigureReport::new(self.json);
        report.hostile(&row("before", &before))?;
        report.hostile(&row("with harm", &with))
    }

    /// Lets the honest members' callers call. Returns what they met with.
    fn watch(&self, workers: &mut Workers, length: Duration, patience: Duration) -> Result<Vec<Borne>, CommandError> {
        let until = Instant::now() + length;
        let mut borne: Vec<Borne> = Vec::new();
        workers.tell(&HostileCommand::Tell);
        workers.results::<Borne>(patience)?;
        while Instant::now() < until {
            thread::sleep(LOOK.min(until.saturating_duration_since(Instant::now())));
            workers.tell(&HostileCommand::Tell);
            let honest = self.nodes as usize - 1;
            borne.extend(workers.results::<Borne>(patience)?.into_iter().take(honest));
        }
        Ok(borne)
    }

    fn row(&self, job: &HostileJob, phase: &'static str, borne: &[Borne]) -> HostileRow {
        let first = borne.iter().map(|borne| borne.epoch).filter(|&epoch| epoch > 0).min().unwrap_or(0);
        let latencies = merged(borne.iter().map(|borne| &borne.latencies));
        HostileRow {
            head: RowHead::of("hostile", job),
            harm: self.harm,
            strangers: self.strangers,
            phase,
            latency_p50_us: micros(&latencies, 0.5),
            latency_p99_us: micros(&latencies, 0.99),
            pause_ms_max: borne.iter().map(|borne| borne.longest).max().unwrap_or(0) as f64 * 1e-6,
            answered: borne.iter().map(|borne| borne.answered).sum(),
            refused: borne.iter().map(|borne| borne.refused).sum(),
            starts: borne.iter().map(|borne| borne.starts).sum(),
            views: borne.iter().map(|borne| borne.epoch).max().unwrap_or(0) - first,
            resident_bytes_max: borne.iter().map(|borne| borne.resident_bytes).max().unwrap_or(0),
        }
    }
}
