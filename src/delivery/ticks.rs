//! The messages that carry the group's time to a replica that asked to be woken.
//!
//! A replica's [wake-up time](crate::Replicated::wake_at) follows from its state, so all replicas of a group ask for
//! the same. The first sender of the view orders a *tick* once its clock, or the group's time, has reached that time.
//! All replicas take the tick at the same place. If it is behind the wake-up time there, all wake; else none does.
//!
//! A tick that comes twice, or too early because a clock was set back, wakes none. So it need not be known what became
//! of the ticks of a sender that has failed: the next sender orders one of its own. And where no tick comes, since the
//! first sender's clock is behind or so far ahead that it may send nothing, the other senders order one each, the later
//! the higher their rank.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Waker},
    time::Duration,
};

use squall_fabric::Time;
use squall_ordered::log::Hlc;

use crate::calls::{
    envelope::Envelope,
    submit::{GroupShared, Submit},
};

/// The shortest time between two ticks. It is the unit of messages' times, too.
const LEAST: Duration = Duration::from_millis(1);

/// The interval at which a tick that is under way, or was not accepted, is looked at again.
const RETRY: Duration = Duration::from_millis(10);

/// The time by which each further sender waits longer for a tick.
const GRACE: Duration = Duration::from_millis(100);

/// The interval at which the wall clock is looked at, which may have been set.
const LOOKS: Duration = Duration::from_secs(1);

/// The ticks of one node for one group.
pub(super) struct Ticks<T> {
    /// The time at which the replica is to be woken, as of the last look at it.
    wake_at: Option<Hlc>,
    /// Whether the replica may ask for another time by now.
    is_stale: bool,
    /// The time since which a tick is due by this node's clock, or since which this node has ordered none.
    due_since: Option<Time>,
    /// The tick that is under way. There is one at most.
    under_way: Option<Submit<T>>,
    /// The time before which no other tick is sent.
    not_before: Time,
    /// The time of the next look.
    look_at: Time,
}

impl<T> Default for Ticks<T> {
    fn default() -> Ticks<T> {
        Ticks {
            wake_at: None,
            is_stale: false,
            due_since: None,
            under_way: None,
            not_before: Time::ZERO,
            look_at: Time::ZERO,
        }
    }
}

impl<T> Ticks<T> {
    /// Takes the time at which the replica is to be woken.
    pub(super) fn set(&mut self, wake_at: Option<Hlc>) {
        if self.wake_at != wake_at || self.is_stale {
            (self.wake_at, self.look_at, self.due_since) = (wake_at, Time::ZERO, None);
        }
        self.is_stale = false;
    }

    /// Notes that the replica is to be asked soon when it is to be woken.
    pub(super) fn ask_again(&mut self) {
        (self.is_stale, self.look_at) = (true, Time::ZERO);
    }

    /// Returns the time of the next look, if there must be one.
    pub(super) fn deadline(&self) -> Option<Time> {
        (self.is_stale || self.wake_at.is_some()).then_some(self.look_at)
    }

    /// Orders a tick of these bytes, if one is due. `time` is the group's, and `rank` this node's among the senders.
    /// Called outside the application's calls.
    pub(super) fn step(&mut self, now: Time, time: Hlc, rank: u32, shared: &Arc<GroupShared<T>>, bytes: &[u8]) {
        if self.is_stale {
            // A reader has the replica, so that it could not be asked.
            self.look_at = self.look_at.max(now + RETRY);
        } else if let Some(wake_at) = self.wake_at.filter(|_| self.look_at <= now) {
            self.look_at = now + self.look(now, (wake_at, time), rank, shared, bytes);
        }
    }

    /// Orders a tick, if it is time. Returns the time until the next look.
    fn look(
        &mut self,
        now: Time,
        (wake_at, time): (Hlc, Hlc),
        rank: u32,
        shared: &Arc<GroupShared<T>>,
        bytes: &[u8],
    ) -> Duration {
        if let Some(tick) = &mut self.under_way {
            // Whether it was delivered or not: the replica says whether there must be another.
            if Pin::new(tick).poll(&mut Context::from_waker(Waker::noop())).is_pending() {
                return RETRY;
            }
            self.under_way = None;
        }
        if now < self.not_before {
            return self.not_before.since(now);
        }
        let Some(Ok(own)) = shared.admission.engine().map(|engine| engine.bound.time(&engine.clock)) else {
            return RETRY;
        };
        if let Some(rest) = wake_at.0.checked_sub(own.max(time).0).filter(|rest| *rest > 0) {
            return Duration::from_nanos(rest).clamp(LEAST, LOOKS);
        }
        let turn = *self.due_since.get_or_insert(now) + rank * GRACE;
        if now < turn {
            return turn.since(now);
        }
        let tick = Submit::new(shared, Ok(Envelope::bytes(bytes)));
        self.not_before = now + LEAST;
        if !tick.is_accepted() {
            return RETRY;
        }
        (self.under_way, self.due_since) = (Some(tick), None);
        LEAST
    }
}
