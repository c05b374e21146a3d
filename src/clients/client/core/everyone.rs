//! Calls to each member of the shard, and to a chosen one.
//!
//! A command for all goes its way as any other does. Besides, a [pinned](super::pinned) connection to each member that
//! has the state waits for the answer of that one. Until all have answered, or can't any more, the command is not
//! acknowledged, so that each member keeps its answer for a connection that comes late.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use squall_fabric::{NodeId, Time};
use squall_services::DialTarget;

use super::{Ask, CallId, ClientCore, ClientEffect, ClientError, ConnectionState, OutstandingCall};
use crate::{
    calls::session::SessionId,
    clients::{
        client::effect::MemberCall,
        wire::{Members, ToClient},
    },
};

#[derive(Debug, Default)]
pub(super) struct Everyone {
    /// The members that have the state, as of the view that a node has reported last.
    holders: Vec<DialTarget>,
    /// The newest view that a node has reported.
    epoch: u64,
    /// Whether an earlier view is believed: no node served when all had been tried.
    pub(super) may_fall: bool,
    /// The members that were asked since, and had the state in all views that were reported.
    asked: BTreeMap<NodeId, DialTarget>,
    /// The members whose answers to a command for all are outstanding.
    gathered: BTreeMap<CallId, BTreeSet<NodeId>>,
    /// The queries to chosen members.
    chosen: BTreeMap<CallId, Chosen>,
    /// The measured ways to members and back; the longest to one that did not answer.
    ways: BTreeMap<NodeId, Duration>,
    /// The members to which the way is being measured.
    probed: BTreeSet<NodeId>,
}

#[derive(Debug, Default)]
struct Chosen {
    /// The member that was asked.
    at: Option<NodeId>,
    /// The members that were asked in vain.
    tried: BTreeSet<NodeId>,
}

impl ClientCore {
    /// Takes what another part of the client has brought of a member's answer.
    pub(crate) fn told_at(
        &mut self,
        now: Time,
        node: NodeId,
        call: MemberCall,
        result: Result<Vec<u8>, ClientError>,
        out: &mut Vec<ClientEffect>,
    ) {
        match call {
            MemberCall::Probe => {
                let nanos = result.ok().and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
                self.everyone.probed.remove(&node);
                self.everyone.ways.insert(node, nanos.map_or(Duration::MAX, Duration::from_nanos));
                self.choose_all(out);
            }
            MemberCall::Of(id) => match (self.calls.get(&id).map(|call| &call.ask), result) {
                (Some(Ask::All(_)), result) => self.reply(id, node, result, out),
                // What a replica says of a query, another one would say, too.
                (Some(Ask::Nearest(..)), Err(error)) if !matches!(error, ClientError::Query(_)) => {
                    self.failed_at(id, node, error, out);
                }
                (Some(Ask::At(..) | Ask::Nearest(..)), result) => self.resolve(id, result, out),
                _ => {}
            },
        }
        self.tick(now, out);
    }

    /// Takes a message about members and their answers.
    pub(super) fn hear_of_members(&mut self, message: ToClient, out: &mut Vec<ClientEffect>) {
        match message {
            ToClient::Holders(holders) => {
                let is_current = self.contacts.is_current(holders.epoch) && self.everyone.is_current(holders.epoch);
                // Members of an earlier view are better than none.
                if is_current || !self.everyone.knows_members() {
                    self.learn_holders(holders, out);
                }
            }
            ToClient::NotApplied { number } => {
                let why = "its state came from another member, with the command applied";
                self.answered_here(number, Err(ClientError::Gone(why.to_owned())), out);
            }
            _ => {}
        }
    }

