//! Figures, as a table for people or as JSON objects for programs.

use std::{
    borrow::Cow,
    io::{self, Write},
};

use bytesize::ByteSize;
use serde::Serialize;
use squall_command::CommandError;

use super::{
    job::{BlockRoute, Harm, Of, ScatteringOrder, Senders, Spinning, StoreShape, Touch, Victim, spelt},
    places::{FabricKind, WorkerNode},
};

/// The fields with which the figures of a group begin.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RowHead {
    pub(crate) bench: &'static str,
    pub(crate) fabric: FabricKind,
    pub(crate) tls: bool,
    pub(crate) nodes: u32,
}

impl RowHead {
    pub(crate) fn of(bench: &'static str, worker: &WorkerNode) -> RowHead {
        RowHead { bench, fabric: worker.fabric(), tls: worker.is_protected(), nodes: worker.nodes }
    }
}

/// The figures of one run of `squall-bench ordered`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct OrderedRow {
    #[serde(flatten)]
    pub(crate) head: RowHead,
    pub(crate) senders: Senders,
    pub(crate) size_bytes: usize,
    pub(crate) ring_bytes: usize,
    pub(crate) window: usize,
    pub(crate) rate: Option<f64>,
    pub(crate) spin: Spinning,
    pub(crate) messages_per_second: f64,
    pub(crate) bytes_per_second: f64,
    /// Latencies are None if no message was timed.
    pub(crate) latency_p50_us: Option<f64>,
    pub(crate) latency_p99_us: Option<f64>,
    pub(crate) latency_p999_us: Option<f64>,
    pub(crate) lateness_p50_us: Option<f64>,
    pub(crate) lateness_p99_us: Option<f64>,
    pub(crate) cpu_seconds: f64,
    pub(crate) wall_seconds: f64,
}

/// The figures of one run of `squall-bench calls`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CallsRow {
    #[serde(flatten)]
    pub(crate) head: RowHead,
    pub(crate) callers: u32,
    pub(crate) in_flight: u32,
    pub(crate) reads_percent: u32,
    pub(crate) read_lease_ms: u64,
    pub(crate) size_bytes: usize,
    pub(crate) spin: Spinning,
    pub(crate) calls_per_second: f64,
    /// The median latency. None if nothing was answered, as the fields after it.
    pub(crate) latency_p50_us: Option<f64>,
    pub(crate) latency_p99_us: Option<f64>,
    pub(crate) switches_per_call: Option<f64>,
    pub(crate) cpu_us_per_call: Option<f64>,
}

/// The figures of one run of `squall-bench log`, or of `squall-bench ordered` with durable delivery: medians of its
/// rounds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LogRow {
    #[serde(flatten)]
    pub(crate) head: RowHead,
    /// Appends under way at a time, at all nodes together.
    pub(crate) writers: u32,
    pub(crate) size_bytes: usize,
    pub(crate) spin: Spinning,
    pub(crate) rounds: u32,
    pub(crate) appends_per_second: f64,
    pub(crate) bytes_per_second: f64,
    pub(crate) latency_p50_us: f64,
    pub(crate) latency_p99_us: f64,
    pub(crate) latency_p999_us: f64,
    /// The syncs of all nodes together.
    pub(crate) fsyncs_per_second: f64,
    /// Records for each sync.
    pub(crate) batch_mean: f64,
    /// Bytes for each sync.
    pub(crate) batch_bytes_mean: f64,
    /// The bytes that all nodes together wrote to their logs.
    pub(crate) log_bytes_per_second: f64,
    /// The bytes that as many plain writers as there are nodes wrote, in batches of that size.
    pub(crate) disk_bytes_per_second: f64,
    pub(crate) share_of_disk: f64,
    /// Processor time of all nodes together, in each round.
    pub(crate) cpu_seconds: f64,
}

/// The figures of one run of `squall-bench bulk`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct BulkRow {
    #[serde(flatten)]
    pub(crate) head: RowHead,
    /// Whether receivers took the pages of one copy; there was no algorithm then, and there were no blocks.
    pub(crate) shared: bool,
    pub(crate) algorithm: Option<BlockRoute>,
    pub(crate) groups: u32,
    pub(crate) senders: Senders,
    pub(crate) size_bytes: usize,
    pub(crate) block_bytes: Option<usize>,
    pub(crate) spin: Spinning,
    pub(crate) iterations: u32,
    pub(crate) seconds_median: f64,
    pub(crate) seconds_least: f64,
    pub(crate) seconds_most: f64,
    /// The time since the message was sealed, if it was.
    pub(crate) after_seal_seconds_median: Option<f64>,
    pub(crate) bytes_per_second: f64,
    pub(crate) skew_ms: f64,
    pub(crate) cpu_seconds: f64,
    /// The least share of a group; None for one group.
    pub(crate) share_least: Option<f64>,
    pub(crate) share_most: Option<f64>,
    pub(crate) touch: Touch,
    /// The time that the use of a message takes; None if receivers did not use them.
    pub(crate) touch_seconds_median: Option<f64>,
    pub(crate) page_faults: Option<f64>,
}

