//! The log's leader, and the signs that it is there.
//!
//! Raft's own timers never run: they would wake an idle node some sixteen times a second. A leader's heartbeats are
//! this module's, and rare while nothing happens.

use std::time::Duration;

use openraft::{Instant, async_runtime::watch::WatchReceiver, type_config::TypeConfigExt};
use squall_fabric::NodeId;
use squall_membership::Member;

use super::Agent;
use crate::{
    types::{LogId, Types, Vote},
    wire::{Body, Contact},
};

/// The factor by which heartbeats are rarer while nothing happens.
const CALM: u32 = 3;
/// The time after an event in which they are not rarer: a node that missed it is told soon.
const LIVELY: Duration = Duration::from_secs(2);
/// The number of heartbeats after which a leader that no majority answers is cut off.
const PATIENCE: u32 = 3;
/// The time for which a leader that ends waits for another to take over.
const HAND_OVER: Duration = Duration::from_millis(200);

/// A node's knowledge of the leader, and its own beats if it leads.
#[derive(Default)]
pub(super) struct Leadership {
    /// The time at which the leader was last heard.
    heard: Option<Duration>,
    lively_until: Duration,
    next_beat: Duration,
    last_beat: Duration,
    /// The first heartbeat that no majority has answered.
    unanswered: Option<Duration>,
    /// The first entry that was not decided at the last look, and the time since which that is so.
    undecided: Option<(u64, Duration)>,
    /// The time until which it waits for another to take over, before it ends.
    ends_at: Option<Duration>,
}

impl<C: Types> Agent<C> {
    /// The log's leader, as this node knows it.
    pub(super) fn leader(&self) -> Option<Member> {
        let metrics = self.raft.server_metrics();
        let metrics = metrics.borrow_watched();
        let leader = metrics.current_leader?;
        metrics.membership_config.get_node(&leader).map(|peer| peer.member.clone())
    }

    pub(super) fn is_leader(&self) -> bool {
        self.raft.server_metrics().borrow_watched().state.is_leader()
    }

    /// The node that has this part in the log.
    pub(super) fn node_of(&self, voter: u64) -> Option<NodeId> {
        let metrics = self.raft.server_metrics();
        let metrics = metrics.borrow_watched();
        metrics.membership_config.get_node(&voter).map(|peer| peer.member.node)
    }

    /// Takes note of a sign of the leader, unless that leads no more.
    pub(super) fn on_leader_heard(&mut self, vote: Vote) {
        if vote >= self.raft.server_metrics().borrow_watched().vote {
            self.leadership.heard = Some(self.now);
        }
    }

    /// Takes note that another node leads, or this one does anew.
    pub(super) fn on_vote(&mut self) {
        self.leadership.undecided = None;
    }

    pub(super) fn leader_heard(&self) -> Option<Duration> {
        self.leadership.heard
    }

    /// Whether another node, which leads, was heard within a time.
    pub(super) fn hears_leader(&self, within: Duration) -> bool {
        self.leadership.heard.is_some_and(|heard| self.now - heard < within)
    }

    /// The time for which a leader that is there may be silent.
    pub(super) fn calm(&self) -> Duration {
        self.settings.timing.heartbeat * CALM
    }

    /// Notes an event of which the others must be told.
    pub(super) fn is_lively(&mut self) {
        self.leadership.lively_until = self.now + LIVELY;
        self.leadership.next_beat = self.leadership.next_beat.min(self.now + self.settings.timing.heartbeat);
    }

    /// The time at which this node, if it leads, must next show that it is there, or end.
    pub(super) fn next_beat(&self) -> Option<Duration> {
        if !self.is_leader() {
            return None;
        }
        let Leadership { ends_at, next_beat, last_beat, .. } = self.leadership;
        let unanswered = self.unanswered_at().filter(|at| *at > last_beat);
        [ends_at, unanswered].into_iter().flatten().chain([next_beat]).min()
    }

    /// Shows that this node is there, if it leads.
    pub(super) async fn beat(&mut self) {
        if self.next_beat().is_none_or(|at| self.now < at) {
            return;
        }
        self.watch_decisions();
        let is_unanswered = self.is_unanswered();
        if is_unanswered {
            self.step_aside(self.vote().0);
        }
        let acked = self.acked();
        if self.leadership.unanswered.is_none_or(|first| acked >= first) {
            self.leadership.unanswered = Some(self.now);
        }
        let is_lively = is_unanswered || self.now < self.leadership.lively_until;
        let pause = if is_lively { self.settings.timing.heartbeat } else { self.calm() };
        (self.leadership.last_beat, self.leadership.next_beat) = (self.now, self.now + pause);
        // If Raft has stopped, the next tick finds that out.
        let _ = self.raft.trigger().heartbeat().await;
    }

    /// The last time at which a majority was asked something that it has answered, where this node leads.
    fn acked(&self) -> Duration {
        let metrics = self.raft.data_metrics();
        let acked =
            metrics.borrow_watched().last_quorum_acked.map(|acked| acked.saturating_duration_since(self.started));
        acked.unwrap_or_default().max(self.vote_since())
    }

    /// The time at which this node, which leads, must take itself for cut off, if no majority answers it.
    pub(super) fn unanswered_at(&self) -> Option<Duration> {
        let is_alone = self.raft.server_metrics().borrow_watched().membership_config.voter_ids().count() == 1;
        let first = self.leadership.unanswered.filter(|first| !is_alone && self.acked() < *first);
        first.map(|first| first + self.settings.timing.heartbeat * PATIENCE)
    }

    /// Whether this node, which leads, decides nothing: no majority answers it, or none takes an entry.
    pub(super) fn is_unanswered(&self) -> bool {
        let patience = self.settings.timing.election.1;
        let is_stuck = self.leadership.undecided.is_some_and(|(_, since)| self.now - since >= patience);
        is_stuck || self.unanswered_at().is_some_and(|at| self.now >= at)
    }

    /// Takes note of entries that wait for a majority.
    fn watch_decisions(&mut self) {
        let metrics = self.raft.data_metrics();
        let index = |id: &Option<LogId>| id.map_or(0, |id| id.index);
        let (last, decided) = {
            let metrics = metrics.borrow_watched();
            (index(&metrics.last_log), index(&metrics.cluster_committed))
        };
        self.leadership.undecided.take_if(|(waits, _)| decided >= *waits);
        if last > decided {
            self.leadership.undecided.get_or_insert((last, self.now));
        }
    }

    /// Tells the other voters that this node ends, if it leads. Another one takes over then, and no node need miss the
    /// leader.
    pub(super) fn says_farewell(&mut self) -> bool {
        let others = self.other_voters();
        if !self.is_leader() || others.is_empty() {
            return false;
        }
        for (_, peer) in others {
            self.network.send(&Contact::from(&peer.member), Body::Farewell);
        }
        self.leadership.ends_at = Some(C::now() - self.started + HAND_OVER);
        true
    }

    /// Whether this node has ended, and another node leads, or none has taken over in time.
    pub(super) fn has_handed_over(&self) -> bool {
        self.leadership.ends_at.is_some_and(|at| self.now >= at || !self.is_leader())
    }
}
