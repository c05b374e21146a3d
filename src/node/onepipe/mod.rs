//! 1Pipe: scatterings in one total order by timestamps, in groups whose failures the node's views settle.
//!
//! The ranks of a group that belongs to no cluster are made as `squall_onepipe::driver` says.
//!
//! # Failures
//!
//! When a rank fails, the others deliver nothing beyond its last barrier until its failure is settled, by a
//! [`Controller`]. A process that runs a [`Node`](crate::Node) has one: it [declares](crate::NodeBuilder::onepipe) the
//! group, as all nodes do, and takes its place by its [`OnePipeHandle`] once the view has the members that the group is
//! to have. Then views settle the failure. When a member goes, each node that stays closes its rank's [`Gate`] and
//! reports the barrier up to which the rank may have delivered. The next view's entry in the view log holds the
//! greatest of these, and the group goes on without the member. A rank that was only stopped learns that it is out
//! ([`PipeEvent::Ended`]).
//!
//! ```no_run
//! # use std::time::Duration;
//! # use squall::{Config, Node, Spin, onepipe::{HostClock, Pipe}};
//! # use squall_fabric::{Wait, shm::{ShmConfig, ShmFabric}};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let limit = Duration::from_secs(30);
//! let config = Config::load("squall.toml")?;
//! // The group has a fabric of its own, under another cluster's name.
//! let fabric = ShmFabric::open(ShmConfig::new("orders", config.id()))?;
//! let mut node = Node::builder(config);
//! let handle = node.onepipe("orders");
//! let node = node.start()?;
//! node.wait_view(limit, |view| view.members.len() == 4)?;
//!
//! let (config, controller) = handle.take(fabric.waker(), limit)?;
//! let mut pipe = Pipe::create(fabric, config, HostClock::default(), controller, Spin::Auto, 4)?;
//! pipe.form(limit)?;
//! # Ok(())
//! # }
//! ```
//!
//! No view waits for a thread that drives a group, so that such a thread may wait for a view, as in
//! `submit(..).wait()`. But its group does wait: while it calls none of [`Pipe`]'s methods, no rank delivers beyond its
//! last barrier. No rank is dropped for that. If a thread hangs for good while its process is alive, the group stands
//! still until that process is ended, or an application [suspects](crate::Node::suspect) the node:
//! [`OnePipe::waits_for`] names it.
//!
//! A process that closes its pipe, while others go on with theirs, has failed to them, and loses its place in the view.
//! A group does not outlive a restart of all nodes.

#[cfg(all(test, not(squall_loom)))]
mod tests;

use std::{
    collections::VecDeque,
    sync::{
        Arc, MutexGuard, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use squall_fabric::{
    NodeId, Time, Waker,
    sync::{Condition, Lock},
};
use squall_membership::{EndReason, Member, Seq, ShardId, View};
pub use squall_onepipe::{
    Clock, Controller, CreateError, Delivery, Directive, FormError, Gate, HostClock, Message, Mode, OnePipe,
    OnePipeConfig, Pipe, PipeEvent, ScatterError, ScatteringId, Settlement, Topology, Unsettled, tag,
};

/// The reason for which a node's place in a 1Pipe group was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TakeError {
    /// The place is taken.
    #[error(
        "this node's place in {name:?} is taken: close that group first, at all its members, and then form it anew"
    )]
    Taken {
        /// The group.
        name: String,
    },
    /// The node is in no view that goes on.
    #[error("the node was in no view that goes on, for {limit:?}: look at `squall status`, and try again")]
    NoView {
        /// The time for which a view was awaited.
        limit: Duration,
    },
    /// The node's part in its groups is over.
    #[error(transparent)]
    Ended(EndReason),
}

/// A node's handle to a 1Pipe group that was [declared](crate::NodeBuilder::onepipe).
///
/// The group consists of the members of the view in which they [take](OnePipeHandle::take) their places, all in the
/// same view. A node that joins later is in no group that runs.
///
/// A group that is no longer needed is closed at all members, and then another can be formed. In practice this takes
/// another view. Each member whose rank takes one more turn after the first member has closed its own suspects that
/// member's node, which so loses its place and joins anew. Clocks of the later group show no less than those of the
/// earlier did.
#[derive(Debug)]
pub struct OnePipeHandle {
    slot: Arc<OnePipeSlot>,
}

impl OnePipeHandle {
    pub(crate) fn new(name: &str) -> OnePipeHandle {
        let state = Lock::default();
        let (has_news, has_suspects) = (AtomicBool::new(false), AtomicBool::new(false));
        let (engine, changed) = (OnceLock::new(), Condition::new());
        OnePipeHandle {
            slot: Arc::new(OnePipeSlot { name: name.to_owned(), state, engine, has_news, has_suspects, changed }),
        }
    }

