//! How a replica's state moves between simulated nodes: as a value, that takes its time, and is lost with its source.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use squall_fabric::NodeId;
use squall_membership::ShardId;
use squall_ordered::log::{Damage, End};

use super::{cluster::Cluster, node::Act};
use crate::{
    control::transfer::{Captured, Want},
    recovery,
    state::{CaptureError, RestoreError},
    transfer::Standing,
};

/// What a source answers, once it has.
type Answer = Arc<Mutex<Option<Result<Captured, String>>>>;

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
        let differs = std::mem::take(&mut group.differs);
        let Standing::Incomplete { fetch } = group.control.standing() else { return };
        let sources = self.sources(id, shard);
        if sources.is_empty() {
            return self.fetch_again(id, shard);
        }
        let source = sources[self.rng.usize(0..sources.len())];
        let answer = Answer::default();
        let Some(have) = self.prepare(id, source, shard) else { return self.fetch_again(id, shard) };
        // Sometimes a state, where the end of the log would do.
        let have = have.filter(|_| !differs && self.rng.u8(0..3) > 0).map(|have| recovery::place(have.position));
        if let Some(group) = self.nodes.get(&source).and_then(|node| node.groups.get(&shard)) {
            let answer = Arc::clone(&answer);
            match recovery::Plan::new(&*group.control, have) {
                Err(why) => *answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(Err(why)),
                Ok(plan) => {
                    let wanted = plan.wanted;
                    let reply = move |captured: Result<_, CaptureError>| {
                        let given =
                            captured.map_err(|error| error.to_string()).and_then(|captured| plan.give(captured));
                        *answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(given);
                    };
                    group.control.capture(wanted, Box::new(reply));
                }
            }
        }
        // Its delivering thread is woken by its engine.
        self.step_within(source, self.options.step_delay);
        let at = self.net.now() + self.random(self.options.transfer_delay);
        let group = self.nodes.get_mut(&id).and_then(|node| node.groups.get_mut(&shard)).expect("it asks");
        group.cargo = Some(Cargo { source, fetch, answer, late: 0 });
        self.put(at, id, Act::Restore(shard));
    }

    /// Takes a replica to the end of its log, with the help of the source. What is there then; None if nothing can be.
    fn prepare(&mut self, id: NodeId, source: NodeId, shard: ShardId) -> Option<Option<End>> {
        let control = |id| self.nodes.get(&id).and_then(|node| node.groups.get(&shard)).map(|group| &group.control);
        let (own, source) = (control(id)?, control(source)?);
        let mut repair = |damage: &Damage| {
            let journal = own.journal().ok_or("there is no log")?;
            recovery::repair(journal, damage, |from, to| {
                let want = Want::Records { from: recovery::place(from), to: recovery::place(to) };
                let mut records = Vec::new();
                let given = recovery::offer(&**source, want)?;
                (given.write)(&mut records).map_err(|error| error.to_string())?;
                Ok(records)
            })
        };
        own.prepare(&mut repair).ok()
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
                let Captured { gift, write, .. } = captured;
                if let Some(logging) = &group.logging {
                    logging.journal.set_forced(self.raft.is_forced(id));
                }
                // A source that can't read its log, or whose state is too old: it is still lacking, and is fetched anew.
                if write(&mut bytes).is_ok() {
                    let restored = group.control.restore(gift, &mut &bytes[..]);
                    group.differs = matches!(restored, Err(RestoreError::Differs(_)));
                }
                self.schedule_deliveries(id);
                self.step_within(id, self.options.step_delay);
            }
        }
    }
}
