//! The messages between logs, byte by byte.
//!
//! A message is `"SqV"`, a version byte, and an [`Envelope`] in postcard's format.

use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse};
use serde::{Deserialize, Serialize};
use squall_fabric::NodeId;
use squall_membership::{
    Began, ClusterId, Epoch, Incarnation, Layout, Member, Parameters, Proposal, Report, ReturnReport, VoterId,
};

use crate::types::{LogEntry, LogId, SnapshotMeta, Types, Vote};

/// The longest message that is sent or taken, in bytes.
pub const MAX_MESSAGE: usize = 4 << 20;

const PREFIX: [u8; 4] = *b"SqV\x0d";

/// A message.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Envelope {
    /// The cluster's life that the sender takes part in.
    pub(crate) cluster: Option<ClusterId>,
    pub(crate) from: Member,
    /// The lives that the sender's storage remembers: all since the first of them. Empty of a node without storage.
    pub(crate) lives: Vec<Incarnation>,
    pub(crate) body: Body,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Body {
    /// A question for the group, from a node that is in none, or hears nothing of its own.
    Hello(Hello),
    /// The answer to it, or to another message that shows how things stand with its sender.
    Here {
        to: Addressee,
        here: Here,
    },
    /// News for a group: it lacks what the sender has, which knows of views up to this one.
    WentBack {
        epoch: Epoch,
    },
    /// A proposal for the leader to write.
    Propose(Box<Proposal>),
    /// A report for the leader to write: the copies of a node that comes back.
    Say(Box<ReturnReport>),
    /// The leader's answer, if a proposal was not taken.
    Refused {
        proposal: Box<Proposal>,
        why: String,
    },
    Report(Report),
    /// A call of Raft's to one part in the log.
    Call {
        id: u64,
        to: VoterId,
        call: Call,
    },
    /// Its answer; an error is a sentence.
    Return {
        id: u64,
        answer: Result<Answer, String>,
    },
    /// The leader ends: another is to take over.
    Farewell,
    /// A call to step aside: no majority answers the leader of this vote, and another is to take over.
    StepAside(Vote),
}

/// The life of a node that an answer is for. The node may be in another one when the answer comes: then it does not
/// count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Addressee {
    /// The cluster's life that it took part in as it asked.
    pub(crate) cluster: Option<ClusterId>,
    pub(crate) incarnation: Incarnation,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// The cluster's name.
    pub(crate) cluster: String,
    pub(crate) layout: Layout,
    pub(crate) parameters: Parameters,
    /// The list that the node was configured with, if it was.
    pub(crate) list: Option<Vec<NodeId>>,
    /// The sender's wish.
    pub(crate) wants: Wants,
    /// Whether it knows of a view that was decided in the life that it takes part in.
    pub(crate) decided: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Wants {
    /// The foundation of a group: the sender is in none, and among the founders of one.
    Found,
    /// A membership: the sender waits for a first view, or asks to be a member.
    Join,
    /// A log without a membership: the sender runs one and is no member.
    Witness,
    /// The state of the group, for which the sender asks.
    News,
    /// The permission to go on alone from this epoch, as an operator wants the sender to.
    Force(Epoch),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Here {
    /// The lack of a group. The sender waits for these nodes, of which it hears nothing.
    Forming { missing: Vec<NodeId> },
    /// A group that there is.
    Group {
        last: Box<Proposal>,
        /// The log's leader, if it is known.
        leader: Option<Member>,
        /// The asking node can't be a member as it asks: it needs a later incarnation than this one.
        exceed: Option<Incarnation>,
        /// The voters that have forgotten how they voted, if they are so many that nothing can be decided any more.
        /// Else empty.
        forgot: Vec<NodeId>,
    },
    /// The two don't belong together; a sentence says why.
    Mismatch(String),
    /// The group goes on in another life; the place where that began, if an operator forced it.
    OtherLife(Option<Began>),
    /// The receiver's storage lacks what it once had: the sender knows more of it, and of views up to this one.
    WentBack { epoch: Epoch },
    /// The answer to that, and to word to a whole group: the group of the sender, which is a member, goes on all the
    /// same, and is at this view.
    GoesOn { epoch: Epoch },
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Call {
    Append {
        vote: Vote,
        previous: Option<LogId>,
        entries: Vec<LogEntry>,
        commit: Option<LogId>,
    },
    Vote(Ballot),
    /// A question: may the sender, whose log ends here, lead?
    MayLead(Option<LogId>),
    Snapshot {
        vote: Vote,
        meta: SnapshotMeta,
        data: Vec<u8>,
    },
}

impl Call {
    /// Whether the vote in it is the caller's own: a candidate asks for votes for itself, and a leader leads.
    pub(crate) fn is_of(&self, caller: VoterId) -> bool {
        let vote = match self {
            Call::Append { vote, .. } | Call::Snapshot { vote, .. } => vote,
            Call::Vote(ballot) => &ballot.vote,
            Call::MayLead(_) => return true,
        };
        vote.leader_id.node_id == caller.0
    }
}

/// A candidate's request for a vote.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Ballot {
    vote: Vote,
    last: Option<LogId>,
    /// Whether the leader wants it, or is gone: its lease counts for nothing.
    transfer: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Appended,
    AppendedTo(Option<LogId>),
    Conflict,
    /// The node has seen a higher vote.
    Higher(Vote),
    Vote {
        vote: Vote,
        granted: bool,
        last: Option<LogId>,
    },
    Snapshot(Vote),
    MayLead(bool),
}

impl<C: Types> From<AppendEntriesRequest<C>> for Call {
    fn from(request: AppendEntriesRequest<C>) -> Call {
        let AppendEntriesRequest { vote, prev_log_id: previous, entries, leader_commit: commit } = request;
        Call::Append { vote, previous, entries, commit }
    }
}

impl<C: Types> From<VoteRequest<C>> for Ballot {
    fn from(request: VoteRequest<C>) -> Ballot {
        Ballot { vote: request.vote, last: request.last_log_id, transfer: request.leadership_transfer }
    }
}

impl<C: Types> From<Ballot> for VoteRequest<C> {
    fn from(ballot: Ballot) -> VoteRequest<C> {
        VoteRequest { leadership_transfer: ballot.transfer, ..VoteRequest::new(ballot.vote, ballot.last) }
    }
}

impl<C: Types> From<AppendEntriesResponse<C>> for Answer {
    fn from(response: AppendEntriesResponse<C>) -> Answer {
        match response {
            AppendEntriesResponse::Success => Answer::Appended,
            AppendEntriesResponse::PartialSuccess(last) => Answer::AppendedTo(last),
            AppendEntriesResponse::Conflict => Answer::Conflict,
            AppendEntriesResponse::HigherVote(vote) => Answer::Higher(vote),
        }
    }
}

impl<C: Types> From<VoteResponse<C>> for Answer {
    fn from(response: VoteResponse<C>) -> Answer {
        Answer::Vote { vote: response.vote, granted: response.vote_granted, last: response.last_log_id }
    }
}

impl Answer {
    /// Converts it to the answer to entries. None if it answers something else.
    pub(crate) fn appended<C: Types>(self) -> Option<AppendEntriesResponse<C>> {
        Some(match self {
            Answer::Appended => AppendEntriesResponse::Success,
            Answer::AppendedTo(last) => AppendEntriesResponse::PartialSuccess(last),
            Answer::Conflict => AppendEntriesResponse::Conflict,
            Answer::Higher(vote) => AppendEntriesResponse::HigherVote(vote),
            Answer::Vote { .. } | Answer::Snapshot(_) | Answer::MayLead(_) => return None,
        })
    }

    /// Converts it to the answer to a ballot.
    pub(crate) fn voted<C: Types>(self) -> Option<VoteResponse<C>> {
        match self {
            Answer::Vote { vote, granted, last } => Some(VoteResponse::new(vote, last, granted)),
            _ => None,
        }
    }

    /// Converts it to the answer to a snapshot.
    pub(crate) fn installed<C: Types>(self) -> Option<SnapshotResponse<C>> {
        match self {
            Answer::Snapshot(vote) => Some(SnapshotResponse::new(vote)),
            _ => None,
        }
    }
}

impl Envelope {
    /// Encodes the message. None if it is longer than a message may be.
    pub(crate) fn encode(&self) -> Option<Vec<u8>> {
        let bytes = postcard::to_extend(self, PREFIX.to_vec()).ok()?;
        (bytes.len() <= MAX_MESSAGE).then_some(bytes)
    }

    /// Reads a message. None if it is none, or of another version.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Envelope> {
        let bytes = bytes.strip_prefix(&PREFIX).filter(|_| bytes.len() <= MAX_MESSAGE)?;
        match postcard::take_from_bytes(bytes) {
            Ok((envelope, [])) => Some(envelope),
            Ok(_) | Err(_) => None,
        }
    }
}

