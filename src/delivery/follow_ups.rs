//! The messages that carry a replica's follow-ups: commands that one member submits because of what all have applied.
//!
//! The follow-ups that are due [follow from the state](crate::QueryService::follow_ups), by number. The first sender of
//! the view makes their commands and orders them, each with its number. All replicas take a follow-up at the same
//! place, and apply it if it is the first that is due there; else none does.
//!
//! So a follow-up that comes twice, or behind one that was lost, is applied by none. It need not be known what became
//! of those of a sender that has failed: the next one begins with the first that is due.

use std::{collections::VecDeque, ops::Range, time::Duration};

use squall_fabric::Time;

use crate::{
    calls::{admission::Admission, envelope::Envelope, error::SubmitError},
    durable::log_writer::LogWriter,
    replica::service::Service,
};

/// The number of follow-ups that are under way at a time.
const WINDOW: u64 = 64;

/// The interval at which a follow-up that could not be made, or was not accepted, is tried again.
const RETRY: Duration = Duration::from_millis(10);

/// The time after which follow-ups that were sent and are still due are sent again: one before them was passed over on
/// an operator's word, or nothing is delivered. For one that is too large the service is asked again by then.
const AGAIN: Duration = Duration::from_secs(1);

/// The follow-ups of one node for one group.
#[derive(Debug, Default)]
pub(super) struct FollowUps {
    /// The numbers that are due, as far as no crash undoes that they are.
    due: Range<u64>,
    /// Durable groups: the version behind which those below the number are due for good.
    settling: Option<(u64, u64)>,
    /// The messages that were made, from this number on. They are kept until they are applied, so that the service is
    /// asked for each once.
    made: (u64, VecDeque<Vec<u8>>),
    /// The number of those that were accepted.
    sent: usize,
    /// Whether the next one is too large.
    is_too_large: bool,
    /// The time since which the same one is the first that is due.
    still_since: Option<Time>,
    /// The time of the next look, if there must be one.
    pub(super) look_at: Option<Time>,
}

impl FollowUps {
    /// Makes the messages of those that are due, up to a window. Called where the replica can be used, after each batch
    /// of messages, on the node that leads.
    pub(super) fn make<S: Service>(&mut self, service: &S, log_writer: Option<&LogWriter>) {
        let all = service.follow_ups();
        let due = all.start..self.settled(&all, log_writer);
        if due.start != self.due.start {
            self.still_since = None;
        }
        let (first, made) = &mut self.made;
        let is_behind = due.start < *first || due.start - *first > made.len() as u64;
        let applied = if is_behind { made.len() } else { (due.start - *first) as usize };
        made.drain(..applied);
        *first = due.start;
        self.sent = self.sent.saturating_sub(applied);
        let end = due.end.min(due.start.saturating_add(WINDOW));
        self.due = due;
        while *first + (made.len() as u64) < end
            && let Some(message) = service.follow_up(*first + made.len() as u64)
        {
            made.push_back(message);
        }
    }

    /// Returns the number below which follow-ups are due for good. In a durable group, a crash of all members could
    /// undo the latest commands, and with them what is due.
    fn settled(&mut self, all: &Range<u64>, log_writer: Option<&LogWriter>) -> u64 {
        let Some(log_writer) = log_writer else { return all.end };
        if all.is_empty() {
            // A service may have its start behind the end.
            self.settling = None;
            return all.start;
        }
        let safe = log_writer.globally_persisted();
        let before = match self.settling {
            Some((version, end)) if version <= safe => end,
            Some(_) => self.due.end,
            None if log_writer.end().version <= safe => return all.end,
            None => self.due.end,
        };
        if self.settling.is_none_or(|(version, _)| version <= safe) {
            self.settling = (before < all.end).then(|| (log_writer.end().version, all.end));
        }
        before.clamp(all.start, all.end)
    }

    /// Sends what was made, as far as there is room. Called outside the application's calls.
    pub(super) fn send(&mut self, now: Time, admission: &Admission) {
        while let Some(message) = self.made.1.get(self.sent).filter(|_| !self.is_too_large) {
            match admission.try_send(Envelope::bytes(message)) {
                Ok(()) => self.sent += 1,
                Err(SubmitError::TooLarge { bytes, max }) => {
                    let number = self.made.0 + self.sent as u64;
                    tracing::error!(group = admission.name, number, bytes, max, "a follow-up is too large");
                    self.is_too_large = true;
                }
                Err(error) => {
                    tracing::debug!(group = admission.name, %error, "a follow-up has to wait");
                    break;
                }
            }
        }
        let is_due = !self.due.is_empty() || self.settling.is_some();
        if is_due && now.since(*self.still_since.get_or_insert(now)) >= AGAIN {
            if std::mem::take(&mut self.is_too_large) {
                self.made.1.truncate(self.sent);
            }
            (self.sent, self.still_since) = (0, None);
        }
        self.look_at = is_due.then_some(now + RETRY);
    }

    /// Forgets all, on a node that does not lead.
    pub(super) fn stop(&mut self) {
        *self = FollowUps::default();
    }
}
