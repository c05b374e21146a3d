//! Figure 9: the replication layer of a storage system like Cosmos.

use std::time::Duration;

use fastrand::Rng;
use squall::{NodeId, sim::bulk::BulkError};
use squall_command::plot::{Axis, Chart, Line, Unit};
use squall_rdmc::schedule::Algorithm;

use super::{
    ExperimentRun,
    machine::{FRACTUS, MB, among, gbit_per_s, ms},
    outcome::{ExperimentOutcome, Finding, Value, columns},
};

const BLOCK: usize = MB;
/// The nodes that hold the replicas. Node 0 generates the objects.
const HOSTS: u32 = 15;
/// The trace's objects (§5.2.2): "hundreds of bytes to hundreds of MB (the median is 12 MB and the mean 29 MB)".
const SMALLEST: f64 = 200.0;
const LARGEST: f64 = 900e6;
const MEDIAN: f64 = 12e6;
const MEAN: f64 = 29e6;
const ALGORITHMS: [Algorithm; 3] = [Algorithm::BinomialPipeline, Algorithm::BinomialTree, Algorithm::Sequential];

/// One object: its size, and the group that is to hold it.
struct Object {
    bytes: usize,
    group: u32,
}

/// The figures of a run with one algorithm.
struct Served {
    /// Sorted.
    latencies: Vec<Duration>,
    gbit_per_s: f64,
}

pub(super) fn run(run: ExperimentRun) -> Result<ExperimentOutcome, BulkError> {
    let groups = all_groups();
    let objects = objects(run.size(1000, 60), groups.len(), run.seed);
    let mut sizes: Vec<usize> = objects.iter().map(|object| object.bytes).collect();
    sizes.sort_unstable();
    let mean = sizes.iter().sum::<usize>() as f64 / sizes.len() as f64;
    let (mut rows, mut lines, mut alone) = (Vec::new(), Vec::new(), Vec::new());
    for in_flight in run.size(vec![1, 4], vec![1]) {
        for algorithm in ALGORITHMS {
            let served = serve(&objects, &groups, &algorithm, in_flight, run.seed)?;
            rows.push(vec![
                algorithm.name().into(),
                in_flight.into(),
                Value::Measured(served.at(0.1), 2),
                Value::Measured(served.at(0.5), 2),
                Value::Measured(served.at(0.9), 2),
                Value::Measured(served.mean(), 2),
                Value::Measured(served.gbit_per_s, 1),
            ]);
            if in_flight == 1 {
                lines.push(Line::new(algorithm.name(), served.distribution()));
                alone.push(served);
            }
        }
    }
    Ok(ExperimentOutcome {
        title: "a storage system's replicas on Fractus".to_owned(),
        assumed: vec![
            format!("Node 0 generates; {} groups of node 0 and 3 of {HOSTS} hosts, created before; blocks of 1 MB.", groups.len()),
            format!(
                "{} objects, log-normal from {SMALLEST} B to {} MB; of this sample the median is {:.1} MB, the mean {:.1} MB \
                 (decimal).",
                objects.len(),
                LARGEST / 1e6,
                sizes[sizes.len() / 2] as f64 / 1e6,
                mean / 1e6
            ),
            "The paper does not say how many objects are under way at a time: the findings are of one; the full run's table also has four."
                .to_owned(),
        ],
        columns: columns([
            ("algorithm", "algorithm"),
            ("under way", "in_flight"),
            ("p10 ms", "latency_p10_ms"),
            ("p50 ms", "latency_p50_ms"),
            ("p90 ms", "latency_p90_ms"),
            ("mean ms", "latency_mean_ms"),
            ("Gb/s", "gbit_per_s"),
        ]),
        rows,
        charts: vec![Chart {
            title: "distribution of latencies, one object at a time".to_owned(),
            x: Axis::logarithmic("latency, ms", Unit::Number),
            y: Axis::linear("% of the objects"),
            lines,
        }],
        findings: findings(&alone),
    })
}

/// C(15, 3) = 455 groups of three replicas, each behind the generator.
fn all_groups() -> Vec<[NodeId; 4]> {
    let mut groups = Vec::new();
    for a in 1..=HOSTS {
        for b in a + 1..=HOSTS {
            groups.extend((b + 1..=HOSTS).map(|c| [0, a, b, c].map(NodeId)));
        }
    }
    groups
}