/// The figures of one run of `squall-bench collectives`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CollectivesRow {
    #[serde(flatten)]
    pub(crate) head: RowHead,
    pub(crate) operation: Of,
    pub(crate) size_bytes: usize,
    pub(crate) algorithm: String,
    pub(crate) reproducible: bool,
    pub(crate) spin: Spinning,
    pub(crate) samples: u32,
    /// Operations in each sample.
    pub(crate) batch: u32,
    /// The time of one operation, at the node that took longest.
    pub(crate) microseconds_median: f64,
    pub(crate) microseconds_p99: f64,
    /// Processor time of all nodes together, for one operation.
    pub(crate) cpu_microseconds: f64,
}

/// The figures of one run of `squall-bench onepipe`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct OnePipeRow {
    #[serde(flatten)]
    pub(crate) head: RowHead,
    pub(crate) mode: ScatteringOrder,
    /// The size of each message.
    pub(crate) size_bytes: usize,
    pub(crate) width: usize,
    pub(crate) ring_bytes: usize,
    /// Scatterings per second of each node while latency was measured.
    pub(crate) rate: f64,
    /// The scatterings of all nodes, as fast as there was room.
    pub(crate) scatterings_per_second: f64,
    /// The median latency. None if nothing was delivered, as the next field and `cpu_microseconds`.
    pub(crate) latency_p50_us: Option<f64>,
    pub(crate) latency_p99_us: Option<f64>,
    /// Scatterings that were never sent at that rate, so that latencies do not include them.
    pub(crate) missed: u64,
    /// Processor time of all nodes together, for one scattering.
    pub(crate) cpu_microseconds: Option<f64>,
    /// The number of cores that all nodes together used, as fast as there was room.
    pub(crate) busy_cores: f64,
}

/// The figures of one run of `squall-bench transactions`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct TransactionsRow {
    pub(crate) bench: &'static str,
    #[serde(flatten)]
    pub(crate) shape: StoreShape,
    pub(crate) transactions_per_second: f64,
    /// The median latency. None if nothing was over within the time, as the next field.
    pub(crate) latency_p50_us: Option<f64>,
    pub(crate) latency_p99_us: Option<f64>,
}

/// The figures of one run of `squall-bench failover`. Times are medians over survivors and rounds, in milliseconds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FailoverRow {
    #[serde(flatten)]
    pub(crate) head: RowHead,
    pub(crate) victim: Victim,
    pub(crate) rounds: u32,
    pub(crate) failure_timeout_ms: u64,
    pub(crate) pause_ms_p50: f64,
    pub(crate) pause_ms_max: f64,
    pub(crate) detect_ms_p50: f64,
    pub(crate) wedge_ms_p50: f64,
    pub(crate) decide_ms_p50: f64,
    pub(crate) install_ms_p50: f64,
    pub(crate) answer_ms_p50: f64,
}

/// The figures of one part of a run of `squall-bench hostile`, of the honest members and their callers.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct HostileRow {
    #[serde(flatten)]
    pub(crate) head: RowHead,
    pub(crate) harm: Harm,
    pub(crate) strangers: u32,
    /// Whether it is before the harm or with it.
    pub(crate) phase: &'static str,
    pub(crate) latency_p50_us: Option<f64>,
    pub(crate) latency_p99_us: Option<f64>,
    pub(crate) pause_ms_max: f64,
    pub(crate) answered: u64,
    pub(crate) refused: u64,
    pub(crate) starts: u64,
    pub(crate) views: u64,
    pub(crate) resident_bytes_max: u64,
}

/// One figure of the machine.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Yardstick {
    bench: &'static str,
    pub(crate) name: &'static str,
    /// The figure; None if this machine can't show it, and the note says why.
    pub(crate) value: Option<f64>,
    pub(crate) unit: &'static str,
    pub(crate) note: Cow<'static, str>,
}

impl Yardstick {
    pub(crate) fn new(
        name: &'static str,
        value: Option<f64>,
        unit: &'static str,
        note: impl Into<Cow<'static, str>>,
    ) -> Yardstick {
        Yardstick { bench: "yardstick", name, value, unit, note: note.into() }
    }
}

