//! Figure 8: 256 MB to large groups.

use squall::sim::bulk::BulkError;
use squall_command::plot::{Axis, Chart, Line, Unit};
use squall_rdmc::schedule::Algorithm;

use super::{
    ExperimentRun,
    machine::{MB, SIERRA, group, ms},
    outcome::{ExperimentOutcome, Finding, Value, columns},
};

const BLOCK: usize = MB;
const BYTES: usize = 256 * MB;

pub(super) fn run(run: ExperimentRun) -> Result<ExperimentOutcome, BulkError> {
    let groups: Vec<u32> = run.size((1..=9).map(|l| 1 << l).collect(), vec![2, 16, 128, 256, 512]);
    // The root's sends are linear in the group, so the quick run leaves sequential send to large groups out.
    let longest_sequential = run.size(512, 16);
    let (mut rows, mut pipeline, mut sequential) = (Vec::new(), Vec::new(), Vec::new());
    let mut skews = Vec::new();
    for nodes in groups {
        let time = |algorithm| SIERRA.multicast(group(nodes, algorithm, BLOCK, BYTES), BYTES, run.seed);
        let piped = time(Algorithm::BinomialPipeline)?;
        let mut row =
            vec![(nodes - 1).into(), Value::Measured(ms(piped.latency()), 1), Value::Measured(ms(piped.skew()), 2)];
        pipeline.push((f64::from(nodes), ms(piped.latency())));
        skews.push(piped.skew().as_secs_f64() / piped.latency().as_secs_f64());
        if nodes <= longest_sequential {
            let one_by_one = time(Algorithm::Sequential)?;
            sequential.push((f64::from(nodes), ms(one_by_one.latency())));
            row.push(Value::Measured(ms(one_by_one.latency()), 1));
        } else {
            row.push("-".into());
        }
        rows.push(row);
    }
    let findings = findings(&pipeline, &sequential, &skews);
    Ok(ExperimentOutcome {
        title: "256 MB to many nodes on Sierra (40 Gb/s)".to_owned(),
        assumed: vec!["Blocks of 1 MB; the fat tree blocks nowhere.".to_owned()],
        columns: columns([
            ("copies", "copies"),
            ("pipeline ms", "pipeline_ms"),
            ("skew ms", "pipeline_skew_ms"),
            ("sequential ms", "sequential_ms"),
        ]),
        rows,
        charts: vec![Chart {
            title: "time to the last receiver".to_owned(),
            x: Axis::logarithmic("group size", Unit::Number),
            y: Axis::logarithmic("ms", Unit::Number),
            lines: vec![Line::new("binomial pipeline", pipeline), Line::new("sequential send", sequential)],
        }],
        findings,
    })
}

fn findings(pipeline: &[(f64, f64)], sequential: &[(f64, f64)], skews: &[f64]) -> Vec<Finding> {
    let of = |points: &[(f64, f64)], nodes: f64| points.iter().find(|p| p.0 == nodes).map_or(f64::NAN, |p| p.1);
    let large = [128.0, 256.0, 512.0].map(|nodes| of(pipeline, nodes));
    let spread = large.iter().copied().fold(f64::MIN, f64::max) / large.iter().copied().fold(f64::MAX, f64::min);
    let last = sequential.last().copied().unwrap_or_default();
    let factor = last.1 / of(pipeline, last.0);
    let skew = skews.iter().copied().fold(0.0, f64::max);
    vec![
        Finding {
            claim: "127, 255 and 511 copies take almost the same time (§5.2.2; within 15 %)".to_owned(),
            holds: spread < 1.15,
            figures: format!(
                "{:.1}, {:.1} and {:.1} ms, {:.1} % apart",
                large[0],
                large[1],
                large[2],
                (spread - 1.0) * 100.0
            ),
        },
        Finding {
            claim: "sequential send is linear in the receivers, and so much slower (§5.2.2)".to_owned(),
            holds: factor > (last.0 - 1.0) * 0.8,
            figures: format!("{} copies take it {:.1} times as long as the pipeline", last.0 - 1.0, factor),
        },
        Finding {
            claim: "the receivers complete nearly simultaneously (§5.2.2; within 2 % of the time)".to_owned(),
            holds: skew < 0.02,
            figures: format!("the last is at most {:.2} % of the time after the first", skew * 100.0),
        },
    ]
}
