//! Replicas' states on their way between simulated nodes. They move in chunks, each of which takes its time. Between
//! two chunks anything may happen to both nodes, and a transfer is lost with its source.

use std::{sync::Arc, time::Duration};

use squall_fabric::{NodeId, sync::Lock};
use squall_membership::ShardId;
use squall_ordered::log::Damage;

use super::{cluster::Cluster, flow::Flow, node::Act};
use crate::{
    capture::{
        exchange::ReplicaStatus,
        state::{CaptureError, RestoreError},
    },
    durable::recovery,
    group::control::GroupControl,
    state_transfer::{
        offer,
        wire::{LogEnd, PreparedOffer},
    },
};

/// The answer of a source; None until there is one.
type Answer = Arc<Lock<Option<Result<PreparedOffer, String>>>>;

/// State that is on its way.
pub(super) struct StateTransfer {
    source: NodeId,
    /// The source's replica, in that life of its node.
    from: Arc<dyn GroupControl>,
    /// The number of the node's fetch that it is for.
    fetch: u32,
    way: FetchStage,
}

enum FetchStage {
    /// The source has not answered yet; the number counts the looks at the answer.
    Asked(Answer, u32),
    /// The state is on its way, a chunk at a time.
    Flows(Flow),
}

/// The pause before a node that found no source, or whose source was lost or has not answered, looks again.
const AGAIN: Duration = Duration::from_micros(500);

/// The number of looks after which a source that has not answered is given up.
const TOO_LATE: u32 = 20;

/// The possible sizes of a transfer's first chunk, in bytes: from a few records to all that a scenario has.
const CHUNK_BYTES: [usize; 4] = [200, 2 << 10, 16 << 10, 1 << 20];

impl Cluster {
    /// Asks some complete member for a shard's state.
    pub(super) fn fetch(&mut self, id: NodeId, shard: ShardId) {
        self.let_deliver(id, shard);
        let Some(group) = self.nodes.get_mut(&id).and_then(|node| node.groups.get_mut(&shard)) else { return };
        group.fetches = false;
        let differs = std::mem::take(&mut group.differs);
        let ReplicaStatus::Incomplete { fetch } = group.control.replica_status() else { return };
        let sources = self.sources(id, shard);
        if sources.is_empty() {
            return self.fetch_again(id, shard);
        }
        let source = sources[self.rng.usize(0..sources.len())];
        let answer = Answer::default();
        let from =
            self.nodes.get(&source).and_then(|node| node.groups.get(&shard)).map(|group| Arc::clone(&group.control));
        let Some(from) = from else { return self.fetch_again(id, shard) };
        let Some(have) = self.prepare(id, source, shard) else { return self.fetch_again(id, shard) };
        // Sometimes it takes a state, where the end of the log would do.
        let have = have.filter(|_| !differs && self.rng.u8(0..3) > 0);
        let answered = Arc::clone(&answer);
        match offer::plan(from.log_writer(), have, from.history().retains()) {
            Err(why) => *answered.lock() = Some(Err(why)),
            Ok(plan) => {
                let wanted = plan.wanted;
                let reply = move |captured: Result<_, CaptureError>| {
                    let given = captured.map_err(|error| error.to_string()).and_then(|captured| plan.give(captured));
                    *answered.lock() = Some(given);
                };
                from.capture(wanted, Box::new(reply));
            }
        }
        // Its engine wakes its delivering thread.
        self.step_within(source, self.options.step_delay);
        let at = self.net.now() + self.random(self.options.transfer_delay);
        let group = self.nodes.get_mut(&id).and_then(|node| node.groups.get_mut(&shard)).expect("it asks");
        group.transfer = Some(StateTransfer { source, from, fetch, way: FetchStage::Asked(answer, 0) });
        self.put(at, id, Act::Restore(shard));
    }

    /// Takes a replica to the end of its log, with the help of the source. Returns the log's end as far as the replica
    /// has come, if another log could go on from there. None on an error.
    fn prepare(&mut self, id: NodeId, source: NodeId, shard: ShardId) -> Option<Option<LogEnd>> {
        let control = |id| self.nodes.get(&id).and_then(|node| node.groups.get(&shard)).map(|group| &group.control);
        let (own, source) = (control(id)?, control(source)?);
        let mut repair = |damage: &Damage| {
            let log_writer = own.log_writer().ok_or("there is no log")?;
            recovery::repair(log_writer, damage, |from, to| offer::records_of(&**source, from, to))
        };
        own.prepare(&mut repair).ok()
    }

