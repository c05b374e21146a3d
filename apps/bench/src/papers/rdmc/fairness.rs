//! The share of the network that overlapping groups get.
//!
//! §3: "RDMC extends this property, offering fairness for overlapping groups".

use fastrand::Rng;
use squall::{NodeId, sim::bulk::BulkError};
use squall_command::plot::{Axis, Chart, Line};
use squall_rdmc::schedule::Algorithm;

use super::{
    ExperimentRun,
    machine::{FRACTUS, MB, among, gbit_per_s},
    outcome::{ExperimentOutcome, Finding, Value, columns},
};

const BLOCK: usize = MB;
const NODES: u32 = 16;

pub(super) fn run(run: ExperimentRun) -> Result<ExperimentOutcome, BulkError> {
    let bytes = run.size(128 * MB, 48 * MB);
    let groups = run.size(100, 40);
    let mut shares = shares(run, groups, bytes)?;
    let mean = shares.iter().sum::<f64>() / shares.len() as f64;
    shares.sort_by(f64::total_cmp);
    let off = shares.iter().map(|share| (share / mean - 1.0).abs()).fold(0.0, f64::max);
    let at = |part: f64| shares[(part * (shares.len() - 1) as f64) as usize];
    let rows = [("least", 0.0), ("p10", 0.1), ("median", 0.5), ("p90", 0.9), ("most", 1.0)];
    Ok(ExperimentOutcome {
        title: format!("{groups} overlapping groups on Fractus"),
        assumed: vec![format!(
            "Each has all {NODES} nodes in an order of its own, drawn at random, and all send a message of {} MB at once. What \
             every receiver of a group has when the first group is done is that group's share.",
            bytes / MB
        )],
        columns: columns([("group", "group"), ("Gb/s", "gbit_per_s"), ("of the mean %", "of_mean_percent")]),
        rows: rows
            .into_iter()
            .map(|(name, part)| {
                vec![name.into(), Value::Measured(at(part), 3), Value::Measured(at(part) / mean * 100.0, 1)]
            })
            .collect(),
        charts: vec![Chart {
            title: "bandwidth of each group, sorted".to_owned(),
            x: Axis::linear("groups"),
            y: Axis::linear("Gb/s"),
            lines: vec![Line::new(
                "binomial pipeline",
                shares.iter().zip(1..).map(|(share, i)| (f64::from(i), *share)),
            )],
        }],
        findings: vec![Finding {
            claim: "overlapping groups share the bandwidth fairly (§3; within 10 % of equal)".to_owned(),
            holds: off < 0.1,
            figures: format!(
                "{:.3} to {:.3} Gb/s each, at most {:.1} % off the mean; {:.1} Gb/s together",
                shares[0],
                shares[shares.len() - 1],
                off * 100.0,
                mean * f64::from(groups)
            ),
        }],
    })
}

/// The bandwidth of each group until the first is done: from then on fewer groups share.
fn shares(run: ExperimentRun, groups: u32, bytes: usize) -> Result<Vec<f64>, BulkError> {
    let mut rng = Rng::with_seed(run.seed);
    let mut cluster = FRACTUS.cluster(NODES, run.seed);
    for _ in 0..groups {
        let mut members: Vec<NodeId> = (0..NODES).map(NodeId).collect();
        rng.shuffle(&mut members);
        cluster.create(among(members, Algorithm::BinomialPipeline, BLOCK, bytes))?;
    }
    cluster.settle()?;
    let began = cluster.now();
    for group in 0..groups {
        cluster.send(group, bytes)?;
    }
    cluster.next_complete()?;
    let elapsed = cluster.now().since(began);
    let mut everywhere = |group| (cluster.held_by_all(group, 0) as usize).saturating_mul(BLOCK).min(bytes);
    Ok((0..groups).map(|group| gbit_per_s(everywhere(group) as f64, elapsed)).collect())
}