    /// The part that the engine uses.
    pub(crate) fn slot(&self) -> Arc<OnePipeSlot> {
        Arc::clone(&self.slot)
    }

    /// The group's name.
    pub fn name(&self) -> &str {
        &self.slot.name
    }

    /// Takes the node's place in the current view; between views it waits for the next, for `limit` at most. `waker`
    /// wakes the thread that is to drive the group.
    ///
    /// The configuration has the view's members as ranks, in their order; its options may be changed, alike at all of
    /// them.
    ///
    /// Fails if the place is taken, if the node was in no view that goes on for `limit`, or if its part in its groups
    /// is over.
    pub fn take(&self, waker: Waker, limit: Duration) -> Result<(OnePipeConfig, ViewController), TakeError> {
        let until = Instant::now().checked_add(limit);
        let mut state = self.slot.state.lock();
        loop {
            if let Some(reason) = &state.ended {
                return Err(TakeError::Ended(reason.clone()));
            }
            if state.party.is_some() {
                return Err(TakeError::Taken { name: self.slot.name.clone() });
            }
            if let Some((shard, view)) = &state.open {
                let tag = tag(shard.0, view.epoch.0);
                let config = OnePipeConfig::new(view.nodes(), tag);
                let (epoch, members) = (view.epoch.0, view.members.iter().cloned().map(Some).collect());
                let gate: Arc<Gate> = Arc::default();
                let controller = ViewController { slot: Arc::clone(&self.slot), gate: Arc::clone(&gate) };
                state.party = Some(Party { members, epoch, gate, waker, suspects: Vec::new(), is_over: false });
                return Ok((config, controller));
            }
            let changed = &self.slot.changed;
            state = match until.map(|until| until.saturating_duration_since(Instant::now())) {
                None => changed.wait(state),
                Some(Duration::ZERO) => return Err(TakeError::NoView { limit }),
                Some(left) => changed.wait_timeout(state, left).0,
            };
        }
    }
}

/// A controller that settles failures in a 1Pipe group by the views of the node that has this [handle](OnePipeHandle).
///
/// Its gate closes with the view, and the group goes on with the next one, whose entry in the view log holds the
/// failure timestamp. A rank that it suspects loses its place in the view.
///
/// [`Pipe::create`] makes a rank with its gate. Dropped, it accepts no more, even while its rank
/// stays alive.
#[derive(derive_more::Debug)]
#[debug("ViewController {{ group: {:?} }}", slot.name)]
pub struct ViewController {
    slot: Arc<OnePipeSlot>,
    gate: Arc<Gate>,
}

impl Controller for ViewController {
    fn suspect(&mut self, _epoch: u64, rank: usize) {
        let mut state = self.slot.state.lock();
        let Some(party) = state.party.as_mut().filter(|party| !party.is_over) else { return };
        let Some(node) = party.members.get(rank).and_then(Option::as_ref).map(|member| member.node) else { return };
        if party.suspects.contains(&rank) {
            return;
        }
        party.suspects.push(rank);
        self.slot.suspect(&mut state, [node]);
        drop(state);
        self.slot.engine.get().into_iter().for_each(Waker::wake);
    }

    fn report(&mut self, _epoch: u64, _barrier: u64) {}

    fn gate(&self) -> Option<&Arc<Gate>> {
        Some(&self.gate)
    }

    fn poll(&mut self, _now: Time) -> Option<Directive> {
        // A directive that comes meanwhile wakes this thread again.
        if !self.slot.has_news.load(Ordering::Acquire) {
            return None;
        }
        let mut state = self.slot.state.lock();
        let directive = state.directives.pop_front();
        self.slot.has_news.store(!state.directives.is_empty(), Ordering::Release);
        directive
    }
}

impl Drop for ViewController {
    fn drop(&mut self) {
        let mut state = self.slot.state.lock();
        let passed = self.gate.close(u64::MAX);
        // The messages that it has delivered must be delivered by the ranks that go on.
        let is_over = state.party.take().is_none_or(|party| party.is_over);
        state.left = if is_over { 0 } else { passed };
        state.directives.clear();
    }
}

/// The slot of a 1Pipe group at its node: the state between the node's engine and the thread that drives the group.
#[derive(derive_more::Debug)]
#[debug("OnePipeSlot {{ name: {name:?} }}")]
pub(crate) struct OnePipeSlot {
    name: String,
    state: Lock<SlotState>,
    /// Wakes the engine.
    engine: OnceLock<Waker>,
    /// Whether there are directives.
    has_news: AtomicBool,
    /// Whether there are suspects.
    has_suspects: AtomicBool,
    changed: Condition,
}

