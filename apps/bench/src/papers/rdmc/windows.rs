//! The cost to a pipeline of members that may be ahead of the step that they are in.

use std::time::Duration;

use squall::{
    NodeId,
    sim::bulk::{BulkError, Windows},
};
use squall_command::plot::{Axis, Chart, Line, Unit};
use squall_rdmc::schedule::Algorithm;

use super::{
    ExperimentRun,
    machine::{FRACTUS, MB, blocks, group, log2_ceil},
    outcome::{ExperimentOutcome, Finding, Value, columns},
};

const BLOCK: usize = MB;
/// The engine's default, which is that of §4.2: a node is ready for the next block of its schedule only, and sends one
/// block at a time.
const IN_STEP: Windows = Windows { receives_ahead: 1, sends_in_flight: 1, steps_ahead: 1 };
/// Receives, sends and steps.
const OTHERS: [(usize, usize, u64); 5] = [(1, 2, 1), (1, 1, ANY), (2, 2, ANY), (8, 4, ANY), (16, 8, ANY)];
const ANY: u64 = u64::MAX;
/// The time of about one block on Fractus.
const DELAY: Duration = Duration::from_micros(100);

pub(super) fn run(run: ExperimentRun) -> Result<ExperimentOutcome, BulkError> {
    let bytes = run.size(256 * MB, 64 * MB);
    let (mut rows, mut lines) = (Vec::new(), Vec::new());
    let others = OTHERS.map(|(receives_ahead, sends_in_flight, steps_ahead)| Windows {
        receives_ahead,
        sends_in_flight,
        steps_ahead,
    });
    for windows in [IN_STEP].into_iter().chain(others) {
        let Windows { receives_ahead, sends_in_flight, steps_ahead } = windows;
        let steps = if steps_ahead == ANY { "any".to_owned() } else { steps_ahead.to_string() };
        let mut points = Vec::new();
        for nodes in run.size(vec![4, 8, 16, 32, 64, 128], vec![4, 16, 64]) {
            let theory = (log2_ceil(nodes) + blocks(bytes, BLOCK) - 1) as f64 * FRACTUS.time_of(BLOCK);
            let over = |time: Duration| (time.as_secs_f64() / theory - 1.0) * 100.0;
            let quiet = over(time(nodes, windows, bytes, None, run)?);
            let delayed = over(time(nodes, windows, bytes, Some(NodeId(nodes / 2)), run)?);
            rows.push(vec![
                receives_ahead.into(),
                sends_in_flight.into(),
                steps.clone().into(),
                nodes.into(),
                Value::Measured(quiet, 1),
                Value::Measured(delayed, 1),
            ]);
            points.push((f64::from(nodes), delayed));
        }
        let name = format!("receives {receives_ahead}, sends {sends_in_flight}, steps {steps}");
        lines.push(Line::new(name, points));
    }
    let last = |line: &Line| line.points.last().map_or(0.0, |point| point.1);
    let more = OTHERS.iter().zip(&lines[1..]).filter(|((receives, sends, _), _)| receives * sends > 1);
    let holds = more.into_iter().all(|(_, line)| last(line) > last(&lines[0]));
    let figures: Vec<String> = lines.iter().map(|line| format!("{:.0} % ({})", last(line), line.name)).collect();
    Ok(ExperimentOutcome {
        title: format!("how far members may be ahead: {} MB on nodes like those of Fractus", bytes / MB),
        assumed: vec![format!(
            "Blocks of 1 MB. A delay: one node stands still for {} us, a quarter of the way through.",
            DELAY.as_micros()
        )],
        columns: columns([
            ("receives", "receives_ahead"),
            ("sends", "sends_in_flight"),
            ("steps", "steps_ahead"),
            ("nodes", "nodes"),
            ("over theory %", "over_theory_percent"),
            ("with a delay %", "delayed_over_theory_percent"),
        ]),
        rows,
        charts: vec![Chart {
            title: "time beyond l + k - 1 block times, with one delay".to_owned(),
            x: Axis::logarithmic("group size", Unit::Number),
            y: Axis::linear("%"),
            lines,
        }],
        findings: vec![Finding {
            claim: "one receive and one send at a time keep a large pipeline in step; more do not".to_owned(),
            holds,
            figures: format!("with one delay, the largest group is beyond theory by {}", figures.join(", ")),
        }],
    })
}

fn time(
    nodes: u32,
    windows: Windows,
    bytes: usize,
    delayed: Option<NodeId>,
    run: ExperimentRun,
) -> Result<Duration, BulkError> {
    let mut cluster = FRACTUS.cluster(nodes, run.seed);
    let mut spec = group(nodes, Algorithm::BinomialPipeline, BLOCK, bytes);
    spec.windows = Some(windows);
    let group = cluster.create(spec)?;
    cluster.settle()?;
    cluster.send(group, bytes)?;
    if let Some(node) = delayed {
        cluster.run_until(cluster.now() + Duration::from_secs_f64(FRACTUS.time_of(bytes) / 4.0))?;
        cluster.stall(node, DELAY);
    }
    Ok(cluster.settle()?[0].latency())
}
