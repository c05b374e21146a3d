//! Connections whose other ends have not said which nodes they are.
//!
//! Anything may be at such an end, so these connections are few, and each has a time by which its end must have
//! introduced itself. Each kind of [`Holder`] has places of its own: strangers take none from connections of known
//! addresses, and those none from connections that have shown a certificate.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    mem,
    time::{Duration, Instant},
};

use crate::share::Holder;

/// A connection whose other end has not said which node it is.
pub(crate) struct PendingPeer<A, C> {
    pub(crate) id: u64,
    /// The address from which it came.
    pub(crate) from: A,
    pub(crate) connection: C,
    /// The party whose place it takes.
    holder: Holder,
    deadline: Instant,
}

/// The connections that wait for an introduction, the oldest first.
pub(crate) struct PendingPeers<A, C> {
    peers: Vec<PendingPeer<A, C>>,
    most: usize,
    patience: Duration,
    next_id: u64,
}

impl<A, C> PendingPeers<A, C> {
    /// Room for `most` connections of each kind of holder, or for one if that is 0. Each has the time `patience`.
    pub(crate) fn new(most: usize, patience: Duration) -> PendingPeers<A, C> {
        PendingPeers { peers: Vec::new(), most: most.max(1), patience, next_id: 0 }
    }

    /// Adds a connection. Returns the one that gives up its place for it, if there is no other: the oldest of the
    /// holder of its kind that has the most. A node introduces itself at once, and a host whose connections stay silent
    /// leaves nodes elsewhere their places.
    pub(crate) fn add(&mut self, from: A, connection: C, now: Instant, holder: Holder) -> Option<PendingPeer<A, C>> {
        let last = self.make_room(&holder);
        self.next_id += 1;
        self.peers.push(PendingPeer { id: self.next_id, from, connection, holder, deadline: now + self.patience });
        last
    }

    /// Notes that a connection has shown whose it is: it moves to a place of that holder, and has the time for one more
    /// step. Returns the connection that gives up its place for it, if there is no other.
    pub(crate) fn recognise(&mut self, id: u64, holder: Holder, now: Instant) -> Option<PendingPeer<A, C>> {
        let index = self.peers.iter().position(|peer| peer.id == id)?;
        let mut peer = self.peers.remove(index);
        let last = self.make_room(&holder);
        (peer.holder, peer.deadline) = (holder, now + self.patience);
        self.peers.push(peer);
        last
    }

    /// Takes out the connection that has to go for one more of this holder.
    fn make_room(&mut self, holder: &Holder) -> Option<PendingPeer<A, C>> {
        let mut holders = BTreeMap::<&Holder, (usize, Reverse<usize>)>::new();
        let mut many = 0;
        for (index, peer) in self.peers.iter().enumerate() {
            if mem::discriminant(&peer.holder) == mem::discriminant(holder) {
                holders.entry(&peer.holder).or_insert((0, Reverse(index))).0 += 1;
                many += 1;
            }
        }
        let oldest_of_most = holders.into_values().max().map(|(_, Reverse(oldest))| oldest);
        oldest_of_most.filter(|_| many >= self.most).map(|oldest| self.peers.remove(oldest))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &PendingPeer<A, C>> {
        self.peers.iter()
    }

    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut PendingPeer<A, C>> {
        self.peers.iter_mut().find(|peer| peer.id == id)
    }

    /// Takes out a connection whose end has introduced itself, or is gone.
    pub(crate) fn take(&mut self, id: u64) -> Option<PendingPeer<A, C>> {
        let index = self.peers.iter().position(|peer| peer.id == id)?;
        Some(self.peers.remove(index))
    }

    /// Takes out a connection whose time was over at `now`, if there is one.
    pub(crate) fn take_late(&mut self, now: Instant) -> Option<PendingPeer<A, C>> {
        let index = self.peers.iter().position(|peer| peer.deadline <= now)?;
        Some(self.peers.remove(index))
    }

    /// The time at which the next connection is late.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.peers.iter().map(|peer| peer.deadline).min()
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::share::CallerNetwork;

    const PATIENCE: Duration = Duration::from_secs(1);

    fn network(host: u8) -> Holder {
        Holder::Network(CallerNetwork::of(IpAddr::from([192, 0, 2, host])))
    }

    /// Adds a connection that has the name `connection`.
    fn add(
        peers: &mut PendingPeers<(), &'static str>,
        holder: Holder,
        connection: &'static str,
    ) -> Option<&'static str> {
        peers.add((), connection, Instant::now(), holder).map(|peer| peer.connection)
    }

