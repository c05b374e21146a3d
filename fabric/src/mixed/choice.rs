//! The way by which two nodes reach each other: each tells the other its abilities once, when they first meet.
//!
//! Nodes that are processes of one user on one host then try shared memory: the one with the smaller id dials the
//! other's socket, and tells the other whether it found there the very process that it asks. So both come to the same
//! result, and if that fails they take the network.

use std::sync::Arc;

use super::{
    host::{Abilities, ProcessHost},
    transport::Transport,
};
use crate::{
    BreakReason, GroupTag, NodeId, Waker,
    endpoints::Endpoints,
    net::{Command, Connect, Control, Event, Events, Net, Plane},
    shm::LinkAttempt,
    wire::{Reader, Writer},
};

/// The tag under which nodes ask each other. No layer has this number.
const TAG: GroupTag = GroupTag { layer: u32::MAX, group: 0, epoch: 0 };

/// The fabric number in the ids of questions.
const QUESTIONS: u8 = 4;

/// An outcome of a question.
pub(super) enum News {
    /// Both nodes reach each other by this transport.
    Chosen(NodeId, Transport),
    /// The peer's process has to be found in shared memory, by the number of its life.
    Try(NodeId, u64),
    /// The failure to reach each other.
    Failed(NodeId, BreakReason),
    /// The end of a question that was answered: the peer may have another life by then, which is asked again.
    Ended(NodeId, BreakReason),
}

/// The questions to peers, and the answers.
pub(super) struct Choice {
    node: NodeId,
    host: Option<ProcessHost>,
    control: Control,
    events: Events,
    questions: Endpoints<Question>,
}

struct Question {
    peer: NodeId,
    own: Abilities,
    /// The network that both have, once the peer has answered, and the life in which it did.
    network: Option<(Transport, u64)>,
    answer: Option<Transport>,
    /// The reason for which memory is not shared, though both are on one host.
    unshared: Option<String>,
}

impl Choice {
    pub(super) fn new(node: NodeId, net: &Arc<Net>, waker: Waker) -> Choice {
        let (control, events) = net.plane(Plane::Choice, move || waker.wake());
        Choice { node, host: ProcessHost::own(), control, events, questions: Endpoints::new(QUESTIONS) }
    }

    /// The transport to a peer, if it is known.
    pub(super) fn chosen(&self, peer: NodeId) -> Option<Transport> {
        self.question(peer)?.answer
    }

    /// The reason for which memory is not shared with a peer, though both are on one host.
    pub(super) fn unshared(&self, peer: NodeId) -> Option<&str> {
        self.question(peer)?.unshared.as_deref()
    }

    fn question(&self, peer: NodeId) -> Option<&Question> {
        self.questions.get_named((peer, TAG)).map(|(_, question)| question)
    }

    /// Asks a peer, unless it was asked already. `life` is that of this process in shared memory, if it has that.
    pub(super) fn ask(&mut self, peer: NodeId, has_verbs: bool, life: Option<u64>) {
        if self.question(peer).is_some() {
            return;
        }
        let id = self.questions.reserve();
        let own = Abilities { has_verbs, memory: self.host.clone().zip(life) };
        let set_up = own.encode();
        let question = Question { peer, own, network: None, answer: None, unshared: None };
        self.questions.put(id, (peer, TAG), Ok(question));
        // It is announced here, and not by a poll.
        self.questions.take_new();
        self.control.send([Command::Connect(Connect { endpoint: id, peer, tag: TAG, set_up })]);
    }

    /// Takes note of the peers' answers.
    pub(super) fn take_news(&mut self, news: &mut Vec<News>) {
        if !self.events.are_pending() {
            return;
        }
        self.events.begin();
        // If the control thread has ended, the fabrics report it.
        while let Ok(Some(event)) = self.events.next() {
            match event {
                Event::Paired(paired) => {
                    let Some(question) = self.questions.get_mut(paired.endpoint) else { continue };
                    news.extend(question.on_answer(self.node, &paired.set_up));
                }
                Event::Told { endpoint, bytes, .. } => {
                    let Some(question) = self.questions.get_mut(endpoint) else { continue };
                    // The other side of the pair decides.
                    if question.peer < self.node {
                        let why = Reader(&bytes).text().unwrap_or_else(|error| error.to_string());
                        news.extend(question.decide(if why.is_empty() { Ok(()) } else { Err(why) }));
                    }
                }
                Event::Broken { endpoint, reason } => {
                    let Some(question) = self.questions.remove(endpoint) else { continue };
                    news.push(match question.answer {
                        Some(_) => News::Ended(question.peer, reason),
                        None => News::Failed(question.peer, reason),
                    });
                }
            }
        }
    }

    /// Takes the result of an attempt to share memory with a peer, and tells the peer.
    pub(super) fn tried(&mut self, attempt: LinkAttempt) -> Option<News> {
        let (id, _) = self.questions.get_named((attempt.peer, TAG))?;
        let question = self.questions.get_mut(id)?;
        // The attempt may have been for an earlier life of the peer.
        if question.network.is_none_or(|(_, life)| life != attempt.incarnation) {
            return None;
        }
        // The sentence why not, which is empty if it is shared.
        let mut word = Writer(Vec::new());
        word.text(attempt.result.as_ref().err().map_or("", String::as_str));
        let news = question.decide(attempt.result)?;
        self.control.send([Command::Tell { endpoint: id, bytes: word.0 }]);
        Some(news)
    }
}

impl Question {
    /// Takes the peer's answer: memory is tried first, where that is possible.
    fn on_answer(&mut self, node: NodeId, answer: &[u8]) -> Option<News> {
        // A release that says something else of itself has TCP too.
        let theirs = Abilities::decode(answer).unwrap_or(Abilities { has_verbs: false, memory: None });
        let network = common(&self.own, &theirs);
        let life = self.own.life_beside(&theirs);
        self.network = Some((network, life.unwrap_or(0)));
        match life {
            Some(life) if node < self.peer => Some(News::Try(self.peer, life)),
            // The peer tries, and tells.
            Some(_) => None,
            None => self.decide_network(None),
        }
    }

    /// Decides as the attempt to share memory ended.
    fn decide(&mut self, result: Result<(), String>) -> Option<News> {
        match result {
            Ok(()) => self.settle(Transport::Shm),
            Err(why) => self.decide_network(Some(why)),
        }
    }

    fn decide_network(&mut self, unshared: Option<String>) -> Option<News> {
        let (network, _) = self.network?;
        if let Some(why) = &unshared {
            tracing::warn!(peer = %self.peer, "memory can't be shared with this node of the same host: {why}");
        }
        self.unshared = unshared;
        self.settle(network)
    }

    fn settle(&mut self, transport: Transport) -> Option<News> {
        if self.answer.is_some() {
            return None;
        }
        tracing::debug!(peer = %self.peer, %transport, "a transport was chosen");
        self.answer = Some(transport);
        Some(News::Chosen(self.peer, transport))
    }
}

/// The best network that both nodes have; every node has TCP.
fn common(own: &Abilities, theirs: &Abilities) -> Transport {
    #[cfg(feature = "verbs")]
    if own.has_verbs && theirs.has_verbs {
        return Transport::Verbs;
    }
    let _ = (own, theirs);
    Transport::Tcp
}
