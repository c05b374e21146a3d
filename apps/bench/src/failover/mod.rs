//! `squall-bench failover`: the time for which callers wait when a member dies.

mod client;
mod rounds;

use std::time::Duration;

use clap::{Args, value_parser};
use squall_command::CommandError;
use squall_units::TimeUnit;

use self::rounds::FailoverRound;
use super::{
    job::{FailoverJob, Recovered, Victim},
    places::PlaceArgs,
    report::{FailoverRow, FigureReport, RowHead},
};

pub(crate) use client::{Witness, run as run_client};

const HELP: &str = "\
Examples:
  squall-bench failover --nodes 3 --victim leader
  squall-bench failover --fabric tcp --nodes 5 --victim follower --rounds 20 --json

Every node is a process of its own, with one caller that submits a message of 100 bytes, waits for the answer, and
submits the next. In each round one node is killed (SIGKILL), and comes back as a new process once the others go on; the
next round begins when it is a full member again.

What the figures mean, in milliseconds:
  pause    from the kill until a surviving node's caller has its first answer of the new view: one for each survivor and
           round
  detect   from the kill until the node suspects a member, or sees that another node does; it stops sending and
           receiving at once
  wedge    from there until it sees that all staying members have stopped, or hears the decision of a node that saw it
           sooner
  decide   from there until it hears that the next view is committed
  install  from there until that is in operation: the dropped node reads no more, what was decided is delivered, and all
           are connected anew
  answer   from there until the caller's first answer

Of each survivor and round the phases add up to its pause; the medians of phases need not add up to that of pauses.";

/// Measures how long callers wait when a member is killed.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct FailoverArgs {
    #[command(flatten)]
    places: PlaceArgs,
    /// The number of nodes
    #[arg(long, value_name = "N", default_value = "3", value_parser = value_parser!(u32).range(3..=16))]
    nodes: u32,
    /// The member to kill
    #[arg(long, value_enum, default_value = "follower")]
    victim: Victim,
    /// The number of kills
    #[arg(long, value_name = "N", default_value = "10", value_parser = value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// A member that is silent for so long is suspected; one whose process ends is noticed at once
    #[arg(long, value_name = "TIME", default_value = "1s")]
    #[arg(value_parser = squall_units::whole_in(Duration::from_millis(20)..=Duration::from_secs(60), TimeUnit::Milliseconds))]
    failure_timeout_ms: u64,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

impl FailoverArgs {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        self.places.check(self.nodes).map_err(CommandError::Usage)?;
        let places = self.places.find(self.nodes)?;
        let job = |worker| FailoverJob { worker, failure_timeout_ms: self.failure_timeout_ms };
        let jobs: Vec<_> = places.workers(self.nodes).map(job).collect();
        let patience = Duration::from_secs(30) + 10 * Duration::from_millis(self.failure_timeout_ms);
        let rounds = rounds::run(&jobs, &places, self.victim, self.rounds, patience)?;
        FigureReport::new(self.json).failover(&self.row(&jobs[0], &rounds))
    }

    fn row(&self, job: &FailoverJob, rounds: &[FailoverRound]) -> FailoverRow {
        let all = || rounds.iter().flat_map(|round| round.survivors.iter().map(|survivor| (round.killed, survivor)));
        let median = |of: fn(u64, &Recovered) -> (u64, u64)| {
            let mut all: Vec<f64> = all()
                .map(|(killed, survivor)| {
                    let (from, to) = of(killed, survivor);
                    to.saturating_sub(from) as f64 * 1e-6
                })
                .collect();
            all.sort_by(f64::total_cmp);
            (all[all.len() / 2], all[all.len() - 1])
        };
        let (pause_ms_p50, pause_ms_max) = median(|killed, s| (killed, s.answered));
        FailoverRow {
            head: RowHead::of("failover", job),
            victim: self.victim,
            rounds: self.rounds,
            failure_timeout_ms: self.failure_timeout_ms,
            pause_ms_p50,
            pause_ms_max,
            detect_ms_p50: median(|killed, s| (killed, s.suspected)).0,
            wedge_ms_p50: median(|_, s| (s.suspected, s.wedged)).0,
            decide_ms_p50: median(|_, s| (s.wedged, s.decided)).0,
            install_ms_p50: median(|_, s| (s.decided, s.installed)).0,
            answer_ms_p50: median(|_, s| (s.installed, s.answered)).0,
        }
    }
}
