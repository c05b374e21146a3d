//! A node's seat in a 1Pipe group: how its views settle what failed there.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use squall_fabric::{GroupTag, NodeId, Time, Waker};
use squall_membership::{EndReason, Member, Seq, ShardId, View};
use squall_onepipe::{Controller, Directive, OnePipeConfig, Settlement};

use super::LAYER;

/// Why a seat was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SeatError {
    /// It is taken.
    #[error("the seat of {name:?} is taken: close that group first, at all its members, and then form it anew")]
    Taken {
        /// The group.
        name: String,
    },
    /// The node is in no view that goes on.
    #[error("the node was in no view that goes on, for {limit:?}: look at `squall status`, and try again")]
    NoView {
        /// How long that was waited for.
        limit: Duration,
    },
    /// The node's part in its groups is over.
    #[error(transparent)]
    Ended(EndReason),
}

/// A node's seat in a 1Pipe group that was [declared](crate::NodeBuilder::onepipe).
///
/// The group consists of the members of the view in which its seats are taken, all in the same one; who joins later is in
/// none that runs. Once it is closed, another can be formed in the view at hand.
#[derive(Debug)]
pub struct Seat {
    desk: Arc<Desk>,
}

impl Seat {
    pub(crate) fn new(name: &str) -> Seat {
        let state = Mutex::default();
        let (engine, has_news, changed) = (OnceLock::new(), AtomicBool::new(false), Condvar::new());
        Seat { desk: Arc::new(Desk { name: name.to_owned(), state, engine, has_news, changed }) }
    }

    /// The engine's side.
    pub(crate) fn desk(&self) -> Arc<Desk> {
        Arc::clone(&self.desk)
    }

    /// The group's name.
    pub fn name(&self) -> &str {
        &self.desk.name
    }

    /// Takes the seat in the view at hand; between views it waits for the next, for `limit` at most. `waker` wakes the thread
    /// that is to drive the group.
    ///
    /// The configuration has the view's members as ranks, in their order; its options may be changed, alike at all of them.
    pub fn take(&self, waker: Waker, limit: Duration) -> Result<(OnePipeConfig, Settler), SeatError> {
        let until = Instant::now() + limit;
        let mut state = self.desk.lock();
        loop {
            if let Some(reason) = &state.ended {
                return Err(SeatError::Ended(reason.clone()));
            }
            if state.party.is_some() {
                return Err(SeatError::Taken { name: self.desk.name.clone() });
            }
            if let Some((shard, view)) = &state.open {
                let tag = GroupTag { layer: LAYER, group: shard.0, epoch: view.epoch.0 };
                let config = OnePipeConfig::new(view.nodes(), tag);
                let (epoch, members) = (view.epoch.0, view.members.iter().cloned().map(Some).collect());
                state.party = Some(Party { members, epoch, waker, suspects: Vec::new(), is_over: false });
                return Ok((config, Settler { desk: Arc::clone(&self.desk) }));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(SeatError::NoView { limit });
            }
            let waited = self.desk.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Settles failures in a 1Pipe group by the views of the node that has this [seat](Seat): it wedges with the view, and goes
/// on with the next one, whose entry in the view log holds the failure timestamp. Whom it suspects loses its place in the
/// view.
pub struct Settler {
    desk: Arc<Desk>,
}

impl Controller for Settler {
    fn suspect(&mut self, _epoch: u64, rank: usize) {
        let mut state = self.desk.lock();
        let Some(party) = state.party.as_mut().filter(|party| !party.is_over) else { return };
        let Some(node) = party.members.get(rank).and_then(Option::as_ref).map(|member| member.node) else { return };
        if party.suspects.contains(&rank) {
            return;
        }
        party.suspects.push(rank);
        state.said.push(Said::Suspects(node));
        drop(state);
        self.desk.wake_engine();
    }

    fn report(&mut self, epoch: u64, barrier: u64) {
        let mut state = self.desk.lock();
        // Of a view that is over nobody waits for it.
        if state.awaited == Some(epoch) {
            state.awaited = None;
            state.said.push(Said::Count(Seq(barrier)));
            drop(state);
            self.desk.wake_engine();
        }
    }

    fn poll(&mut self, _now: Time) -> Option<Directive> {
        // A directive that comes meanwhile wakes this thread again.
        if !self.desk.has_news.load(Ordering::Acquire) {
            return None;
        }
        let mut state = self.desk.lock();
        let directive = state.directives.pop_front();
        self.desk.has_news.store(!state.directives.is_empty(), Ordering::Release);
        directive
    }
}

impl Drop for Settler {
    fn drop(&mut self) {
        let mut state = self.desk.lock();
        state.party = None;
        state.directives.clear();
        // The view must not wait for it.
        if state.awaited.take().is_some() {
            state.said.push(Said::Count(Seq(0)));
            drop(state);
            self.desk.wake_engine();
        }
    }
}

impl fmt::Debug for Settler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settler").field("group", &self.desk.name).finish_non_exhaustive()
    }
}

/// What the thread that drives a group tells its node's engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// How far it may have gone in the view that ends.
    Count(Seq),
    /// It has lost this member.
    Suspects(NodeId),
}