    fn learn_holders(&mut self, holders: Members, out: &mut Vec<ClientEffect>) {
        let epoch = holders.epoch;
        let target = |(node, addresses)| DialTarget { node: Some(NodeId(node)), addresses };
        let holders: Vec<DialTarget> = holders.members.into_iter().map(target).collect();
        let before = std::mem::replace(&mut self.everyone.holders, holders);
        if before != self.everyone.holders {
            self.everyone.ways.clear();
        }
        self.everyone.may_fall = false;
        // A node may be behind. What it reports says nothing of members of later views.
        if epoch <= std::mem::replace(&mut self.everyone.epoch, epoch) {
            return self.choose_all(out);
        }
        let Everyone { holders, asked, .. } = &mut self.everyone;
        let gone: Vec<NodeId> =
            asked.extract_if(.., |_, member| !holders.contains(member)).map(|(node, _)| node).collect();
        for node in gone {
            out.push(ClientEffect::Forget(node));
            self.everyone.probed.remove(&node);
            let why = "it has left the group, or moved, since the call";
            let waiting: Vec<CallId> = self.everyone.gathered.keys().copied().collect();
            waiting.into_iter().for_each(|id| self.reply(id, node, Err(ClientError::Gone(why.to_owned())), out));
            let chosen = self.everyone.chosen.iter().filter(|(_, chosen)| chosen.at == Some(node));
            let chosen: Vec<CallId> = chosen.map(|(&id, _)| id).collect();
            chosen.into_iter().for_each(|id| self.failed_at(id, node, ClientError::Gone(why.to_owned()), out));
        }
        self.choose_all(out);
    }

    /// Waits for the answers of all members to a command that has got its number.
    pub(super) fn gather(&mut self, id: CallId, session: SessionId, number: u64, out: &mut Vec<ClientEffect>) {
        let Some(OutstandingCall { ask: Ask::All(_), deadline, .. }) = self.calls.get(&id) else { return };
        let members: Vec<NodeId> = self.everyone.holders.iter().filter_map(|member| member.node).collect();
        self.everyone.gathered.insert(id, members.iter().copied().collect());
        out.push(ClientEffect::Sent(id, members));
        let deadline = *deadline;
        for member in self.everyone.holders.clone() {
            self.everyone.ask(MemberCall::Of(id), member, Ask::Answer(session, number), deadline, out);
        }
    }

    /// Takes a member's answer to a command for all.
    fn reply(&mut self, id: CallId, node: NodeId, result: Result<Vec<u8>, ClientError>, out: &mut Vec<ClientEffect>) {
        let Some(waiting) = self.everyone.gathered.get_mut(&id) else { return };
        if !waiting.remove(&node) {
            return;
        }
        let is_last = waiting.is_empty();
        out.push(ClientEffect::Reply(id, node, result));
        if is_last {
            if let Some(number) = self.calls.get(&id).and_then(|call| call.number) {
                self.sent.remove(&number);
            }
            self.resolve(id, Ok(Vec::new()), out);
        }
    }

    /// Forgets a call that is over.
    pub(super) fn forget_call(&mut self, id: CallId) {
        self.everyone.gathered.remove(&id);
        self.everyone.chosen.remove(&id);
    }

    /// Begins a query to a chosen member.
    pub(super) fn begin_choice(&mut self, id: CallId, out: &mut Vec<ClientEffect>) {
        // A member that did not answer another call may answer this one.
        self.everyone.ways.retain(|_, way| *way < Duration::MAX);
        self.everyone.chosen.insert(id, Chosen::default());
        self.choose(id, out);
    }

    /// Looks again for the members of queries that have none.
    pub(super) fn choose_all(&mut self, out: &mut Vec<ClientEffect>) {
        let chosen = self.everyone.chosen.iter().filter(|(_, chosen)| chosen.at.is_none());
        let without: Vec<CallId> = chosen.map(|(&id, _)| id).collect();
        without.into_iter().for_each(|id| self.choose(id, out));
    }