    fn fetch_again(&mut self, id: NodeId, shard: ShardId) {
        if let Some(group) = self.nodes.get_mut(&id).and_then(|node| node.groups.get_mut(&shard)) {
            group.fetches = true;
            self.put(self.net.now() + AGAIN, id, Act::Fetch(shard));
        }
    }

    /// Goes on with a state that is on its way, unless its source was lost or the state is not wanted any more.
    pub(super) fn restore(&mut self, id: NodeId, shard: ShardId) {
        let Some(group) = self.nodes.get_mut(&id).and_then(|node| node.groups.get_mut(&shard)) else { return };
        let Some(transfer) = group.transfer.take() else { return };
        let is_wanted = group.control.replica_status() == ReplicaStatus::Incomplete { fetch: transfer.fetch };
        if !is_wanted || !self.comes_from(id, shard, &transfer) {
            drop(transfer);
            return self.fetch_again(id, shard);
        }
        self.let_deliver(id, shard);
        let StateTransfer { source, from, fetch, way } = transfer;
        let way = match way {
            FetchStage::Asked(answer, late) => self.begin(id, shard, answer, late),
            FetchStage::Flows(flow) => self.flow(id, shard, flow),
        };
        let Some((way, wait)) = way else { return };
        let Some(group) = self.nodes.get_mut(&id).and_then(|node| node.groups.get_mut(&shard)) else { return };
        group.transfer = Some(StateTransfer { source, from, fetch, way });
        self.put(self.net.now() + wait, id, Act::Restore(shard));
    }

    /// Lets the delivering thread have the replica first, if it wants it: another thread that takes the replica waits
    /// for that.
    pub(super) fn let_deliver(&mut self, id: NodeId, shard: ShardId) {
        let group = self.nodes.get(&id).and_then(|node| node.groups.get(&shard));
        if group.is_some_and(|group| group.control.wants_delivery()) {
            self.deliver(id, shard);
        }
    }

    /// Whether the source runs in the same life, and can be reached.
    fn comes_from(&self, id: NodeId, shard: ShardId, transfer: &StateTransfer) -> bool {
        let source = self.nodes.get(&transfer.source).and_then(|node| node.groups.get(&shard));
        source.is_some_and(|group| Arc::ptr_eq(&group.control, &transfer.from)) && self.reach(id, transfer.source)
    }

    /// Checks whether a source has captured its state. Returns the next thing to do, and the time until then; None if
    /// the state is to be fetched again.
    fn begin(&mut self, id: NodeId, shard: ShardId, answer: Answer, late: u32) -> Option<(FetchStage, Duration)> {
        let given = answer.lock().take();
        match given {
            None if late < TOO_LATE => return Some((FetchStage::Asked(answer, late + 1), AGAIN)),
            Some(Ok(captured)) => {
                let chunk_bytes = CHUNK_BYTES[self.rng.usize(0..CHUNK_BYTES.len())];
                let group = self.nodes.get(&id)?.groups.get(&shard)?;
                if let Some(logging) = &group.logging {
                    logging.log_writer.set_forced(self.raft.status(id).is_some_and(|status| !status.forced.is_empty()));
                }
                let to = Arc::clone(&group.control);
                if let Ok(flow) = Flow::begin(captured, to, chunk_bytes) {
                    return Some((FetchStage::Flows(flow), Duration::ZERO));
                }
            }
            None | Some(Err(_)) => {}
        }
        self.fetch_again(id, shard);
        None
    }

    /// Moves a chunk. Returns the next thing to do, and the time until then, if there are more chunks.
    fn flow(&mut self, id: NodeId, shard: ShardId, mut flow: Flow) -> Option<(FetchStage, Duration)> {
        let Some(over) = flow.step() else {
            let wait = self.random(self.options.transfer_delay / 4);
            return Some((FetchStage::Flows(flow), wait));
        };
        drop(flow);
        if let Some(group) = self.nodes.get_mut(&id).and_then(|node| node.groups.get_mut(&shard)) {
            // The source may be unable to read its log, or its state too old. The replica then still lacks its state,
            // and fetches it anew.
            group.differs = matches!(over, Some(Err(RestoreError::Differs(_))));
        }
        self.schedule_deliveries(id);
        self.step_within(id, self.options.step_delay);
        None
    }
}