    fn left(peers: &PendingPeers<(), &'static str>) -> Vec<&'static str> {
        peers.iter().map(|peer| peer.connection).collect()
    }

    #[test]
    fn a_host_with_many_silent_connections_loses_its_oldest() {
        let mut peers = PendingPeers::new(3, PATIENCE);
        assert_eq!(add(&mut peers, network(1), "a node"), None);
        assert_eq!(add(&mut peers, network(2), "first"), None);
        assert_eq!(add(&mut peers, network(2), "second"), None);
        assert_eq!(add(&mut peers, network(2), "third"), Some("first"));
        assert_eq!(add(&mut peers, network(3), "another node"), Some("second"));
        assert_eq!(add(&mut peers, network(4), "one more"), Some("a node"), "all hosts have one");
        assert_eq!(left(&peers), ["third", "another node", "one more"]);
    }

    #[test]
    fn a_crowd_of_networks_leaves_known_addresses_and_certificates_their_places() {
        let mut peers = PendingPeers::new(3, PATIENCE);
        let known = IpAddr::from([192, 0, 2, 1]);
        assert_eq!(add(&mut peers, Holder::Known(known), "a member"), None);
        assert_eq!(add(&mut peers, network(2), "an operator"), None);
        let operator = peers.iter().find(|peer| peer.connection == "an operator").map(|peer| peer.id).unwrap();
        assert!(peers.recognise(operator, Holder::Trusted, Instant::now()).is_none());
        for host in 0..100 {
            add(&mut peers, network(host), "a stranger");
        }
        for _ in 0..100 {
            add(&mut peers, Holder::Client("greedy".into()), "a client");
        }
        let left = left(&peers);
        assert!(left.contains(&"a member") && left.contains(&"an operator"), "{left:?}");
        assert_eq!(left.len(), 1 + 1 + 3 + 3);
    }

    #[test]
    fn known_hosts_of_one_network_are_told_apart() {
        let mut peers = PendingPeers::new(3, PATIENCE);
        let known = |host: u16| Holder::Known(IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, host]));
        assert_eq!(add(&mut peers, known(1), "a node"), None);
        for silent in ["first", "second"] {
            assert_eq!(add(&mut peers, known(2), silent), None);
        }
        assert_eq!(add(&mut peers, known(2), "third"), Some("first"));
        assert_eq!(left(&peers), ["a node", "second", "third"]);
    }

    #[test]
    fn there_is_room_for_one_at_least() {
        let mut peers = PendingPeers::new(0, PATIENCE);
        assert_eq!(add(&mut peers, network(1), "first"), None);
        assert_eq!(add(&mut peers, network(1), "second"), Some("first"));
    }

    #[test]
    fn a_step_gives_a_connection_its_time_again() {
        let (mut peers, start) = (PendingPeers::new(3, PATIENCE), Instant::now());
        assert_eq!(peers.deadline(), None);
        for connection in ["slow", "quick"] {
            peers.add((), connection, start, network(1));
        }
        let quick = peers.iter().find(|peer| peer.connection == "quick").map(|peer| peer.id).unwrap();
        assert!(peers.recognise(quick, Holder::Trusted, start + PATIENCE / 2).is_none());
        assert!(peers.take_late(start + PATIENCE / 2).is_none());
        assert_eq!(peers.deadline(), Some(start + PATIENCE));
        assert_eq!(peers.take_late(start + PATIENCE).map(|peer| peer.connection), Some("slow"));
        assert!(peers.take_late(start + PATIENCE).is_none());
        assert_eq!(peers.deadline(), Some(start + PATIENCE * 3 / 2));
        assert_eq!(peers.take(quick).map(|peer| peer.connection), Some("quick"));
        assert!(peers.take(quick).is_none() && peers.get_mut(quick).is_none());
    }
}