/// Between a node's engine and the thread that drives the group.
pub(crate) struct Desk {
    name: String,
    state: Mutex<State>,
    /// Wakes the engine.
    engine: OnceLock<Waker>,
    /// Whether there are directives.
    has_news: AtomicBool,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The view in which the seat can be taken, and the group's shard in it.
    open: Option<(ShardId, Arc<View>)>,
    party: Option<Party>,
    directives: VecDeque<Directive>,
    /// The epoch of the view whose end waits for a count.
    awaited: Option<u64>,
    said: Vec<Said>,
    ended: Option<EndReason>,
}

/// A group that runs.
#[derive(Debug)]
struct Party {
    /// By rank; none once it was removed.
    members: Vec<Option<Member>>,
    /// In which it is after all directives.
    epoch: u64,
    waker: Waker,
    /// Ranks that this one has lost.
    suspects: Vec<usize>,
    /// It can't go on.
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

impl Desk {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Says what wakes the engine. Once, before the node starts.
    pub(crate) fn attach(&self, engine: Waker) {
        let _ = self.engine.set(engine);
    }

    /// What was said since the last call, in order.
    pub(crate) fn take_said(&self) -> Vec<Said> {
        std::mem::take(&mut self.lock().said)
    }

    /// The view ends. Returns how far this node may have gone, or None if that is to be [said](Said::Count) by the thread that
    /// drives the group.
    pub(crate) fn wedge(&self, epoch: u64) -> Option<Seq> {
        let mut state = self.lock();
        state.open = None;
        if state.party.as_ref().is_none_or(|party| party.is_over) {
            return Some(Seq(0));
        }
        if state.awaited.replace(epoch).is_none() {
            self.direct(state, Directive::Wedge { epoch });
        }
        None
    }

    /// A view is installed, in which the view before has ended at `passed`: the greatest of all counts. None if that is not
    /// known, so that no group can go on.
    pub(crate) fn install(&self, shard: ShardId, view: &Arc<View>, passed: Option<Seq>) {
        let mut state = self.lock();
        (state.open, state.awaited) = (Some((shard, Arc::clone(view))), None);
        // Of the view before.
        state.said.clear();
        self.changed.notify_all();
        let Some(party) = state.party.as_mut().filter(|party| !party.is_over) else { return };
        (party.epoch, party.is_over) = (view.epoch.0, passed.is_none());
        let failed = party.remove(|member| passed.is_none() || !view.members.contains(member));
        // Who was lost when the view before was over is lost in this one.
        let again = party.suspects.iter().filter_map(|&rank| party.members[rank].as_ref());
        let again: Vec<Said> = again.map(|member| Said::Suspects(member.node)).collect();
        state.said.extend(again);
        let failure_timestamp = passed.unwrap_or_default().0;
        self.direct(state, Directive::Settle(Settlement { epoch: view.epoch.0, failed, failure_timestamp }));
    }

    /// This node is in no view any more. It may be in later ones, in another life.
    pub(crate) fn drop_out(&self) {
        let mut state = self.lock();
        (state.open, state.awaited) = (None, None);
        state.said.clear();
        self.end_party(state);
    }

    /// The node's part is over.
    pub(crate) fn end(&self, reason: &EndReason) {
        let mut state = self.lock();
        (state.open, state.awaited) = (None, None);
        state.ended.get_or_insert_with(|| reason.clone());
        self.changed.notify_all();
        self.end_party(state);
    }

    fn end_party(&self, mut state: MutexGuard<'_, State>) {
        let Some(party) = state.party.as_mut().filter(|party| !party.is_over) else { return };
        party.is_over = true;
        let (epoch, failed) = (party.epoch + 1, party.remove(|_| true));
        self.direct(state, Directive::Settle(Settlement { epoch, failed, failure_timestamp: 0 }));
    }

    fn direct(&self, mut state: MutexGuard<'_, State>, directive: Directive) {
        state.directives.push_back(directive);
        self.has_news.store(true, Ordering::Release);
        let waker = state.party.as_ref().map(|party| party.waker.clone());
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn wake_engine(&self) {
        if let Some(engine) = self.engine.get() {
            engine.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while holding it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(squall_loom)))]
mod tests {
    use squall_membership::{Epoch, Incarnation};

    use super::*;

    const SHARD: ShardId = ShardId(3);

    fn view(epoch: u64, nodes: &[u32]) -> Arc<View> {
        let members: Vec<Member> = nodes.iter().map(|&node| Member::new(NodeId(node), Incarnation(1))).collect();
        Arc::new(View { epoch: Epoch(epoch), members, shards: Vec::new(), joined: Vec::new(), left: Vec::new() })
    }

