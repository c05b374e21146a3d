//! Messages of other nodes: of those in the same life of the group, and of those in others.

use std::{cmp::Ordering, time::Duration};

use squall_fabric::NodeId;
use squall_membership::{ClusterId, Incarnation, Member, ViewEvent};

use super::{Agent, Input, MANY};
use crate::{
    types::Types,
    wire::{Addressee, Body, Call, Contact, Envelope, Hello, Here, Wants},
};

/// The time for which nodes that were heard are remembered, if there is room for few.
const JUST_NOW: Duration = Duration::from_millis(250);
/// The time for which messages of a node may still arrive that it sent before it was known to be gone.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// The sender of a message, to which an answer goes, in the life in which it sent that.
pub(super) struct Asker {
    pub(super) contact: Contact,
    life: Addressee,
}

impl Asker {
    /// `cluster` is the cluster's life that it took part in.
    pub(super) fn new(member: &Member, cluster: Option<ClusterId>) -> Asker {
        Asker { contact: Contact::from(member), life: Addressee { cluster, incarnation: member.incarnation } }
    }
}

impl<C: Types> Agent<C> {
    pub(super) fn reply(&self, asker: &Asker, here: Here) {
        self.network.send(&asker.contact, Body::Here { to: asker.life, here });
    }

    pub(super) fn on_message(&mut self, from: NodeId, only_votes: bool, bytes: &[u8]) {
        let Some(Envelope { cluster, from: sender, lives, body }) = Envelope::decode(bytes) else {
            tracing::warn!(%from, bytes = bytes.len(), "a message that is none of a view log's of this version");
            return;
        };
        let me = self.network.me();
        if sender.node != from || from == me.node {
            return;
        }
        let mine = self.network.cluster();
        if matches!(body, Body::Here { to, .. } if to != (Addressee { cluster: mine, incarnation: me.incarnation })) {
            return;
        }
        let asker = Asker::new(&sender, cluster);
        let is_of_life = cluster.is_none() || cluster == mine;
        if is_of_life && self.is_of_old_storage(&sender, &asker, &lives, &body) {
            return;
        }
        self.note_heard(&sender);
        if let (Some(mine), Some(cluster)) = (mine, cluster)
            && mine != cluster
        {
            return self.on_message_of_other_life(sender, cluster, mine.cmp(&cluster), body);
        }
        match body {
            Body::Hello(hello) => self.answer_hello(sender, only_votes, &hello, &asker),
            Body::Here { here, .. } => self.on_here(&sender, cluster, here),
            Body::Call { call, .. } if !self.is_own_call(&sender, &call) => {
                tracing::warn!(%from, "a call of the view log in the name of another node");
            }
            Body::Call { id, to, call } if to == me.voter => {
                if let (None, Some(cluster)) = (mine, cluster) {
                    self.adopt(cluster);
                }
                self.on_call(asker, id, call);
            }
            Body::Return { id, answer } => {
                if !self.network.answer(from, id, answer) {
                    self.has_reverted(&sender, &asker);
                }
            }
            Body::WentBack { epoch } => _ = self.on_group_went_back(&asker, epoch),
            // The rest is for nodes that are in the same life.
            _ if mine.is_none() || cluster.is_none() => {}
            Body::Propose(proposal) => self.take_proposal(*proposal, sender),
            Body::Say(back) => self.take_said(*back, &sender),
            Body::Refused { proposal, why } => self.on_refused(&proposal, &why),
            Body::StepAside(vote) => self.on_step_aside(vote),
            Body::Farewell => self.on_farewell(&sender),
            Body::Report(report) => {
                if report.member.node == from {
                    self.shared.push(ViewEvent::Reported(report));
                }
            }
            Body::Call { .. } => {}
        }
    }

    /// Whether a call of Raft's is made in its sender's own name: the vote in it is that of the sender's part in the
    /// log, and that part belongs to no other node. A part that this node does not know may be a new leader's.
    fn is_own_call(&self, sender: &Member, call: &Call) -> bool {
        let owner = self.peers().0.remove(&sender.voter.0).map(|peer| peer.member.node);
        call.is_of(sender.voter) && owner.is_none_or(|owner| owner == sender.node)
    }

    fn answer_hello(&mut self, sender: Member, only_votes: bool, hello: &Hello, asker: &Asker) {
        if only_votes && !matches!(hello.wants, Wants::Witness | Wants::News) {
            tracing::warn!(from = %sender.node, "a witness asks for more than a vote");
            return;
        }
        self.learn_founders(sender.node, hello);
        let here = match self.mismatch(sender.node, hello) {
            Some(why) => self.turn_away(&sender, why),
            None => {
                let asks = sender.clone();
                match hello.wants {
                    Wants::News => {}
                    Wants::Force(epoch) => self.yield_to(&sender, epoch),
                    wants => self.on_hello(sender, wants == Wants::Found, wants == Wants::Witness),
                }
                self.whereabouts(&asks)
            }
        };
        self.reply(asker, here);
    }

    fn on_farewell(&mut self, sender: &Member) {
        // That of an earlier life comes late.
        let is_later = |(life, _): &(Incarnation, u64)| *life > sender.incarnation;
        if !self.lives.get(&sender.node).is_some_and(is_later) {
            self.handle(Input::PeerGone(sender.node));
        }
    }

    /// Notes that a node was heard of just now, and as which incarnation.
    fn note_heard(&mut self, sender: &Member) {
        self.network.learn(sender);
        if self.heard.len() >= MANY {
            self.heard.retain(|_, heard| self.now - *heard < JUST_NOW);
            self.lives.clear();
        }
        let life = self.lives.entry(sender.node).or_insert((sender.incarnation, sender.voter.0));
        *life = (*life).max((sender.incarnation, sender.voter.0));
        self.heard.insert(sender.node, self.now);
        if self.gone.get(&sender.node).is_some_and(|since| self.now - *since > LAST_WORDS) {
            self.gone.remove(&sender.node);
        }
    }

    /// Answers a message of another life of the group. `order` compares the number of this node's life with the
    /// number of that life: it is `Less` if the sender's number is the greater one.
    fn on_message_of_other_life(&mut self, sender: Member, life: ClusterId, order: Ordering, body: Body) {
        let asker = Asker::new(&sender, Some(life));
        match body {
            // A life in which nothing is decided yet may never be more than begun.
            Body::Hello(hello) if self.last().is_some() && (order.is_gt() || !hello.decided) => {
                let began = self.machine.read(|log_state| log_state.began().cloned());
                self.reply(&asker, Here::OtherLife(began));
            }
            // A life that this node has left for this one, in which it has not been told of anything yet, is over.
            Body::Here { here: Here::OtherLife(began), .. }
                if order.is_lt() || self.last().is_none() && !self.left.contains(&life) =>
            {
                self.on_other_life(sender, life, began);
            }
            // Nothing binds this node to a life of whose log it has nothing: the node that began that may be dead, and
            // begin another one.
            Body::Call { id, to, call }
                if to == self.network.me().voter
                    && self.is_own_call(&sender, &call)
                    && self.is_free()
                    && !self.left.contains(&life) =>
            {
                self.adopt(life);
                self.on_call(asker, id, call);
            }
            // A node that tries to go on with a life that is over may have no other node to ask.
            Body::Call { .. } if order.is_gt() => {
                if let Some(began) = self.machine.read(|log_state| log_state.began().cloned()) {
                    self.reply(&asker, Here::OtherLife(Some(began)));
                }
            }
            _ => {}
        }
    }
}
