//! The reports of nodes that come back, until they are written, and the news of them.

use std::time::Duration;

use squall_membership::{Entry, Epoch, Member, ReturnReport, ViewEvent, ViewLogState};

use super::{Agent, input::Input, messages::Asker};
use crate::{
    types::Types,
    wire::{Body, Contact},
};

/// The time after which a report that is not written is sent again.
const RESEND: Duration = Duration::from_millis(100);

/// This node's own report, and the reports of which it has told its owner.
#[derive(Default)]
pub(super) struct Returns {
    back: Option<ReturnReport>,
    /// The time at which it last sent its report.
    said: Option<Duration>,
    told: Vec<ReturnReport>,
}

impl Returns {
    pub(super) fn is_waiting(&self) -> bool {
        self.back.is_some()
    }

    /// Forgets its own report. Those of which its owner was told are replaced when there is news.
    pub(super) fn begin_anew(&mut self) {
        *self = Returns { told: std::mem::take(&mut self.told), ..Returns::default() };
    }
}

/// Whether writing it would change nothing.
fn is_written(log_state: &ViewLogState, back: &ReturnReport) -> bool {
    log_state.returns().contains(back)
}

impl<C: Types> Agent<C> {
    pub(super) fn report_return(&mut self, back: ReturnReport) {
        if self.has_told(Epoch(back.epoch.0 + 1)) {
            return;
        }
        self.returns.back = Some(back);
        self.say();
    }

    /// Sends its report again, if that is not written.
    pub(super) fn say_again(&mut self) {
        if self.returns.is_waiting() && self.returns.said.is_none_or(|said| self.now - said >= RESEND) {
            self.say();
        }
    }

    fn say(&mut self) {
        let is_new = |back: &&ReturnReport| !self.machine.read(|log_state| is_written(log_state, back));
        let back = self.returns.back.as_ref().filter(is_new).cloned();
        let Some(leader) = self.leader() else { return };
        self.returns.said = Some(self.now);
        let me = self.network.me();
        let Some(back) = back else { return };
        if leader.node == me.node {
            self.take_said(back, &me);
        } else {
            self.network.send(&Contact::from(&leader), Body::Say(Box::new(back)));
        }
    }

    /// Writes a node's report of itself, if this node leads and it may count.
    pub(super) fn take_said(&mut self, back: ReturnReport, from: &Member) {
        let Some(view) = self.view() else { return };
        let node = back.member.node;
        if node != from.node {
            return;
        }
        if back.epoch != view.epoch {
            // It comes late: the last decision helps more.
            if node != self.network.me().node {
                self.reply(&Asker::new(from, self.network.cluster()), self.whereabouts(from));
            }
            return;
        }
        let is_new = !self.machine.read(|log_state| is_written(log_state, &back));
        if self.is_leader() && is_new && self.leading.noting.insert(node) {
            self.write(Entry::Return(back), move |done| Input::Noted(node, done));
        }
    }

    /// Takes note of a view of this epoch: reports on earlier ones are of no use.
    pub(super) fn returned_until(&mut self, epoch: Epoch) {
        self.returns.back.take_if(|back| back.epoch < epoch);
    }

    pub(super) fn tell_returns(&mut self) {
        if self.tells_from.is_none() {
            return;
        }
        let backs = self.machine.read(ViewLogState::returns);
        if backs != self.returns.told {
            self.returns.told.clone_from(&backs);
            self.shared.push(ViewEvent::Returns(backs));
        }
    }
}
