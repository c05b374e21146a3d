//! What goes wrong in a scenario, and when.

use std::time::Duration;

use squall_fabric::{NodeId, Time, sim::Link};

use super::{
    Peer, Scenario,
    ledger::{Ledger, Log},
};

/// The highest id of a node that may join.
pub(super) const LAST_JOINER: u32 = 9;

#[derive(Clone, Debug)]
enum Fault {
    Pause(NodeId),
    Resume(NodeId),
    /// Nodes are cut off from each other.
    Cut(Vec<(NodeId, NodeId)>),
    /// What the first sends does not reach the second.
    CutOneWay(NodeId, NodeId),
    Heal(Vec<(NodeId, NodeId)>),
    /// What the first sends to the second takes so much longer.
    Slow(NodeId, NodeId, Duration),
    Crash(NodeId),
    /// A node starts, for the first time or again.
    Launch(NodeId),
    Leave(NodeId),
}

/// The faults of a scenario.
#[derive(Debug, Default)]
pub(super) struct Faults {
    planned: Vec<(Time, Fault)>,
    injected: usize,
}

impl Faults {
    /// How many there were.
    pub(super) fn injected(&self) -> usize {
        self.injected
    }

    /// Whether there are none to come, and none that will be over.
    pub(super) fn are_over(&self) -> bool {
        self.planned.is_empty()
    }

    fn plan(&mut self, at: Time, fault: Fault) {
        self.planned.push((at, fault));
    }
}

