//! Errors of the operations on a group.

use std::{fmt, time::Duration};

use squall_fabric::NodeId;
use squall_membership::{EndReason, Epoch};
use squall_ordered::SubmitRefused;

/// The reason for which a submit or send failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// A lack of room, now or until the deadline. Nothing was sent, and the caller may try again.
    #[error(
        "there is no room for the message, and it was not sent: other members have not delivered what fills the ring (or, for a \
         bulk message, the reserve), or as many submits wait as may; try again, or configure a larger ring_bytes, bulk_reserve or \
         max_waiting"
    )]
    Full,
    /// The message would never fit. Nothing was sent.
    #[error(
        "a message of {bytes} bytes is larger than {max} bytes, the most that its group takes of a member or a client: divide it, \
         or configure a larger bulk_reserve"
    )]
    TooLarge {
        /// The message's length, in bytes.
        bytes: usize,
        /// The largest that fits, in bytes.
        max: usize,
    },
    /// A call at a node that may not send in this group. Nothing was sent.
    #[error("this node is not a sender of the group: add its id to the group's `senders`, at all nodes")]
    NotASender,
    /// The group has ended at this node.
    #[error("the group has ended ({reason}); {outcome}")]
    Ended {
        /// The reason for the end.
        reason: EndReason,
        /// The knowledge of the message.
        outcome: Outcome,
    },
    /// A pause of this node, which can't serve the group for now. It goes on by itself when it can.
    #[error("{why}; {outcome}")]
    Unavailable {
        /// The reason for which it can't.
        why: Unavailable,
        /// The knowledge of the message.
        outcome: Outcome,
    },
    /// The message's view ended, and it can't be sent in the next. Either the group is unordered, where that could
    /// deliver it twice, or this node is no sender there.
    #[error("the view of {epoch} ended before the message was delivered; {outcome}")]
    ViewEnded {
        /// The view that ended.
        epoch: Epoch,
        /// The knowledge of the message.
        outcome: Outcome,
    },
    /// The message was accepted, and not delivered here in time. It is not withdrawn: mostly it is still delivered.
    #[error("the deadline has passed; the message was accepted, and may be delivered yet")]
    Deadline,
    /// The caller asked to wait where that would never end: on the delivering thread, inside `apply` or a read's
    /// closure. A message that was accepted stays accepted.
    #[error(
        "waiting inside `apply` or a read's closure would wait for ever, since the same thread delivers: submit without \
         waiting, or wait on another thread"
    )]
    InsideApply,
    /// rkyv could not serialize the command; the string says why. Nothing was sent.
    #[error("the command could not be serialized: {0}")]
    Serialize(String),
    /// The message was delivered, but the bytes that arrived are no command, so no member applied it.
    #[error(
        "the command's bytes did not pass the check where they were delivered, so no member applied them: its `Serialize` \
         and its `CheckBytes` contradict each other, or its memory was damaged"
    )]
    Invalid,
    /// The node of this group was not started. Nothing was sent.
    #[error("the group's node has not started: call `NodeBuilder::start` first")]
    NotStarted,
}

impl SubmitError {
    /// Whether it is certain that no member applies the message, so that it may be submitted again.
    pub fn is_not_applied(&self) -> bool {
        match self {
            SubmitError::Full
            | SubmitError::TooLarge { .. }
            | SubmitError::NotASender
            | SubmitError::Serialize(_)
            | SubmitError::Invalid
            | SubmitError::NotStarted => true,
            SubmitError::Deadline | SubmitError::InsideApply => false,
            SubmitError::Ended { outcome, .. }
            | SubmitError::Unavailable { outcome, .. }
            | SubmitError::ViewEnded { outcome, .. } => matches!(outcome, Outcome::NotAccepted | Outcome::NotDelivered),
        }
    }

    /// Whether another member may take the message, which this one has not sent.
    pub(crate) fn is_elsewhere(&self) -> bool {
        match self {
            SubmitError::NotASender => true,
            SubmitError::Unavailable { why: Unavailable::ShortOfRoom { .. }, .. } => false,
            SubmitError::Unavailable { .. } | SubmitError::ViewEnded { .. } => self.is_not_applied(),
            _ => false,
        }
    }

