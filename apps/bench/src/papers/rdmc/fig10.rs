//! Figure 10: overlapping groups with the same members.

use clap::ValueEnum;
use fastrand::Rng;
use squall::{NodeId, sim::bulk::BulkError};
use squall_command::plot::{Axis, Chart, Line};
use squall_rdmc::schedule::Algorithm;

use super::{
    ExperimentRun,
    machine::{APT, FRACTUS, MB, Machine, gbit_per_s, group},
    outcome::{ExperimentOutcome, Finding, Value, columns},
};
use crate::job::{Senders, spelt};

const BLOCK: usize = MB;

pub(super) fn run(run: ExperimentRun) -> Result<ExperimentOutcome, BulkError> {
    let bytes = run.size(48 * MB, 24 * MB);
    let mut rows = Vec::new();
    let (mut charts, mut findings) = (Vec::new(), Vec::new());
    for (machine, sizes) in [
        (FRACTUS, run.size((2..=16).step_by(2).collect(), vec![4, 16])),
        (APT, run.size(vec![8, 16, 32, 48], vec![8, 32])),
    ] {
        let mut lines = Vec::new();
        for senders in Senders::value_variants() {
            let mut points = Vec::new();
            for &nodes in &sizes {
                let bandwidth = aggregate(&machine, nodes, senders.of(nodes), bytes, run)?;
                rows.push(vec![
                    machine.name.into(),
                    nodes.into(),
                    spelt(senders).into(),
                    Value::Measured(bandwidth, 1),
                ]);
                points.push((f64::from(nodes), bandwidth));
            }
            lines.push(Line::new(format!("{} sending", spelt(senders)), points));
        }
        findings.push(finding(&machine, &lines));
        charts.push(Chart {
            title: machine.name.to_owned(),
            x: Axis::linear("group size"),
            y: Axis::linear("aggregate bandwidth, Gb/s"),
            lines,
        });
    }
    Ok(ExperimentOutcome {
        title: "overlapping groups with the same members, on Fractus and Apt".to_owned(),
        assumed: vec![
            format!("Each sender has a group of its own and sends {} MB in blocks of 1 MB, all at once.", bytes / MB),
            "Bandwidth is the bytes of all messages, counted once each, by the time until all are everywhere."
                .to_owned(),
            "Ranks are drawn at random, since Apt's scheduler placed members anywhere.".to_owned(),
        ],
        columns: columns([("machine", "machine"), ("nodes", "nodes"), ("senders", "senders"), ("Gb/s", "gbit_per_s")]),
        rows,
        charts,
        findings,
    })
}

/// The aggregate bandwidth in Gb/s when all senders send one message to all others at the same time.
fn aggregate(machine: &Machine, nodes: u32, senders: u32, bytes: usize, run: ExperimentRun) -> Result<f64, BulkError> {
    let mut cluster = machine.cluster(nodes, run.seed);
    let mut placed: Vec<NodeId> = (0..nodes).map(NodeId).collect();
    Rng::with_seed(run.seed).shuffle(&mut placed);
    for sender in 0..senders as usize {
        let mut group = group(nodes, Algorithm::BinomialPipeline, BLOCK, bytes);
        // The sender first, then the others in order from it on.
        group.members = placed[sender..].iter().chain(&placed[..sender]).copied().collect();
        cluster.create(group)?;
    }
    cluster.settle()?;
    let began = cluster.now();
    for group in 0..senders {
        cluster.send(group, bytes)?;
    }
    let done = cluster.settle()?;
    let ended = done.iter().map(|multicast| multicast.last).max().unwrap_or(began);
    Ok(gbit_per_s(bytes as f64 * f64::from(senders), ended.since(began)))
}

fn finding(machine: &Machine, lines: &[Line]) -> Finding {
    let largest = |line: &Line| line.points.last().map_or(0.0, |point| point.1);
    let figures: Vec<f64> = lines.iter().map(largest).collect();
    let written = format!(
        "with the largest group, all, half and one sending: {:.1}, {:.1} and {:.1} Gb/s",
        figures[0], figures[1], figures[2]
    );
    match machine.racks {
        None => {
            let line_rate = machine.bytes_per_s as f64 * 8e-9;
            Finding {
                claim: format!(
                    "{}: concurrent senders get close to the full bisection bandwidth (§5.2.2; 85 %)",
                    machine.name
                ),
                holds: figures[0] > 0.85 * line_rate && figures[1] > 0.85 * line_rate,
                figures: written,
            }
        }
        Some(racks) => {
            // Of a random member's blocks, this part comes from other racks.
            let nodes = lines[0].points.last().map_or(0.0, |point| point.0);
            let elsewhere = 1.0 - f64::from(racks.nodes_per_rack) / nodes;
            let loaded = racks.uplink_bytes_per_s as f64 / f64::from(racks.nodes_per_rack) * 8e-9;
            let most = loaded / elsewhere;
            Finding {
                claim: format!(
                    "{}: large groups approach the {loaded:.0} Gb/s per node of the loaded uplinks (§5.2.2), here {most:.1} Gb/s \
                     with what stays in a rack (to 15 %)",
                    machine.name
                ),
                holds: (0.85 * most..1.05 * most).contains(&figures[0]),
                figures: written,
            }
        }
    }
}
