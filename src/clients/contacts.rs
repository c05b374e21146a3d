//! The nodes that a client may call, and the order and the pauses in which it tries them. Pure.

use std::time::Duration;

use squall_fabric::NodeId;
use squall_services::DialTarget;

use super::wire::Members;

/// The pause before all nodes are tried again: at first this, growing up to the most.
pub(super) const BACK_OFF: Duration = Duration::from_millis(20);
pub(super) const MOST_BACK_OFF: Duration = Duration::from_secs(1);

/// The nodes of a cluster that a client may call: those that were given to it, and those of which a node has told it.
#[derive(Clone, Debug)]
pub(crate) struct Contacts {
    /// The nodes that are known at first.
    first: Vec<DialTarget>,
    /// The nodes that may be called.
    allowed: Allowed,
    /// The members of the newest view that a node has reported.
    members: Members,
    /// The next node to try, as an index among all.
    turn: usize,
    pause: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Allowed {
    All,
    /// The nodes that are known at first.
    First,
    One(NodeId),
}

impl Contacts {
    /// Makes the contacts of a client. Clients begin at different turns, so that they spread over the nodes.
    pub(crate) fn new(first: Vec<DialTarget>, turn: usize) -> Contacts {
        Contacts { first, allowed: Allowed::All, members: Members::default(), turn, pause: BACK_OFF }
    }

    /// Restricts the contacts to one node.
    pub(crate) fn only(self, node: NodeId) -> Contacts {
        Contacts { allowed: Allowed::One(node), ..self }
    }

    /// Restricts the contacts to the nodes that were given, whatever members these report.
    pub(crate) fn only_first(self) -> Contacts {
        Contacts { allowed: Allowed::First, ..self }
    }

    /// Returns all nodes, best first.
    fn all(&self) -> Vec<DialTarget> {
        if self.allowed == Allowed::First {
            return self.first.clone();
        }
        let told = self.members.members.iter();
        let told = told.map(|(node, at)| DialTarget { node: Some(NodeId(*node)), addresses: at.clone() });
        let mut all: Vec<DialTarget> = told.collect();
        // The reported members may all be gone, while one of the first has joined again.
        let others: Vec<DialTarget> = self.first.iter().filter(|first| !all.contains(first)).cloned().collect();
        all.extend(others);
        if let Allowed::One(only) = self.allowed {
            all.retain(|contact| contact.node == Some(only));
        }
        all
    }

    /// Returns the number of nodes.
    pub(super) fn count(&self) -> usize {
        self.all().len()
    }

    /// Returns the node to try next.
    pub(super) fn next(&self) -> Result<DialTarget, String> {
        let all = self.all();
        all.get(self.turn % all.len().max(1)).cloned().ok_or_else(|| "no member is known".to_owned())
    }

    /// Takes the members of a view that a node has reported.
    pub(super) fn learn(&mut self, members: Members) {
        if members.epoch >= self.members.epoch && !members.members.is_empty() {
            self.members = members;
        }
    }

    /// Returns the members of the newest view that a node has reported.
    pub(super) fn members(&self) -> impl Iterator<Item = NodeId> {
        self.members.members.iter().map(|(node, _)| NodeId(*node))
    }

    /// Goes on to the next node, after the last one has failed. Returns the time to wait before, if that is the first
    /// of all again.
    pub(super) fn fail(&mut self) -> Option<Duration> {
        self.turn = self.turn.wrapping_add(1);
        if !self.turn.is_multiple_of(self.all().len().max(1)) {
            return None;
        }
        let pause = self.pause;
        self.pause = (2 * pause).min(MOST_BACK_OFF);
        Some(pause)
    }

    /// Lets the next pause be short, after a node has done something for the client.
    pub(super) fn succeed(&mut self) {
        self.pause = BACK_OFF;
    }
}

#[cfg(all(test, not(squall_loom)))]
mod tests {
    use super::*;

    fn at(node: u32) -> DialTarget {
        DialTarget { node: Some(NodeId(node)), addresses: Vec::new() }
    }

    fn told(epoch: u64, nodes: &[u32]) -> Members {
        Members { epoch, members: nodes.iter().map(|&node| (node, Vec::new())).collect() }
    }

    #[test]
    fn all_are_tried_before_a_pause_and_pauses_grow() {
        let mut contacts = Contacts::new(vec![at(1), at(2), at(3)], 3);
        let mut tried = Vec::new();
        let mut pauses = Vec::new();
        for _ in 0..24 {
            tried.push(contacts.next().unwrap().node.unwrap().0);
            pauses.extend(contacts.fail());
        }
        assert_eq!(tried[..6], [1, 2, 3, 1, 2, 3]);
        assert_eq!(pauses, [20, 40, 80, 160, 320, 640, 1000, 1000].map(Duration::from_millis));
        contacts.succeed();
        assert_eq!([(); 3].map(|()| contacts.fail()), [None, None, Some(BACK_OFF)]);
    }

    #[test]
    fn the_newest_members_come_first_and_the_first_contacts_stay() {
        let mut contacts = Contacts::new(vec![at(1), at(2)], 0);
        contacts.learn(told(5, &[2, 7]));
        contacts.learn(told(4, &[9]));
        contacts.learn(told(6, &[]));
        assert_eq!(contacts.all(), [at(2), at(7), at(1)]);
        assert_eq!(contacts.clone().only(NodeId(7)).all(), [at(7)]);
        assert_eq!(contacts.clone().only_first().all(), [at(1), at(2)], "whatever they report");
        assert!(contacts.only(NodeId(9)).next().is_err());
    }
}
