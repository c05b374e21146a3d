//! Another life of the cluster: an operator forces a node to begin one without a quorum, and others go over to it.

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc, time::Duration};

use openraft::Raft;
use squall_fabric::NodeId;
use squall_membership::{Began, ClusterId, Entry, Epoch, Member, Proposal};

use super::Agent;
use crate::{
    network::Clients,
    settings::{Failure, NotForced},
    types::{LogNode, Types},
    wire::{Contact, Wants},
};

/// The time for which a node asks whether another one was forced, or is at this moment.
const ASKS_FOR: Duration = Duration::from_secs(1);
/// The pauses between such questions to all, and between two looks of a forced life's leader for a life that began
/// beside it.
const AGAIN: Duration = Duration::from_millis(200);
pub(super) const LOOKS: Duration = Duration::from_secs(1);

/// An operator's request to force this node to go on.
pub(crate) struct Forcing {
    proposal: Proposal,
    reason: String,
    done: Box<dyn FnOnce(Result<(), NotForced>) + Send>,
    /// The time until which it asks, and that of its next question.
    times: Option<(Duration, Duration)>,
}

impl Forcing {
    pub(crate) fn new(
        proposal: Proposal,
        reason: String,
        done: impl FnOnce(Result<(), NotForced>) + Send + 'static,
    ) -> Forcing {
        Forcing { proposal, reason, done: Box::new(done), times: None }
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.proposal.view.epoch
    }
}

/// Another life, to go over to.
#[derive(Debug)]
pub(super) struct Move {
    cluster: ClusterId,
    /// The place where it began, if an operator forced it.
    began: Option<Began>,
    /// The node that says so, if the life that is left was forced beside it. This process ends then, and joins when it
    /// is started again.
    rival: Option<NodeId>,
}

impl<C: Types> Agent<C> {
    /// Asks all nodes that it knows whether they were forced.
    pub(super) fn ask_to_force(&mut self, mut forcing: Forcing) {
        if self.has_told(forcing.epoch()) {
            return (forcing.done)(Err(NotForced::Decided));
        }
        forcing.times = Some((self.now + ASKS_FOR, self.now));
        // The same operator asks twice.
        if let Some(before) = self.forcing.replace(forcing) {
            (before.done)(Err(NotForced::AtOnce { with: self.me().node }));
        }
    }

    /// Begins another life if no node has objected.
    pub(super) async fn force_if_due(&mut self) {
        let Some(Forcing { proposal, times: Some((until, again)), .. }) = &mut self.forcing else { return };
        let epoch = proposal.view.epoch;
        if self.now < *until {
            if self.now >= *again {
                *again = self.now + AGAIN;
                self.contacts().iter().for_each(|contact| self.say_hello(contact, Wants::Force(epoch)));
            }
            return;
        }
        if let Some(Forcing { proposal, reason, done, .. }) = self.forcing.take() {
            done(self.force(proposal, reason).await);
        }
    }

    pub(super) fn end_forcing(&mut self, result: Result<(), NotForced>) {
        if let Some(forcing) = self.forcing.take() {
            (forcing.done)(result);
        }
    }

    /// Yields to another node that is being forced too, if that one goes first: the one with the later view does, then
    /// the lower id.
    pub(super) fn yield_to(&mut self, other: &Member, epoch: Epoch) {
        let me = self.me().node;
        let goes_first = |mine: Epoch| (Reverse(epoch), other.node) < (Reverse(mine), me);
        if self.forcing.as_ref().is_some_and(|forcing| goes_first(forcing.epoch())) {
            self.end_forcing(Err(NotForced::AtOnce { with: other.node }));
        }
    }

    /// Begins another life, of this node alone.
    async fn force(&mut self, proposal: Proposal, reason: String) -> Result<(), NotForced> {
        let after = self.network.cluster().unwrap_or(ClusterId(0));
        // A later life has a greater number: by it, the nodes of an earlier one learn that theirs is over.
        let cluster = ClusterId(after.0 + 1 + self.rng.u64(..1 << 32));
        let (layout, epoch) = (self.settings.layout.clone(), proposal.view.epoch);
        let earlier = self.machine.read(|log_state| log_state.began().map(|began| began.lives().collect()));
        let earlier = earlier.unwrap_or_default();
        tracing::warn!(?cluster, reason, "an operator forces the cluster to begin anew, from this node");
        let force = Entry::Force { cluster, after, earlier, layout, proposal, reason };
        self.begin_anew(cluster, Some(&force)).await.map_err(NotForced::Failed)?;
        self.tells_from.get_or_insert(epoch);
        self.resume_force().await;
        Ok(())
    }