/// The output of figures: each is printed as soon as it is known.
#[derive(Debug)]
pub(crate) struct FigureReport {
    json: bool,
    /// Whether the table's head is printed already.
    headed: bool,
}

impl FigureReport {
    pub(crate) fn new(json: bool) -> FigureReport {
        FigureReport { json, headed: false }
    }

    pub(crate) fn yardstick(&mut self, yardstick: &Yardstick) -> Result<(), CommandError> {
        if self.json {
            return print_json(yardstick);
        }
        let Yardstick { name, value, unit, note, .. } = yardstick;
        print(&format!("{name:<28} {:>8} {unit:<5} {note}", figure(*value)))
    }

    pub(crate) fn failover(&mut self, row: &FailoverRow) -> Result<(), CommandError> {
        if self.json {
            return print_json(row);
        }
        let FailoverRow { head, rounds, pause_ms_p50, pause_ms_max, .. } = row;
        let victim = if row.victim == Victim::Leader { "the leader" } else { "a follower" };
        print(&format!("{} nodes, {rounds} rounds: {victim} is killed", head.nodes))?;
        print(&format!("pause     {pause_ms_p50:>8.1} ms median, {pause_ms_max:.1} ms at most"))?;
        let phases = [
            ("detect", row.detect_ms_p50),
            ("wedge", row.wedge_ms_p50),
            ("decide", row.decide_ms_p50),
            ("install", row.install_ms_p50),
            ("answer", row.answer_ms_p50),
        ];
        phases.iter().try_for_each(|(name, ms)| print(&format!("  {name:<8}{ms:>8.1} ms")))
    }

    pub(crate) fn hostile(&mut self, row: &HostileRow) -> Result<(), CommandError> {
        let head = "phase        p50 us   p99 us  pause ms  answered  refused   starts    views  memory";
        let line = format!(
            "{:<10} {:>8} {:>8} {:>9.1} {:>9} {:>8} {:>8} {:>8}  {}",
            row.phase,
            figure(row.latency_p50_us),
            figure(row.latency_p99_us),
            row.pause_ms_max,
            row.answered,
            row.refused,
            row.starts,
            row.views,
            ByteSize(row.resident_bytes_max),
        );
        self.row(row, head, &line)
    }

    /// Prints a row as an object, or as a line of a table that has this head.
    pub(crate) fn row(&mut self, row: &impl Serialize, head: &str, line: &str) -> Result<(), CommandError> {
        if self.json {
            return print_json(row);
        }
        if !std::mem::replace(&mut self.headed, true) {
            print(head)?;
        }
        print(line)
    }

    pub(crate) fn ordered(&mut self, row: &OrderedRow) -> Result<(), CommandError> {
        let head =
            "\nnodes  senders  size B  window   msgs/s     MB/s   p50 us   p99 us p99.9 us  late p50  cpu s  wall s";
        let senders = row.senders.of(row.head.nodes);
        let line = format!(
            "{:>5} {senders:>8} {:>7} {:>7} {:>8.0} {:>8.1} {:>8} {:>8} {:>8} {:>9} {:>6.2} {:>7.2}",
            row.head.nodes,
            row.size_bytes,
            row.window,
            row.messages_per_second,
            row.bytes_per_second / 1e6,
            figure(row.latency_p50_us),
            figure(row.latency_p99_us),
            figure(row.latency_p999_us),
            figure(row.lateness_p50_us),
            row.cpu_seconds,
            row.wall_seconds,
        );
        self.row(row, head, &line)
    }

    pub(crate) fn log(&mut self, row: &LogRow) -> Result<(), CommandError> {
        let head = "nodes  writers  size B  appends/s     MB/s   p50 us   p99 us p99.9 us  fsyncs/s  batch        KiB  log MB/s  \
                    disk MB/s  share";
        let line = format!(
            "{:>5} {:>8} {:>7} {:>10.0} {:>8.1} {:>8.0} {:>8.0} {:>8.0} {:>9.0} {:>6.1} {:>10.1} {:>9.1} {:>10.1} {:>6.2}",
            row.head.nodes,
            row.writers,
            row.size_bytes,
            row.appends_per_second,
            row.bytes_per_second / 1e6,
            row.latency_p50_us,
            row.latency_p99_us,
            row.latency_p999_us,
            row.fsyncs_per_second,
            row.batch_mean,
            row.batch_bytes_mean / 1024.0,
            row.log_bytes_per_second / 1e6,
            row.disk_bytes_per_second / 1e6,
            row.share_of_disk,
        );
        self.row(row, head, &line)
    }