    /// Asks the member that was chosen, or the nearest one.
    fn choose(&mut self, id: CallId, out: &mut Vec<ClientEffect>) {
        let Some(OutstandingCall { ask, deadline, .. }) = self.calls.get(&id) else { return };
        let deadline = *deadline;
        let (member, ask) = match ask {
            Ask::At(node, consistency, query) => {
                let member = self.everyone.holders.iter().find(|member| member.node == Some(*node));
                if member.is_none() && matches!(self.link, ConnectionState::Up) {
                    let why = format!("{node} is no member of {:?} that has its state now", self.group);
                    return self.resolve(id, Err(ClientError::Query(why)), out);
                }
                (member.cloned(), Ask::Query(*consistency, query.clone()))
            }
            Ask::Nearest(consistency, query) => {
                let ask = Ask::TryQuery(*consistency, query.clone());
                (self.everyone.nearest(id, deadline, out), ask)
            }
            _ => return,
        };
        let (Some(member), Some(chosen)) = (member, self.everyone.chosen.get_mut(&id)) else { return };
        chosen.at = member.node;
        self.everyone.ask(MemberCall::Of(id), member, ask, deadline, out);
    }

    /// Goes on with a query whose member has failed.
    fn failed_at(&mut self, id: CallId, node: NodeId, error: ClientError, out: &mut Vec<ClientEffect>) {
        let Some(chosen) = self.everyone.chosen.get_mut(&id).filter(|chosen| chosen.at == Some(node)) else { return };
        chosen.at = None;
        chosen.tried.insert(node);
        let has_other =
            self.everyone.holders.iter().any(|member| member.node.is_some_and(|node| !chosen.tried.contains(&node)));
        if !has_other || !matches!(self.calls.get(&id), Some(OutstandingCall { ask: Ask::Nearest(..), .. })) {
            return self.resolve(id, Err(ClientError::Query(error.to_string())), out);
        }
        self.everyone.ways.insert(node, Duration::MAX);
        self.choose(id, out);
    }
}

impl Everyone {
    /// Tells whether a node has reported members that have the state.
    pub(super) fn knows_members(&self) -> bool {
        !self.holders.is_empty()
    }

    /// Tells whether a report of this view is to be believed.
    fn is_current(&self, epoch: u64) -> bool {
        epoch >= self.epoch || self.may_fall
    }

    /// Returns the nearest member that a query has not tried: one of this host, or the one to which the way is
    /// shortest. Measures the ways that are not known; until one is, there is no nearest.
    fn nearest(&mut self, id: CallId, deadline: Time, out: &mut Vec<ClientEffect>) -> Option<DialTarget> {
        let tried = &self.chosen.get(&id)?.tried;
        let (mut nearest, mut unknown) = (None::<(Duration, &DialTarget)>, Vec::new());
        for member in &self.holders {
            let Some(node) = member.node.filter(|node| !tried.contains(node)) else { continue };
            let here = is_on_this_host(member).then_some(Duration::ZERO);
            match self.ways.get(&node).copied().or(here) {
                Some(way) if nearest.is_none_or(|(shortest, _)| way < shortest) => nearest = Some((way, member)),
                Some(_) => {}
                None if self.probed.insert(node) => unknown.push(member.clone()),
                None => {}
            }
        }
        let nearest = nearest.map(|(_, member)| member.clone());
        unknown.into_iter().for_each(|member| self.ask(MemberCall::Probe, member, Ask::Probe, deadline, out));
        nearest
    }

    /// Asks a member, at its present addresses.
    fn ask(&mut self, call: MemberCall, member: DialTarget, ask: Ask, deadline: Time, out: &mut Vec<ClientEffect>) {
        let Some(node) = member.node else { return };
        if self.asked.insert(node, member.clone()).is_some_and(|before| before != member) {
            out.push(ClientEffect::Forget(node));
        }
        out.push(ClientEffect::AskAt { call, member, ask, deadline });
    }
}

/// Tells whether a member runs on the client's host, by its addresses: it has none, or those of the loopback.
fn is_on_this_host(member: &DialTarget) -> bool {
    member.addresses.iter().all(|address| {
        let host = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host);
        let host = host.trim_matches(['[', ']']);
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    })
}
