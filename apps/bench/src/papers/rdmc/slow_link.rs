//! §4.5: the cost of one slow link.

use squall::{NodeId, sim::bulk::BulkError};
use squall_command::plot::{Axis, Chart, Line, Unit};
use squall_fabric::sim::LinkProperties;
use squall_rdmc::schedule::Algorithm;

use super::{
    ExperimentRun,
    machine::{MB, THEORY, blocks, group, log2_ceil, one},
    outcome::{ExperimentOutcome, Finding, Value, columns},
};

const BLOCK: usize = MB;

/// The bandwidth that remains, as a part of that without a slow link.
struct Row {
    nodes: u32,
    /// T / T'.
    slowness: u64,
    blocks: u64,
    link: (u32, u32),
    algorithm: Algorithm,
    remains: f64,
    bound: f64,
}

pub(super) fn run(run: ExperimentRun) -> Result<ExperimentOutcome, BulkError> {
    let bytes = run.size(256 * MB, 64 * MB);
    let mut found = Vec::new();
    for nodes in run.size(vec![4, 8, 16, 32, 64], vec![8, 64]) {
        for slowness in run.size(vec![2, 4, 8], vec![2, 4]) {
            for link in links(nodes) {
                found.push(measure(nodes, slowness, link, Algorithm::BinomialPipeline, bytes, run)?);
            }
            found.push(measure(nodes, slowness, (1, 2), Algorithm::Chain, bytes, run)?);
        }
    }
    let rows = found.iter().map(|row| {
        vec![
            row.algorithm.name().into(),
            row.nodes.into(),
            format!("T/{}", row.slowness).into(),
            format!("{}-{}", row.link.0, row.link.1).into(),
            row.blocks.into(),
            Value::Measured(row.remains * 100.0, 1),
            Value::Measured(row.bound * 100.0, 1),
        ]
    });
    Ok(ExperimentOutcome {
        title: "one slow link, in both directions".to_owned(),
        assumed: vec!["A network of the theory: block times only, no latency and no time for software.".to_owned()],
        columns: columns([
            ("algorithm", "algorithm"),
            ("nodes", "nodes"),
            ("rate", "link_rate"),
            ("link", "link"),
            ("blocks", "blocks"),
            ("remains %", "remains_percent"),
            ("bound %", "bound_percent"),
        ]),
        rows: rows.collect(),
        charts: vec![chart(&found)],
        findings: findings(&found),
    })
}

/// Neighbours in the hypercube: near the root, and far from it.
fn links(nodes: u32) -> Vec<(u32, u32)> {
    let mut links = vec![(0, 1), (1, 3), (nodes / 2 - 1, nodes - 1), (nodes - 2, nodes - 1)];
    links.dedup();
    links
}

fn measure(
    nodes: u32,
    slowness: u64,
    link: (u32, u32),
    algorithm: Algorithm,
    bytes: usize,
    run: ExperimentRun,
) -> Result<Row, BulkError> {
    let spec = group(nodes, algorithm.clone(), BLOCK, bytes);
    let without = THEORY.multicast(spec.clone(), bytes, run.seed)?.latency();
    let mut cluster = THEORY.cluster(nodes, run.seed);
    let slow = LinkProperties { bytes_per_s: Some(THEORY.bytes_per_s / slowness), latency: None };
    let (a, b) = (NodeId(link.0), NodeId(link.1));
    cluster.net().set_link(a, b, slow);
    cluster.net().set_link(b, a, slow);
    let with = one(&mut cluster, spec, bytes)?.latency();
    let (l, k) = (log2_ceil(nodes), blocks(bytes, BLOCK));
    let s = k + l - 1;
    let bound = match algorithm {
        // Every block crosses every link; with many blocks, T'/T remains.
        Algorithm::Chain => {
            let s = k + u64::from(nodes) - 2;
            s as f64 / (s + k * (slowness - 1)) as f64
        }
        _ => s as f64 / (s + s.div_ceil(l) * (slowness - 1)) as f64,
    };
    let remains = without.as_secs_f64() / with.as_secs_f64();
    Ok(Row { nodes, slowness, blocks: k, link, algorithm, remains, bound })
}

fn chart(found: &[Row]) -> Chart {
    let half = |row: &&Row| row.slowness == 2;
    let piped = |row: &&Row| row.algorithm == Algorithm::BinomialPipeline;
    let mut worst: Vec<(f64, f64)> = Vec::new();
    for row in found.iter().filter(half).filter(piped) {
        match worst.last_mut().filter(|last| last.0 == f64::from(row.nodes)) {
            Some(last) => last.1 = last.1.min(row.remains * 100.0),
            None => worst.push((f64::from(row.nodes), row.remains * 100.0)),
        }
    }
    let bound = found.iter().filter(half).filter(piped).map(|row| (f64::from(row.nodes), row.bound * 100.0));
    let chain = found.iter().filter(half).filter(|row| row.algorithm == Algorithm::Chain);
    Chart {
        title: "one link at half the rate".to_owned(),
        x: Axis::logarithmic("group size", Unit::Number),
        y: Axis::linear("% of the bandwidth that remain"),
        lines: vec![
            Line::new("binomial pipeline, worst link", worst),
            Line { name: "bound of §4.5".to_owned(), points: bound.collect(), model: true },
            Line::new("chain", chain.map(|row| (f64::from(row.nodes), row.remains * 100.0))),
        ],
    }
}

fn findings(found: &[Row]) -> Vec<Finding> {
    let piped = || found.iter().filter(|row| row.algorithm == Algorithm::BinomialPipeline);
    let short = piped().map(|row| row.remains / row.bound).fold(f64::MAX, f64::min);
    let at_64 = piped().filter(|row| row.nodes == 64 && row.slowness == 2);
    let at_64 = at_64.map(|row| row.remains).fold(f64::MAX, f64::min);
    let chains = found.iter().filter(|row| row.algorithm == Algorithm::Chain);
    let off = chains.map(|row| (row.remains / row.bound - 1.0).abs()).fold(0.0, f64::max);
    vec![
        Finding {
            claim: "of the pipeline's bandwidth, at least s/(s + ⌈s/l⌉(T/T' - 1)) remains (§4.5; to 2 %)".to_owned(),
            holds: short > 0.98,
            figures: format!(
                "in the worst case {:.1} % of the bound; {:.1} % remain with 64 nodes and a link at half the rate",
                short * 100.0,
                at_64 * 100.0
            ),
        },
        Finding {
            claim: "the chain is as slow as its slowest link, which every block crosses (§4.5; to 2 %)".to_owned(),
            holds: off < 0.02,
            figures: format!(
                "at most {:.1} % off s/(s + k(T/T' - 1)) with s = k + n - 2, which tends to T'/T",
                off * 100.0
            ),
        },
    ]
}
