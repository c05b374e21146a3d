//! Figure 12: the time that is saved by handing the whole transfer to the NIC (CORE-Direct), when threads suffer
//! scheduling delays.
//!
//! The same network and the same schedule run once with the engine, which has to run for every block, and once with
//! work graphs, which need no thread to run. Either way the message is everywhere when the last receiver's thread has
//! noticed.

use std::{cmp::Reverse, collections::BinaryHeap, sync::Arc, time::Duration};

use fastrand::Rng;
use squall::{NodeId, sim::bulk::BulkError};
use squall_command::plot::{Axis, Chart, Line};
use squall_fabric::{
    Completion, Fabric, Time, Token,
    sim::{SimFabric, SimNet},
};
use squall_rdmc::{
    Buffer, Event, Group, GroupConfig, GroupId,
    graph::{GraphTransfer, TransferEvent},
    schedule::Algorithm,
};

use super::{
    ExperimentRun,
    machine::{FRACTUS, MB, ms},
    outcome::{ExperimentOutcome, Finding, Value, columns},
};

const BLOCK: usize = MB;
const BYTES: usize = 100 * MB;

/// One preemption, as in Figure 5.
const STALL: Duration = Duration::from_micros(100);

/// The preemptions of a node in a second: Table 1 and Figure 5 show one in the 62 ms of a transfer.
const PAPERS_RATE: u32 = 16;

/// The mean times of some runs, for one group and rate.
struct OffloadPoint {
    algorithm: Algorithm,
    nodes: u32,
    /// Stalls of a node in a second.
    rate: u32,
    engine: Duration,
    graph: Duration,
}

impl OffloadPoint {
    /// The saving of the graph, in per cent of the engine's time.
    fn saving(&self) -> f64 {
        (1.0 - self.graph.as_secs_f64() / self.engine.as_secs_f64()) * 100.0
    }
}

pub(super) fn run(run: ExperimentRun) -> Result<ExperimentOutcome, BulkError> {
    let groups: Vec<u32> = run.size(vec![3, 4, 5, 6, 7, 8, 16], vec![3, 8]);
    let rates: Vec<u32> = run.size(vec![0, PAPERS_RATE, 50, 100, 200, 500, 1000, 2000], vec![0, PAPERS_RATE, 1000]);
    let runs = run.size(20, 6);
    let mut points = Vec::new();
    for algorithm in [Algorithm::Chain, Algorithm::BinomialPipeline] {
        for &nodes in &groups {
            for &rate in &rates {
                let mean = |way| -> Result<Duration, BulkError> {
                    let mut total = Duration::ZERO;
                    for seed in 0..runs {
                        total += OffloadCluster::new(way, &algorithm, nodes, rate, run.seed ^ u64::from(seed) << 32)?
                            .time()?;
                    }
                    Ok(total / runs)
                };
                let (engine, graph) = (mean(TransferMode::Engine)?, mean(TransferMode::Graph)?);
                points.push(OffloadPoint { algorithm: algorithm.clone(), nodes, rate, engine, graph });
            }
        }
    }
    let row = |point: &OffloadPoint| {
        vec![
            point.algorithm.name().into(),
            point.nodes.into(),
            point.rate.into(),
            Value::Measured(ms(point.engine), 3),
            Value::Measured(ms(point.graph), 3),
            Value::Measured(point.saving(), 1),
        ]
    };
    let chart = |algorithm: &Algorithm| Chart {
        title: algorithm.name().to_owned(),
        x: Axis::linear("stalls of each node in a second"),
        y: Axis::linear("time saved, %"),
        lines: groups.iter().map(|&nodes| line(&points, algorithm, nodes)).collect(),
    };
    Ok(ExperimentOutcome {
        title: format!("work graphs against callbacks: {} MB on Fractus", BYTES / MB),
        assumed: vec![
            format!("Blocks of 1 MB. Means of {runs} runs; the same stalls with and without graphs."),
            format!(
                "A stall is {} µs in which a node's thread does not run (Figure 5), at random moments; its NIC goes on. \
                 Table 1 and Figure 5 show about {PAPERS_RATE} in a second.",
                STALL.as_micros()
            ),
            "The NIC takes no time from a completion to the request that waits for it.".to_owned(),
            "Both have the engine's default windows.".to_owned(),
        ],
        columns: columns([
            ("algorithm", "algorithm"),
            ("nodes", "nodes"),
            ("stalls/s", "stalls_per_s"),
            ("engine ms", "engine_ms"),
            ("graph ms", "graph_ms"),
            ("saved %", "saved_percent"),
        ]),
        rows: points.iter().map(row).collect(),
        charts: vec![chart(&Algorithm::Chain), chart(&Algorithm::BinomialPipeline)],
        findings: findings(&points, &rates),
    })
}

fn line(points: &[OffloadPoint], algorithm: &Algorithm, nodes: u32) -> Line {
    let of_line = points.iter().filter(|point| point.algorithm == *algorithm && point.nodes == nodes);
    Line::new(format!("{nodes} nodes"), of_line.map(|point| (f64::from(point.rate), point.saving())))
}