#[derive(Debug, Default)]
struct SlotState {
    /// The view in which the place can be taken, and the group's shard in it.
    open: Option<(ShardId, Arc<View>)>,
    party: Option<Party>,
    /// The barrier at which a group's gate closed because its controller was dropped before the group was over, or 0.
    left: u64,
    directives: VecDeque<Directive>,
    /// Members that the group has lost, of which the engine has not heard yet.
    suspects: Vec<NodeId>,
    ended: Option<EndReason>,
}

/// A running group.
#[derive(Debug)]
struct Party {
    /// The members by rank; none once one was removed.
    members: Vec<Option<Member>>,
    /// The epoch of the group after all directives.
    epoch: u64,
    gate: Arc<Gate>,
    waker: Waker,
    /// The ranks that this one has lost.
    suspects: Vec<usize>,
    /// Whether the group can't go on.
    is_over: bool,
}

impl Party {
    /// Removes members, and returns their ranks.
    fn remove(&mut self, is_gone: impl Fn(&Member) -> bool) -> Vec<usize> {
        let mut removed = Vec::new();
        for (rank, member) in self.members.iter_mut().enumerate() {
            if member.take_if(|member| is_gone(member)).is_some() {
                removed.push(rank);
            }
        }
        removed
    }
}

impl OnePipeSlot {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Sets the engine's waker, once, before the node starts.
    pub(crate) fn attach(&self, engine: Waker) {
        let _ = self.engine.set(engine);
    }

    /// Takes the members that the group has lost since the last call.
    pub(crate) fn take_suspects(&self) -> Vec<NodeId> {
        if !self.has_suspects.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut state = self.state.lock();
        self.has_suspects.store(false, Ordering::Relaxed);
        std::mem::take(&mut state.suspects)
    }

    /// Ends the view. Returns the barrier up to which this node may have delivered in it; nothing is accepted beyond.
    pub(crate) fn wedge(&self, epoch: u64) -> Seq {
        let mut state = self.state.lock();
        state.open = None;
        match &state.party {
            Some(party) if party.is_over => Seq(0),
            Some(party) => Seq(party.gate.close(epoch)),
            None => Seq(state.left),
        }
    }

    /// Installs a view. The view before has ended at `passed`, the greatest barrier of all its members. It is none if
    /// that is not known, so that no group can go on.
    pub(crate) fn install(&self, shard: ShardId, view: &Arc<View>, passed: Option<Seq>) {
        let mut state = self.state.lock();
        state.open = Some((shard, Arc::clone(view)));
        // These are members of the view before.
        state.suspects.clear();
        self.changed.notify_all();
        let Some(passed) = passed else { return self.end_party(state) };
        let Some(party) = state.party.as_mut().filter(|party| !party.is_over) else { return };
        party.epoch = view.epoch.0;
        let failed = party.remove(|member| !view.members.contains(member));
        // A member that was lost when the view before was over is lost in this one.
        let again = party.suspects.iter().filter_map(|&rank| party.members[rank].as_ref());
        let again: Vec<NodeId> = again.map(|member| member.node).collect();
        self.suspect(&mut state, again);
        self.direct(state, Settlement { epoch: view.epoch.0, failed, failure_timestamp: passed.0 });
    }

    /// Ends the group because this node is in no view any more. It may be in later ones, in another incarnation.
    pub(crate) fn drop_out(&self) {
        let mut state = self.state.lock();
        state.open = None;
        self.end_party(state);
    }

    /// Ends the node's part.
    pub(crate) fn end(&self, reason: &EndReason) {
        let mut state = self.state.lock();
        state.open = None;
        state.ended.get_or_insert_with(|| reason.clone());
        self.changed.notify_all();
        self.end_party(state);
    }

    /// Ends the group, which can't go on.
    fn end_party(&self, mut state: MutexGuard<'_, SlotState>) {
        state.left = 0;
        state.suspects.clear();
        let Some(party) = state.party.as_mut().filter(|party| !party.is_over) else { return };
        party.is_over = true;
        party.gate.close(u64::MAX);
        let (epoch, failed) = (party.epoch + 1, party.remove(|_| true));
        self.direct(state, Settlement { epoch, failed, failure_timestamp: 0 });
    }

    fn suspect(&self, state: &mut SlotState, nodes: impl IntoIterator<Item = NodeId>) {
        state.suspects.extend(nodes);
        self.has_suspects.store(!state.suspects.is_empty(), Ordering::Release);
    }

    fn direct(&self, mut state: MutexGuard<'_, SlotState>, settlement: Settlement) {
        state.directives.push_back(Directive::Settle(settlement));
        self.has_news.store(true, Ordering::Release);
        let waker = state.party.as_ref().map(|party| party.waker.clone());
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
