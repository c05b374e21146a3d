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
    /// The place at which the client begins among the members, and among the others.
    turn: usize,
    /// The nodes that were tried in vain since the members were reported, or since all were tried.
    tried: usize,
    /// The attempts that failed since the last pause.
    failed: usize,
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
        let (allowed, members) = (Allowed::All, Members::default());
        Contacts { first, allowed, members, turn, tried: 0, failed: 0, pause: BACK_OFF }
    }

    /// Restricts the contacts to one node.
    pub(crate) fn only(self, node: NodeId) -> Contacts {
        Contacts { allowed: Allowed::One(node), ..self }
    }

    /// Restricts the contacts to the nodes that were given, whatever members these report.
    pub(crate) fn only_first(self) -> Contacts {
        Contacts { allowed: Allowed::First, ..self }
    }

    /// Returns all nodes, in the order in which they are tried: members before others.
    fn all(&self) -> Vec<DialTarget> {
        let told = self.members.members.iter();
        let told = told.map(|(node, at)| DialTarget { node: Some(NodeId(*node)), addresses: at.clone() });
        let mut all: Vec<DialTarget> = if self.allowed == Allowed::First { Vec::new() } else { told.collect() };
        // The reported members may all be gone, while one of the first has joined again.
        let mut others: Vec<DialTarget> = self.first.iter().filter(|first| !all.contains(first)).cloned().collect();
        for nodes in [&mut all, &mut others].into_iter().filter(|nodes| !nodes.is_empty()) {
            let first = self.turn % nodes.len();
            nodes.rotate_left(first);
        }
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
        all.get(self.tried % all.len().max(1)).cloned().ok_or_else(|| "no member is known".to_owned())
    }

    /// Takes the members of a view that a node has reported, unless it is older than that of the last report.
    pub(super) fn learn(&mut self, members: Members) {
        if members.epoch >= self.members.epoch && !members.members.is_empty() {
            self.members = members;
        }
    }

    /// Tells whether a report of this epoch is as new as the members that are known.
    pub(super) fn is_current(&self, epoch: u64) -> bool {
        epoch >= self.members.epoch
    }

    /// Goes on to the members that a node has reported instead of serving: to the first of them if they are news. It is
    /// an attempt that failed, too, so that nodes that send a client to each other are asked with pauses.
    pub(super) fn redirect(&mut self, members: Members) -> Option<Duration> {
        let before = self.members.members.clone();
        self.learn(members);
        let pause = self.fail();
        if self.members.members != before {
            self.tried = 0;
        }
        pause
    }

    /// Returns the members of the newest view that a node has reported.
    pub(super) fn members(&self) -> impl Iterator<Item = NodeId> {
        self.members.members.iter().map(|(node, _)| NodeId(*node))
    }

    /// Goes on to the next node, after the last one has failed. Returns the time to wait before, once as many attempts
    /// have failed as there are nodes.
    pub(super) fn fail(&mut self) -> Option<Duration> {
        let all = self.all().len();
        (self.tried, self.failed) = (self.tried + 1, self.failed + 1);
        if self.tried >= all {
            self.tried = 0;
        }
        if self.failed < all {
            return None;
        }
        // None of all serves. So the members may be those of a view that is over, be it of an earlier group.
        (self.failed, self.members.epoch) = (0, 0);
        let pause = self.pause;
        self.pause = (2 * pause).min(MOST_BACK_OFF);
        Some(pause)
    }

    /// Lets the next pause be short, after a node has done something for the client.
    pub(super) fn succeed(&mut self) {
        (self.failed, self.pause) = (0, BACK_OFF);
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
    fn members_of_whom_a_client_is_told_are_tried_at_once_and_pauses_come_all_the_same() {
        let mut contacts = Contacts::new(vec![at(1)], 4);
        assert_eq!((contacts.next().unwrap(), contacts.redirect(told(5, &[6, 7, 8]))), (at(1), None));
        assert_eq!(contacts.all(), [7, 8, 6, 1].map(at), "clients begin at different members");
        let mut pauses = Vec::new();
        for epoch in 6..30 {
            assert_eq!(contacts.next().unwrap(), contacts.all()[0]);
            pauses.extend(contacts.redirect(told(epoch, &[6 + epoch as u32 % 2, 9])));
        }
        assert!(pauses.len() >= 5, "{pauses:?}");
        let before = contacts.next().unwrap();
        contacts.redirect(told(29, &[7, 9]));
        assert_ne!(contacts.next().unwrap(), before, "the same members again are no news");
    }

    #[test]
    fn where_no_member_serves_a_group_that_was_founded_anew_is_believed() {
        let mut contacts = Contacts::new(vec![at(4)], 0);
        contacts.redirect(told(500, &[2, 3]));
        assert_eq!((contacts.fail(), contacts.fail().is_some()), (None, true));
        contacts.redirect(told(1, &[1, 5]));
        assert_eq!(contacts.next().unwrap(), at(1));
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
