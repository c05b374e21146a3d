//! Storage that went back: an old copy of a node's directory, put in the place of a newer one.
//!
//! It lacks the votes and acknowledgements of its node since it was copied. A group in which it counts may lose those,
//! or decide twice. Others can tell:
//!
//! - A store remembers the node's lives, and each is stored before any other node can hear of it. A life that others
//!   know, and the store does not, was had with a newer store.
//! - A node still has the entries that it has acknowledged: a leader keeps track of these as long as it leads.
//! - What was applied was decided. If a leader says otherwise, most of the voters that decided it lack it.
//!
//! No message counts of a node whose storage went back. If it is no member yet, it ends. If it is, then most of the
//! voters went back, and the group has gone on without what they decided. The group is told, and the node that knows
//! more of it ends.

use std::{collections::BTreeMap, time::Duration};

use squall_fabric::NodeId;
use squall_membership::{Epoch, Incarnation, Member};

use super::{Agent, messages::Asker};
use crate::{
    settings::Failure,
    types::{LogId, SnapshotMeta, Types},
    wire::{Body, Call, Here},
};

/// The shortest time between two messages to a node that its storage went back.
const AGAIN: Duration = Duration::from_millis(50);

/// A node's knowledge of storage that went back.
#[derive(Debug, Default)]
pub(super) struct WentBack {
    /// The life of a node that lacks entries that it has acknowledged, by node.
    reverted: BTreeMap<NodeId, Incarnation>,
    /// The time at which each node was last told.
    told: BTreeMap<NodeId, Duration>,
    /// The words of each node that knows more than this node's group.
    says: BTreeMap<NodeId, String>,
}

impl<C: Types> Agent<C> {
    /// Whether a message counts for nothing, since its sender's storage went back. The sender is told.
    pub(super) fn is_of_old_storage(
        &mut self,
        from: &Member,
        asker: &Asker,
        lives: &[Incarnation],
        body: &Body,
    ) -> bool {
        let is_reverted = self.went_back.reverted.get(&from.node) == Some(&from.incarnation);
        if !is_reverted && self.forgotten_life(from, lives).is_none() {
            return false;
        }
        match body {
            Body::Here { here: Here::GoesOn { epoch }, .. } => self.on_goes_on(from.node, *epoch),
            Body::Here { here: Here::WentBack { .. }, .. } | Body::WentBack { .. } => {}
            _ => {
                let why = "its storage is an old copy: it lacks what this node knows of it";
                drop(self.turn_away(from, why.to_owned()));
                self.say_went_back(asker);
            }
        }
        true
    }

    /// A life of a part in the log, before the present one, that others know and its storage does not.
    fn forgotten_life(&self, from: &Member, lives: &[Incarnation]) -> Option<Incarnation> {
        let first = *lives.first()?;
        let is_forgotten = |life: &Incarnation| *life > first && *life < from.incarnation && !lives.contains(life);
        let is_it = |member: &&Member| member.node == from.node && member.voter == from.voter;
        let heard = self.lives.get(&from.node).filter(|(_, voter)| *voter == from.voter.0).map(|(life, _)| *life);
        let in_log = self.peers().0.get(&from.voter.0).map(|peer| peer.member.incarnation);
        let in_view = self.machine.read(|log_state| {
            let members = log_state.view().map(|view| view.members.clone()).unwrap_or_default();
            let backs = log_state.returns();
            let members = members.iter().chain(log_state.candidates()).chain(backs.iter().map(|back| &back.member));
            members.filter(is_it).map(|member| member.incarnation).find(is_forgotten)
        });
        in_view.or_else(|| heard.into_iter().chain(in_log).find(is_forgotten))
    }

    /// Takes note that a part in the log lacks entries that it has acknowledged.
    pub(super) fn has_reverted(&mut self, from: &Member, asker: &Asker) {
        self.went_back.reverted.insert(from.node, from.incarnation);
        drop(self.turn_away(from, "it lacks entries that it has said it has: its storage is an old copy".to_owned()));
        self.say_went_back(asker);
    }

