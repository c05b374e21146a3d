//! Messages of this node that a view did not deliver, on their way into the next.

use std::collections::VecDeque;

use squall_ordered::{SubmitRefused, Submitter, Undelivered};

use crate::calls::admission::Admission;

/// Messages to be sent before any new ones, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Resubmission(VecDeque<Undelivered>);

impl Resubmission {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Puts messages before those that have waited since an earlier view, which were submitted after them.
    pub(crate) fn prepend(&mut self, mut messages: VecDeque<Undelivered>) {
        messages.append(&mut self.0);
        self.0 = messages;
    }

    /// Sends as many as there is room for. Hands messages that can't be sent at all to `refused`.
    pub(crate) fn send(&mut self, admission: &Admission, submitter: &Submitter, mut refused: impl FnMut(Undelivered)) {
        if self.is_empty() {
            return;
        }
        // Set before the first attempt, so that no room is missed that appears behind the last one.
        admission.set_resubmitting(true);
        let mut any = false;
        while let Some(message) = self.0.front() {
            match submitter.submit(&message.payload, message.tag) {
                Ok(()) => {
                    any = true;
                    self.0.pop_front();
                }
                Err(SubmitRefused::Full) => break,
                // The view is over, and another follows.
                Err(SubmitRefused::Closed) => break,
                Err(SubmitRefused::NotASender | SubmitRefused::TooLarge { .. }) => {
                    self.0.pop_front().into_iter().for_each(&mut refused);
                }
            }
        }
        if any {
            admission.wake();
        }
        if self.is_empty() {
            admission.set_resubmitting(false);
        }
    }

    /// Takes all messages.
    pub(crate) fn drain(&mut self, admission: &Admission) -> impl Iterator<Item = Undelivered> {
        admission.set_resubmitting(false);
        std::mem::take(&mut self.0).into_iter()
    }
}
