//! What members that come back have to say, until it is written; and what all are told of it.

use std::time::Duration;

use squall_fabric::NodeId;
use squall_membership::{Back, Entry, Epoch, Member, Register, Reopen, ViewEvent};

use super::{Agent, Input};
use crate::{
    types::Types,
    wire::{Body, Contact},
};

/// What is not written is said again after this.
const RESEND: Duration = Duration::from_millis(100);

/// What this node says, and has told its owner.
#[derive(Default)]
pub(super) struct Returns {
    back: Option<Back>,
    reopens: Vec<Reopen>,
    /// When it last said what it has to say.
    said: Option<Duration>,
    told_backs: Vec<Back>,
    told_reopens: Vec<Reopen>,
}

impl Returns {
    pub(super) fn is_waiting(&self) -> bool {
        self.back.is_some() || !self.reopens.is_empty()
    }
}

/// The node that says so, and of which view.
fn origin(entry: &Entry) -> Option<(NodeId, Epoch)> {
    match entry {
        Entry::Back(Back { member, epoch, .. }) | Entry::Reopen(Reopen { member, epoch, .. }) => {
            Some((member.node, *epoch))
        }
        Entry::First { .. } | Entry::Candidate(_) | Entry::Withdraw(..) | Entry::Successor(_) | Entry::Force { .. } => {
            None
        }
    }
}

/// Whether it would change nothing.
fn is_written(register: &Register, entry: &Entry) -> bool {
    match entry {
        Entry::Back(back) => register.backs().contains(back),
        Entry::Reopen(reopen) => {
            register.reopens().iter().any(|known| known.shard == reopen.shard && known.held.end >= reopen.held.end)
        }
        _ => false,
    }
}

impl<C: Types> Agent<C> {
    pub(super) fn say_back(&mut self, back: Back) {
        self.returns.back = Some(back);
        self.say();
    }

    pub(super) fn say_reopen(&mut self, reopen: Reopen) {
        self.returns.reopens.retain(|other| other.shard != reopen.shard);
        self.returns.reopens.push(reopen);
        self.say();
    }

    /// Says again what is not written.
    pub(super) fn say_again(&mut self) {
        if self.returns.is_waiting() && self.returns.said.is_none_or(|said| self.now - said >= RESEND) {
            self.say();
        }
    }

    fn say(&mut self) {
        let backs = self.returns.back.iter().cloned().map(Entry::Back);
        let entries = backs.chain(self.returns.reopens.iter().cloned().map(Entry::Reopen));
        let is_new = |entry: &Entry| !self.machine.read(|register| is_written(register, entry));
        let entries: Vec<Entry> = entries.filter(is_new).collect();
        let Some(leader) = self.leader() else { return };
        self.returns.said = Some(self.now);
        let me = self.network.me();
        for entry in entries {
            if leader.node == me.node {
                self.take_said(entry, &me);
            } else {
                self.network.send(&Contact::from(&leader), Body::Say(Box::new(entry)));
            }
        }
    }

    /// Writes what a node says of itself, if this node leads and it may count.
    pub(super) fn take_said(&mut self, entry: Entry, from: &Member) {
        let Some(view) = self.view() else { return };
        let Some((node, epoch)) = origin(&entry).filter(|(node, _)| *node == from.node) else { return };
        if epoch != view.epoch {
            // It comes late: what was decided helps more.
            if node != self.network.me().node {
                self.network.send(&Contact::from(from), Body::Here(self.whereabouts(from)));
            }
            return;
        }
        let is_new = !self.machine.read(|register| is_written(register, &entry));
        if self.is_leader() && is_new && self.leading.noting.insert(node) {
            self.write(entry, move |done| Input::Noted(node, done));
        }
    }

    /// There is a view of this epoch: what was said of the ones before is of no use.
    pub(super) fn returned_until(&mut self, epoch: Epoch) {
        self.returns.back.take_if(|back| back.epoch < epoch);
        self.returns.reopens.retain(|reopen| reopen.epoch >= epoch);
    }

    pub(super) fn tell_returns(&mut self) {
        if self.tells_from.is_none() {
            return;
        }
        let (backs, reopens) = self.machine.read(|register| (register.backs(), register.reopens()));
        if backs != self.returns.told_backs {
            self.returns.told_backs.clone_from(&backs);
            self.shared.push(ViewEvent::Backs(backs));
        }
        if reopens != self.returns.told_reopens {
            self.returns.told_reopens.clone_from(&reopens);
            self.shared.push(ViewEvent::Reopens(reopens));
        }
    }
}