    /// The error of a refusal; None if the shard is closed, since its view is over and another may follow.
    pub(crate) fn refused(refused: SubmitRefused) -> Option<SubmitError> {
        match refused {
            SubmitRefused::Full => Some(SubmitError::Full),
            SubmitRefused::TooLarge { bytes, max } => Some(SubmitError::TooLarge { bytes, max }),
            SubmitRefused::NotASender => Some(SubmitError::NotASender),
            SubmitRefused::Closed => None,
        }
    }
}

/// The reason for which a node can't serve a group for now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// A lack of members: too few can be reached to decide which go on, so this one must not.
    #[error(
        "too few of the group's members can be reached to decide which of them go on, so this one waits: it goes on by itself once \
         more of them are back; if they are lost for ever, `squall recover --force --reason TEXT` lets it go on without them"
    )]
    NoQuorum,
    /// A view without this node, since it was stopped or cut off. The node joins again by itself.
    #[error(
        "the others dropped this node at {epoch}, and it joins them again by itself: try again, or ask another member"
    )]
    Dropped {
        /// The first view without it.
        epoch: Epoch,
    },
    /// A call at a member of the group that is no member of this shard.
    #[error("this node is no member of the shard: ask one of its members, {}", list(members))]
    Elsewhere {
        /// The shard's members, by rank.
        members: Vec<NodeId>,
    },
    /// A call at a node that is new in the group. It lacks the group's state, or may not send in the view in which it
    /// got the state.
    #[error("this node is joining the group: try again, or ask another member")]
    Joining,
    /// A clock of this node that is further ahead of the other members' than `clock_limit_ms`. The node's messages
    /// would carry the group's time with them, for good. It goes on by itself once the clock is set right.
    #[error(
        "this node's clock is {:.1} s ahead of {}, and the group's time would follow it: set it right (with chrony: `chronyc \
         makestep`), or ask another member; this one goes on by itself then",
        by.as_secs_f64(),
        list(ahead_of)
    )]
    ClockAhead {
        /// The difference, measured against the middle one of the other members' clocks.
        by: Duration,
        /// The members whose clocks are behind it.
        ahead_of: Vec<NodeId>,
    },
    /// A lack of room on the storage of most members of a durable group. Reads go on, and messages are taken again once
    /// there is room.
    #[error(
        "there is too little room on the storage of {} for what would be written, so the group only answers reads: make room there \
         (`squall status` says how much there is), and it takes messages again by itself",
        list(nodes)
    )]
    ShortOfRoom {
        /// The members that are short of room.
        nodes: Vec<NodeId>,
    },
    /// A group with fewer members that have its state than its configuration's minimum.
    #[error(
        "the group has fewer members with its state than its `min_replicas`: it refuses work until more have joined"
    )]
    Inadequate,
    /// The lack of a member that holds the group's state.
    #[error("no member holds the group's state: {}", suspended(last_holders, *all_back))]
    Suspended {
        /// The nodes that held it last.
        last_holders: Vec<NodeId>,
        /// Whether all of them have returned, so that the state is lost unless one of them says soon that it has it.
        all_back: bool,
    },
}

fn suspended(last_holders: &[NodeId], all_back: bool) -> String {
    let nodes = list(last_holders);
    match all_back {
        false => format!("it goes on when one of {nodes} returns with it"),
        true => format!(
            "all nodes that held it are back ({nodes}), and if none of them says soon that it has it, it is lost: `squall \
             status` says what to do"
        ),
    }
}

/// Names nodes, with commas between.
pub(crate) fn list(nodes: &[NodeId]) -> String {
    nodes.iter().map(NodeId::to_string).collect::<Vec<_>>().join(", ")
}

