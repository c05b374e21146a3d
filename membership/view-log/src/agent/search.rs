//! A node's search for its place in a group, and the voters that it misses, for operators.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use squall_fabric::{NodeId, NodeList};
use squall_membership::Member;

use super::{Agent, MANY, formation::FEW};
use crate::{
    settings::Start,
    shared::SearchStatus,
    types::Types,
    wire::{Contact, Here},
};

/// The answers to a node that asks for its place.
#[derive(Debug, Default)]
pub(super) struct Search {
    since: Duration,
    answers: BTreeMap<NodeId, SearchAnswer>,
}

/// The latest answer of a node.
#[derive(Debug)]
struct SearchAnswer {
    at: Duration,
    addresses: Vec<String>,
    words: String,
}

impl Search {
    /// Begins a search at this time.
    pub(super) fn begin(&mut self, now: Duration) {
        *self = Search { since: now, answers: BTreeMap::new() };
    }

    /// Notes an answer.
    pub(super) fn note(&mut self, from: &Member, here: &Here, now: Duration) {
        // More than there are nodes, unless a sender makes nodes up.
        if self.answers.len() >= MANY {
            self.answers.clear();
        }
        let answer = SearchAnswer { at: now, addresses: from.addresses.clone(), words: in_words(here) };
        self.answers.insert(from.node, answer);
    }

    fn is_address_of_any(&self, contact: &Contact) -> bool {
        let has = |answer: &SearchAnswer| answer.addresses.iter().any(|address| contact.addresses.contains(address));
        self.answers.values().any(has)
    }
}

/// An answer in words, to be read behind the name of the node that gave it, and a colon.
fn in_words(here: &Here) -> String {
    match here {
        Here::Forming { missing } if missing.is_empty() => "in no group yet".into(),
        Here::Forming { missing } => format!("in no group yet, nothing heard of {}", NodeList(missing)),
        Here::Group { last, leader, forgot, .. } => {
            let leads = match leader {
                Some(leader) => format!("{} leads its view log, which takes nodes in", leader.node),
                None => "no leader of its view log is known, without which no node is taken in".into(),
            };
            let lost = match forgot.as_slice() {
                [] => String::new(),
                forgot => format!("; the votes of {} are lost", NodeList(forgot)),
            };
            format!("a group at {}; {leads}{lost}", last.view.epoch)
        }
        Here::Mismatch(why) => format!("refuses this node, since {why}"),
        Here::OtherLife(_) => "in another life of the cluster".into(),
        Here::WentBack { epoch } => format!("knows what this node's storage lacks, up to {epoch}"),
        Here::GoesOn { epoch } => format!("goes on at {epoch}"),
    }
}

impl<C: Types> Agent<C> {
    /// The state of this node's search, while it has no place.
    pub(super) fn search(&self) -> Option<SearchStatus> {
        if !self.is_outside() {
            return None;
        }
        let Search { since, answers } = &self.search;
        let recent = |answer: &&SearchAnswer| self.now - answer.at <= self.settings.timing.hello * 10;
        let answers = answers.iter().filter(|(_, answer)| recent(answer));
        let missing = match (&self.settings.start, &self.formation.missing) {
            (_, Some(missing)) => missing.clone(),
            (Start::List { .. }, None) if self.is_free() => self.absent(),
            _ => Vec::new(),
        };
        Some(SearchStatus {
            waited: self.now.saturating_sub(*since),
            missing,
            answers: answers.map(|(node, answer)| (*node, answer.words.clone())).collect(),
            silent: self.silent_contacts(),
        })
    }

    /// The nodes that are asked each time and of which nothing is heard.
    fn silent_contacts(&self) -> Vec<String> {
        if self.is_leader() || self.leader().is_some() && self.hears_leader(self.settings.timing.election.1) {
            // The others are not asked.
            return Vec::new();
        }
        let contacts = self.contacts();
        let (first, others) = self.by_turn(&contacts);
        let others = others.into_iter().filter(|_| contacts.len() <= FEW);
        let is_silent = |contact: &&Contact| match contact.node {
            Some(node) => !self.is_heard(node),
            None => !self.search.is_address_of_any(contact),
        };
        let name =
            |contact: &Contact| contact.node.map_or_else(|| contact.addresses.join(" or "), |node| node.to_string());
        first.into_iter().chain(others).filter(is_silent).map(name).collect()
    }

    /// The voters of which nothing was heard for long, as far as this node would hear them.
    pub(super) fn silent_voters(&self) -> Vec<NodeId> {
        let timing = &self.settings.timing;
        let limit = if self.is_leader() {
            self.calm() * 2
        } else if self.misses_leader() && !self.hears_leader(timing.election.1 + timing.hello * 10) {
            // A member asks one contact after the other.
            let contacts = u32::try_from(self.contacts().len()).unwrap_or(u32::MAX);
            timing.hello * contacts.saturating_mul(2).clamp(10, 1000)
        } else {
            return Vec::new();
        };
        if self.now < limit {
            return Vec::new();
        }
        let others = self.other_voters().into_iter().map(|(_, peer)| peer.member.node);
        // By node, of which several lives may vote.
        let silent: BTreeSet<NodeId> = others.filter(|&node| !self.is_heard_within(node, limit)).collect();
        silent.into_iter().collect()
    }
}