impl Scenario<'_> {
    fn any_node(&mut self) -> NodeId {
        self.peers[self.rng.usize(0..self.peers.len())].node
    }

    fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_micros(self.rng.u64(from * 1000..=to * 1000))
    }

    /// Plans random ones from now on. While all is calm, only such as must not harm.
    pub(super) fn plan_faults(&mut self, within: Duration) {
        let begin = self.cluster.now();
        for _ in 0..self.rng.usize(0..=2) {
            let (node, at) = (self.any_node(), begin + self.within(within));
            // Shorter than the failure timeout, so it must not harm.
            let over = at + self.millis(0, 8);
            self.faults.plan(at, Fault::Pause(node));
            self.faults.plan(over, Fault::Resume(node));
        }
        if self.calm {
            return;
        }
        // Some at the same moment, some after the group has got over the ones before.
        let lasts = [within, Duration::from_millis(30), Duration::from_millis(100)][self.rng.usize(0..3)];
        let mut joiner = self.peers.len() as u32 + 1;
        for _ in 0..self.rng.usize(1..=4) {
            let at = begin + self.within(lasts);
            let node = self.any_node();
            match self.rng.u8(0..16) {
                0 | 1 => {
                    let over = at + self.millis(30, 60);
                    self.faults.plan(at, Fault::Pause(node));
                    self.faults.plan(over, Fault::Resume(node));
                }
                2..=4 => self.plan_cut(at, node),
                5 => {
                    let (other, by) = (self.any_node(), self.millis(0, 3));
                    self.faults.plan(at, Fault::Slow(node, other, by));
                }
                6 => self.faults.plan(at, Fault::Leave(node)),
                7 | 8 if self.ordered && joiner <= LAST_JOINER => {
                    self.faults.plan(at, Fault::Launch(NodeId(joiner)));
                    joiner += 1;
                }
                _ => {
                    self.faults.plan(at, Fault::Crash(node));
                    if self.ordered && self.rng.bool() {
                        let again = at + self.millis(0, 60);
                        self.faults.plan(again, Fault::Launch(node));
                    }
                }
            }
        }
    }

    fn within(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(self.rng.u64(0..=most.as_nanos() as u64))
    }

    fn plan_cut(&mut self, at: Time, node: NodeId) {
        let nodes: Vec<NodeId> = self.peers.iter().map(|peer| peer.node).collect();
        let other = self.any_node();
        if node == other {
            return;
        }
        let over = at + self.millis(1, 60);
        match self.rng.u8(0..4) {
            0 => {
                self.faults.plan(at, Fault::CutOneWay(node, other));
                self.faults.plan(over, Fault::Heal(vec![(node, other)]));
            }
            1 => {
                // A link that comes and goes.
                let (mut at, period) = (at, self.millis(1, 10));
                for _ in 0..self.rng.usize(1..=6) {
                    self.faults.plan(at, Fault::Cut(vec![(node, other)]));
                    self.faults.plan(at + period / 2, Fault::Heal(vec![(node, other)]));
                    at = at + period;
                }
            }
            2 => {
                let (here, there): (Vec<_>, Vec<_>) = nodes.iter().copied().partition(|_| self.rng.bool());
                let links: Vec<_> = here.iter().flat_map(|&a| there.iter().map(move |&b| (a, b))).collect();
                self.faults.plan(at, Fault::Cut(links.clone()));
                self.faults.plan(over, Fault::Heal(links));
            }
            _ => {
                let links: Vec<_> = nodes.iter().filter(|&&n| n != node).map(|&n| (node, n)).collect();
                self.faults.plan(at, Fault::Cut(links.clone()));
                self.faults.plan(over, Fault::Heal(links));
            }
        }
    }

    /// Carries out the faults that are due.
    pub(super) fn inject(&mut self) -> Result<(), String> {
        let now = self.cluster.now();
        let mut due: Vec<(Time, Fault)> = self.faults.planned.extract_if(.., |(at, _)| *at <= now).collect();
        due.sort_by_key(|(at, _)| *at);
        for (_, fault) in due {
            self.tell(|| format!("{fault:?}"));
            self.faults.injected += usize::from(!matches!(fault, Fault::Resume(_) | Fault::Heal(_)));
            self.carry_out(fault)?;
        }
        Ok(())
    }

    fn carry_out(&mut self, fault: Fault) -> Result<(), String> {
        match fault {
            Fault::Pause(node) => {
                if let Some(peer) = self.peer(node).filter(|peer| peer.is_up) {
                    peer.is_paused = true;
                    self.cluster.pause(node);
                }
            }
            Fault::Resume(node) => {
                if let Some(peer) = self.peer(node).filter(|peer| peer.is_paused) {
                    peer.is_paused = false;
                    self.cluster.resume(node);
                }
            }
            Fault::Cut(links) => links.iter().for_each(|&(a, b)| self.cluster.net().cut(a, b)),
            Fault::CutOneWay(a, b) => self.cluster.net().cut_one_way(a, b),
            Fault::Heal(links) => links.iter().for_each(|&(a, b)| self.cluster.net().heal(a, b)),
            Fault::Slow(a, b, by) => {
                let link = Link { latency: Some(by), ..Link::default() };
                self.cluster.net().set_link(a, b, link);
            }
            Fault::Crash(node) => {
                if let Some(peer) = self.peer(node).filter(|peer| peer.is_up) {
                    (peer.is_up, peer.is_paused, peer.leaves) = (false, false, false);
                    self.cluster.crash(node);
                }
            }
            Fault::Launch(node) => self.launch(node)?,
            Fault::Leave(node) => {
                if let Some(peer) = self.peer(node).filter(|peer| peer.is_up) {
                    peer.leaves = true;
                    self.cluster.leave(node);
                }
            }
        }
        Ok(())
    }

    fn launch(&mut self, node: NodeId) -> Result<(), String> {
        if self.cluster.is_up(node) {
            return Ok(());
        }
        let log = Log::default();
        let group = self.cluster.declare(node, "ledger", Ledger(log.clone()));
        self.cluster.launch(node).map_err(|error| format!("{node} did not start: {error}"))?;
        let peer = Peer { node, group, log, is_up: true, is_paused: false, leaves: false };
        match self.peer(node) {
            Some(before) => {
                let before = std::mem::replace(before, peer);
                self.past.push((node, before.log));
            }
            None => self.peers.push(peer),
        }
        Ok(())
    }
}
