//! A view log that is scripted: the first proposal for an epoch wins, and every node hears of it some time later. One that is
//! dropped may hear of it much later: it is dropped since it can't be reached.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fastrand::Rng;
use squall_fabric::{NodeId, Time};
use squall_membership::{Epoch, Proposal, ViewEvent, ViewLog};

use super::clock::Clock;

/// How long it may take until a node that was dropped hears of it.
const LATE: Duration = Duration::from_millis(50);

/// What all nodes' view logs of one cluster share.
#[derive(Debug)]
pub(crate) struct Script {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug)]
struct Shared {
    rng: Rng,
    nodes: Vec<NodeId>,
    decided: BTreeMap<Epoch, Proposal>,
    /// What each node still has to hear, and when.
    news: Vec<(Time, NodeId, Epoch)>,
    /// Proposed since the cluster last asked.
    proposed: Vec<Proposal>,
    delay: Duration,
}

impl Script {
    /// A script for these nodes, that decides within `delay`.
    pub(crate) fn new(nodes: Vec<NodeId>, delay: Duration, rng: Rng) -> Script {
        let shared = Shared { rng, nodes, decided: BTreeMap::new(), news: Vec::new(), proposed: Vec::new(), delay };
        Script { shared: Arc::new(Mutex::new(shared)) }
    }

    /// The side of one node, which has this clock.
    pub(crate) fn log(&self, node: NodeId, clock: Clock) -> Box<dyn ViewLog> {
        Box::new(ScriptedLog { node, clock, shared: Arc::clone(&self.shared) })
    }

    /// Decides on what was proposed since the last call, and returns when which nodes will hear of it.
    pub(crate) fn decide(&self, now: Time) -> Vec<(Time, NodeId)> {
        let mut shared = lock(&self.shared);
        let mut wakes = Vec::new();
        for proposal in std::mem::take(&mut shared.proposed) {
            let epoch = proposal.view.epoch;
            if shared.decided.contains_key(&epoch) {
                continue;
            }
            let soon = shared.delay.as_nanos() as u64;
            for node in shared.nodes.clone() {
                let stays = proposal.view.rank_of(node).is_some();
                let most = if stays { soon } else { soon.max(LATE.as_nanos() as u64) };
                let at = now + Duration::from_nanos(shared.rng.u64(1..=most));
                shared.news.push((at, node, epoch));
                wakes.push((at, node));
            }
            shared.decided.insert(epoch, proposal);
        }
        wakes
    }

    /// What follows this epoch, if that is decided.
    pub(crate) fn successor(&self, of: Epoch) -> Option<Proposal> {
        lock(&self.shared).decided.get(&Epoch(of.0 + 1)).cloned()
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
struct ScriptedLog {
    node: NodeId,
    clock: Clock,
    shared: Arc<Mutex<Shared>>,
}

impl ViewLog for ScriptedLog {
    fn propose(&mut self, proposal: Proposal) {
        lock(&self.shared).proposed.push(proposal);
    }

    fn peer_gone(&mut self, _node: NodeId) {}

    fn poll(&mut self, now: Time) -> Option<ViewEvent> {
        let mut shared = lock(&self.shared);
        let due = shared.news.iter().position(|&(at, node, _)| node == self.node && self.clock.at(at) <= now)?;
        let (_, _, epoch) = shared.news.swap_remove(due);
        Some(ViewEvent::Committed(shared.decided[&epoch].clone()))
    }
}