    /// Writes the entry that an operator has forced, if that was not done: the node may have died in between.
    pub(super) async fn resume_force(&mut self) {
        if self.last().is_some() {
            return;
        }
        match self.store.forced() {
            Ok(forced) => self.forced = forced,
            Err(e) => return self.shared.fail(Failure::Storage(e.to_string())),
        }
        if self.forced.is_some() && self.store.has_no_log() {
            let me = self.network.me();
            let voters = BTreeMap::from([(me.voter.0, LogNode { member: me, witness: false })]);
            if let Err(e) = self.raft.initialize(voters).await {
                return self.shared.fail(Failure::Storage(e.to_string()));
            }
        }
        self.lead();
    }

    /// Forgets all decisions, and takes part in another life, with its first entry if this node is to write that.
    async fn begin_anew(&mut self, cluster: ClusterId, first: Option<&Entry>) -> Result<(), String> {
        self.former = self.contacts();
        // It fails only if a task of Raft's panicked; it is not needed any more.
        let _ = self.raft.shutdown().await;
        let begun = match self.machine.begin_anew(cluster, first) {
            Ok(()) => {
                self.network.set_cluster(Some(cluster));
                let (clients, voter) = (Clients(Arc::clone(&self.network)), self.me().voter.0);
                let raft =
                    Raft::new(voter, Arc::clone(&self.config), clients, self.store.clone(), self.machine.clone());
                raft.await.map_err(|e| e.to_string())
            }
            Err(e) => Err(e.to_string()),
        };
        match begun {
            Ok(raft) => self.raft = raft,
            Err(e) => {
                self.shared.fail(Failure::Storage(e.clone()));
                return Err(e);
            }
        }
        self.watch_raft();
        self.returns.begin_anew();
        self.formation.stores = false;
        (self.asks, self.leadership, self.election, self.leading) = Default::default();
        (self.forced, self.other_life) = (None, None);
        self.gone.clear();
        Ok(())
    }

    /// Takes note of a node that is in a later life than this one.
    pub(super) fn on_other_life(&mut self, from: Member, cluster: ClusterId, began: Option<Began>) {
        let with = from.node;
        let Some(began) = began else {
            // No operator forced it: the two have never been one group. This node's own life, founded beside the other,
            // is given up if nothing was decided in it, as far as this node knows. Not with durable storage: a disk
            // would have to remember that.
            if self.last().is_none() && self.forced.is_none() && !self.store.is_durable() {
                self.former.push(Contact::from(&from));
                self.moves_to = Some(Move { cluster, began: None, rival: None });
            } else if self.wants.is_some() {
                self.shared.fail(Failure::OtherLife { with });
            }
            return;
        };
        self.end_forcing(Err(NotForced::Begun { with }));
        let is_forced = self.machine.read(|log_state| log_state.began().is_some());
        let ended = self.network.cluster().and_then(|life| began.ended(life));
        if is_forced && ended.is_none() && self.wants.is_none() {
            self.moves_to = Some(Move { cluster, began: Some(began), rival: Some(with) });
            return;
        }
        let is_later = self.view().is_none_or(|view| ended.is_some_and(|ended| view.epoch < ended));
        let is_stuck = self.asks.is_waiting() || self.is_witness();
        // A node in no view has nothing that could be lost. A member goes over if it can't go on, and the decisions
        // that it knows are part of the other life.
        if self.wants.is_some() || (is_stuck && is_later) {
            self.former.push(Contact::from(&from));
            self.moves_to = Some(Move { cluster, began: Some(began), rival: None });
        } else if self.other_life.replace(with) != Some(with) {
            tracing::warn!(%with, epoch = began.epoch.0, "an operator forced the group to begin anew elsewhere: this node stays");
        }
    }

    /// Goes over to another life, as a node that is in no view of it.
    pub(super) async fn go_over(&mut self, to: Move) {
        let Move { cluster, began, rival } = to;
        match &began {
            Some(_) => tracing::warn!(
                ?cluster,
                "an operator forced the group to begin anew elsewhere: this node goes over to it"
            ),
            None => tracing::warn!(
                ?cluster,
                "the group was founded twice, and goes on elsewhere: this node goes over to it"
            ),
        }
        self.left.extend(self.network.cluster());
        if self.begin_anew(cluster, None).await.is_ok() {
            if let Some(with) = rival {
                return self.shared.fail(Failure::Rival { with });
            }
            (self.tells_from, self.told) = (began.as_ref().map(|began| began.epoch), None);
            let wants = if self.wants.is_some() { Wants::Join } else { Wants::News };
            self.contacts().iter().for_each(|contact| self.say_hello(contact, wants));
        }
    }

    /// Asks nodes that are not in this life whether they have begun one too: of two that were forced at once one must
    /// end.
    pub(super) fn look_for_rivals(&mut self, contacts: &[Contact]) {
        let Some(view) = self.view().filter(|_| self.machine.read(|log_state| log_state.began().is_some())) else {
            return;
        };
        if self.now < self.next_look {
            return;
        }
        self.next_look = self.now + LOOKS;
        let is_stray = |contact: &&Contact| contact.node.is_none_or(|node| view.rank_of(node).is_none());
        contacts.iter().filter(is_stray).for_each(|contact| self.say_hello(contact, Wants::News));
    }
}
