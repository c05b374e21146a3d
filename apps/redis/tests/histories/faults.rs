//! The faults of a run, and their times.

use std::time::Duration;

use squall::NodeId;

use super::{FAILURE_TIMEOUT, FAULTS_BEGIN_WITHIN, Replica, Simulation};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    Process,
    /// The engine alone stops; threads that read go on.
    Engine,
}

#[derive(Clone, Debug)]
pub(super) enum Fault {
    Crash(NodeId),
    /// A node starts, for the first time or again.
    Launch(NodeId),
    Leave(NodeId),
    Stop(NodeId, Stop),
    GoOn(NodeId),
    Cut(Vec<(NodeId, NodeId)>),
    CutOneWay(NodeId, NodeId),
    Heal(Vec<(NodeId, NodeId)>),
    /// An operator tells all other nodes that a node is gone.
    GiveUp(NodeId),
}

impl Simulation {
    /// Plans random faults.
    pub(super) fn plan_faults(&mut self) {
        let nodes: Vec<NodeId> = self.replicas.keys().copied().collect();
        let mut joiner = nodes.len() as u32;
        for _ in 0..self.rng.usize(1..=4) {
            let at = self.within(FAULTS_BEGIN_WITHIN);
            let over = at + Duration::from_millis(1) + self.within(2 * FAILURE_TIMEOUT);
            let node = nodes[self.rng.usize(..nodes.len())];
            let links: Vec<_> = nodes.iter().filter(|&&other| other != node).map(|&other| (node, other)).collect();
            let mut plan = |at, fault| self.faults.push_back((at, fault));
            let soon = at + self.rng.u32(..10) * Duration::from_micros(100);
            match self.rng.u8(..12) {
                0 | 1 => {
                    plan(at, Fault::Crash(node));
                    plan(over, Fault::Launch(node));
                }
                2 | 3 => {
                    let stop = if self.rng.bool() { Stop::Process } else { Stop::Engine };
                    plan(at, Fault::Stop(node, stop));
                    plan(over, Fault::GoOn(node));
                }
                4 => {
                    plan(at, Fault::Cut(links.clone()));
                    plan(over, Fault::Heal(links));
                }
                5 => {
                    let (here, there): (Vec<_>, Vec<_>) = nodes.iter().copied().partition(|_| self.rng.bool());
                    let links: Vec<_> = here.iter().flat_map(|&a| there.iter().map(move |&b| (a, b))).collect();
                    plan(at, Fault::Cut(links.clone()));
                    plan(over, Fault::Heal(links));
                }
                // The node hears the others, but they don't hear it.
                6 => {
                    links.iter().for_each(|&(from, to)| plan(at, Fault::CutOneWay(from, to)));
                    plan(over, Fault::Heal(links));
                }
                7 => {
                    plan(at, Fault::Cut(links.clone()));
                    plan(soon, Fault::GiveUp(node));
                    plan(over, Fault::Heal(links));
                }
                8 | 9 => {
                    plan(at, Fault::Stop(node, Stop::Engine));
                    plan(soon, Fault::GiveUp(node));
                    plan(over, Fault::GoOn(node));
                }
                10 => {
                    joiner += 1;
                    plan(at, Fault::Launch(NodeId(joiner)));
                }
                _ => plan(at, Fault::Leave(node)),
            }
        }
        self.faults.make_contiguous().sort_by_key(|(at, _)| *at);
    }

    /// Carries out the faults that are due.
    pub(super) fn inject(&mut self) {
        let now = self.now();
        while let Some((_, fault)) = self.faults.pop_front_if(|(at, _)| *at <= now) {
            self.carry_out(fault);
        }
    }

    fn carry_out(&mut self, fault: Fault) {
        match fault {
            Fault::Crash(node) => {
                if self.replicas.get(&node).is_some_and(|replica| !replica.leaves) {
                    self.cluster.crash(node);
                    self.lose_clients(node);
                    self.replicas.remove(&node);
                }
            }
            Fault::Launch(node) if !self.cluster.is_up(node) => {
                let group = self.cluster.declare(node, "kv", self.ends.store(node));
                self.cluster.launch(node).expect("it starts");
                self.replicas.insert(node, Replica { group, stopped: None, leaves: false });
                self.add_clients(node);
            }
            Fault::Launch(_) => {}
            Fault::Leave(node) => {
                let Some(replica) = self.replicas.get_mut(&node).filter(|replica| replica.stopped.is_none()) else {
                    return;
                };
                replica.leaves = true;
                self.cluster.leave(node);
            }
            Fault::Stop(node, stop) => {
                if let Some(replica) = self.replicas.get_mut(&node).filter(|replica| !replica.leaves) {
                    replica.stopped.get_or_insert(stop);
                    self.cluster.pause(node);
                }
            }
            Fault::GoOn(node) => {
                if let Some(replica) = self.replicas.get_mut(&node) {
                    replica.stopped = None;
                    self.cluster.resume(node);
                }
            }
            Fault::Cut(links) => links.iter().for_each(|&(a, b)| self.cluster.net().cut(a, b)),
            Fault::CutOneWay(from, to) => self.cluster.net().cut_one_way(from, to),
            Fault::Heal(links) => links.iter().for_each(|&(a, b)| self.cluster.net().heal(a, b)),
            Fault::GiveUp(gone) => {
                let others = self.replicas.iter().filter(|(node, other)| **node != gone && other.stopped.is_none());
                others.for_each(|(&node, _)| self.cluster.suspect(node, gone));
            }
        }
    }
}