/// A destination of messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contact {
    /// The node, if it is known.
    pub node: Option<NodeId>,
    /// The addresses at which it can be dialed, as `host:port`.
    pub addresses: Vec<String>,
}

impl From<&Member> for Contact {
    fn from(member: &Member) -> Contact {
        Contact { node: Some(member.node), addresses: member.addresses.clone() }
    }
}

/// The way by which messages get to other nodes' logs.
///
/// It may lose, repeat and reorder them. A log from which the others can't be reached makes no progress; nothing else
/// happens. It never blocks: it is called between two steps of Raft.
pub trait Transport: Send + Sync {
    /// Sends a message, if the node can be reached.
    fn send(&self, to: &Contact, message: Vec<u8>);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use squall_membership::Incarnation;

    use super::*;

    fn message() -> Vec<u8> {
        let from = Member::new(NodeId(3), Incarnation(7));
        let body = Body::Call {
            id: 1,
            to: VoterId(2),
            call: Call::Vote(Ballot { vote: Vote::new(1, 2), last: None, transfer: true }),
        };
        Envelope { cluster: Some(ClusterId(5)), from, lives: vec![Incarnation(7)], body }
            .encode()
            .expect("a short message")
    }

    #[test]
    fn a_message_is_read_as_it_was_written_and_nothing_may_follow_it() {
        let mut bytes = message();
        let read = Envelope::decode(&bytes).expect("a message");
        assert_eq!((read.cluster, read.from.node), (Some(ClusterId(5)), NodeId(3)));
        bytes.push(0);
        assert!(Envelope::decode(&bytes).is_none());
    }

    proptest! {
        #[test]
        fn no_bytes_do_harm(noise in proptest::collection::vec(any::<u8>(), 0..200), at in 0..60_usize) {
            drop(Envelope::decode(&noise));
            drop(Envelope::decode(&[&PREFIX[..], &noise].concat()));
            let mut bytes = message();
            let at = at.min(bytes.len());
            bytes.splice(at..(at + noise.len()).min(message().len()), noise);
            drop(Envelope::decode(&bytes));
        }
    }
}
