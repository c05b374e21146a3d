//! Figure 6: bandwidth by block size.

use squall::sim::bulk::BulkError;
use squall_command::plot::{Axis, Chart, Line, Unit};
use squall_rdmc::schedule::Algorithm;

use super::{
    ExperimentRun,
    machine::{FRACTUS, MB, gbit_per_s, group},
    outcome::{ExperimentOutcome, Finding, Value, columns},
};

const KB: usize = 1024;
const NODES: u32 = 4;

pub(super) fn run(run: ExperimentRun) -> Result<ExperimentOutcome, BulkError> {
    let messages = run.size(vec![16 * KB, 128 * KB, MB, 8 * MB, 32 * MB, 128 * MB], vec![16 * KB, 8 * MB, 32 * MB]);
    let (mut rows, mut lines) = (Vec::new(), Vec::new());
    for message in messages {
        let mut points = Vec::new();
        // A block larger than the message is the message.
        let sizes = (0..).map(|i| (16 * KB) << i).take_while(|&block| block <= message.min(16 * MB));
        for block in sizes {
            let group = group(NODES, Algorithm::BinomialPipeline, block, message);
            let latency = FRACTUS.multicast(group, message, run.seed)?.latency();
            let bandwidth = gbit_per_s(message as f64, latency);
            rows.push(vec![(message / KB).into(), (block / KB).into(), Value::Measured(bandwidth, 1)]);
            points.push((block as f64, bandwidth));
        }
        lines.push(Line::new(size(message), points));
    }
    let finding = finding(&lines);
    Ok(ExperimentOutcome {
        title: "bandwidth by block size on Fractus, groups of 4".to_owned(),
        assumed: vec!["The message size divided by the time to the last receiver, as in the paper.".to_owned()],
        columns: columns([("message KB", "message_kb"), ("block KB", "block_kb"), ("Gb/s", "gbit_per_s")]),
        rows,
        charts: vec![Chart {
            title: "binomial pipeline, by size of the message".to_owned(),
            x: Axis::logarithmic("block size", Unit::Bytes),
            y: Axis::linear("bandwidth, Gb/s"),
            lines,
        }],
        findings: vec![finding],
    })
}

fn size(bytes: usize) -> String {
    if bytes < MB { format!("{} KB", bytes / KB) } else { format!("{} MB", bytes / MB) }
}

/// Checks, for each message with at least five block sizes, that the best is an inner one, with a rise and a fall.
fn finding(lines: &[Line]) -> Finding {
    let mut peaks = Vec::new();
    let mut holds = true;
    for line in lines.iter().filter(|line| line.points.len() >= 5) {
        let rates: Vec<f64> = line.points.iter().map(|point| point.1).collect();
        let best = (0..rates.len()).max_by(|&a, &b| rates[a].total_cmp(&rates[b])).unwrap_or(0);
        let inner = best > 0 && best + 1 < rates.len();
        let rises = rates[..=best].is_sorted();
        let falls = rates[best..].is_sorted_by(|a, b| a >= b);
        holds &= inner && rises && falls;
        let block = size(line.points[best].0 as usize);
        peaks.push(format!("{} best in blocks of {block} ({:.1} Gb/s)", line.name, rates[best]));
    }
    Finding {
        claim: "larger blocks raise the bandwidth, to a peak, after which it falls (§5.2.1)".to_owned(),
        holds: holds && !peaks.is_empty(),
        figures: peaks.join(", "),
    }
}