fn findings(points: &[OffloadPoint], rates: &[u32]) -> Vec<Finding> {
    // The mean of the groups of Figure 12.
    let mean = |algorithm: &Algorithm, rate: u32| {
        let of = points.iter().filter(|p| p.algorithm == *algorithm && p.rate == rate && p.nodes <= 8);
        let savings: Vec<f64> = of.map(OffloadPoint::saving).collect();
        savings.iter().sum::<f64>() / savings.len() as f64
    };
    let by_rate = |algorithm: &Algorithm| {
        let of: Vec<String> = rates.iter().map(|&rate| format!("{:.1} % at {rate}", mean(algorithm, rate))).collect();
        of.join(", ")
    };
    let papers = mean(&Algorithm::Chain, PAPERS_RATE);
    let least = points.iter().map(OffloadPoint::saving).fold(f64::INFINITY, f64::min);
    let most = rates.iter().copied().max().unwrap_or(0);
    let slowed = |of: fn(&OffloadPoint) -> Duration| {
        let each = points.iter().filter(|point| point.rate == most).map(|point| {
            let alike = |p: &&OffloadPoint| p.algorithm == point.algorithm && p.nodes == point.nodes && p.rate == 0;
            points.iter().find(alike).map_or(f64::NAN, |without| of(point).as_secs_f64() / of(without).as_secs_f64())
        });
        each.fold(0.0, f64::max) * 100.0 - 100.0
    };
    let (graph, engine) = (slowed(|point| point.graph), slowed(|point| point.engine));
    vec![
        Finding {
            claim: "cross-channel speeds chain send up by about 5 % (§5.2.3, Figure 12; 2.5 to 7.5 %)".to_owned(),
            holds: (2.5..7.5).contains(&papers),
            figures: format!(
                "groups of 3 to 8 save {papers:.1} % at {PAPERS_RATE} stalls/s; by stalls/s, {}",
                by_rate(&Algorithm::Chain)
            ),
        },
        Finding {
            claim: "it also speeds the binomial pipeline up, which the paper could not measure".to_owned(),
            holds: mean(&Algorithm::BinomialPipeline, PAPERS_RATE) > 0.0,
            figures: format!("groups of 3 to 8 save, by stalls/s, {}", by_rate(&Algorithm::BinomialPipeline)),
        },
        Finding {
            claim: "a graph never loses (to 1 %; in the paper it does once, where groups of 5 to 8 only poll)"
                .to_owned(),
            holds: least > -1.0,
            figures: format!("it saves {least:.1} % at the least"),
        },
        Finding {
            claim: "offload takes the risk of scheduling delays away (Figure 5; to 3 %)".to_owned(),
            holds: graph < 3.0,
            figures: format!("{most} stalls/s slow graphs by at most {graph:.1} %, the engine by up to {engine:.1} %"),
        },
    ]
}

/// The means by which a transfer is carried out.
#[derive(Clone, Copy, Debug)]
enum TransferMode {
    Engine,
    Graph,
}

/// A node's part of the message.
enum NodeTransfer {
    Engine(Box<Group>),
    Graph(Box<GraphTransfer>),
}

struct OffloadNode {
    fabric: SimFabric,
    part: NodeTransfer,
    thread: Thread,
    /// Whether a turn of the node is on the agenda.
    scheduled: bool,
    has_message: bool,
}

/// The times at which a node's thread runs.
struct Thread {
    rng: Rng,
    /// Stalls in a second.
    rate: f64,
    stall: (Time, Time),
}

/// A group, and one message for it.
struct OffloadCluster {
    net: SimNet,
    nodes: Vec<OffloadNode>,
    source: Option<Arc<Buffer>>,
    agenda: BinaryHeap<Reverse<(Time, usize)>>,
    turn: Duration,
    connected: usize,
}

const TOKEN: Token = Token(0);

impl OffloadCluster {
    fn new(
        way: TransferMode,
        algorithm: &Algorithm,
        nodes: u32,
        rate: u32,
        seed: u64,
    ) -> Result<OffloadCluster, BulkError> {
        let net = SimNet::new(FRACTUS.network(), seed);
        let mut config = GroupConfig::new(GroupId { group: 0, instance: 1 }, (0..nodes).map(NodeId).collect());
        config.algorithm = algorithm.clone();
        config.block_bytes = BLOCK;
        config.phantom = true;
        let mut cluster = OffloadCluster {
            source: None,
            nodes: Vec::new(),
            agenda: BinaryHeap::new(),
            turn: FRACTUS.turn,
            connected: 0,
            net,
        };
        for &id in &config.members {
            let mut fabric = cluster.net.fabric(id);
            let refused = |reason: String| BulkError::Refused { group: 0, node: id, reason };
            let buffer = Buffer::phantom(&mut fabric, BYTES).map_err(|error| refused(error.to_string()))?;
            let part = match way {
                TransferMode::Engine => {
                    let group = Group::create(&mut fabric, config.clone());
                    let mut group = group.map_err(|error| refused(error.to_string()))?;
                    if id.0 == 0 {
                        cluster.source = Some(Arc::new(buffer));
                    } else {
                        group.provide(buffer);
                    }
                    NodeTransfer::Engine(Box::new(group))
                }
                TransferMode::Graph => {
                    let transfer = GraphTransfer::connect(&mut fabric, config.clone(), buffer, BYTES, TOKEN);
                    NodeTransfer::Graph(Box::new(transfer.map_err(|error| refused(error.to_string()))?))
                }
            };
            // The same stalls for both ways.
            let thread = Thread::new(f64::from(rate), seed ^ u64::from(id.0) << 8);
            cluster.nodes.push(OffloadNode { fabric, part, thread, scheduled: false, has_message: false });
        }
        Ok(cluster)
    }

