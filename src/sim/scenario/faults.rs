//! What goes wrong in a scenario, and when: nodes that are paused, cut off from others, or killed.

use std::time::Duration;

use fastrand::Rng;
use squall_fabric::{NodeId, Time};

use super::Teller;
use crate::sim::cluster::Cluster;

#[derive(Clone, Copy, Debug)]
enum Fault {
    Pause(NodeId, Duration),
    Cut(NodeId, NodeId, Duration),
    /// Cut off from all others, and running.
    Isolate(NodeId, Duration),
    Crash(NodeId),
}

/// The faults of a scenario.
pub(super) struct Faults {
    nodes: Vec<NodeId>,
    planned: Vec<(Time, Fault)>,
    healings: Vec<(Time, Fault)>,
    injected: usize,
    /// By index of the node.
    paused: Vec<bool>,
    crashed: Vec<bool>,
}

impl Faults {
    pub(super) fn none(nodes: &[NodeId]) -> Faults {
        Faults {
            nodes: nodes.to_vec(),
            planned: Vec::new(),
            healings: Vec::new(),
            injected: 0,
            paused: vec![false; nodes.len()],
            crashed: vec![false; nodes.len()],
        }
    }

    /// How many there were.
    pub(super) fn injected(&self) -> usize {
        self.injected
    }

    pub(super) fn is_paused(&self, node: usize) -> bool {
        self.paused[node]
    }

    pub(super) fn is_crashed(&self, node: usize) -> bool {
        self.crashed[node]
    }

    /// Whether some will be over by themselves later.
    pub(super) fn will_heal(&self) -> bool {
        !self.healings.is_empty()
    }

    /// Whether there are none to come, and none that will be over.
    pub(super) fn are_over(&self) -> bool {
        self.planned.is_empty() && self.healings.is_empty()
    }

    fn any_node(&self, rng: &mut Rng) -> NodeId {
        self.nodes[rng.usize(0..self.nodes.len())]
    }

    fn index(&self, node: NodeId) -> usize {
        self.nodes.iter().position(|&n| n == node).expect("it is a member")
    }

    /// Plans random ones from `begin` on, `within` so long. While all is calm, only such as must not harm.
    pub(super) fn plan(&mut self, begin: Time, within: Duration, calm: bool, rng: &mut Rng) {
        let members = self.nodes.len();
        let mut faults = Vec::new();
        for _ in 0..rng.usize(0..=2) {
            // Shorter than the failure timeout, so it must not harm.
            let pause = Duration::from_micros(rng.u64(1..=10_000));
            faults.push(Fault::Pause(self.any_node(rng), pause));
        }
        if !calm {
            for _ in 0..rng.usize(1..=members / 2) {
                let node = self.any_node(rng);
                faults.push(match rng.u8(0..8) {
                    0 => Fault::Pause(node, Duration::from_millis(rng.u64(30..=60))),
                    1 => Fault::Cut(node, self.any_node(rng), Duration::from_millis(rng.u64(1..=60))),
                    2 | 3 => Fault::Isolate(node, Duration::from_millis(rng.u64(1..=60))),
                    _ => Fault::Crash(node),
                });
            }
        }
        for fault in faults {
            let at = begin + Duration::from_nanos(rng.u64(0..=within.as_nanos() as u64));
            self.planned.push((at, fault));
        }
    }

    /// Carries out the faults that are due.
    pub(super) fn inject(&mut self, cluster: &mut Cluster, teller: &mut Teller<'_>) {
        let now = cluster.now();
        for (at, fault) in std::mem::take(&mut self.healings) {
            if at > now {
                self.healings.push((at, fault));
                continue;
            }
            teller.tell(now, || format!("over: {fault:?}"));
            match fault {
                Fault::Pause(node, _) => {
                    let index = self.index(node);
                    self.paused[index] = false;
                    cluster.resume(node);
                }
                Fault::Cut(a, b, _) => cluster.net().heal(a, b),
                Fault::Isolate(node, _) => {
                    for &other in self.nodes.iter().filter(|&&other| other != node) {
                        cluster.net().heal(node, other);
                    }
                }
                Fault::Crash(_) => {}
            }
        }
        for (at, fault) in std::mem::take(&mut self.planned) {
            if at > now {
                self.planned.push((at, fault));
                continue;
            }
            match fault {
                Fault::Pause(node, time) => {
                    let index = self.index(node);
                    if self.paused[index] || self.crashed[index] {
                        continue;
                    }
                    self.paused[index] = true;
                    cluster.pause(node);
                    self.healings.push((now + time, fault));
                }
                Fault::Cut(a, b, _) if a == b => continue,
                Fault::Cut(a, b, time) => {
                    cluster.net().cut(a, b);
                    self.healings.push((now + time, fault));
                }
                Fault::Isolate(node, time) => {
                    for &other in self.nodes.iter().filter(|&&other| other != node) {
                        cluster.net().cut(node, other);
                    }
                    self.healings.push((now + time, fault));
                }
                Fault::Crash(node) => {
                    let index = self.index(node);
                    self.crashed[index] = true;
                    self.paused[index] = false;
                    cluster.crash(node);
                }
            }
            self.injected += 1;
            teller.tell(now, || format!("{fault:?}"));
        }
    }
}
