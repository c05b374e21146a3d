//! §4.5: the cost of one delay of one node.

use std::time::Duration;

use squall::{NodeId, sim::bulk::BulkError};
use squall_command::plot::{Axis, Chart, Line};
use squall_rdmc::schedule::Algorithm;

use super::{
    ExperimentRun,
    machine::{MB, THEORY, blocks, group, log2_ceil, ms},
    outcome::{ExperimentOutcome, Finding, Value, columns},
};

const BLOCK: usize = MB;
const BYTES: usize = 64 * MB;
const NODES: u32 = 16;

/// The cost of stalls of one length, over the nodes and moments that were tried.
struct Cost {
    stall_us: f64,
    mean_us: f64,
    most_us: f64,
}

pub(super) fn run(run: ExperimentRun) -> Result<ExperimentOutcome, BulkError> {
    let without = time(run, None)?;
    let moments = run.size(8, 3);
    let nodes: Vec<u32> = run.size((0..NODES).collect(), vec![0, 1, 6, 15]);
    let mut costs = Vec::new();
    for stall_us in run.size(vec![25, 50, 100, 200, 400, 800], vec![50, 100, 400]) {
        let mut extra = Vec::new();
        for &node in &nodes {
            for moment in 0..moments {
                let at = without.mul_f64((f64::from(moment) + 0.5) / f64::from(moments));
                let stall = (NodeId(node), at, Duration::from_micros(stall_us));
                extra.push((time(run, Some(stall))?.as_secs_f64() - without.as_secs_f64()) * 1e6);
            }
        }
        let mean_us = extra.iter().sum::<f64>() / extra.len() as f64;
        let most_us = extra.iter().copied().fold(f64::MIN, f64::max);
        costs.push(Cost { stall_us: stall_us as f64, mean_us, most_us });
    }
    let line = |name: &str, of: &dyn Fn(&Cost) -> f64, model| Line {
        name: name.to_owned(),
        points: costs.iter().map(|cost| (cost.stall_us, of(cost))).collect(),
        model,
    };
    // The slack for latency: at most 0.2 µs in each step.
    let slack = 0.2 * (blocks(BYTES, BLOCK) + log2_ceil(NODES)) as f64;
    let worst = costs.iter().map(|cost| cost.most_us / cost.stall_us).fold(0.0, f64::max);
    let mean = costs.iter().map(|cost| cost.mean_us / cost.stall_us).fold(0.0, f64::max);
    Ok(ExperimentOutcome {
        title: format!("one delay of one node: {} MB to {NODES} nodes", BYTES / MB),
        assumed: vec![
            format!(
                "The thread of one node stands still; its NIC goes on. Each of {} nodes, at {moments} moments. Without: {:.2} ms.",
                nodes.len(),
                ms(without)
            ),
            format!(
                "Block times only, no latency and no time for software: a block of 1 MB takes {:.0} µs.",
                THEORY.time_of(BLOCK) * 1e6
            ),
        ],
        columns: columns([("delay us", "delay_us"), ("mean cost us", "mean_cost_us"), ("most us", "most_cost_us")]),
        rows: costs
            .iter()
            .map(|cost| [cost.stall_us, cost.mean_us, cost.most_us].map(|us| Value::Measured(us, 1)).into())
            .collect(),
        charts: vec![Chart {
            title: "added to the time until all members have the message".to_owned(),
            x: Axis::linear("delay ε, µs"),
            y: Axis::linear("cost, µs"),
            lines: vec![
                line("worst node and moment", &|cost| cost.most_us, false),
                line("mean", &|cost| cost.mean_us, false),
                line("ε", &|cost| cost.stall_us, true),
            ],
        }],
        findings: vec![Finding {
            claim: "a delay of ε costs at most ε in total (§4.5; to 0.2 µs in each step)".to_owned(),
            holds: costs.iter().all(|cost| cost.most_us <= cost.stall_us + slack),
            figures: format!("at most {worst:.2} ε, and {mean:.2} ε in the mean of the nodes and moments"),
        }],
    })
}

/// The time of one multicast. `stall` has a node, the time after the start at which it stalls, and the stall's length.
fn time(run: ExperimentRun, stall: Option<(NodeId, Duration, Duration)>) -> Result<Duration, BulkError> {
    let mut cluster = THEORY.cluster(NODES, run.seed);
    let group = cluster.create(group(NODES, Algorithm::BinomialPipeline, BLOCK, BYTES))?;
    cluster.settle()?;
    cluster.send(group, BYTES)?;
    if let Some((node, after, time)) = stall {
        cluster.run_until(cluster.now() + after)?;
        cluster.stall(node, time);
    }
    Ok(cluster.settle()?[0].latency())
}
