//! Connections whose other ends have not said which nodes they are.
//!
//! Anything may be at such an end, so these connections are few, and each has a time by which its end must have
//! introduced itself.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// A connection whose other end has not said which node it is.
pub(crate) struct PendingPeer<A, C> {
    pub(crate) id: u64,
    /// The address from which it came.
    pub(crate) from: A,
    pub(crate) connection: C,
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
    /// Room for `most` connections, or for one if that is 0, each of which has the time `patience`.
    pub(crate) fn new(most: usize, patience: Duration) -> PendingPeers<A, C> {
        PendingPeers { peers: Vec::new(), most: most.max(1), patience, next_id: 0 }
    }

    /// Adds a connection. Returns the one that gives up its place for it, if there is no other: the oldest from the
    /// host that has the most of them. A node introduces itself at once, and a host whose connections stay silent
    /// leaves nodes elsewhere their places. `host` is the part of an address by which hosts are told apart.
    pub(crate) fn add<H: Ord>(
        &mut self,
        from: A,
        connection: C,
        now: Instant,
        host: impl Fn(&A) -> H,
    ) -> Option<PendingPeer<A, C>> {
        let last = (self.peers.len() >= self.most).then(|| self.peers.remove(self.oldest_of_most(host)));
        self.next_id += 1;
        self.peers.push(PendingPeer { id: self.next_id, from, connection, deadline: now + self.patience });
        last
    }

    fn oldest_of_most<H: Ord>(&self, host: impl Fn(&A) -> H) -> usize {
        let mut hosts = BTreeMap::<H, (usize, Reverse<usize>)>::new();
        for (index, peer) in self.peers.iter().enumerate() {
            hosts.entry(host(&peer.from)).or_insert((0, Reverse(index))).0 += 1;
        }
        hosts.into_values().max().map_or(0, |(_, Reverse(oldest))| oldest)
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

    /// Gives a connection the time for one more step.
    pub(crate) fn renew(&mut self, id: u64, now: Instant) {
        let deadline = now + self.patience;
        if let Some(peer) = self.get_mut(id) {
            peer.deadline = deadline;
        }
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
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(1);

    /// Adds a connection that has the name `connection`, from a port of a host.
    fn add(
        peers: &mut PendingPeers<(u8, u16), &'static str>,
        from: (u8, u16),
        connection: &'static str,
    ) -> Option<&'static str> {
        peers.add(from, connection, Instant::now(), |(host, _)| *host).map(|peer| peer.connection)
    }

    #[test]
    fn a_host_with_many_silent_connections_loses_its_oldest() {
        let mut peers = PendingPeers::new(3, PATIENCE);
        assert_eq!(add(&mut peers, (1, 10), "a node"), None);
        assert_eq!(add(&mut peers, (2, 10), "first"), None);
        assert_eq!(add(&mut peers, (2, 11), "second"), None);
        assert_eq!(add(&mut peers, (2, 12), "third"), Some("first"));
        assert_eq!(add(&mut peers, (3, 10), "another node"), Some("second"));
        assert_eq!(add(&mut peers, (4, 10), "one more"), Some("a node"), "all hosts have one");
        let left: Vec<_> = peers.iter().map(|peer| peer.connection).collect();
        assert_eq!(left, ["third", "another node", "one more"]);
    }

    #[test]
    fn there_is_room_for_one_at_least() {
        let mut peers = PendingPeers::new(0, PATIENCE);
        assert_eq!(add(&mut peers, (1, 10), "first"), None);
        assert_eq!(add(&mut peers, (1, 11), "second"), Some("first"));
    }

    #[test]
    fn a_step_gives_a_connection_its_time_again() {
        let (mut peers, start) = (PendingPeers::new(3, PATIENCE), Instant::now());
        assert_eq!(peers.deadline(), None);
        for connection in ["slow", "quick"] {
            peers.add((), connection, start, |()| ());
        }
        let quick = peers.iter().find(|peer| peer.connection == "quick").map(|peer| peer.id).unwrap();
        peers.renew(quick, start + PATIENCE / 2);
        assert!(peers.take_late(start + PATIENCE / 2).is_none());
        assert_eq!(peers.deadline(), Some(start + PATIENCE));
        assert_eq!(peers.take_late(start + PATIENCE).map(|peer| peer.connection), Some("slow"));
        assert!(peers.take_late(start + PATIENCE).is_none());
        assert_eq!(peers.deadline(), Some(start + PATIENCE * 3 / 2));
        assert_eq!(peers.take(quick).map(|peer| peer.connection), Some("quick"));
        assert!(peers.take(quick).is_none() && peers.get_mut(quick).is_none());
    }
}