/// The knowledge of a message that got no reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A message that was never accepted, so that no member delivers it.
    NotAccepted,
    /// A message that was accepted and lies beyond the end of what the group delivered, so that no member delivers it.
    NotDelivered,
    /// A message that was accepted and that the members that stayed deliver: only its reply is lost. Every linearizable
    /// read that begins from now on shows it.
    ///
    /// Never reported in a durable group, where a loss of power may undo it until all members have it on disk.
    Delivered,
    /// A message that was accepted and that some members may have delivered, or may deliver later.
    Unknown {
        /// Unordered mode: the members known to have it, this node included. In ordered mode it is always empty.
        held_by: Vec<NodeId>,
    },
}

impl Outcome {
    /// The outcome of a message that its sender did not deliver, and that no members but `held_by` may have delivered.
    pub(crate) fn of_holders(held_by: Vec<NodeId>) -> Outcome {
        if held_by.is_empty() { Outcome::NotDelivered } else { Outcome::Unknown { held_by } }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::NotAccepted => f.write_str("the message was not sent"),
            Outcome::NotDelivered => f.write_str("the message was not delivered by any member"),
            Outcome::Delivered => {
                f.write_str("the message was delivered by the members that stayed, and its reply is lost")
            }
            Outcome::Unknown { held_by } if held_by.is_empty() => {
                f.write_str("it is unknown whether other members delivered the message")
            }
            Outcome::Unknown { held_by } => {
                write!(f, "the members known to have the message are {}", list(held_by))
            }
        }
    }
}

/// The reason for which a read failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The group is unordered: its replicas differ, so no read could show a state on which all agree.
    #[error(
        "there are no linearizable reads in an unordered group: `peek` at this node's replica, or configure \
         mode = \"ordered\""
    )]
    Unordered,
    /// The group has ended at this node.
    #[error("the group has ended: {reason}")]
    Ended {
        /// The reason for the end.
        reason: EndReason,
    },
    /// A pause of this node, which can't serve the group for now. It goes on by itself when it can.
    #[error("{why}")]
    Unavailable {
        /// The reason for which it can't.
        why: Unavailable,
    },
    /// The caller asked to wait where that would never end: on the delivering thread, inside `apply` or a read's
    /// closure.
    #[error(
        "waiting inside `apply` or a read's closure would wait for ever, since the same thread answers: look at the replica \
         there, or wait on another thread"
    )]
    InsideApply,
    /// The read's own closure panicked. The replica is as it was.
    #[error("the closure that was to read the replica panicked")]
    Panicked,
    /// The node of this group was not started.
    #[error("the group's node has not started: call `NodeBuilder::start` first")]
    NotStarted,
}

#[cfg(all(test, not(squall_loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_what_no_member_applies_goes_on_elsewhere() {
        let unavailable = |why: Unavailable, outcome| SubmitError::Unavailable { why, outcome };
        let ended = |outcome| SubmitError::Ended { reason: EndReason::Panicked, outcome };
        let outcomes =
            [Outcome::NotAccepted, Outcome::NotDelivered, Outcome::Delivered, Outcome::Unknown { held_by: Vec::new() }];
        let told = |error: fn(Outcome) -> SubmitError| outcomes.clone().map(|outcome| error(outcome).is_elsewhere());
        assert_eq!(told(|outcome| SubmitError::ViewEnded { epoch: Epoch(1), outcome }), [true, true, false, false]);
        let elsewhere = |outcome| unavailable(Unavailable::Elsewhere { members: Vec::new() }, outcome).is_elsewhere();
        assert_eq!(outcomes.clone().map(elsewhere), [true, true, false, false]);
        let short = |outcome| unavailable(Unavailable::ShortOfRoom { nodes: Vec::new() }, outcome).is_elsewhere();
        assert_eq!(outcomes.clone().map(short), [false; 4], "no other member takes it, either");
        assert_eq!(outcomes.clone().map(|outcome| ended(outcome).is_elsewhere()), [false; 4]);
        assert!(SubmitError::NotASender.is_elsewhere() && !SubmitError::Deadline.is_elsewhere());
    }
}
