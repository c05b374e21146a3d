//! Figure 4: algorithms by group size.

use squall::sim::bulk::BulkError;
use squall_command::plot::{Axis, Chart, Line};
use squall_rdmc::schedule::Algorithm;

use super::{
    ExperimentRun,
    machine::{FRACTUS, MB, blocks, gbit_per_s, group, log2_ceil, ms},
    outcome::{ExperimentOutcome, Finding, Value, columns},
};

const SMALL: usize = 8 * MB;
const LARGE: usize = 256 * MB;
const ALGORITHMS: [Algorithm; 4] =
    [Algorithm::Sequential, Algorithm::BinomialTree, Algorithm::Chain, Algorithm::BinomialPipeline];

/// Near the best for a group of 16 (`fig6`): the paper does not say which it used.
fn block(bytes: usize) -> usize {
    if bytes == SMALL { MB / 2 } else { 2 * MB }
}

/// The time that one algorithm takes, in ms.
struct BroadcastPoint {
    bytes: usize,
    nodes: u32,
    algorithm: Algorithm,
    ms: f64,
}

pub(super) fn run(run: ExperimentRun) -> Result<ExperimentOutcome, BulkError> {
    let sizes: Vec<u32> = run.size((2..=16).collect(), vec![2, 4, 8, 16]);
    let (mut points, mut rows) = (Vec::new(), Vec::new());
    for bytes in [SMALL, LARGE] {
        for &nodes in &sizes {
            for algorithm in ALGORITHMS {
                let group = group(nodes, algorithm.clone(), block(bytes), bytes);
                let latency = FRACTUS.multicast(group, bytes, run.seed)?.latency();
                rows.push(vec![
                    (bytes / MB).into(),
                    nodes.into(),
                    algorithm.name().into(),
                    Value::Measured(ms(latency), 3),
                    Value::Measured(gbit_per_s(bytes as f64, latency), 1),
                ]);
                points.push(BroadcastPoint { bytes, nodes, algorithm, ms: ms(latency) });
            }
        }
    }
    let charts = [SMALL, LARGE].map(|bytes| Chart {
        title: format!("{} MB", bytes / MB),
        x: Axis::linear("group size"),
        y: Axis::linear("latency, ms"),
        lines: ALGORITHMS.map(|algorithm| line(&points, bytes, &algorithm)).into(),
    });
    Ok(ExperimentOutcome {
        title: "algorithms by group size on Fractus (16 nodes, 100 Gb/s)".to_owned(),
        assumed: vec!["Blocks of 512 KB for 8 MB, and of 2 MB for 256 MB.".to_owned()],
        columns: columns([
            ("MB", "message_mb"),
            ("nodes", "nodes"),
            ("algorithm", "algorithm"),
            ("ms", "latency_ms"),
            ("Gb/s", "gbit_per_s"),
        ]),
        rows,
        charts: charts.into(),
        findings: findings(&points),
    })
}

fn line(points: &[BroadcastPoint], bytes: usize, algorithm: &Algorithm) -> Line {
    let mine = points.iter().filter(|point| point.bytes == bytes && point.algorithm == *algorithm);
    Line::new(algorithm.name(), mine.map(|point| (f64::from(point.nodes), point.ms)))
}

fn findings(points: &[BroadcastPoint]) -> Vec<Finding> {
    let at = |bytes: usize, nodes: u32, algorithm: Algorithm| {
        let found = points.iter().find(|p| p.bytes == bytes && p.nodes == nodes && p.algorithm == algorithm);
        found.map_or(f64::NAN, |point| point.ms)
    };
    let pipeline = |bytes, nodes| at(bytes, nodes, Algorithm::BinomialPipeline);
    let against = |bytes, algorithm| at(bytes, 16, algorithm) / pipeline(bytes, 16);
    let (sequential, tree) = (against(LARGE, Algorithm::Sequential), against(LARGE, Algorithm::BinomialTree));
    let (chain_large, chain_small) = (against(LARGE, Algorithm::Chain), against(SMALL, Algorithm::Chain));
    let excess = points.iter().map(|p| pipeline(p.bytes, p.nodes) / p.ms - 1.0).fold(0.0, f64::max);
    let steps = log2_ceil(16) + blocks(LARGE, block(LARGE)) - 1;
    let theory = steps as f64 * FRACTUS.time_of(block(LARGE)) * 1e3;
    let over = pipeline(LARGE, 16) / theory - 1.0;
    vec![
        Finding {
            claim: "sequential send and the binomial tree do poorly as the group grows (§5.2)".to_owned(),
            holds: sequential > 2.0 && tree > 2.0,
            figures: format!(
                "256 MB to 16 nodes takes them {sequential:.1} and {tree:.1} times as long as the pipeline"
            ),
        },
        Finding {
            claim: "chain send is competitive, except for small transfers to many nodes (§5.2)".to_owned(),
            holds: chain_large < 1.1 && chain_small > 1.25,
            figures: format!(
                "with 16 nodes it takes {chain_large:.2} times as long for 256 MB, {chain_small:.2} for 8 MB"
            ),
        },
        Finding {
            claim: "the binomial pipeline is the best throughout (§5.2; to 2 %)".to_owned(),
            holds: excess < 0.02,
            figures: format!("it is at most {:.1} % slower than the best of the others", excess * 100.0),
        },
        Finding {
            claim: "16 nodes and 256 MB: within 5 % of l + k - 1 block times (§4.4)".to_owned(),
            holds: (0.0..0.05).contains(&over),
            figures: format!(
                "{:.2} ms against {theory:.2} ms for {steps} blocks of 2 MB, {:.1} % more",
                pipeline(LARGE, 16),
                over * 100.0
            ),
        },
    ]
}
