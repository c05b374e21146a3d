//! The network that two nodes have in common: each tells the other its abilities once, when they first meet.

use std::sync::Arc;

use super::transport::Transport;
use crate::{
    BreakReason, GroupTag, NodeId, Waker,
    endpoints::Endpoints,
    net::{Command, Connect, Control, Event, Events, Net, Plane},
};

/// The tag under which nodes ask each other. No layer has this number.
const TAG: GroupTag = GroupTag { layer: u32::MAX, group: 0, epoch: 0 };

/// The fabric number in the ids of questions.
const QUESTIONS: u8 = 4;

/// The abilities of a node, a bit each.
const TCP: u8 = 1;
const VERBS: u8 = 2;

/// An outcome of a question.
pub(super) enum News {
    /// Both nodes reach each other by this transport.
    Chosen(NodeId, Transport),
    /// The failure to reach each other.
    Failed(NodeId, BreakReason),
}

/// The questions to peers, and the answers.
pub(super) struct Choice {
    control: Control,
    events: Events,
    questions: Endpoints<Question>,
}

struct Question {
    peer: NodeId,
    answer: Option<Transport>,
}

impl Choice {
    pub(super) fn new(net: &Arc<Net>, waker: Waker) -> Choice {
        let (control, events) = net.plane(Plane::Choice, move || waker.wake());
        Choice { control, events, questions: Endpoints::new(QUESTIONS) }
    }

    /// The transport to a peer, if it is known.
    pub(super) fn chosen(&mut self, peer: NodeId) -> Option<Transport> {
        self.questions.named((peer, TAG))?.answer
    }

    /// Asks a peer, unless it was asked already.
    pub(super) fn ask(&mut self, peer: NodeId, has_verbs: bool) {
        if self.questions.named((peer, TAG)).is_some() {
            return;
        }
        let id = self.questions.reserve();
        self.questions.put(id, (peer, TAG), Ok(Question { peer, answer: None }));
        let can = if has_verbs { TCP | VERBS } else { TCP };
        // It is announced here, and not by a poll.
        self.questions.take_new();
        self.control.send([Command::Connect(Connect { endpoint: id, peer, tag: TAG, set_up: vec![can] })]);
    }

    /// Takes note of the peers' answers.
    pub(super) fn take_news(&mut self, has_verbs: bool, news: &mut Vec<News>) {
        if !self.events.are_pending() {
            return;
        }
        self.events.begin();
        // If the control thread has ended, the fabrics report it.
        while let Ok(Some(event)) = self.events.next() {
            match event {
                Event::Paired(paired) => {
                    let Some(question) = self.questions.get_mut(paired.endpoint) else { continue };
                    let transport = common(has_verbs, &paired.set_up);
                    tracing::debug!(peer = %question.peer, %transport, "a network was chosen");
                    question.answer = Some(transport);
                    news.push(News::Chosen(question.peer, transport));
                }
                // The next connection asks again: the peer may have another life by then, and other devices.
                Event::Broken { endpoint, reason } => {
                    let Some(question) = self.questions.remove(endpoint) else { continue };
                    if question.answer.is_none() {
                        news.push(News::Failed(question.peer, reason));
                    }
                }
                Event::Told { .. } => {}
            }
        }
    }
}

/// The best transport that both nodes have; every node has TCP.
fn common(has_verbs: bool, theirs: &[u8]) -> Transport {
    match theirs.first() {
        #[cfg(feature = "verbs")]
        Some(theirs) if has_verbs && theirs & VERBS != 0 => Transport::Verbs,
        _ => {
            let _ = has_verbs;
            Transport::Tcp
        }
    }
}
