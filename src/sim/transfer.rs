//! How a replica's state moves between simulated nodes: as a value, that takes its time, and is lost with its source.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use squall_fabric::NodeId;
use squall_membership::ShardId;

use super::{cluster::Cluster, node::Act};
use crate::{
    state::{CaptureError, Captured},
    transfer::Standing,
};

/// What a source answers, once it has.
type Answer = Arc<Mutex<Option<Result<Captured, CaptureError>>>>;

/// State that is on its way.
pub(super) struct Cargo {
    source: NodeId,
    /// Which of the node's needs it is for.
    fetch: u32,
    answer: Answer,
    /// How often it was looked for and had not come.
    late: u32,
}

/// When a node that found no source, or whose source was lost, looks for one again.
const AGAIN: Duration = Duration::from_micros(500);

/// A source that has not answered by then is given up.
const TOO_LATE: u32 = 20;

impl Cluster {
    /// Asks some complete member for a shard's state.
    pub(super) fn fetch(&mut self, id: NodeId, shard: ShardId) {
        let Some(group) = self.nodes.get_mut(&id).and_then(|node| node.groups.get_mut(&shard)) else { return };
        group.fetches = false;
        let Standing::Incomplete { fetch } = group.control.standing() else { return };
        let sources = self.sources(id, shard);
        if sources.is_empty() {
            return self.fetch_again(id, shard);
        }
        let source = sources[self.rng.usize(0..sources.len())];
        let answer = Answer::default();
        if let Some(group) = self.nodes.get(&source).and_then(|node| node.groups.get(&shard)) {
            let answer = Arc::clone(&answer);
            let reply = move |result| *answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
            group.control.capture(Box::new(reply));
        }
        // Its delivering thread is woken by its engine.
        self.step_within(source, self.options.step_delay);
        let at = self.net.now() + self.random(self.options.transfer_delay);
        let group = self.nodes.get_mut(&id).and_then(|node| node.groups.get_mut(&shard)).expect("it asks");
        group.cargo = Some(Cargo { source, fetch, answer, late: 0 });
        self.put(at, id, Act::Restore(shard));
    }

    fn fetch_again(&mut self, id: NodeId, shard: ShardId) {
        if let Some(group) = self.nodes.get_mut(&id).and_then(|node| node.groups.get_mut(&shard)) {
            group.fetches = true;
            self.put(self.net.now() + AGAIN, id, Act::Fetch(shard));
        }
    }

    /// Takes the state that has come, unless its source was lost on the way.
    pub(super) fn restore(&mut self, id: NodeId, shard: ShardId) {
        let Some(group) = self.nodes.get_mut(&id).and_then(|node| node.groups.get_mut(&shard)) else { return };
        let Some(mut cargo) = group.cargo.take() else { return };
        let is_wanted = group.control.standing() == Standing::Incomplete { fetch: cargo.fetch };
        if !is_wanted || !self.reach(id, cargo.source) || cargo.late > TOO_LATE {
            return self.fetch_again(id, shard);
        }
        let answer = cargo.answer.lock().unwrap_or_else(PoisonError::into_inner).take();
        let group = self.nodes.get_mut(&id).and_then(|node| node.groups.get_mut(&shard)).expect("it was just there");
        match answer {
            None => {
                cargo.late += 1;
                group.cargo = Some(cargo);
                self.put(self.net.now() + AGAIN, id, Act::Restore(shard));
            }
            Some(Err(_)) => self.fetch_again(id, shard),
            Some(Ok(captured)) => {
                let mut bytes = Vec::new();
                captured.write(&mut bytes).expect("there is memory");
                // If it is too old, it is still lacking, and is fetched anew.
                let _ = group.control.restore(&mut &bytes[..]);
                self.schedule_deliveries(id);
                self.step_within(id, self.options.step_delay);
            }
        }
    }
}