    /// Whether a leader's call contradicts the decisions that this node knows. The leader is told.
    pub(super) fn contradicts(&mut self, from: &Asker, call: &Call) -> bool {
        let mine = self.vote().0;
        let is_other = match call {
            Call::Append { vote, previous, entries, .. } if *vote >= mine => {
                let entries = previous.iter().copied().chain(entries.iter().map(openraft::entry::RaftEntry::log_id));
                !self.store.agrees_with(self.applied(), entries)
            }
            Call::Snapshot { vote, meta, .. } if *vote >= mine => is_before(meta, self.applied()),
            _ => false,
        };
        if is_other {
            self.say_went_back(from);
        }
        is_other
    }

    fn applied(&self) -> Option<LogId> {
        use openraft::async_runtime::watch::WatchReceiver;
        self.raft.metrics().borrow_watched().last_applied
    }

    fn say_went_back(&mut self, to: &Asker) {
        let epoch = self.known_epoch();
        if self.tells_again(to.contact.node) {
            self.reply(to, Here::WentBack { epoch });
        }
    }

    /// Tells all others that their group lacks what this node has.
    pub(super) fn say_went_back_to_all(&mut self) {
        let epoch = self.known_epoch();
        for contact in self.contacts() {
            if self.tells_again(contact.node) {
                self.network.send(&contact, Body::WentBack { epoch });
            }
        }
    }

    /// Whether it is time to tell a node, once more or for the first time.
    fn tells_again(&mut self, node: Option<NodeId>) -> bool {
        let Some(node) = node else { return false };
        let tells = self.went_back.told.get(&node).is_none_or(|told| self.now - *told >= AGAIN);
        if tells {
            self.went_back.told.insert(node, self.now);
        }
        tells
    }

    fn known_epoch(&self) -> Epoch {
        self.view().map_or(Epoch(0), |view| view.epoch)
    }

    /// Takes another node's word that this node's storage, or its group, went back.
    pub(super) fn on_went_back(&mut self, from: &Member, asker: &Asker, epoch: Epoch) {
        if !self.on_group_went_back(asker, epoch) {
            let directory = self.directory.clone().unwrap_or_default();
            self.shared.fail(Failure::OldStorage { with: from.node, directory });
        }
    }

    /// Takes another node's word that this node's group went back. Returns whether it is a member of one.
    pub(super) fn on_group_went_back(&mut self, asker: &Asker, epoch: Epoch) -> bool {
        let view = self.view().filter(|view| self.wants.is_none() && self.is_in(view));
        let (Some(view), Some(node)) = (view, asker.contact.node) else { return false };
        self.reply(asker, Here::GoesOn { epoch: view.epoch });
        let says = format!(
            "{node} knows of views up to {}, and of what was decided and acknowledged, that this group lacks: it goes on from an old copy \
             of the storage of most voters. See what {node} says, which has kept it",
            epoch.0
        );
        if self.went_back.says.insert(node, says.clone()).as_ref() != Some(&says) {
            tracing::error!("THE GROUP HAS GONE BACK: {says}");
            self.publish();
        }
        true
    }

    /// Takes note that a group goes on without what this node knows of it.
    pub(super) fn on_goes_on(&self, with: NodeId, epoch: Epoch) {
        if self.wants.is_none() && !self.misses_leader() {
            return;
        }
        let known = self.known_epoch();
        let directory = self.directory.clone().unwrap_or_default();
        self.shared.fail(Failure::GroupWentBack { with, goes_on: epoch, known, directory });
    }

    /// Sentences about it for operators.
    pub(super) fn went_back(&self) -> Vec<String> {
        self.went_back.says.values().cloned().collect()
    }
}

/// Whether a snapshot reaches as far as the applied entries, and was taken in an earlier term.
fn is_before(snapshot: &SnapshotMeta, applied: Option<LogId>) -> bool {
    let Some((snapshot, applied)) = snapshot.last_log_id.zip(applied) else { return false };
    snapshot.index >= applied.index && snapshot < applied
}