    /// A seat in view 5 of nodes 7, 8 and 9, and who drives the group.
    fn taken() -> (Seat, Settler) {
        let seat = Seat::new("orders");
        seat.desk.install(SHARD, &view(5, &[7, 8, 9]), None);
        let (config, settler) = seat.take(Waker::new(|| ()), Duration::ZERO).expect("it is free");
        assert_eq!(config.nodes, [7, 8, 9].map(NodeId));
        assert_eq!((config.tag.group, config.epoch), (3, 5));
        (seat, settler)
    }

    fn settles(settler: &mut Settler) -> Option<(u64, Vec<usize>, u64)> {
        match settler.poll(Time::ZERO)? {
            Directive::Settle(Settlement { epoch, failed, failure_timestamp }) => {
                Some((epoch, failed, failure_timestamp))
            }
            Directive::Wedge { .. } => None,
        }
    }

    #[test]
    fn a_view_that_ends_waits_for_the_report_and_the_next_settles() {
        let (Seat { desk }, mut settler) = taken();
        assert_eq!(desk.wedge(5), None);
        assert_eq!(settler.poll(Time::ZERO), Some(Directive::Wedge { epoch: 5 }));
        settler.report(4, 50);
        assert_eq!(desk.take_said(), [], "it is of an earlier view");
        settler.report(5, 60);
        settler.report(5, 70);
        assert_eq!(desk.take_said(), [Said::Count(Seq(60))], "a count does not change");
        desk.install(SHARD, &view(6, &[7, 9]), Some(Seq(65)));
        assert_eq!(settles(&mut settler), Some((6, vec![1], 65)));
        desk.install(SHARD, &view(7, &[7, 9, 10]), Some(Seq(65)));
        assert_eq!(settles(&mut settler), Some((7, Vec::new(), 65)), "nobody went");
        assert_eq!(settler.poll(Time::ZERO), None);
    }

    #[test]
    fn who_was_lost_is_suspected_in_each_view_until_it_goes() {
        let (Seat { desk }, mut settler) = taken();
        settler.suspect(5, 1);
        settler.suspect(5, 1);
        settler.suspect(5, 9);
        assert_eq!(desk.take_said(), [Said::Suspects(NodeId(8))]);
        desk.install(SHARD, &view(6, &[7, 8, 9]), Some(Seq(1)));
        assert_eq!(desk.take_said(), [Said::Suspects(NodeId(8))], "the view before was over already");
        desk.install(SHARD, &view(7, &[7, 9]), Some(Seq(1)));
        assert_eq!(desk.take_said(), []);
    }

    #[test]
    fn a_node_that_was_dropped_is_out_of_its_group_and_can_be_in_another() {
        let (seat, mut settler) = taken();
        seat.desk.wedge(5);
        seat.desk.drop_out();
        assert_eq!(settler.poll(Time::ZERO), Some(Directive::Wedge { epoch: 5 }));
        assert_eq!(settles(&mut settler), Some((6, vec![0, 1, 2], 0)));
        seat.desk.install(SHARD, &view(9, &[8, 9, 7]), None);
        assert_eq!(settles(&mut settler), None, "it hears of no later view");
        assert_eq!(seat.desk.wedge(9), Some(Seq(0)), "and holds none up");
        seat.desk.install(SHARD, &view(10, &[8, 9, 7]), Some(Seq(0)));
        let taken = seat.take(Waker::new(|| ()), Duration::ZERO);
        assert_eq!(taken.map(drop), Err(SeatError::Taken { name: "orders".into() }));
        drop(settler);
        assert!(seat.take(Waker::new(|| ()), Duration::ZERO).is_ok());
    }

    #[test]
    fn a_restart_ends_the_group() {
        let (Seat { desk }, mut settler) = taken();
        desk.install(SHARD, &view(6, &[7, 8, 9]), None);
        assert_eq!(settles(&mut settler), Some((6, vec![0, 1, 2], 0)));
    }

    #[test]
    fn a_view_does_not_wait_for_who_is_gone() {
        let (Seat { desk }, settler) = taken();
        assert_eq!(desk.wedge(5), None);
        drop(settler);
        assert_eq!(desk.take_said(), [Said::Count(Seq(0))]);
        assert_eq!(desk.wedge(6), Some(Seq(0)));
    }

    #[test]
    fn between_views_and_after_the_end_no_seat_is_taken() {
        let seat = Seat::new("orders");
        let take = || seat.take(Waker::new(|| ()), Duration::ZERO).map(drop);
        assert_eq!(take(), Err(SeatError::NoView { limit: Duration::ZERO }));
        seat.desk.install(SHARD, &view(1, &[7]), None);
        assert_eq!(take(), Ok(()));
        seat.desk.wedge(1);
        assert_eq!(take(), Err(SeatError::NoView { limit: Duration::ZERO }));
        seat.desk.end(&EndReason::Left);
        assert_eq!(take(), Err(SeatError::Ended(EndReason::Left)));
    }
}
