//! The pace at which a client sends again what its session has refused.

use std::{mem, time::Duration};

use squall_fabric::Time;

use crate::clients::contacts::{BACK_OFF, MOST_BACK_OFF};

/// The requests of which one answer lets another copy be sent: two, so that a session with room again is soon full.
const PER_ANSWER: usize = 2;

/// The time at which requests are sent again, and their number.
///
/// A session refuses while its acknowledged mark stands still, which may last until a deadline. So only the first
/// refused request is tried then, with pauses that grow. A fresh connection takes all at once.
#[derive(Debug)]
pub(super) struct Resend {
    /// None if nothing was refused.
    at: Option<Time>,
    /// The most that are sent at that time.
    most: usize,
    /// The pause that follows.
    pause: Duration,
    /// The acknowledged mark that was last seen.
    acknowledged: u64,
}

impl Default for Resend {
    fn default() -> Resend {
        Resend { at: None, most: 1, pause: BACK_OFF, acknowledged: 0 }
    }
}

impl Resend {
    pub(super) fn at(&self) -> Option<Time> {
        self.at
    }

    /// Notes that a request was refused.
    pub(super) fn refused(&mut self, now: Time) {
        self.at = self.at.or(Some(now + self.pause));
    }

    /// Lets everything be sent again now, on a fresh connection.
    pub(super) fn all(&mut self, now: Time) {
        *self = Resend { at: Some(now), most: usize::MAX, pause: BACK_OFF, ..*self };
    }

    /// Notes an answer, which may have made room for others.
    pub(super) fn answered(&mut self, now: Time) {
        self.pause = BACK_OFF;
        if self.at.is_some() {
            (self.at, self.most) = (Some(now), self.most.max(PER_ANSWER));
        }
    }

    /// Notes the acknowledged mark. One that has moved makes room, too: also where a request was given up.
    pub(super) fn pass(&mut self, now: Time, acknowledged: u64) {
        if mem::replace(&mut self.acknowledged, acknowledged) != acknowledged {
            self.answered(now);
        }
    }

    /// Returns how many requests are to be sent again now.
    pub(super) fn due(&mut self, now: Time) -> usize {
        if self.at.is_none_or(|at| at > now) {
            return 0;
        }
        self.at = Some(now + self.pause);
        self.pause = (2 * self.pause).min(MOST_BACK_OFF);
        mem::replace(&mut self.most, 1)
    }

    /// Notes that nothing is left that was refused.
    pub(super) fn stop(&mut self) {
        self.at = None;
    }
}