    pub(crate) fn bulk(&mut self, row: &BulkRow) -> Result<(), CommandError> {
        // All rows of a run agree in this.
        let is_used = row.shared || row.touch != Touch::None;
        let uses = if is_used { " after seal  touch ms   faults" } else { "" };
        let head = format!(
            "\nnodes  groups  algorithm           size       block        ms    least     most    MB/s  skew ms  cpu ms       share{uses}"
        );
        let millis = |seconds: f64| format!("{:.3}", seconds * 1e3);
        let share = match (row.share_least, row.share_most) {
            (Some(least), Some(most)) => format!("{least:.2} {most:.2}"),
            _ => "-".into(),
        };
        let uses = format!(
            " {:>10} {:>9} {:>8}",
            row.after_seal_seconds_median.map_or("-".into(), millis),
            row.touch_seconds_median.map_or("-".into(), millis),
            row.page_faults.map_or("-".into(), |faults| format!("{faults:.0}")),
        );
        let uses = if is_used { &*uses } else { "" };
        let line = format!(
            "{:>5} {:>7}  {:<11} {:>12} {:>11} {:>9} {:>8} {:>8} {:>7.0} {:>8.3} {:>7.1} {share:>11}{uses}",
            row.head.nodes,
            row.groups,
            row.algorithm.map_or("shared".into(), |route| spelt(&route)),
            binary(row.size_bytes),
            row.block_bytes.map_or("-".into(), binary),
            millis(row.seconds_median),
            millis(row.seconds_least),
            millis(row.seconds_most),
            row.bytes_per_second / 1e6,
            row.skew_ms,
            row.cpu_seconds * 1e3,
        );
        self.row(row, &head, &line)
    }

    pub(crate) fn collectives(&mut self, row: &CollectivesRow) -> Result<(), CommandError> {
        let head = "\nnodes  operation              size  algorithm      us median     us p99    batch     cpu us";
        let line = format!(
            "{:>5}  {:<14} {:>12}  {:<13} {:>10.3} {:>10.3} {:>8} {:>10.3}",
            row.head.nodes,
            spelt(&row.operation),
            binary(row.size_bytes),
            row.algorithm,
            row.microseconds_median,
            row.microseconds_p99,
            row.batch,
            row.cpu_microseconds,
        );
        self.row(row, head, &line)
    }

    pub(crate) fn onepipe(&mut self, row: &OnePipeRow) -> Result<(), CommandError> {
        let head = "\nmode       nodes    size  width  scatterings/s     p50 us     p99 us     cpu us";
        let line = format!(
            "{:<9} {:>6} {:>7} {:>6} {:>14.0} {:>10} {:>10} {:>10}",
            spelt(&row.mode),
            row.head.nodes,
            row.size_bytes,
            row.width,
            row.scatterings_per_second,
            figure(row.latency_p50_us),
            figure(row.latency_p99_us),
            row.cpu_microseconds.map_or("-".into(), |micros| format!("{micros:.3}")),
        );
        self.row(row, head, &line)
    }

    pub(crate) fn transactions(&mut self, row: &TransactionsRow) -> Result<(), CommandError> {
        let shape = &row.shape;
        let head = "nodes  shards  replicas  accounts  window  transactions/s   p50 us   p99 us";
        let line = format!(
            "{:>5} {:>7} {:>9} {:>9} {:>7} {:>15.0} {:>8} {:>8}",
            shape.nodes,
            shape.shards(),
            shape.replicas,
            shape.accounts,
            shape.window,
            row.transactions_per_second,
            figure(row.latency_p50_us),
            figure(row.latency_p99_us),
        );
        self.row(row, head, &line)
    }

    pub(crate) fn calls(&mut self, row: &CallsRow) -> Result<(), CommandError> {
        let head = "\nnodes  callers  in flight  reads %  lease ms   calls/s   p50 us   p99 us  switches  cpu us";
        let small = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
        let line = format!(
            "{:>5} {:>8} {:>10} {:>8} {:>9} {:>9.0} {:>8} {:>8} {:>9} {:>7}",
            row.head.nodes,
            row.callers,
            row.in_flight,
            row.reads_percent,
            row.read_lease_ms,
            row.calls_per_second,
            figure(row.latency_p50_us),
            figure(row.latency_p99_us),
            small(row.switches_per_call),
            small(row.cpu_us_per_call),
        );
        self.row(row, head, &line)
    }
}

fn binary(bytes: usize) -> String {
    ByteSize(bytes as u64).display().iec().to_string()
}

pub(crate) fn figure(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.1}"))
}

fn print_json(object: &impl Serialize) -> Result<(), CommandError> {
    print(&serde_json::to_string(object).expect("figures are plain data"))
}

fn print(line: &str) -> Result<(), CommandError> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(|error| CommandError::Failed(format!("the figures can't be printed: {error}")))
}