    /// Connects, sends the message, and returns the time until the last receiver had noticed it.
    fn time(mut self) -> Result<Duration, BulkError> {
        (0..self.nodes.len()).for_each(|node| self.wake(node));
        while self.connected < self.nodes.len() {
            self.go_on()?;
        }
        let began = self.net.now();
        let OffloadNode { fabric, part, .. } = &mut self.nodes[0];
        let sent = match part {
            NodeTransfer::Engine(group) => {
                let source = self.source.take().expect("made for the root");
                group.send(source, BYTES).map(|_| ()).map_err(|error| error.to_string())
            }
            NodeTransfer::Graph(transfer) => transfer.send(fabric).map_err(|error| error.to_string()),
        };
        sent.map_err(|reason| BulkError::Refused { group: 0, node: NodeId(0), reason })?;
        self.wake(0);
        while !self.nodes[1..].iter().all(|node| node.has_message) {
            self.go_on()?;
        }
        Ok(self.net.now().since(began))
    }

    /// Goes on to the next event.
    fn go_on(&mut self) -> Result<(), BulkError> {
        let due = self.agenda.peek().map_or(Time::MAX, |Reverse((at, _))| *at);
        if due == Time::MAX && self.net.next_event().is_none() {
            return Err(BulkError::Stuck { missing: 1 });
        }
        let mut ready = Vec::new();
        let now = self.net.advance(due, &mut ready);
        ready.into_iter().for_each(|node| self.wake(node.0 as usize));
        while let Some(&Reverse((at, node))) = self.agenda.peek()
            && at <= now
        {
            self.agenda.pop();
            self.take_turn(node, now)?;
        }
        Ok(())
    }

    /// Schedules a turn of a node that has something to look at. It begins once the node's thread runs, and takes
    /// `turn`.
    fn wake(&mut self, ix: usize) {
        let node = &mut self.nodes[ix];
        if !std::mem::replace(&mut node.scheduled, true) {
            let at = node.thread.runs_from(self.net.now()) + self.turn;
            self.agenda.push(Reverse((node.thread.runs_from(at), ix)));
        }
    }

    fn take_turn(&mut self, ix: usize, now: Time) -> Result<(), BulkError> {
        let OffloadNode { fabric, part, scheduled, has_message, .. } = &mut self.nodes[ix];
        *scheduled = false;
        let failed = |reason: String| BulkError::Failed { group: 0, node: NodeId(ix as u32), reason };
        let mut completions: Vec<Completion> = Vec::new();
        fabric.poll(now, &mut completions);
        match part {
            NodeTransfer::Engine(group) => {
                completions.iter().for_each(|completion| group.on_completion(fabric, completion));
                let mut events = Vec::new();
                while group.step(fabric, &mut events) {}
                for event in events {
                    match event {
                        Event::Connected => self.connected += 1,
                        Event::Received { .. } => *has_message = true,
                        Event::Failed(failure) => return Err(failed(failure.reason)),
                        Event::Incoming { .. } | Event::Released { .. } | Event::Destroyed => {}
                    }
                }
            }
            NodeTransfer::Graph(transfer) => {
                for completion in &completions {
                    match transfer.on_completion(fabric, completion) {
                        Some(TransferEvent::Connected) => self.connected += 1,
                        Some(TransferEvent::Done(_)) => *has_message = true,
                        Some(TransferEvent::Failed(failure)) => return Err(failed(failure.to_string())),
                        None => {}
                    }
                }
            }
        }
        Ok(())
    }
}

impl Thread {
    fn new(rate: f64, seed: u64) -> Thread {
        let mut thread = Thread { rng: Rng::with_seed(seed), rate, stall: (Time::ZERO, Time::ZERO) };
        thread.stall = thread.next_stall();
        thread
    }

    /// The stall after this one: a Poisson process.
    fn next_stall(&mut self) -> (Time, Time) {
        if self.rate == 0.0 {
            return (Time::MAX, Time::MAX);
        }
        let gap = -(1.0 - self.rng.f64()).ln() / self.rate;
        let begin = self.stall.1 + Duration::from_secs_f64(gap);
        (begin, begin + STALL)
    }

    /// The first time from `time` on at which the thread runs. `time` must not be before that of an earlier call.
    fn runs_from(&mut self, time: Time) -> Time {
        while self.stall.1 <= time {
            self.stall = self.next_stall();
        }
        if self.stall.0 <= time { self.stall.1 } else { time }
    }
}
