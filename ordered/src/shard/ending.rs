//! The end of a shard's part in a view, and the messages that were not delivered in it.

use squall_fabric::{NodeId, Time};
use squall_membership::Seq;
use squall_sst::ring::{Tag, Turn};

use super::{OrderColumns, Shard, ShardPhase};
use crate::{config::Mode, order};

/// A message of this node that this member did not deliver in its view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undelivered {
    /// The submitter's tag; its ticket is 0 if no submitter waits for it.
    pub tag: Tag,
    /// Its bytes, for the next view. Empty in unordered mode if it had a turn, since then it is not sent again.
    pub payload: Vec<u8>,
    /// Its place in the order: a member that delivers more than so many places delivers it. (In unordered mode, the
    /// place that it would have.) None if it had no turn, so that no member delivers it.
    pub place: Option<Seq>,
    /// Unordered mode: the members known to have it.
    pub held_by: Vec<NodeId>,
}

impl Shard {
    /// Stops sending and receiving in this view, and returns the final `received` (0 in unordered mode). Messages that
    /// are stable, or become so by the rows that others still publish, are delivered all the same.
    pub fn wedge(&mut self) -> Seq {
        if self.state == ShardPhase::Running {
            self.state = ShardPhase::Wedged;
            // The lease ends before any member can learn that this one is wedged, and go on without waiting for the
            // lease.
            self.progress.set_lease(Time::ZERO, Time::MAX);
        }
        match self.columns.order {
            OrderColumns::Ordered { received, .. } => Seq(self.table.get(self.table.me(), received)),
            OrderColumns::Unordered { .. } => Seq(0),
        }
    }

    /// Returns the count of places that all members have said that they have received (0 in unordered mode).
    pub fn stable(&self) -> Seq {
        match self.columns.order {
            OrderColumns::Ordered { .. } => Seq(self.progress.limit(0)),
            OrderColumns::Unordered { .. } => Seq(0),
        }
    }

    /// Lets delivery go up to the committed trim, and no further. In unordered mode there is no trim: the messages that
    /// have arrived are delivered.
    ///
    /// `counted` says that the trim was computed with this member's final count: it is complete, and stays. Another
    /// member (one that is not complete yet, or leaves) may have received less than the trim. Then it delivers the
    /// messages that it has, and [is short](Shard::is_short).
    ///
    /// # Panics
    ///
    /// If the shard is not wedged, or the trim is [none](Shard::check_trim) that it can have.
    pub fn clean_up(&mut self, trim: Seq, counted: bool) {
        assert_ne!(self.state, ShardPhase::Running, "only a wedged shard is cleaned up");
        let (mut to, mut short) = (trim, false);
        if let OrderColumns::Ordered { received, .. } = self.columns.order {
            let received = Seq(self.table.get(self.table.me(), received));
            self.check_trim(trim, counted).unwrap_or_else(|why| panic!("{why}"));
            (to, short) = (trim.min(received), trim > received);
        }
        self.state = ShardPhase::CleaningUp { to, short };
    }

    /// Checks, for a member that was counted, that the trim lies neither before a stable place nor beyond the member's
    /// `received`: either would break the order. A member that computes trims from wrong counts can cause both.
    pub fn check_trim(&self, trim: Seq, counted: bool) -> Result<(), String> {
        let OrderColumns::Ordered { received, .. } = self.columns.order else { return Ok(()) };
        let received = Seq(self.table.get(self.table.me(), received));
        let limit = self.progress.limit(0);
        // After a restart, the group may go on from before the place that a member without the state has received.
        if counted && trim.0 < limit {
            return Err(format!("{} was to end at place {trim}, before {limit}, which is stable", self.id));
        }
        if counted && trim > received {
            return Err(format!("{} was to end at place {trim}, beyond the {received} received", self.id));
        }
        Ok(())
    }

    /// Returns whether the trim lies beyond this member's `received`: its state will not be that of the view's end.
    pub fn is_short(&self) -> bool {
        matches!(self.state, ShardPhase::CleaningUp { short: true, .. })
    }

