//! §4.3: racks with oversubscribed uplinks, the pipeline against the hybrid.

use fastrand::Rng;
use squall::{
    NodeId,
    sim::bulk::{BulkError, BulkGroup},
};
use squall_command::plot::{Axis, Chart, Line};
use squall_rdmc::schedule::{Algorithm, Outer, Racks};

use super::{
    ExperimentRun,
    machine::{APT, MB, among, gbit_per_s, ms, one},
    outcome::{ExperimentOutcome, Finding, Value, columns},
};

const BLOCK: usize = MB;

/// A way to order and serve the members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemberOrder {
    Scattered,
    InOrder,
    HybridPipeline,
    HybridChain,
}

impl MemberOrder {
    const EACH: [MemberOrder; 4] =
        [MemberOrder::Scattered, MemberOrder::InOrder, MemberOrder::HybridPipeline, MemberOrder::HybridChain];

    fn name(self) -> &'static str {
        match self {
            MemberOrder::Scattered => "pipeline, ranks at random",
            MemberOrder::InOrder => "pipeline, ranks rack by rack",
            MemberOrder::HybridPipeline => "hybrid, pipeline across racks",
            MemberOrder::HybridChain => "hybrid, chain across racks",
        }
    }

    fn group(self, nodes: u32, per_rack: u32, bytes: usize, seed: u64) -> BulkGroup {
        let mut members: Vec<NodeId> = (0..nodes).map(NodeId).collect();
        let rack_of: Vec<u32> = members.iter().map(|node| node.0 / per_rack).collect();
        let racks = |outer| Racks::new(&rack_of, outer).expect("a group has members");
        let algorithm = match self {
            MemberOrder::Scattered | MemberOrder::InOrder => Algorithm::BinomialPipeline,
            MemberOrder::HybridPipeline => Algorithm::Hybrid(racks(Outer::BinomialPipeline)),
            MemberOrder::HybridChain => Algorithm::Hybrid(racks(Outer::Chain)),
        };
        if self == MemberOrder::Scattered {
            Rng::with_seed(seed).shuffle(&mut members);
        }
        among(members, algorithm, BLOCK, bytes)
    }
}

/// The figures of one way.
struct Taken {
    way: MemberOrder,
    nodes: u32,
    ms: f64,
    /// Bytes from rack to rack, divided by the message's bytes.
    crossings: f64,
}

pub(super) fn run(run: ExperimentRun) -> Result<ExperimentOutcome, BulkError> {
    let bytes = run.size(256 * MB, 32 * MB);
    let racks = APT.racks.expect("Apt has racks");
    let per_rack = racks.nodes_per_rack;
    let (mut rows, mut taken) = (Vec::new(), Vec::new());
    for nodes in run.size(vec![2, 4, 8, 16], vec![4]).into_iter().map(|racks: u32| racks * per_rack) {
        for way in MemberOrder::EACH {
            let mut cluster = APT.cluster(nodes, run.seed);
            cluster.count_traffic(Some(per_rack));
            let multicast = one(&mut cluster, way.group(nodes, per_rack, bytes, run.seed), bytes)?;
            let crossings = cluster.traffic().between_racks as f64 / bytes as f64;
            rows.push(vec![
                way.name().into(),
                nodes.into(),
                Value::Measured(ms(multicast.latency()), 1),
                Value::Measured(gbit_per_s(bytes as f64, multicast.latency()), 1),
                Value::Measured(ms(multicast.skew()), 1),
                Value::Measured(crossings, 1),
            ]);
            taken.push(Taken { way, nodes, ms: ms(multicast.latency()), crossings });
        }
    }
    let line = |way: MemberOrder| {
        Line::new(way.name(), taken.iter().filter(|t| t.way == way).map(|t| (f64::from(t.nodes), t.ms)))
    };
    let uplink = racks.uplink_bytes_per_s as f64 * 8e-9;
    Ok(ExperimentOutcome {
        title: format!("racks on Apt: {} MB, the pipeline and the hybrid", bytes / MB),
        assumed: vec![format!(
            "Racks of {per_rack} nodes with 56 Gb/s each behind uplinks of {uplink:.0} Gb/s; blocks of 1 MB."
        )],
        columns: columns([
            ("way", "way"),
            ("nodes", "nodes"),
            ("ms", "latency_ms"),
            ("Gb/s", "gbit_per_s"),
            ("skew ms", "skew_ms"),
            ("times over uplinks", "uplink_crossings"),
        ]),
        rows,
        charts: vec![Chart {
            title: "time to the last receiver".to_owned(),
            x: Axis::linear("group size"),
            y: Axis::linear("ms"),
            lines: MemberOrder::EACH.map(line).into(),
        }],
        findings: findings(&taken),
    })
}

fn findings(taken: &[Taken]) -> Vec<Finding> {
    let most = taken.iter().map(|t| t.nodes).max().unwrap_or(0);
    let of = |way: MemberOrder| taken.iter().find(|t| t.way == way && t.nodes == most);
    let [Some(scattered), Some(in_order), Some(pipeline), Some(chain)] = MemberOrder::EACH.map(of) else {
        return Vec::new();
    };
    let best = pipeline.ms.min(chain.ms);
    vec![
        Finding {
            claim: "the hybrid is faster than a pipeline that knows no racks (§4.3)".to_owned(),
            holds: best < scattered.ms,
            figures: format!(
                "{most} nodes: hybrid {:.1} ms (pipeline across) and {:.1} ms (chain), pipeline {:.1} ms at random",
                pipeline.ms, chain.ms, scattered.ms
            ),
        },
        Finding {
            claim: "it is faster too than a pipeline whose ranks follow the racks".to_owned(),
            holds: best < in_order.ms,
            figures: format!("{best:.1} ms against {:.1} ms", in_order.ms),
        },
        Finding {
            claim: "it loads the uplinks less (§4.3)".to_owned(),
            holds: pipeline.crossings.max(chain.crossings) < in_order.crossings.min(scattered.crossings),
            figures: format!(
                "each byte crosses {:.1} (pipeline across) and {:.1} (chain) times, against {:.1} and {:.1}",
                pipeline.crossings, chain.crossings, scattered.crossings, in_order.crossings
            ),
        },
    ]
}
