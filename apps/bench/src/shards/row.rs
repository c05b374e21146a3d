//! The figures of a run.

use serde::Serialize;
use squall_command::CommandError;

use crate::report::{FigureReport, RowHead, figure};

/// The figures of one number of shards in `squall-bench shards`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ShardsRow {
    #[serde(flatten)]
    pub(super) head: RowHead,
    pub(super) shards: u32,
    pub(super) replicas: u32,
    pub(super) clients: u32,
    pub(super) in_flight: u32,
    pub(super) calls_per_second: f64,
    pub(super) latency_p50_us: Option<f64>,
    pub(super) latency_p99_us: Option<f64>,
    /// Medians of single callers: at a member of the shard, at another node, and outside.
    pub(super) member_p50_us: Option<f64>,
    pub(super) elsewhere_p50_us: Option<f64>,
    pub(super) client_p50_us: Option<f64>,
    pub(super) failures: u32,
    pub(super) answered: u64,
    pub(super) pause_ms_max: Option<f64>,
}

impl ShardsRow {
    pub(super) fn print(&self, report: &mut FigureReport) -> Result<(), CommandError> {
        let head =
            "shards  clients   calls/s   p50 us   p99 us   member elsewhere   client  failures  pause ms  answered";
        let line = format!(
            "{:>6} {:>8} {:>9.0} {:>8} {:>8} {:>8} {:>9} {:>8} {:>9} {:>9} {:>9}",
            self.shards,
            self.clients,
            self.calls_per_second,
            figure(self.latency_p50_us),
            figure(self.latency_p99_us),
            figure(self.member_p50_us),
            figure(self.elsewhere_p50_us),
            figure(self.client_p50_us),
            self.failures,
            figure(self.pause_ms_max),
            self.answered,
        );
        report.row(self, head, &line)
    }
}
