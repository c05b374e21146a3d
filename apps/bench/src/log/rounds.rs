//! Rounds in which the nodes and then their disk are measured.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use squall_command::CommandError;

use super::{Scratch, plain};
use crate::{
    cluster,
    job::{Job, WorkerMeasurements, Written},
    latency,
    places::{NodePlaces, PlaceArgs},
    report::{LogRow, RowHead},
};

/// The number, place and length of the rounds.
#[derive(Debug)]
pub(crate) struct Rounds {
    pub(super) scratch: Scratch,
    /// Whether no more is wanted.
    pub(super) stop: Arc<AtomicBool>,
    pub(super) count: u32,
    /// The length of the nodes' measurement in a round, and of the disk's.
    pub(super) span: Duration,
}

/// The figures of one round.
struct LogRound {
    appends_per_second: f64,
    latency_us: [f64; 3],
    fsyncs_per_second: f64,
    batch_mean: f64,
    batch_bytes_mean: f64,
    log_bytes_per_second: f64,
    disk_bytes_per_second: f64,
    cpu_seconds: f64,
}

impl Rounds {
    /// Measures the groups that these jobs form, whose nodes call, beside their disk.
    pub(crate) fn run(
        &self,
        bench: &'static str,
        places: &PlaceArgs,
        nodes: u32,
        jobs: impl Fn(&NodePlaces) -> Vec<Job>,
    ) -> Result<LogRow, CommandError> {
        let (mut rounds, mut last) = (Vec::new(), None);
        for _ in 0..self.count {
            let places = places.find(nodes)?;
            let mut jobs = jobs(&places);
            for job in &mut jobs {
                job.storage = Some(self.scratch.join(&format!("node-{}", job.node)));
            }
            let outcomes = cluster::run_unless(&self.stop, &jobs, &places, self.span)?;
            self.settle();
            rounds.push(self.round(&outcomes)?);
            self.settle();
            last = Some(jobs);
        }
        let jobs = last.expect("there is at least one round");
        let job = jobs.first().expect("there is at least one node");
        let median = |of: &dyn Fn(&LogRound) -> f64| {
            let mut values: Vec<f64> = rounds.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let appends_per_second = median(&|round| round.appends_per_second);
        Ok(LogRow {
            head: RowHead::of(bench, job),
            writers: jobs.iter().filter_map(|job| job.calls).map(|calls| calls.callers * calls.in_flight).sum(),
            size_bytes: job.size_bytes,
            spin: job.spin,
            rounds: self.count,
            appends_per_second,
            bytes_per_second: appends_per_second * job.size_bytes as f64,
            latency_p50_us: median(&|round| round.latency_us[0]),
            latency_p99_us: median(&|round| round.latency_us[1]),
            latency_p999_us: median(&|round| round.latency_us[2]),
            fsyncs_per_second: median(&|round| round.fsyncs_per_second),
            batch_mean: median(&|round| round.batch_mean),
            batch_bytes_mean: median(&|round| round.batch_bytes_mean),
            log_bytes_per_second: median(&|round| round.log_bytes_per_second),
            disk_bytes_per_second: median(&|round| round.disk_bytes_per_second),
            share_of_disk: median(&|round| round.log_bytes_per_second / round.disk_bytes_per_second),
            cpu_seconds: median(&|round| round.cpu_seconds),
        })
    }

    /// Removes what was written, and syncs: the disk's work for it must not fall into the next measurement.
    fn settle(&self) {
        self.scratch.clear();
        rustix::fs::sync();
    }

    fn round(&self, outcomes: &[WorkerMeasurements]) -> Result<LogRound, CommandError> {
        let sum = |of: &dyn Fn(&WorkerMeasurements) -> f64| outcomes.iter().map(of).sum::<f64>();
        let per_second = |of: fn(&Written) -> u64| sum(&|outcome| of(&outcome.written) as f64 / outcome.wall_seconds);
        let total = |of: fn(&Written) -> u64| sum(&|outcome| of(&outcome.written) as f64);
        let (records, bytes, syncs) = (total(|log| log.records), total(|log| log.bytes), total(|log| log.syncs));
        let latencies = latency::merged(outcomes.iter().map(|outcome| &outcome.latencies));
        if syncs == 0.0 || latencies.is_empty() {
            let problem = format!("no append was answered within {:?}: give more --seconds", self.span);
            return Err(CommandError::Failed(problem));
        }
        let batch_bytes = bytes / syncs;
        let disk = plain::bytes_per_second(
            &self.scratch.join("plain"),
            outcomes.len() as u32,
            batch_bytes.round() as usize,
            self.span,
            &self.stop,
        );
        let failed = |error| CommandError::Failed(format!("the disk can't be measured: {error}; give another --dir"));
        Ok(LogRound {
            appends_per_second: sum(&|outcome| outcome.answered as f64 / outcome.wall_seconds),
            latency_us: [0.5, 0.99, 0.999].map(|quantile| latencies.value_at_quantile(quantile) as f64 / 1000.0),
            fsyncs_per_second: per_second(|log| log.syncs),
            batch_mean: records / syncs,
            batch_bytes_mean: batch_bytes,
            log_bytes_per_second: per_second(|log| log.bytes),
            disk_bytes_per_second: disk.map_err(failed)?,
            cpu_seconds: sum(&|outcome| outcome.cpu_seconds),
        })
    }
}