fn objects(count: usize, groups: usize, seed: u64) -> Vec<Object> {
    let mut rng = Rng::with_seed(seed);
    // A log-normal's mean is its median times exp(σ²/2).
    let sigma = (2.0 * (MEAN / MEDIAN).ln()).sqrt();
    let objects = (0..count).map(|_| {
        // Box and Muller: one normal value from two uniform ones, of which the first is not 0.
        let normal = (-2.0 * (1.0 - rng.f64()).ln()).sqrt() * (2.0 * std::f64::consts::PI * rng.f64()).cos();
        let bytes = (MEDIAN * (sigma * normal).exp()).clamp(SMALLEST, LARGEST) as usize;
        Object { bytes, group: rng.u32(..groups as u32) }
    });
    objects.collect()
}

/// Replicates the objects in order, `in_flight` at a time.
fn serve(
    objects: &[Object],
    groups: &[[NodeId; 4]],
    algorithm: &Algorithm,
    in_flight: usize,
    seed: u64,
) -> Result<Served, BulkError> {
    let mut cluster = FRACTUS.cluster(HOSTS + 1, seed);
    for members in groups {
        cluster.create(among(members.to_vec(), algorithm.clone(), BLOCK, LARGEST as usize))?;
    }
    cluster.settle()?;
    let began = cluster.now();
    let mut latencies = Vec::with_capacity(objects.len());
    let mut rest = objects.iter();
    for object in rest.by_ref().take(in_flight) {
        cluster.send(object.group, object.bytes)?;
    }
    while latencies.len() < objects.len() {
        for done in cluster.next_complete()? {
            latencies.push(done.latency());
            if let Some(object) = rest.next() {
                cluster.send(object.group, object.bytes)?;
            }
        }
    }
    let bytes: usize = objects.iter().map(|object| object.bytes).sum();
    latencies.sort_unstable();
    Ok(Served { latencies, gbit_per_s: gbit_per_s(bytes as f64, cluster.now().since(began)) })
}

impl Served {
    /// The latency that `part` of the objects do not exceed, in ms.
    fn at(&self, part: f64) -> f64 {
        let index = (part * self.latencies.len() as f64) as usize;
        ms(self.latencies[index.min(self.latencies.len() - 1)])
    }

    fn mean(&self) -> f64 {
        ms(self.latencies.iter().sum::<Duration>()) / self.latencies.len() as f64
    }

    fn distribution(&self) -> Vec<(f64, f64)> {
        (0..=100).map(|percent| (self.at(f64::from(percent) / 100.0), f64::from(percent))).collect()
    }
}

fn findings(alone: &[Served]) -> Vec<Finding> {
    let [pipeline, tree, sequential] = alone else { return Vec::new() };
    let against = |other: &Served| (other.at(0.5) / pipeline.at(0.5), other.mean() / pipeline.mean());
    let ((tree_p50, tree_mean), (sequential_p50, sequential_mean)) = (against(tree), against(sequential));
    vec![
        Finding {
            claim: "the pipeline is almost twice as fast as the tree (§5.2.2; 1.6 to 2.1)".to_owned(),
            holds: [tree_p50, tree_mean].iter().all(|factor| (1.6..2.1).contains(factor)),
            figures: format!(
                "the tree's latency is {tree_p50:.2} times as long in the median, {tree_mean:.2} in the mean"
            ),
        },
        Finding {
            claim: "and around three times as fast as sequential send (§5.2.2; 2.5 to 3.1)".to_owned(),
            holds: [sequential_p50, sequential_mean].iter().all(|factor| (2.5..3.1).contains(factor)),
            figures: format!("{sequential_p50:.2} times in the median, {sequential_mean:.2} in the mean"),
        },
        Finding {
            claim: "objects are replicated at around 93 Gb/s (§5.2.2; to 5 %)".to_owned(),
            holds: (pipeline.gbit_per_s / 93.0 - 1.0).abs() < 0.05,
            figures: format!("{:.1} Gb/s", pipeline.gbit_per_s),
        },
    ]
}