    /// Lets delivery go no further than it may already. For a member that was dropped, and does not take part in the
    /// view's end.
    ///
    /// # Panics
    ///
    /// If the shard is not wedged: the others would count on what it goes on to receive.
    pub fn abandon(&mut self) {
        assert_ne!(self.state, ShardPhase::Running, "only a wedged shard is abandoned");
        self.state = ShardPhase::Abandoned;
    }

    /// Returns whether every message that will be delivered in this view has been. In durable mode it need not be on
    /// any disk: in the next view, this member publishes nothing before it has all of them on its own.
    ///
    /// If the log has failed, or has no room, this never becomes true: such a member ends without it, or is given
    /// up. A member that is abandoned does not wait for room. If some comes all the same, its
    /// [`Deliverer`](crate::Deliverer) may deliver more until it is told.
    pub fn is_ended(&self) -> bool {
        match (self.state, self.mode) {
            (ShardPhase::Running, _) => false,
            (ShardPhase::CleaningUp { to, .. }, Mode::Ordered | Mode::Durable) => self.progress.delivered(0) >= to.0,
            // Without a trim: what was found deliverable so far.
            (ShardPhase::Abandoned, Mode::Durable) if self.progress.versions.is_full() => true,
            (ShardPhase::Wedged | ShardPhase::CleaningUp { .. } | ShardPhase::Abandoned, _) => {
                (0..self.senders.len()).all(|s| self.progress.delivered(s) >= self.progress.limit(s))
            }
        }
    }

    /// Refuses further messages of this node.
    pub fn close(&mut self) {
        if let Some(own) = &self.own {
            own.outbox.ring().close();
        }
        self.bulk.close();
    }

    /// Closes the own ring, and copies out the messages that were accepted and not delivered by this member, in the
    /// order in which they were sent: first those with a turn. None while a thread still copies one; then the caller
    /// asks again.
    ///
    /// Called once the shard [is ended](Shard::is_ended), else the [`Deliverer`](crate::Deliverer) may deliver some of
    /// them yet. After a clean-up of which this member is not [short](Shard::is_short), these are the messages that no
    /// member delivers in this view. Otherwise, a message is delivered elsewhere if its place lies before the trim.
    ///
    /// # Panics
    ///
    /// If the shard is not wedged: some of these messages would still be delivered.
    pub fn undelivered(&mut self) -> Option<Vec<Undelivered>> {
        assert_ne!(self.state, ShardPhase::Running, "only a wedged shard knows what it will not deliver");
        let Some(own) = &mut self.own else { return Some(Vec::new()) };
        if !own.outbox.drain() {
            return None;
        }
        let ordered = self.mode.is_ordered();
        // No member delivers these: no member knows of them, or of their place.
        let without_turn = self.bulk.without_turn()?.map(|queued| {
            let payload = queued.bytes().to_vec();
            Undelivered { tag: queued.tag(), payload, place: None, held_by: Vec::new() }
        });
        let without_turn: Vec<_> = without_turn.collect();
        let turns = match self.mode {
            Mode::Ordered | Mode::Durable => {
                order::turns_within(self.senders.len(), own.rank, self.progress.delivered(0))
            }
            Mode::Unordered => self.progress.delivered(own.rank),
        };
        let held_by = |turn: u64| match self.columns.order {
            OrderColumns::Ordered { .. } => Vec::new(),
            OrderColumns::Unordered { held, .. } => (0..self.table.rows())
                .filter(|&member| self.table.get(member, held.nth(own.rank)) > turn)
                .map(|member| self.mesh.node(member))
                .collect(),
        };
        let senders = self.senders.len() as u64;
        let mut payload = Vec::new();
        let with_turn = own.outbox.undelivered(turns).map(|(turn, message)| {
            let tag = match message {
                Turn::Message(bytes, tag) => {
                    if ordered {
                        bytes.copy_to(&mut payload);
                    }
                    tag
                }
                Turn::Bulk(bulk, tag) => {
                    if ordered {
                        payload.extend_from_slice(self.bulk.announced(bulk));
                    }
                    tag
                }
                Turn::Nulls(_) => unreachable!("nulls are no messages"),
            };
            let place = Some(Seq(turn * senders + own.rank as u64));
            Undelivered { tag, payload: std::mem::take(&mut payload), place, held_by: held_by(turn) }
        });
        Some(with_turn.chain(without_turn).collect())
    }
}
