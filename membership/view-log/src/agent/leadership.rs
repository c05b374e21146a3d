//! Who leads the log, and whether it is there.
//!
//! Raft's own timers run only where there is no leader, or none is heard: they would wake an idle node some sixteen times a
//! second. A leader's heartbeats are this module's, and rare while nothing happens.

use std::time::Duration;

use openraft::{async_runtime::watch::WatchReceiver, raft::TransferLeaderRequest, type_config::TypeConfigExt};
use squall_membership::Member;

use super::Agent;
use crate::{
    types::Types,
    wire::{Body, Contact},
};

/// While nothing happens, heartbeats are so many times rarer.
const CALM: u32 = 3;
/// For so long after something happened they are not: who missed it is told soon.
const LIVELY: Duration = Duration::from_secs(2);
/// How long a voter waits for each of those before it, when the leader is gone.
const TURN: Duration = Duration::from_millis(50);
/// How long a leader that ends waits for another to take over.
const HAND_OVER: Duration = Duration::from_millis(200);
/// How often it tries, before it leaves that to Raft.
const TURNS: u32 = 3;

/// What is known of who leads.
pub(super) struct Leadership {
    /// When the leader was last heard.
    heard: Option<Duration>,
    /// Raft's own timers run.
    pub(super) has_timers: bool,
    lively_until: Duration,
    next_beat: Duration,
    /// How often this node has tried to take over, since it last heard that a node is gone, and when it last did.
    turns: u32,
    last_turn: Option<Duration>,
    /// Until when it waits for another to take over, before it ends.
    ends_at: Option<Duration>,
}

impl Default for Leadership {
    /// Of a raft that has just been started.
    fn default() -> Leadership {
        let (lively_until, next_beat) = (Duration::ZERO, Duration::ZERO);
        Leadership { heard: None, has_timers: true, lively_until, next_beat, turns: 0, last_turn: None, ends_at: None }
    }
}

impl<C: Types> Agent<C> {
    /// Who leads the log, as this node knows it.
    pub(super) fn leader(&self) -> Option<Member> {
        let metrics = self.raft.server_metrics();
        let metrics = metrics.borrow_watched();
        let leader = metrics.current_leader?;
        metrics.membership_config.get_node(&leader).map(|peer| peer.member.clone())
    }

    pub(crate) fn is_leader(&self) -> bool {
        self.raft.server_metrics().borrow_watched().state.is_leader()
    }

    pub(super) fn on_leader_heard(&mut self) {
        self.leadership.heard = Some(self.now);
    }

    /// Whether another node that leads was heard within a time.
    pub(super) fn hears_leader(&self, within: Duration) -> bool {
        self.leadership.heard.is_some_and(|heard| self.now - heard < within)
    }

    /// How long a leader that is there may be silent.
    pub(crate) fn calm(&self) -> Duration {
        self.settings.timing.heartbeat * CALM
    }

    /// Something has happened, of which the others must be told.
    pub(super) fn is_lively(&mut self) {
        self.leadership.lively_until = self.now + LIVELY;
        self.leadership.next_beat = self.leadership.next_beat.min(self.now + self.settings.timing.heartbeat);
    }

    /// When this node, if it leads, must next show that it is there, or end.
    pub(super) fn next_beat(&self) -> Option<Duration> {
        let next = self.leadership.ends_at.unwrap_or(Duration::MAX).min(self.leadership.next_beat);
        self.is_leader().then_some(next)
    }

    /// Shows that this node is there, if it leads.
    pub(super) async fn beat(&mut self) {
        if self.next_beat().is_none_or(|at| self.now < at) {
            return;
        }
        let is_lively = self.now < self.leadership.lively_until;
        let pause = if is_lively { self.settings.timing.heartbeat } else { self.calm() };
        self.leadership.next_beat = self.now + pause;
        // If Raft has stopped, the next tick finds that out.
        let _ = self.raft.trigger().heartbeat().await;
    }

    /// Lets Raft's timers run where it may have to elect a leader.
    pub(super) fn watch_leader(&mut self) {
        let is_led = self.is_leader() || (self.leader().is_some() && self.hears_leader(self.calm() * 2));
        if self.leadership.has_timers == is_led {
            self.leadership.has_timers = !is_led;
            self.raft.runtime_config().tick(!is_led);
        }
    }

    /// Tells the other voters that this node ends, if it leads: a process that ends in order looks to nobody as if it were gone.
    pub(super) fn says_farewell(&mut self) -> bool {
        let (peers, voters) = self.peers();
        let me = self.network.me().voter.0;
        let others: Vec<_> = voters.iter().filter(|voter| **voter != me).filter_map(|voter| peers.get(voter)).collect();
        if !self.is_leader() || others.is_empty() {
            return false;
        }
        for peer in others {
            self.network.send(&Contact::from(&peer.member), Body::Farewell);
        }
        self.leadership.ends_at = Some(C::now() - self.started + HAND_OVER);
        true
    }

    /// Whether it has ended, and another node leads, or none has taken over in time.
    pub(super) fn has_handed_over(&self) -> bool {
        self.leadership.ends_at.is_some_and(|at| self.now >= at || !self.is_leader())
    }

    /// A node is gone: whoever has to take over for it begins anew.
    pub(super) fn begin_turns(&mut self) {
        (self.leadership.turns, self.leadership.last_turn) = (0, None);
    }

    /// Whether the leader may be gone, and this node has not left that to Raft.
    pub(super) fn has_turns(&self) -> bool {
        let is_led = self.leader().is_some_and(|leader| !self.gone.contains_key(&leader.node));
        !self.gone.is_empty() && !is_led && self.leadership.turns < TURNS
    }

    /// When the leader is gone, the first voter that is left takes over at once; the next ones a little later, if it does not.
    pub(super) fn take_over(&mut self) {
        let Some(&since) = self.gone.values().max() else { return };
        if !self.has_turns() {
            return;
        }
        let (peers, voters) = self.peers();
        let me = self.network.me();
        let view = self.view();
        let rank = |node| view.as_ref().and_then(|view| view.rank_of(node)).map_or(u32::MAX, |rank| rank.0);
        let mut left: Vec<(u32, u64)> = peers
            .iter()
            .filter(|(voter, peer)| voters.contains(voter) && !self.gone.contains_key(&peer.member.node))
            .map(|(&voter, peer)| (rank(peer.member.node), voter))
            .collect();
        left.sort_unstable();
        let Some(place) = left.iter().position(|(_, voter)| *voter == me.voter.0) else { return };
        let last = self.leadership.last_turn;
        let turn = last.map_or(since + TURN * place as u32, |last| last + TURN * left.len() as u32);
        if self.now < turn {
            return;
        }
        self.leadership.last_turn = Some(self.now);
        self.leadership.turns += 1;
        let vote = self.raft.server_metrics().borrow_watched().vote;
        let raft = self.raft.clone();
        drop(C::spawn(async move {
            let request = TransferLeaderRequest::new(vote, me.voter.0, None);
            if !matches!(raft.handle_transfer_leader(request).await, Ok(Ok(()))) {
                // The vote has changed meanwhile: others are at it. A plain election does no harm.
                let _ = raft.trigger().elect(false).await;
            }
        }));
    }
}
